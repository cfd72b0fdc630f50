"""What a checkpoint of the session holds, for all ranks and for each of them."""

import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.train.torch.train_loop_utils import _WrappedDataLoader
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from support import checkpoints
from trainingrun_runtime.checkpoints import snapshot, state_comparison
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.checkpoints.encoding import NotSavable, UnknownForm
from trainingrun_runtime.checkpoints.restored_tensors import DamagedFiles
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.state_comparison import fingerprint
from trainingrun_runtime.checkpoints.stateful_objects import NotRestorable, replicated, restorable
from trainingrun_runtime.checkpoints.tensor_files import TensorFile, whole


class Counter:
    """Any object with a state."""

    def __init__(self, state: Any = 0) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["state"]


def saved(folder: Path, ranks: list[dict[str, Any]], own: set[str]) -> None:
    """A checkpoint of so many ranks, in `folder`."""
    for rank, objects in enumerate(ranks):
        states = snapshot.encoded(objects, objects)
        position = Position(step=7, epoch=1, epoch_began=5, stop_at=8, left=(3,))
        comparison = state_comparison.Comparison(own, {})
        checkpoints.write(snapshot.take(states, comparison, position, rank, len(ranks)), folder)


def test_each_rank_gets_its_own_state_back_and_all_get_the_shared_one(tmp_path: Path) -> None:
    saved(tmp_path, [{"a": Counter("a"), "mine": Counter(rank)} for rank in range(3)], {"mine"})
    for rank in range(3):
        objects = {"a": Counter(), "mine": Counter()}
        position = snapshot.restore(LocalFiles(tmp_path), objects, rank, 3)
        assert position == Position(step=7, epoch=1, epoch_began=5, stop_at=8, left=(3,))
        assert (objects["a"].state, objects["mine"].state) == ("a", rank)


def test_the_states_of_two_ranks_are_refused_to_three(tmp_path: Path) -> None:
    saved(tmp_path, [{"mine": Counter(rank)} for rank in range(2)], {"mine"})
    with pytest.raises(ValueError, match=r"of mine for each of its 2 ranks, .* has 3 workers"):
        snapshot.restore(LocalFiles(tmp_path), {"mine": Counter()}, 0, 3)


def test_what_all_ranks_share_fits_any_number_of_them(tmp_path: Path) -> None:
    saved(tmp_path, [{"a": Counter(5)}], set())
    for rank in range(3):
        objects = {"a": Counter()}
        snapshot.restore(LocalFiles(tmp_path), objects, rank, 3)
        assert objects["a"].state == 5


@pytest.mark.parametrize(
    ("thing", "other", "sentence"),
    [
        pytest.param(
            lambda: torch.nn.Linear(2, 3),
            lambda: torch.nn.Linear(2, 4),
            r"does not fit it \(Error.* size mismatch .*\); make it with the same layers",
            id="model",
        ),
        pytest.param(
            lambda: torch.optim.SGD([{"params": [_parameter()]}, {"params": [_parameter()]}]),
            lambda: torch.optim.SGD([_parameter()]),
            r"does not fit it \(loaded state dict has a different number of parameter groups\); "
            "make it over the same parameters as then, with all of its groups before the session",
            id="optimizer to which a group was added",
        ),
    ],
)
def test_what_is_made_in_another_way_is_refused_in_one_sentence(
    tmp_path: Path, thing: Callable[[], Any], other: Callable[[], Any], sentence: str
) -> None:
    saved(tmp_path, [{"it": thing()}], set())
    with pytest.raises(ValueError, match=f"^the checkpoint of step 7 {sentence}"):
        snapshot.restore(LocalFiles(tmp_path), {"it": other()}, 0, 1)


class _TooLarge(torch.nn.Linear):
    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_gpu_that_is_full_is_not_taken_for_another_model(tmp_path: Path) -> None:
    saved(tmp_path, [{"it": torch.nn.Linear(2, 1)}], set())
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory"):
        snapshot.restore(LocalFiles(tmp_path), {"it": _TooLarge(2, 1)}, 0, 1)


def _parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(2))


def test_generators_of_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    def generators() -> dict[str, Any]:
        return {"t": torch.Generator().manual_seed(1), "n": np.random.default_rng(1)}

    first = generators()
    torch.rand(3, generator=first["t"])
    first["n"].random(3)
    random.random()
    saved(tmp_path, [restorable(first)], set())
    wanted = (torch.rand(1, generator=first["t"]), first["n"].random(), random.random())
    again = generators()
    snapshot.restore(LocalFiles(tmp_path), restorable(again), 0, 1)
    assert (torch.rand(1, generator=again["t"]), again["n"].random(), random.random()) == wanted


