"""Shards come from a bucket: what is missing, damaged or hostile in them is refused."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.sharded_checkpoints import restore, save_trained
from support.sharded_models import one_rank, rows, same_part, tensors, whole_model
from trainingrun_runtime.checkpoints import checkpoint_files, manifest, verification
from trainingrun_runtime.checkpoints.bucket import Bucket
from trainingrun_runtime.checkpoints.fetching import Fetched
from trainingrun_runtime.checkpoints.manifest import Manifest
from trainingrun_runtime.checkpoints.restored_files import FetchedFiles, files_of
from trainingrun_runtime.checkpoints.shard_files import DamagedShards
from trainingrun_runtime.checkpoints.storage_errors import StorageError
from trainingrun_runtime.ray_internals.filesystem import RetryingCheckpoint


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """A checkpoint of two ranks."""
    (tmp_path / "saved").mkdir()
    save_trained(tmp_path / "saved", rows(2))
    return tmp_path / "saved"


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def refused(folder: Path, said: str) -> None:
    with one_rank(0, 2), pytest.raises(DamagedShards, match=said):
        restore(folder, rows(2), 0)


@pytest.mark.parametrize("name", ["shard-1.pt", "shard-0.pt"])
def test_code_in_a_checkpoint_is_not_executed(two_ranks: Path, name: str) -> None:
    mark = two_ranks / "executed"
    torch.save({"model['weight']": Hostile(mark)}, two_ranks / name)
    with one_rank(0, 1), pytest.raises(DamagedShards, match=f"{name} cannot be read"):
        restore(two_ranks, rows(1), 0)
    assert not mark.exists()


def test_metadata_of_distributed_checkpoints_is_not_read(two_ranks: Path) -> None:
    """It is a pickle, which PyTorch's own reader executes."""
    mark = two_ranks / "executed"
    (two_ranks / ".metadata").write_bytes(pickle.dumps(Hostile(mark)))
    with one_rank(0, 2):
        restore(two_ranks, rows(2), 0)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        pytest.param(
            ["shard-1.pt", "shard-1.json"],
            r"a part of model\['weight'\], of shape \(8, 6\), is missing .* in shard-0\.pt",
            id="a rank's files",
        ),
        pytest.param(
            ["shard-1.pt"], r"has shard-1\.json and no shard-1\.pt", id="a rank's tensors"
        ),
        pytest.param(
            ["shard-1.json"], r"a part of model\['weight'\], .* is missing", id="a rank's index"
        ),
        pytest.param(
            ["shard-0.json", "shard-1.json"], r"has no part of model\['weight'\]", id="all of it"
        ),
    ],
)
def test_a_missing_shard_is_refused(two_ranks: Path, missing: list[str], said: str) -> None:
    for name in missing:
        (two_ranks / name).unlink()
    refused(two_ranks, said)


def test_a_damaged_shard_is_refused(two_ranks: Path) -> None:
    shard = two_ranks / "shard-0.pt"
    shard.write_bytes(shard.read_bytes()[:-100])
    refused(two_ranks, r"shard-0\.pt cannot be read")
    torch.save([1, 2], shard)
    refused(two_ranks, r"shard-0\.pt holds a list instead of tensors")


@pytest.fixture
def committed(two_ranks: Path) -> tuple[Bucket, Manifest]:
    """The same in a bucket."""
    bucket = Bucket.open(f"file://{two_ranks.parent}/bucket")
    path, files = "checkpoints/0001-000001/step-0000000007-1", manifest.digest_folder(two_ranks)
    found = Manifest.model_validate(
        {
            "path": path,
            "step": 7,
            "world_size": 2,
            "attempt": 1,
            "fencingToken": 1,
            "index": 1,
            "files": files,
            "time": 1000.0,
        }
    )
    for name in files:
        bucket.put(f"{path}/{name}", (two_ranks / name).read_bytes())
    manifest.commit(bucket, found)
    return bucket, found


