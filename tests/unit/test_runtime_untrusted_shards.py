"""Shards come from a bucket: what is missing, damaged or hostile in them is refused."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from support.sharded_checkpoints import restore, save_trained
from support.sharded_models import one_rank, rows, same_part, tensors, whole_model
from trainingrun_runtime.checkpoints import snapshot
from trainingrun_runtime.checkpoints.downloads import Fetched, LocalFiles
from trainingrun_runtime.checkpoints.encoding import UnknownForm
from trainingrun_runtime.checkpoints.restored_tensors import DamagedFiles
from trainingrun_runtime.store import manifest, verification
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import Manifest
from trainingrun_runtime.store.storage_errors import StorageError


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a store is asked for again without a pause."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two ranks, which no test changes."""
    folder = tmp_path_factory.mktemp("saved")
    save_trained(folder, rows(2))
    return folder


@pytest.fixture
def two_ranks(saved: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(saved, tmp_path / "saved")


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def refused(folder: Path, said: str) -> None:
    """Before a worker group restores it, so that the one before counts, and by a restore alone."""
    reason = snapshot.unreadable(LocalFiles(folder), ["session.pt", "random-0.pt"])
    assert re.search(said, str(reason))
    with one_rank(0, 2), pytest.raises(DamagedFiles, match=said):
        restore(folder, rows(2), 0)


def test_what_is_whole_is_read_by_all_ranks(two_ranks: Path) -> None:
    for rank in range(2):
        names = ["session.pt", f"random-{rank}.pt"]
        assert snapshot.unreadable(LocalFiles(two_ranks), names) is None


@pytest.mark.parametrize("name", ["rank-1.safetensors", "rank-0.safetensors"])
def test_code_in_a_file_of_tensors_is_not_executed(two_ranks: Path, name: str) -> None:
    mark = two_ranks / "executed"
    torch.save({"model.weight": Hostile(mark)}, two_ranks / name)
    refused(two_ranks, f"{name} cannot be read: its header has")
    assert not mark.exists()


@pytest.mark.parametrize("name", ["session.pt", "random-0.pt"])
def test_code_in_what_is_no_tensor_is_not_executed(two_ranks: Path, name: str) -> None:
    mark = two_ranks / "executed"
    torch.save({"objects": Hostile(mark)}, two_ranks / name)
    refused(two_ranks, f"{name} cannot be read")
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
        pytest.param([1], r"a part of model\.weight, of shape \(8, 6\), is missing", id="a rank's"),
        pytest.param([0, 1], r"has no part of model\.weight", id="all of it"),
    ],
)
def test_a_missing_file_of_tensors_is_refused(
    two_ranks: Path, missing: list[int], said: str
) -> None:
    for rank in missing:
        (two_ranks / f"rank-{rank}.safetensors").unlink()
    refused(two_ranks, said)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda whole: whole[:-100], id="torn"),
        pytest.param(lambda whole: whole[:20], id="torn within its header"),
        pytest.param(lambda whole: b"", id="empty"),
        pytest.param(lambda whole: b"\xff" * 8 + whole[8:], id="a header beyond any memory"),
        pytest.param(lambda whole: whole[:8] + b"[1]" + whole[11:], id="no header"),
        pytest.param(lambda whole: whole + b"more", id="more than it says"),
    ],
)
def test_a_damaged_file_of_tensors_is_refused(
    two_ranks: Path, content: Callable[[bytes], bytes]
) -> None:
    file = two_ranks / "rank-0.safetensors"
    file.write_bytes(content(file.read_bytes()))
    refused(two_ranks, r"rank-0\.safetensors cannot be read|tensors cannot be read")


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
    """Change the last byte."""
    content = bytearray(bucket.get(key) or b"")
    content[-1] ^= 1
    bucket.put(key, bytes(content))


def test_an_altered_shard_is_not_as_committed(committed: tuple[Bucket, Manifest]) -> None:
    bucket, found = committed
    assert verification.newest_intact(bucket)[0] == found
    alter(bucket, f"{found.path}/rank-1.safetensors")
    intact, skipped = verification.newest_intact(bucket)
    assert intact is None
    assert "rank-1.safetensors has another content than was committed" in skipped[0].reason


