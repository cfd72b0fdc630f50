"""Which objects are the same on every rank, by digests of their states."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from trainingrun_runtime.checkpoints import snapshot, state_comparison
from trainingrun_runtime.session.session_context import SavedObjects

SAMPLES, ROWS = 200_000, 20_000


class Losses:
    """A rank's table of the losses of the samples that it has trained on."""

    def __init__(self, rank: int) -> None:
        self.table = np.zeros(SAMPLES, np.float32)
        self.table[1 + rank :: 390] = 0.5 + rank

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.table}

    def load_state_dict(self, state: Any) -> None:
        self.table = state["table"]


def own_of(ranks: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of the objects of which each rank has a state of its own."""
    names = sorted(ranks[0])
    numbers: list[list[int]] = []
    for objects in ranks:
        found = state_comparison.fingerprints(snapshot.encoded(objects, names))
        numbers.append([number for name in names for number in found[name]])
    return state_comparison.compare(names, numbers, 0).own


def an_embedding(rank: int) -> dict[str, Any]:
    """A sparse one and its optimizer, of which a rank has trained the rows of its own batch."""
    torch.manual_seed(0)
    model = nn.Embedding(ROWS, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    for batch in (torch.arange(50), torch.arange(7, 9) + 3 * rank):  # the first is the same
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def test_a_large_table_of_a_ranks_own_samples_is_its_own() -> None:
    assert own_of([{"losses": Losses(rank)} for rank in (0, 1)]) == {"losses"}
    assert own_of([{"losses": Losses(0)} for _ in (0, 1)]) == set()


def test_a_large_embedding_and_its_optimizer_that_differ_in_few_rows_are_each_ranks_own() -> None:
    """Else a checkpoint would have weights of one rank, and moments of another one."""
    assert own_of([an_embedding(rank) for rank in (0, 1)]) == {"model", "optimizer"}
    assert own_of([an_embedding(0) for _ in (0, 1)]) == set()


def own(models: list[nn.Module], replicated: bool) -> set[str]:
    """What of it each rank has for itself, where each rank has one of the models."""
    numbers = []
    for model in models:
        saved = SavedObjects({"model": model})
        saved.replicated = {"model"} if replicated else set()
        states = saved.states()
        found = state_comparison.fingerprints(states, saved.buffers(states))
        numbers.append(list(found["model"]))
    return state_comparison.compare(["model"], numbers, 0).own


def models(
    rank_1: str, wrap: Callable[[nn.Module], nn.Module] = lambda layer: layer
) -> list[nn.Module]:
    """Of two ranks; rank 1 has a tensor of its own."""
    found = []
    for rank in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(wrap(nn.Linear(4, 8)), wrap(nn.BatchNorm1d(8)))
        with torch.no_grad():
            nn.Sequential.state_dict(model)[rank_1].add_(rank)
        found.append(model)
    return found


@pytest.mark.parametrize(
    ("tensor", "replicated", "expected"),
    [
        ("1.running_mean", True, set()),
        ("1.running_mean", False, {"model"}),
        ("0.weight", True, {"model"}),
        ("0.weight", False, {"model"}),
    ],
)
def test_rank_0_decides_the_buffers_of_a_model_in_data_parallelism_and_nothing_else(
    tensor: str, replicated: bool, expected: set[str]
) -> None:
    """Ranks that train alone and average their weights now and then differ in between."""
    assert own(models(tensor), replicated) == expected


class PlainState(nn.Sequential):
    """Its state is a dict of dicts, and takes no arguments."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"version": 1, "layers": [dict(layer.state_dict()) for layer in self]}


def renamed(model: nn.Module) -> nn.Module:
    """With other names in its state than in the model."""

    def rename(_: Any, state: dict[str, Any], *_args: Any) -> None:
        for key in list(state):
            state[f"renamed.{key}"] = state.pop(key)

    model._register_state_dict_hook(rename)
    return model


@pytest.mark.parametrize(
    ("rank_1", "expected"), [("1.running_mean", set()), ("0.weight", {"model"})]
)
def test_parameters_are_compared_under_whatever_name_they_are_saved(
    rank_1: str, expected: set[str]
) -> None:
    """Else all ranks would go on with the weights of rank 0."""
    layered = models(rank_1, checkpoint_wrapper)
    assert "0._checkpoint_wrapped_module.weight" in dict(layered[0].named_parameters())
    assert "0.weight" in layered[0].state_dict()
    assert own(layered, replicated=True) == expected
    assert own([PlainState(*model) for model in models(rank_1)], replicated=True) == expected
    assert own([renamed(model) for model in models(rank_1)], replicated=True) == expected


def test_a_parameter_that_is_a_buffer_as_well_is_compared() -> None:
    ranks = models("0.weight")
    for model in ranks:
        model.register_buffer("alias", model[0].weight.detach())  # type: ignore[index]
    assert own(ranks, replicated=True) == {"model"}