@pytest.mark.parametrize(
    ("thing", "sentence"),
    [
        pytest.param(
            [1, 2], "data is a list, which has no state_dict and no load_state_dict", id="list"
        ),
        pytest.param(
            torch.utils.data.DataLoader([1]),
            r"make ResumableDataLoader\(dataset, …\) instead of DataLoader.*data is a DataLoader",
            id="DataLoader",
        ),
        pytest.param(
            _WrappedDataLoader(torch.utils.data.DataLoader([1]), torch.device("cpu"), False),
            r"make ResumableDataLoader\(dataset, …\) instead of prepare_data_loader\(DataLoader",
            id="Ray's DataLoader",
        ),
        pytest.param(iter([1]), "cannot bring it back", id="iterator"),
    ],
)
def test_what_has_no_state_is_refused(thing: Any, sentence: str) -> None:
    with pytest.raises(NotRestorable, match=sentence):
        restorable({"data": thing})


class Sharded(FullyShardedDataParallel):
    """FSDP's own class, which cannot be constructed without a GPU."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)


class HoldsSharded(torch.nn.Module):
    """A model of which one layer is sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Sharded()


@pytest.mark.parametrize("kind", [Sharded, HoldsSharded])
def test_a_sharded_model_is_refused(kind: type[torch.nn.Module]) -> None:
    """Its state is gathered from all ranks, or is one rank's part of it: neither may be saved."""
    with pytest.raises(NotRestorable, match=r"net is sharded \(FSDP\): .*DistributedDataParallel"):
        restorable({"net": kind()})


class DeepSpeedEngine(torch.nn.Module):
    """Of the name by which DeepSpeed's own is known, which is not in this environment."""


def test_an_engine_of_deepspeed_is_refused_with_what_takes_it() -> None:
    with pytest.raises(NotRestorable, match=r"\(DeepSpeed\): .*deepspeed\.prepared_session"):
        restorable({"engine": DeepSpeedEngine()})


def test_a_compiled_models_checkpoint_fits_the_model_that_is_not() -> None:
    model = torch.nn.Linear(2, 1)
    compiled = torch.compile(model)
    assert restorable({"m": compiled})["m"].state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("broadcast", [True, False])
def test_data_parallelism_keeps_what_it_broadcasts_alike(
    monkeypatch: pytest.MonkeyPatch, broadcast: bool
) -> None:
    """Without it the running means of a batch norm are each rank's own."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.BatchNorm1d(2), broadcast_buffers=broadcast)
        assert replicated(model) is broadcast
        assert not replicated(model.module)
    finally:
        torch.distributed.destroy_process_group()


def test_a_state_is_tried_without_the_values_of_its_tensors() -> None:
    state = {"weights": torch.ones(1000), "array": np.ones(10), "names": {"a", "b"}}
    snapshot.try_out(snapshot.encoded({"it": Counter(state)}, {"it"}))
    with pytest.raises(NotSavable, match=r"it: state_dict\(\)\['state'\]\['f'\] is a function"):
        snapshot.encoded({"it": Counter({"f": lambda: 0})}, {"it"})


def test_two_objects_with_a_tensor_of_one_name_are_refused() -> None:
    """One would be restored with the values of the other."""
    net = torch.nn.Sequential()
    net.add_module("head", torch.nn.Linear(1, 1))
    objects = {"net": net, "net.head": torch.nn.Linear(1, 1)}
    with pytest.raises(NotSavable, match=r"net and net\.head both have a tensor net\.head\.weight"):
        snapshot.try_out(snapshot.encoded(objects, objects))
    objects["net.tail"] = objects.pop("net.head")
    snapshot.try_out(snapshot.encoded(objects, objects))


def test_a_tensor_whose_name_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    """Such as one for each file of a folder; no reader of the files takes that name."""
    name = os.fsdecode(b"m\xe4dchen.wav")
    objects = {"it": Counter({name: torch.ones(2)})}
    refused = r"it\.state\.m\\udce4dchen\.wav is the name of a tensor and no UTF-8"
    with pytest.raises(NotSavable, match=refused):
        snapshot.try_out(snapshot.encoded(objects, objects))
    with pytest.raises(NotSavable, match=refused):
        saved(tmp_path, [objects], set())
    kept = {"it": Counter({"m\xe4dchen.wav": torch.ones(2), "text": name})}
    saved(tmp_path, [kept], set())
    again = {"it": Counter()}
    snapshot.restore(LocalFiles(tmp_path), again, 0, 1)
    assert again["it"].state["text"] == name


def test_what_is_no_tensor_is_read_back_before_it_counts() -> None:
    tensors = TensorFile({"it": whole(torch.ones(3))})
    readable = {"objects": {"it": {"step": 7, "of": torch.ones(2).to_sparse()}}}
    snapshot.require_readable({"session.pt": readable, "state-0.safetensors": tensors})
    unknown = {"objects": {"other": 1, "it": [1, 2**3000]}}
    with pytest.raises(NotSavable, match=r"^it: its state cannot be read back from a checkpoint"):
        snapshot.require_readable({"random-0.pt": readable, "session.pt": unknown})


def rewrite(file: Path, **changed: Any) -> None:
    content = torch.load(file, weights_only=True)
    torch.save({**content, **changed}, file)


def test_a_checkpoint_that_nobody_can_read_is_told_before_it_is_restored(tmp_path: Path) -> None:
    saved(tmp_path, [{"a": Counter(1)}, {"a": Counter(1)}], set())
    names = ["session.pt", "random-1.pt"]
    assert snapshot.unreadable(LocalFiles(tmp_path), names) is None
    rewrite(tmp_path / "session.pt", objects={"a": 2**3000})
    assert str(snapshot.unreadable(LocalFiles(tmp_path), names)).startswith(
        "session.pt cannot be read: "
    )


def test_what_a_later_version_has_written_makes_no_checkpoint_damaged(tmp_path: Path) -> None:
    """The one before it would be restored, and this one be deleted later."""
    saved(tmp_path, [{"a": Counter(1)}, {"a": Counter(1)}], set())
    rewrite(tmp_path / "random-1.pt", objects={"b": {"__trainingrun__": "newer"}})
    with pytest.raises(UnknownForm, match="holds a 'newer', which this version of trainingrun"):
        snapshot.unreadable(LocalFiles(tmp_path), ["session.pt", "random-1.pt"])


def test_a_tensor_of_a_later_pytorch_makes_no_checkpoint_damaged(tmp_path: Path) -> None:
    """One of a type that no file of tensors holds."""
    saved(tmp_path, [{"a": Counter(torch.zeros(2, dtype=torch.float8_e8m0fnu))}], set())
    file = tmp_path / "session.pt"
    renamed = tmp_path / "renamed"
    with zipfile.ZipFile(file) as found, zipfile.ZipFile(renamed, "w") as written:
        for name in found.namelist():
            written.writestr(name, found.read(name).replace(b"float8_e8m0fnu", b"float8_e9m9fnu"))
    renamed.replace(file)
    said = r"holds torch\.float8_e9m9fnu, which this version of PyTorch does not know"
    with pytest.raises(UnknownForm, match=said):
        snapshot.unreadable(LocalFiles(tmp_path), ["session.pt"])
    with pytest.raises(UnknownForm, match=said):
        snapshot.restore(LocalFiles(tmp_path), {"a": Counter()}, 0, 1)


def test_memory_that_is_full_says_nothing_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training would begin at an older one, though this one is intact."""
    saved(tmp_path, [{"a": Counter(1)}], set())

    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(MemoryError):
        snapshot.unreadable(LocalFiles(tmp_path), ["session.pt"])