def downloaded(fetched: Fetched) -> list[str]:
    return sorted(file.name for file in fetched.folder.iterdir())


def test_a_rank_downloads_the_files_that_it_needs_and_verifies_them(
    committed: tuple[Bucket, Manifest],
) -> None:
    bucket, found = committed
    whole, fetched = tensors(*whole_model(trained=True)), Fetched(bucket, found)
    with one_rank(1, 2):
        restored = restore(fetched, rows(2), 1)
        assert all(same_part(restored[name], whole[name]) for name in whole)
    assert downloaded(fetched) == [
        "random-1.pt", "rank-1.safetensors", "session.pt", "state-0.safetensors"
    ]  # fmt: skip
    fetched.close()
    alter(bucket, f"{found.path}/rank-0.safetensors")
    fetched = Fetched(bucket, found)
    with (
        closing(fetched),
        one_rank(0, 2),
        pytest.raises(StorageError, match=r"rank-0\.safetensors has another"),
    ):
        restore(fetched, rows(2), 0)


class Lying(LocalFiles):
    """Files whose headers were others when they were first read: the ranks' parts are swapped."""

    def header(self, name: str) -> bytes:
        found = super().header(name)
        if name == "rank-0.safetensors":
            return found.replace(b": [0, 0]", b": [4, 0]").replace(b": [0]", b": [4]")
        return found.replace(b": [4, 0]", b": [0, 0]").replace(b": [4]", b": [0]")


def test_a_header_that_was_another_one_leads_to_no_part(two_ranks: Path) -> None:
    """Of a file that a rank does not need it reads the header alone, which is not verified."""
    with one_rank(0, 2), pytest.raises(DamagedFiles, match="was changed while it was restored"):
        restore(Lying(two_ranks), rows(2), 0)


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], Any]) -> None:
    """Change what a file of tensors holds, and where it says that its parts lie."""
    with safe_open(file, "pt") as opened:
        content = {key: opened.get_tensor(key).clone() for key in opened.keys()}  # noqa: SIM118
        offsets = json.loads(opened.metadata()["DCP_SHARDING_INFO"])
    change(content, offsets)
    save_file(content, file, {"DCP_SHARDING_INFO": json.dumps(offsets)})


def weight_at(place: Any) -> Callable[[Any, dict[str, Any]], Any]:
    """The weight's part is said to be elsewhere."""
    return lambda content, offsets: offsets["model.weight"].update(saved_offsets=place)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(weight_at([-4, 0]), "outside of its shape|cannot be read", id="before it"),
        pytest.param(weight_at([5, 0]), r"outside of its shape \(8, 6\)", id="behind it"),
        pytest.param(weight_at([0]), "outside of its shape|cannot be read", id="fewer dimensions"),
        pytest.param(weight_at("00"), "cannot be read", id="text"),
        pytest.param(weight_at(None), "cannot be read", id="nothing"),
        pytest.param(weight_at([2**40, 0]), "outside of its shape", id="a gigantic tensor"),
        pytest.param(weight_at([4, 0]), r"a part of model\.weight, .* is missing", id="another's"),
        pytest.param(
            lambda content, offsets: offsets.pop("model.weight"), "cannot be read", id="left out"
        ),
        pytest.param(
            lambda content, offsets: content.update({"model.weight": torch.zeros(5, 6)}),
            r"a part of model\.weight, .* is there twice",
            id="more than it has",
        ),
        pytest.param(
            lambda content, offsets: content.update({"model.weight": torch.zeros(3, 6)}),
            r"a part of model\.weight, .* is missing",
            id="less than it has",
        ),
        pytest.param(
            lambda content, offsets: content.update({"model.weight": torch.zeros(4, 6).half()}),
            r"rank-0\.safetensors has a part of model\.weight of type torch\.float16",
            id="another type",
        ),
        pytest.param(
            lambda content, offsets: content.pop("model.weight"),
            r"a part of model\.weight, .* is missing",
            id="a part left out",
        ),
    ],
)
def test_a_hostile_file_of_tensors_is_refused(
    two_ranks: Path, change: Callable[[Any, Any], Any], said: str
) -> None:
    rewrite(two_ranks / "rank-0.safetensors", change)
    refused(two_ranks, said)


