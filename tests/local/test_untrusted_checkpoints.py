"""What somebody puts beside a checkpoint reaches nobody: only named files are restored."""

import json
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from blake3 import blake3
from ray.train import Checkpoint

from trainingrun_runtime.checkpoints import checkpoint_files
from trainingrun_runtime.store import manifest, verification
from trainingrun_runtime.store.bucket import Bucket, Entry, StorageError
from trainingrun_runtime.store.manifest import FileDigest, Manifest
from trainingrun_runtime.store.verification import newest_intact, verify

FOLDER = "checkpoints/0001-000001/step-0000000010-1"
FILES = {"state.pt": b"weights" * 1000, "rank-0/random.pt": b"numbers", "rank-0/empty": b""}


def digest(content: bytes) -> FileDigest:
    return FileDigest(len(content), blake3(content).hexdigest())


def a_manifest(index: int = 1, **changes: Any) -> Manifest:
    return Manifest.model_validate(
        {
            "path": FOLDER,
            "step": 10,
            "world_size": 2,
            "attempt": 1,
            "fencingToken": 1,
            "index": index,
            "files": {name: digest(content) for name, content in FILES.items()},
            "time": 1000.0,
            **changes,
        }
    )


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a store is asked for again without a pause."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, 0.0))


@pytest.fixture
def saved(bucket: Bucket) -> Manifest:
    """A committed checkpoint of three files."""
    committed = a_manifest()
    for name, content in FILES.items():
        bucket.put(f"{committed.path}/{name}", content)
    manifest.commit(bucket, committed)
    return committed


def restored(bucket: Bucket, committed: Manifest, folder: Path) -> dict[str, bytes]:
    """As training code does it: what lies below the folder afterwards."""
    path, filesystem = checkpoint_files.offered(bucket, committed)
    Checkpoint(path, filesystem).to_directory(folder)
    found = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


def test_exactly_the_named_files_are_restored(bucket: Bucket, saved: Manifest, tmp_path: Path):
    for name in ("sitecustomize.py", "rank-0/unnamed", "deeper/than/expected"):
        bucket.put(f"{FOLDER}/{name}", b"put there by somebody else")
    assert restored(bucket, saved, tmp_path / "restored") == FILES


class _AnyKeys(pyarrow.fs.FileSystemHandler):
    """An object store as S3 is one: keys are free text, `..` in them is nothing special.

    The test's own S3 server keeps objects as files and cannot hold such a key.
    """

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def get_type_name(self) -> str:
        return "free keys"

    def get_file_info(self, paths: list[str]) -> list[pyarrow.fs.FileInfo]:
        kinds = pyarrow.fs.FileType
        return [
            pyarrow.fs.FileInfo(path, kinds.File, size=len(self.objects[path]))
            if path in self.objects
            else pyarrow.fs.FileInfo(path, kinds.Directory)
            for path in paths
        ]

    def get_file_info_selector(self, selector: Any) -> list[pyarrow.fs.FileInfo]:
        keys = [key for key in self.objects if key.startswith(f"{selector.base_dir}/")]
        return self.get_file_info([f"{selector.base_dir}/rank-0", *keys])

    def open_input_stream(self, path: str) -> Any:
        return pyarrow.BufferReader(self.objects[path])

    def normalize_path(self, path: str) -> str:
        return path

    open_input_file = open_input_stream
    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = None  # never called
    delete_root_dir_contents = move = open_append_stream = open_output_stream = None