def alter(bucket: Bucket, key: str) -> None:
    """Change one byte in the middle."""
    content = bytearray(bucket.get(key) or b"")
    content[len(content) // 2] ^= 1
    bucket.put(key, bytes(content))


def test_an_altered_shard_is_not_as_committed(committed: tuple[Bucket, Manifest]) -> None:
    bucket, found = committed
    assert verification.newest_intact(bucket)[0] == found
    alter(bucket, f"{found.path}/shard-1.pt")
    intact, skipped = verification.newest_intact(bucket)
    assert intact is None
    assert "shard-1.pt has another content than was committed" in skipped[0].reason


def test_a_rank_downloads_the_shards_that_it_needs_and_verifies_them(
    committed: tuple[Bucket, Manifest], tmp_path: Path
) -> None:
    bucket, found = committed
    checkpoint = RetryingCheckpoint(*checkpoint_files.offered(bucket, found))
    mine, whole = tmp_path / "mine", tensors(*whole_model(trained=True))
    mine.mkdir()
    with one_rank(1, 2):
        restored = restore(FetchedFiles(checkpoint, mine, list(found.files)), rows(2), 1)
        assert all(same_part(restored[name], whole[name]) for name in whole)
    assert sorted(file.name for file in mine.iterdir()) == [
        "random-1.pt", "shard-0.json", "shard-1.json", "shard-1.pt", "state.pt"
    ]  # fmt: skip
    with files_of(checkpoint, Fetched(bucket, found)) as files:
        assert isinstance(files, FetchedFiles)
        alter(bucket, f"{found.path}/shard-0.pt")
        with one_rank(0, 2), pytest.raises(StorageError, match=r"shard-0\.pt changed while"):
            restore(files, rows(2), 0)


def weight(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """A change of what is said of the weight."""
    return lambda index: change(index["parts"]["model['weight']"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            lambda index: index.update(version=2), r"cannot be read: version", id="a newer version"
        ),
        pytest.param(
            lambda index: index.update(parts=[1]), r"cannot be read: parts", id="no parts"
        ),
        pytest.param(
            weight(lambda part: part.update(offsets=[-4, 0])),
            r"cannot be read: parts.*greater than or equal to 0",
            id="before the tensor",
        ),
        pytest.param(
            weight(lambda part: part.update(offsets=[5, 0])),
            r"at \(5, 0\) of size \(4, 6\), outside of its shape \(8, 6\)",
            id="behind the tensor",
        ),
        pytest.param(
            weight(lambda part: part.update(offsets=[0])),
            r"at \(0,\) of size \(4, 6\), outside",
            id="too few dimensions",
        ),
        pytest.param(
            weight(lambda part: part.update(sizes=[0, 6])),
            r"cannot be read: parts.*greater than 0",
            id="an empty part",
        ),
        pytest.param(
            weight(lambda part: part.update(shape=[2**40, 2**20])),
            r"another rank's file one of",
            id="another shape than the other rank says",
        ),
        pytest.param(
            weight(lambda part: part.update(dtype="load")),
            r"another rank's file one of \(8, 6\) and load",
            id="no type",
        ),
        pytest.param(
            weight(lambda part: part.update(offsets=[4, 0])),
            r"a part of model\['weight'\], .* is missing",
            id="the place of the other rank's part",
        ),
        pytest.param(
            weight(lambda part: part.update(sizes=[5, 6])),
            r"a part of model\['weight'\], .* is there twice",
            id="more than it has",
        ),
        pytest.param(
            lambda index: index["parts"].pop("model['weight']"),
            r"a part of model\['weight'\], .* is missing",
            id="a part left out",
        ),
    ],
)
def test_a_hostile_index_is_refused(
    two_ranks: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    file = two_ranks / "shard-0.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_text(json.dumps(index))
    refused(two_ranks, said)


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04N.", b'{"parts": '], ids=["empty", "a pickle", "torn"]
)
def test_an_index_that_is_no_json_is_refused(two_ranks: Path, content: bytes) -> None:
    (two_ranks / "shard-1.json").write_bytes(content)
    refused(two_ranks, r"shard-1\.json cannot be read")


def test_an_index_of_another_ranks_tensors_is_refused(two_ranks: Path) -> None:
    first = torch.load(two_ranks / "shard-0.pt", weights_only=True)
    first["model['weight']"] = first["model['weight']"][:3].clone()
    torch.save(first, two_ranks / "shard-0.pt")
    refused(two_ranks, r"shard-0\.pt does not hold the part of model\['weight'\]")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"key": ["model"]}, "sharded and does not say how", id="a key that is a list"),
        pytest.param({"shape": "86"}, "sharded and does not say how", id="a shape that is text"),
        pytest.param({"shape": [8.0, 6]}, "sharded and does not say how", id="a shape of floats"),
        pytest.param({"dtype": "load"}, "sharded and does not say how", id="a function as type"),
        pytest.param({"dtype": "int8"}, "are of another tensor", id="another type"),
        pytest.param({"key": "model['bias']"}, "are of another tensor", id="another tensor's key"),
        pytest.param({"key": "../state.pt"}, r"has no part of \.\./state\.pt", id="a path"),
    ],
)
def test_a_hostile_description_is_refused(
    two_ranks: Path, change: dict[str, Any], said: str
) -> None:
    state = torch.load(two_ranks / "state.pt", weights_only=True)
    state["objects"]["model"]["items"]["weight"].update(change)
    torch.save(state, two_ranks / "state.pt")
    refused(two_ranks, said)


def test_files_of_other_names_are_left_alone(two_ranks: Path) -> None:
    for name in ("shard-01.json", "shard--1.json", "shard-2.json.bak", "shard-x.json"):
        shutil.copy(two_ranks / "shard-0.json", two_ranks / name)
    with one_rank(0, 2):
        found, whole = restore(two_ranks, rows(2), 0), tensors(*whole_model(trained=True))
        assert all(same_part(found[name], whole[name]) for name in whole)
