"""Copies that are made beside training are what was there when the checkpoint was made, or void."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support import checkpoints
from support.sharded_models import (
    FSDP_TP,
    HSDP,
    Layout,
    a_model,
    columns,
    one_rank,
    rows,
    same_part,
    tensors,
    whole_model,
)
from trainingrun_runtime.checkpoints import late_copies, snapshot
from trainingrun_runtime.checkpoints.accumulated_gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.bucket import Bucket
from trainingrun_runtime.checkpoints.committer import VoidCheckpoint, digests
from trainingrun_runtime.checkpoints.encoding import decode
from trainingrun_runtime.checkpoints.late_copies import (
    LateCopies,
    address,
    changed_by_optimizers,
)
from trainingrun_runtime.checkpoints.manifest import digest_file
from trainingrun_runtime.checkpoints.restored_files import LocalFiles
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.staging import Staging
from trainingrun_runtime.checkpoints.state_comparison import Comparison
from trainingrun_runtime.checkpoints.storage_retry import StorageRetry
from trainingrun_runtime.checkpoints.streamed_files import upload

WIDTH = 256


class Training:
    """A model with buffers, and an optimizer that has done a step."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(2**15))
        self.weight = self.model[0].weight
        self.optimizer = torch.optim.Adam(self.model[0].parameters())
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model[0](torch.ones(1, WIDTH)).sum().backward()
        self.optimizer.step()

    def copies(self, *, begun: bool = True) -> tuple[LateCopies, dict[str, object]]:
        """Of what can be copied later, and all files of the checkpoint."""
        copies, files = late(self.model, self.optimizer)
        if begun:
            copies.begin()
        return copies, files["state.pt"]["objects"]


def late(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int = 0, ranks: int = 1
) -> tuple[LateCopies, dict[str, Any]]:
    """Copies of all that can be copied later, not begun, and the rank's files with them."""
    objects = {"model": model, "optimizer": optimizer}
    states, staging = snapshot.encoded(objects, objects), Staging()
    later = changed_by_optimizers(objects.values())
    files = snapshot.take(
        states,
        Comparison(set(), {}),
        Position(step=1),
        rank,
        ranks,
        staging,
        lambda source: address(source) in later,
    )
    return LateCopies(staging.left, later), files


@pytest.fixture
def training() -> Training:
    return Training()


def test_parameters_and_moments_are_copied_later_and_buffers_at_once(training: Training) -> None:
    moments = training.optimizer.state[training.weight]
    later = changed_by_optimizers([training.model, training.optimizer])
    assert {address(training.weight.detach()), address(moments["exp_avg"])} <= later.keys()
    assert address(training.model[1].running_mean) not in later

    # A forward pass may write to a buffer.
    training.model.register_buffer("some_rows", training.weight.detach()[:10])
    later = changed_by_optimizers([training.model, training.optimizer])
    assert address(training.weight) not in later


def test_they_are_what_was_there_before_the_next_step(training: Training) -> None:
    weight = training.weight.detach().clone()
    moment = training.optimizer.state[training.weight]["exp_avg"].clone()
    gradients = AccumulatedGradients([training.optimizer])
    copies, saved = training.copies()
    found: list[bool] = []
    gradients.before_step = lambda: found.append(copies.settle())
    training.step()
    assert found == [True]
    assert copies.intact()
    assert not torch.equal(training.weight, weight)
    assert torch.equal(decode(saved["model"])["0.weight"], weight)
    assert torch.equal(decode(saved["optimizer"])["state"][0]["exp_avg"], moment)


def in_place(training: Training) -> None:
    with torch.no_grad():
        training.weight[3].add_(1)
        training.weight[3].sub_(1)


def through_numpy(training: Training) -> None:
    np.add(view := training.weight.detach().numpy(), 1, out=view)


def through_data(training: Training) -> None:
    training.weight.data.mul_(2)


