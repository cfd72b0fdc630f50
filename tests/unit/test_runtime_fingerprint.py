"""A fingerprint differs where the content does."""

import pytest
import torch

from trainingrun_runtime.checkpoints.state_comparison import _sums, fingerprint, sums_of_device

LARGE = 150_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("count", [1, 3, 300, 5_001, LARGE])
def test_an_element_that_was_changed_anywhere_shows(count: int, dtype: torch.dtype) -> None:
    tensor = torch.zeros(count, dtype=dtype)
    found = {fingerprint(tensor)}
    places = {0, count // 3, count // 2, count - 1, *range(0, count, 1 + count // 50)}
    for place in places:
        changed = tensor.clone()
        changed[place] = 1
        found.add(fingerprint(changed))
    assert len(found) == 1 + len(places), "also where it was changed"


@pytest.mark.parametrize("width", [1, 2, 64, 128, 256])
def test_another_order_of_rows_shows(width: int) -> None:
    torch.manual_seed(0)
    rows = torch.rand(LARGE // width, width)
    exchanged = rows.clone()
    exchanged[[3, 131]] = rows[[131, 3]]
    found = {fingerprint(rows), fingerprint(exchanged), fingerprint(rows.flip(0))}
    assert len(found) == 3
    assert fingerprint(rows.clone()) in found


@pytest.mark.parametrize("ranks", [2, 127, 128])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_counts_of_each_ranks_own_samples_show(ranks: int, dtype: torch.dtype) -> None:
    """Each has the same counts, at other places: sums of them would be the same."""
    found = set()
    for rank in (0, 1):
        seen = torch.zeros(LARGE // ranks * ranks, dtype=dtype)
        seen[rank::ranks] = 1
        found.add(fingerprint(seen))
    assert len(found) == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [1, 2, 4, 126, 127, 128, 254])
def test_two_signs_show(distance: int, dtype: torch.dtype) -> None:
    tensor = torch.ones(LARGE, dtype=dtype)
    found = {fingerprint(tensor)}
    for place in range(16):
        changed = tensor.clone()
        changed[[place, place + distance]] = -1
        found.add(fingerprint(changed))
    assert len(found) == 17


def test_a_part_of_a_tensor_is_as_its_copy() -> None:
    tensor = torch.arange(LARGE, dtype=torch.bfloat16)
    assert fingerprint(tensor[1:]) == fingerprint(tensor[1:].clone())
    assert fingerprint(tensor[::2]) == fingerprint(tensor[::2].clone())


def test_a_device_finds_what_the_processor_finds() -> None:
    rows = torch.randint(-(2**63), 2**63 - 1, (300, 127))
    assert sums_of_device(rows).tobytes() == _sums(rows.numpy()).tobytes()


def test_another_shape_and_another_type_show() -> None:
    tensor = torch.zeros(600)
    others = [tensor.reshape(20, 30), tensor.half(), tensor[:-1], tensor.to_sparse()]
    assert len({fingerprint(one) for one in (tensor, *others)}) == 5
