"""Checkpoints of sharded models, written and restored as a session does it, without Ray."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from support import checkpoints
from support.sharded_models import Layout, a_model, one_rank, tensors
from trainingrun_runtime.checkpoints import snapshot, state_comparison
from trainingrun_runtime.checkpoints.downloads import LocalFiles, RestoredFiles
from trainingrun_runtime.checkpoints.snapshot import Position


def save(folder: Path, ranks: int, objects: Callable[[int], dict[str, Any]]) -> None:
    """A checkpoint of so many ranks: each rank's files of it, compared as a session does it."""
    prints = []
    for rank in range(ranks):
        with one_rank(rank, ranks):
            mine = objects(rank)
            prints.append(state_comparison.fingerprints(snapshot.encoded(mine, mine)))
    names = sorted(prints[0])
    numbers = [[number for name in names for number in each[name]] for each in prints]
    for rank in range(ranks):
        with one_rank(rank, ranks):
            mine = objects(rank)
            states = snapshot.encoded(mine, mine)
            snapshot.try_out(states)
            comparison = state_comparison.compare(names, numbers, rank)
            files = snapshot.take(states, comparison, Position(step=7), rank, ranks)
            checkpoints.write(files, folder)


def save_trained(folder: Path, layout: Layout) -> None:
    """A checkpoint of the trained model."""

    def trained(rank: int) -> dict[str, Any]:
        model, optimizer = a_model(layout, trained=True)
        return {"model": model, "optimizer": optimizer}

    save(folder, layout.ranks, trained)


def restore(files: RestoredFiles | Path, layout: Layout, rank: int) -> dict[str, torch.Tensor]:
    """What a new run's rank has after it; call it as that rank."""
    model, optimizer = a_model(layout, trained=False)
    objects = {"model": model, "optimizer": optimizer}
    files = LocalFiles(files) if isinstance(files, Path) else files
    assert snapshot.restore(files, objects, rank, layout.ranks) == Position(step=7)
    return tensors(model, optimizer)