STEP = "optimizer.state.0.step"
NOT_AS_SAID = rf"state-0\.safetensors does not hold {STEP} as the checkpoint's state says"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            lambda content, offsets: content.update({STEP: torch.zeros(2)}),
            NOT_AS_SAID,
            id="another shape",
        ),
        pytest.param(
            lambda content, offsets: content.update({STEP: torch.tensor(0.0).half()}),
            NOT_AS_SAID,
            id="another type",
        ),
        pytest.param(
            lambda content, offsets: content.pop(STEP),
            rf"{STEP} in state-0\.safetensors cannot be read",
            id="left out",
        ),
    ],
)
def test_a_tensor_that_is_not_what_the_state_says_is_refused(
    two_ranks: Path, change: Callable[[Any, Any], Any], said: str
) -> None:
    rewrite(two_ranks / "state-0.safetensors", change)
    refused(two_ranks, said)


def test_a_missing_file_of_what_all_ranks_hold_is_refused(two_ranks: Path) -> None:
    (two_ranks / "state-0.safetensors").unlink()
    refused(two_ranks, r"lacks state-0\.safetensors, with .*; it was not written whole")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"key": ["model"]}, "does not say which tensor", id="a key that is a list"),
        pytest.param({"shape": "86"}, "does not say which tensor", id="a shape that is text"),
        pytest.param({"shape": [8.0, 6]}, "does not say which tensor", id="a shape of floats"),
        pytest.param({"dtype": "load"}, "does not say which tensor", id="a function as type"),
        pytest.param({"file": "../x"}, "does not say which tensor", id="a file that is a path"),
        pytest.param({"file": 1}, "does not say which tensor", id="a file that is a number"),
        pytest.param({"order": [0, 0]}, "does not say which tensor", id="no order"),
        pytest.param({"device": 1}, "does not say which tensor", id="a device that is a number"),
        pytest.param({"dtype": "int8"}, "of type torch.float32", id="another type"),
        pytest.param({"key": "model.bias"}, "names model.bias for two", id="another tensor's key"),
        pytest.param({"key": "../x"}, r"has no part of \.\./x", id="a path"),
    ],
)
def test_a_hostile_description_is_refused(
    two_ranks: Path, change: dict[str, Any], said: str
) -> None:
    state = torch.load(two_ranks / "session.pt", weights_only=True)
    state["objects"]["model"]["items"]["weight"].update(change)
    torch.save(state, two_ranks / "session.pt")
    refused(two_ranks, said)


@pytest.mark.parametrize("dtype", ["float3", "float8_e8m0fnu"])
@pytest.mark.parametrize("held", ["weight", "other"])
def test_a_type_of_which_a_later_version_makes_files_is_not_taken_for_damage(
    two_ranks: Path, dtype: str, held: str
) -> None:
    """PyTorch may have the type already."""
    state = torch.load(two_ranks / "session.pt", weights_only=True)
    items = state["objects"]["model"]["items"]
    items[held] = {**items["weight"], "dtype": dtype}
    torch.save(state, two_ranks / "session.pt")
    said = rf"the checkpoint holds files of tensors of torch\.{dtype}, which this version"
    with pytest.raises(UnknownForm, match=said):
        snapshot.unreadable(LocalFiles(two_ranks), ["session.pt", "random-0.pt"])
    with one_rank(0, 2), pytest.raises(UnknownForm, match=said):
        restore(two_ranks, rows(2), 0)


def test_files_of_other_names_are_left_alone(two_ranks: Path) -> None:
    for name in ("rank-01", "rank--1", "rank-x", "rank-2.safetensors.bak", "model"):
        shutil.copy(two_ranks / "rank-0.safetensors", two_ranks / f"{name}.safetensors")
    with one_rank(0, 2):
        found, whole = restore(two_ranks, rows(2), 0), tensors(*whole_model(trained=True))
        assert all(same_part(found[name], whole[name]) for name in whole)
