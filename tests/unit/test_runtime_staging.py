"""Copies of a checkpoint's tensors, in memory that the next checkpoint uses again."""

from mmap import PAGESIZE
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from support import checkpoints
from trainingrun_runtime.checkpoints import snapshot
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.checkpoints.sharded_state import mapped
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.staging import (
    PIECE,
    SMALL,
    Staging,
    is_pinned_for,
    new_place,
)
from trainingrun_runtime.checkpoints.state_comparison import Comparison

LARGE = SMALL  # of four bytes each


def placed(staging: Staging, state: Any) -> Any:
    return mapped(state, "", lambda _, tensor: staging.placed(tensor))


def copied(staging: Staging, state: Any) -> Any:
    staging.begin()
    found = placed(staging, state)
    staging.copy()
    return found


@pytest.fixture(params=[1, 2], ids=["one thread of PyTorch", "several"])
def _threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.rand(PIECE // 2 + 3), id="several pieces"),
        pytest.param(torch.rand(3), id="small"),
        pytest.param(torch.rand(LARGE, 2).t(), id="transposed"),
        pytest.param(torch.rand(LARGE, 1).expand(LARGE, 3), id="expanded"),
        pytest.param(torch.rand(2, 3, 200, 200).to(memory_format=torch.channels_last), id="nhwc"),
        pytest.param(torch.rand(LARGE, 2)[:, 0], id="view"),
        pytest.param(torch.rand(LARGE).to(torch.bfloat16), id="bfloat16"),
        pytest.param(torch.eye(1000).to_sparse(), id="sparse"),
        pytest.param(torch.tensor(5), id="number"),
        pytest.param(torch.empty(0), id="empty"),
    ],
)
def test_a_copy_has_the_values_and_is_its_own(tensor: torch.Tensor) -> None:
    staging = Staging()
    for _ in range(2):
        copy = copied(staging, {"a": [tensor, 1], "b": (tensor, "text")})
        assert (copy["a"][1], copy["b"][1]) == (1, "text")
        for one in (copy["a"][0], copy["b"][0]):
            assert one.dtype is tensor.dtype
            assert torch.equal(one.to_dense(), tensor.to_dense())
        if tensor.numel() and not tensor.is_sparse:
            places = [t.data_ptr() for t in (tensor, copy["a"][0], copy["b"][0])]
            assert len(set(places)) == 3


def test_the_next_checkpoint_is_in_the_same_memory() -> None:
    staging, tensor = Staging(), torch.rand(LARGE)
    first = copied(staging, {"a": tensor})["a"]
    tensor += 1
    second = copied(staging, {"a": tensor})["a"]
    assert second.data_ptr() == first.data_ptr()
    assert torch.equal(second, tensor)


@pytest.mark.parametrize(
    ("make", "pinned"),
    [
        pytest.param(lambda: torch.empty(2**20, device="cuda"), True, id="a power of two"),
        pytest.param(lambda: torch.empty(950_000, device="cuda"), True, id="almost one"),
        pytest.param(lambda: torch.empty(900_000, device="cuda"), False, id="an eighth too much"),
        pytest.param(lambda: torch.empty(2**20 + 1, device="cuda"), False, id="twice as much"),
        pytest.param(lambda: torch.empty(2**10, 2**10, device="cuda").t(), False, id="transposed"),
        pytest.param(
            lambda: torch.empty(2**20, device="cuda", dtype=torch.complex64).conj(),
            False,
            id="conjugate",
        ),
        pytest.param(lambda: torch.empty(2**20), False, id="on the CPU"),
    ],
)
def test_what_a_gpu_holds_is_pinned_where_rounding_costs_little(make: Any, pinned: bool) -> None:
    with FakeTensorMode():  # tensors of a GPU that is not there, without values
        tensor = make()
    assert is_pinned_for(tensor) is pinned


def test_memory_that_cannot_be_pinned_is_used_as_it_is() -> None:
    tensor = torch.rand(LARGE)
    place = new_place(tensor, pinned=True)  # without a GPU nothing can be
    assert (place.shape, place.dtype, place.is_cpu) == (tensor.shape, tensor.dtype, True)