def of_the_optimizer(training: Training) -> None:
    training.optimizer.state[training.weight]["exp_avg"].zero_()


@pytest.mark.parametrize("change", [in_place, through_numpy, through_data, of_the_optimizer])
def test_what_was_changed_meanwhile_is_void(
    training: Training, change: Callable[[Training], None]
) -> None:
    copies, _ = training.copies()
    change(training)
    assert not copies.settle()
    assert not copies.intact()


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_a_forward_and_a_backward_pass_change_nothing(training: Training, value: float) -> None:
    with torch.no_grad():
        training.weight[0, 0] = value
    copies, _ = training.copies()
    training.optimizer.zero_grad()
    training.model[1].running_mean.add_(1)  # copied at once
    training.model[0](torch.ones(1, WIDTH)).sum().backward()
    assert copies.settle()


@pytest.mark.parametrize("layout", [rows(2), columns(2), HSDP, FSDP_TP])
def test_parts_of_a_sharded_state_are_copied_later_too(tmp_path: Path, layout: Layout) -> None:
    inputs = 2**16
    whole = tensors(*whole_model(trained=True, inputs=inputs))
    late_ones = 0
    for rank in range(layout.ranks):
        with one_rank(rank, layout.ranks):
            model, optimizer = a_model(layout, trained=True, inputs=inputs)
            copies, files = late(model, optimizer, rank, layout.ranks)
            late_ones += len(copies.pairs)
            copies.begin()
            assert copies.settle()
            optimizer.step()  # the next one
            checkpoints.write(files, tmp_path)
            assert not same_part(tensors(model, optimizer)["weight"], whole["weight"])
    assert late_ones >= 3, "the weight's parts and those of two moments"
    with one_rank(1, layout.ranks):
        model, optimizer = a_model(layout, trained=False, inputs=inputs)
        objects = {"model": model, "optimizer": optimizer}
        snapshot.restore(LocalFiles(tmp_path), objects, 1, layout.ranks)
        restored = tensors(model, optimizer)
        assert all(same_part(restored[name], whole[name]) for name in whole)


@pytest.mark.parametrize("held", [True, False], ids=["its part", "the whole"])
def test_a_sharded_parameter_that_was_changed_meanwhile_is_void(held: bool) -> None:
    with one_rank(0, 2):
        model, optimizer = a_model(rows(2), trained=True, inputs=2**16)
        copies, _ = late(model, optimizer, 0, 2)
        copies.begin()
        with torch.no_grad():
            weight = model.weight.to_local() if held else model.weight
            weight.mul_(2)
            weight.mul_(0.5)
        assert not copies.settle()


def test_why_they_could_not_be_made_is_raised_where_training_waits(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: torch.Tensor) -> bool:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(late_copies, "is_pinned_for", refuse)
    copies, _ = training.copies()
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        copies.settle()
    copies.wait()
    assert not copies.intact()


def test_nobody_waits_for_copies_that_were_not_begun(training: Training) -> None:
    """Since Ray has not taken the report: the training function ends with that error."""
    copies, _ = training.copies(begun=False)
    assert not copies.settle()
    copies.wait()
    assert not copies.intact()


@pytest.mark.parametrize("intact", [True, False])
def test_void_files_are_never_committed(tmp_path: Path, intact: bool) -> None:
    bucket, folder = Bucket.open(tmp_path.as_uri()), "checkpoints/step-1"
    retry = StorageRetry(lambda message: None)
    upload(bucket, folder, {"state.pt": b"first"}, 0, retry)
    upload(bucket, folder, {"random-1.pt": b"second"}, 1, retry, lambda: intact)
    assert bool(json.loads(bucket.get(f"{folder}/{digest_file(1)}") or b"")) == intact
    if intact:
        assert set(digests(bucket, folder)) == {"state.pt", "random-1.pt"}
    else:
        with pytest.raises(VoidCheckpoint, match="has changed what was being copied"):
            digests(bucket, folder)
