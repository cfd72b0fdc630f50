"""Which objects are the same on every rank, by digests of their states."""

import pytest
import torch
from torch import nn

from trainingrun_runtime.checkpoints import snapshot, state_comparison


def own(models: list[nn.Module], replicated: bool) -> set[str]:
    """What of it each rank has for itself, where each rank has one of the models."""
    names = {name for name, _ in models[0].named_parameters()}
    numbers = []
    for model in models:
        states = snapshot.encoded({"model": model}, {"model"})
        found = state_comparison.fingerprints(states, {"model": names} if replicated else None)
        numbers.append(list(found["model"][:3]))
    return state_comparison.compare(["model"], numbers, 0).own


def models(rank_1: str) -> list[nn.Module]:
    """Of two ranks; rank 1 has a tensor of its own."""
    found = []
    for rank in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        with torch.no_grad():
            model.state_dict()[rank_1].add_(rank)
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


def test_a_change_of_the_buffers_is_a_change() -> None:
    prints = [
        state_comparison.fingerprints(snapshot.encoded({"m": m}, {"m"}), {"m": {"0.weight"}})
        for m in models("1.running_mean")
    ]
    assert prints[0] != prints[1]