def made(staging: Staging, state: Any) -> Any:
    """The places, their memory made."""
    staging.begin()
    places = placed(staging, state)
    staging.make_memory()
    return places


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.rand(LARGE), id="float32"),
        pytest.param(torch.rand(LARGE, 2).to(torch.bfloat16), id="bfloat16"),
        pytest.param(torch.rand(LARGE, dtype=torch.complex64), id="complex64"),
        pytest.param(torch.rand(2 * LARGE) > 0.5, id="bool"),
        pytest.param(torch.rand(LARGE, 2).t(), id="transposed"),
        pytest.param(torch.rand(LARGE, 1).expand(LARGE, 3), id="expanded"),
        pytest.param(torch.rand(LARGE, requires_grad=True), id="parameter"),
    ],
)
def test_the_first_checkpoint_is_in_memory_made_before(tensor: torch.Tensor) -> None:
    staging = Staging()
    place = made(staging, [tensor])[0]
    first = copied(staging, [tensor])[0]
    assert first.data_ptr() == place.data_ptr()
    assert torch.equal(first, tensor)


def test_a_first_checkpoint_waits_for_no_page_that_was_made_before() -> None:
    staging, tensor = Staging(), torch.rand(2**24)  # 64 MiB
    made(staging, tensor)
    assert staging._making is not None
    staging._making.join()
    before = getrusage(RUSAGE_SELF).ru_minflt
    copied(staging, tensor)
    pages = tensor.nbytes / PAGESIZE
    assert getrusage(RUSAGE_SELF).ru_minflt - before < 0.1 * pages


def test_a_checkpoint_that_begins_while_memory_is_made_is_whole() -> None:
    staging, tensor = Staging(), torch.full((2**27,), 255, dtype=torch.uint8)
    made(staging, tensor)
    assert torch.equal(copied(staging, tensor), tensor)


def test_a_session_saves_into_the_memory_that_was_made() -> None:
    model = torch.nn.Linear(400, 400)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(1, 400)).sum().backward()
    optimizer.step()
    objects = {"model": model, "optimizer": optimizer}
    staging, same = Staging(), Comparison({"optimizer"}, {})
    snapshot.place(snapshot.encoded(objects, objects), same, Position(), 0, 2, staging)
    staging.make_memory()
    before = places(staging)
    assert len(before) == 3  # the weight, and two of the optimizer; biases are small
    snapshot.take(snapshot.encoded(objects, objects), same, Position(step=1), 0, 2, staging)
    assert places(staging) == before


def places(staging: Staging) -> set[int]:
    return {tensor.data_ptr() for several in staging._used.values() for tensor in several}


def test_memory_that_a_checkpoint_no_longer_needs_is_given_back() -> None:
    staging = Staging()
    copied(staging, [torch.rand(LARGE), torch.rand(LARGE)])
    copied(staging, [torch.rand(LARGE)])
    assert sum(map(len, staging._used.values())) == 1
    assert not staging._free


def test_a_checkpoint_in_inference_mode_does_not_spoil_the_next() -> None:
    staging, tensor = Staging(), torch.rand(LARGE)
    with torch.inference_mode():
        copied(staging, tensor)
    assert torch.equal(copied(staging, tensor), tensor)


def test_a_restored_optimizer_keeps_nothing_of_the_file(tmp_path: Path) -> None:
    """The file is deleted after the restore, and its space is free only when nobody maps it."""
    model = torch.nn.Linear(400, 400)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(1, 400)).sum().backward()
    optimizer.step()
    objects = {"model": model, "optimizer": optimizer}
    states = snapshot.encoded(objects, objects)
    files = snapshot.take(states, Comparison(set(), {}), Position(step=1), 0, 1)
    checkpoints.write(files, tmp_path)
    wanted = [value.clone() for value in optimizer.state[model.weight].values()]
    other = torch.nn.Linear(400, 400)
    again = {"model": other, "optimizer": torch.optim.Adam(other.parameters())}
    snapshot.restore(LocalFiles(tmp_path), again, 0, 1)
    assert torch.equal(other.weight, model.weight)
    found = again["optimizer"].state[other.weight].values()
    assert len(found) == len(wanted) == 3
    assert all(map(torch.equal, found, wanted))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
