"""A fingerprint differs where the content does."""

import pytest
import torch

from trainingrun_runtime.checkpoints.fingerprint import WHOLE, fingerprint


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("count", [1, 3, 300, 5_001, WHOLE])
def test_an_element_that_was_changed_anywhere_shows(count: int, dtype: torch.dtype) -> None:
    tensor = torch.zeros(count, dtype=dtype)
    found = {fingerprint(tensor)}
    places = {0, count // 3, count // 2, count - 1}
    for place in places:
        changed = tensor.clone()
        changed[place] = 1
        found.add(fingerprint(changed))
    assert len(found) == 1 + len(places), "also where it was changed"


@pytest.mark.parametrize("width", [1, 2, 64, 128, 256])
def test_another_order_of_rows_shows(width: int) -> None:
    torch.manual_seed(0)
    rows = torch.rand(WHOLE // width, width)
    exchanged = rows.clone()
    exchanged[[3, 131]] = rows[[131, 3]]
    found = {fingerprint(rows), fingerprint(exchanged), fingerprint(rows.flip(0))}
    assert len(found) == 3
    assert fingerprint(rows.clone()) in found


def test_a_step_shows_in_a_large_tensor() -> None:
    large = torch.zeros(10 * WHOLE)
    before = fingerprint({"weight": large})
    large.add_(1e-3)
    assert fingerprint({"weight": large}) != before


def test_another_shape_and_another_type_show() -> None:
    tensor = torch.zeros(600)
    others = [tensor.reshape(20, 30), tensor.half(), tensor[:-1], tensor.to_sparse()]
    assert len({fingerprint(one) for one in (tensor, *others)}) == 5
