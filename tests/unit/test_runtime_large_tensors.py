"""A change of a large tensor shows, also where it is of so few elements that no sample has them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support.sharded_models import laid_out, one_rank, rows
from trainingrun_runtime.checkpoints import data_changes, large_tensors, snapshot
from trainingrun_runtime.checkpoints.large_tensors import Versions


class Clones:
    """Returns its state in other tensors each time."""

    def __init__(self) -> None:
        self.table = torch.zeros(5_000, 16)

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.table.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.table = state["table"]


def versions(*objects: Any) -> Versions:
    by_name = {str(index): thing for index, thing in enumerate(objects)}
    return large_tensors.versions(snapshot.encoded(by_name, by_name), objects)


def test_nothing_has_changed_where_values_are_only_read() -> None:
    table, lstm = nn.Embedding(5_000, 16), nn.LSTM(128, 256)
    then = versions(table, lstm, Clones())
    table(torch.tensor([7])).sum().backward()
    table.weight.data.norm()
    lstm.flatten_parameters()  # it reads `.data`
    table.cpu()
    assert not then.changed(versions(table, lstm, Clones()))


def _keep_and_change(table: nn.Embedding) -> None:
    kept = table.weight.data[7:8]
    versions(table)
    kept += 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: t.weight.detach()[7].add_(1), id="a row"),
        pytest.param(lambda t: t.weight.data[7].add_(1), id="a row of .data"),
        pytest.param(_keep_and_change, id="a view of .data that was kept"),
        pytest.param(lambda t: setattr(t.weight, "data", torch.zeros(5_000, 16)), id="other .data"),
        pytest.param(
            lambda t: torch.compile(lambda p: p.data.add_(1), backend="eager")(t.weight),
            id=".data in compiled code",
        ),
    ],
)
def test_a_change_of_a_row_shows(change: Callable[[nn.Embedding], object]) -> None:
    table = nn.Embedding(5_000, 16)
    then = versions(table)
    change(table)
    assert then.changed(versions(table))
    assert not versions(table).changed(versions(table))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: t.weight.to_local().detach()[7].add_(1), id="a row of the part"),
        pytest.param(lambda t: t.weight.detach().mul_(2), id="the whole"),
    ],
)
def test_a_change_of_a_sharded_tensor_shows(change: Callable[[nn.Embedding], object]) -> None:
    with one_rank(1, 2):
        table = nn.Embedding(10_000, 16)
        table.weight = nn.Parameter(laid_out(table.weight.detach(), rows(2)))
        then = versions(table)
        table.weight.to_local().norm()
        assert not then.changed(versions(table))
        change(table)
        assert then.changed(versions(table))
        assert not versions(table).changed(versions(table))


def test_a_change_of_what_an_optimizer_keeps_for_a_sharded_tensor_shows() -> None:
    with one_rank(1, 2):
        weight = nn.Parameter(laid_out(torch.zeros(10_000, 16), rows(2)))
        optimizer = torch.optim.SGD([weight], momentum=0.9)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        then = versions(optimizer)
        assert not then.changed(versions(optimizer))
        optimizer.state[weight]["momentum_buffer"].to_local()[7].zero_()
        assert then.changed(versions(optimizer))


def test_what_data_returned_is_not_kept_longer_than_the_code_has_it() -> None:
    """It would keep the memory of data that was replaced."""
    parameter = nn.Parameter(torch.zeros(4))
    before = data_changes.changes()
    views = [parameter.data[1:], parameter.data[:1]]
    for _ in range(100):
        parameter.data.add_(1)
    assert len(data_changes._handed_out) <= 3
    views.clear()
    assert data_changes.changes() == before + 100
    assert not data_changes._handed_out