def test_a_missing_file_of_a_rank_is_no_rank_without_one(tmp_path: Path) -> None:
    saved(tmp_path, [{"a": Counter(rank)} for rank in range(2)], set())
    (tmp_path / "random-1.pt").unlink()
    files = LocalFiles(tmp_path)
    reason = snapshot.unreadable(files, ["session.pt", "random-0.pt"])
    assert reason == "it lacks random-1.pt, of one of its 2 ranks"
    with pytest.raises(DamagedFiles, match=r"lacks random-1\.pt; it was not written whole"):
        snapshot.restore(files, {"a": Counter()}, 1, 2)
    newcomer = Counter()
    snapshot.restore(files, {"a": newcomer}, 2, 3)
    assert newcomer.state == 0, "a rank that the former world did not have"


def test_after_survivors_have_saved_no_rank_needs_a_file_of_its_own(tmp_path: Path) -> None:
    states = snapshot.encoded({"a": Counter(5)}, {"a"})
    trees = {name: state.tree for name, state in states.items()}
    notes = {name: state.notes for name, state in states.items()}
    checkpoints.write(snapshot.shared(trees, notes, Position(step=7), 2), tmp_path)
    assert snapshot.unreadable(LocalFiles(tmp_path), ["session.pt"]) is None
    found = Counter()
    snapshot.restore(LocalFiles(tmp_path), {"a": found}, 1, 2)
    assert found.state == 5


class OwnForm(torch.optim.SGD):
    """An optimizer whose state has a form of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.param_groups[0]["lr"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.param_groups[0]["lr"] = state_dict["rate"]


def test_an_optimizer_with_a_state_of_its_own_form_restores_it_itself(tmp_path: Path) -> None:
    first, second = (OwnForm([torch.zeros(3)], lr=rate) for rate in (0.5, 0.1))
    saved(tmp_path, [{"o": first}], set())
    snapshot.restore(LocalFiles(tmp_path), {"o": second}, 0, 1)
    assert second.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_fingerprint_distinguishes_states(size: int) -> None:
    one, other = torch.zeros(size), torch.zeros(size)
    assert fingerprint({"a": one}) == fingerprint({"a": other})
    other += 1e-7
    assert fingerprint({"a": one}) != fingerprint({"a": other})
    assert fingerprint([1, "1"]) != fingerprint(["1", 1])
    assert fingerprint(one.to(torch.float64)) != fingerprint(one)
    assert fingerprint({}) != fingerprint([])