def test_a_key_that_leads_out_of_the_folder_is_never_downloaded(
    bucket: Bucket, saved: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = bucket.path
    objects = {f"{root}/{FOLDER}/{name}": content for name, content in FILES.items()}
    objects[f"{root}/{FOLDER}/../../escaped"] = b"anything"
    store = pyarrow.fs.PyFileSystem(_AnyKeys(objects))

    unguarded = tmp_path / "a" / "b" / "unguarded"
    Checkpoint(f"{root}/{FOLDER}", store).to_directory(unguarded)
    assert (tmp_path / "a" / "escaped").exists(), "Ray itself follows such a key"

    listed, escaping = bucket.list, Entry(f"{FOLDER}/../../escaped", len(b"anything"))
    monkeypatch.setattr(type(bucket), "list", lambda _, prefix="": [*listed(prefix), escaping])
    guarded = tmp_path / "c" / "d" / "guarded"
    assert restored(bucket, saved, guarded) == FILES
    assert not (tmp_path / "c" / "escaped").exists()


@pytest.mark.parametrize(
    "content",
    [b"weightz" * 1000, b"weights" * 999, b"weights" * 1001, b""],
    ids=["altered", "shorter", "longer", "emptied"],
)
def test_a_file_that_changes_after_it_was_verified_is_not_restored(
    bucket: Bucket, saved: Manifest, tmp_path: Path, content: bytes
):
    assert verify(bucket, saved) is None
    bucket.put(f"{FOLDER}/state.pt", content)
    with pytest.raises(StorageError, match=r"state\.pt changed while it was restored"):
        restored(bucket, saved, tmp_path / "restored")
    path, filesystem = checkpoint_files.offered(bucket, saved)
    with pytest.raises(StorageError, match=r"state\.pt changed while it was restored"):
        filesystem.open_input_file(f"{path}/state.pt")


def test_training_code_that_opens_files_itself_sees_the_same(bucket: Bucket, saved: Manifest):
    path, filesystem = checkpoint_files.offered(bucket, saved)
    with filesystem.open_input_stream(f"{path}/state.pt") as file:
        assert file.read() == FILES["state.pt"]
    with filesystem.open_input_file(f"{path}/state.pt") as file:
        file.seek(7)
        assert file.read(7) == b"weights"
    with pytest.raises(FileNotFoundError):
        filesystem.open_input_stream(f"{path}/../../../manifests/000001-000001.json")
    with pytest.raises(PermissionError, match="read-only"):
        filesystem.delete_dir(path)


def test_a_manifest_without_files_is_no_checkpoint(bucket: Bucket, saved: Manifest):
    empty = a_manifest(index=2, files={}, step=20)
    manifest.commit(bucket, empty)
    found, skipped = newest_intact(bucket)
    assert found == saved
    assert "is committed without any file" in skipped[0].reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"path": "lease"}, "'lease' is not below checkpoints/", id="the lease"),
        pytest.param(
            {"path": "checkpoints"},
            "'checkpoints' is not below checkpoints/",
            id="the folder of all",
        ),
        pytest.param(
            {"path": "manifests/x"}, "'manifests/x' is not below checkpoints/", id="another folder"
        ),
        pytest.param(
            {"path": "checkpoints/../../other"},
            "leads out of the run's folder",
            id="out of the run",
        ),
        pytest.param(
            {"files": {"../../x": digest(b"")}},
            "leads out of the run's folder",
            id="file in a parent",
        ),
        pytest.param(
            {"files": {"/etc/x": digest(b"")}}, "leads out of the run's folder", id="absolute file"
        ),
        pytest.param(
            {"files": {"a\0b": digest(b"")}}, "leads out of the run's folder", id="NUL in a name"
        ),
        pytest.param(
            {"files": {"a": digest(b""), "a/b/c": digest(b"")}},
            "cannot be a file and the folder of",
            id="file and folder",
        ),
    ],
)
def test_a_manifest_that_names_anything_else_is_passed_over(
    bucket: Bucket, saved: Manifest, changes: dict[str, Any], said: str
):
    forged = a_manifest(index=2).model_dump(mode="json", by_alias=True)
    plain = {
        key: {name: {"size": d.size, "blake3": d.blake3} for name, d in value.items()}
        if key == "files"
        else value
        for key, value in changes.items()
    }
    bucket.put("manifests/000001-000002.json", json.dumps(forged | plain).encode())
    found, skipped = newest_intact(bucket)
    assert found == saved
    assert said in skipped[0].reason


def test_an_object_too_large_for_a_manifest_is_not_even_read(
    bucket: Bucket, saved: Manifest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(manifest, "LARGEST", 1000)
    key = "manifests/000001-000002.json"
    bucket.put(key, b" " * 1001)
    get = type(bucket).get
    read: list[str] = []
    monkeypatch.setattr(
        type(bucket), "get", lambda self, name: read.append(name) or get(self, name)
    )
    found, skipped = newest_intact(bucket)
    assert found == saved
    assert f"{key} cannot be read: it has 1001 bytes" in skipped[0].reason
    assert key not in read
