"""When a loop makes the checkpoint for a preemption notice, and what it holds.

The sessions are those of `support.session_without_ray`, whose Ray is a stand-in.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from ray.train.v2.api.preemption import PreemptionInfo

from support.session_without_ray import Run
from trainingrun_runtime import Session
from trainingrun_runtime.known_errors.failure_causes import Preempted
from trainingrun_runtime.ray_internals import training
from trainingrun_runtime.session import requests
from trainingrun_runtime.worker import worker
from trainingrun_runtime.worker.preemption_notice import PreemptionNotice


def preempt(left_s: float) -> None:
    """This pod's notice arrives, so many seconds before the pod ends."""
    this: Any = worker._worker
    this.notice = PreemptionNotice(time.time() + left_s, pre_stop=True)
    this.confirm_saved = MagicMock()


def accumulate(run: Run, left_s: float) -> Iterator[int]:
    """Twelve steps, of which four are one of the optimizer; the notice arrives in the fifth.

    Yields the checkpoints that there are by the end of each step.
    """
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model=model, optimizer=optimizer)
    for _ in session.steps(12):
        model(torch.ones(1, 2)).sum().backward()
        if session.step == 4:
            preempt(left_s)
        if session.step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        yield len(run.checkpoints)


@pytest.mark.parametrize("left_s", [60.0, 1.0, -1.0], ids=["in time", "at the end", "too late"])
def test_gradients_that_wait_are_in_no_checkpoint_however_little_time_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left_s: float
) -> None:
    """Steps are done again after a loss; an optimizer's step without the gradients of its first
    batches is another training.
    """
    run = Run(monkeypatch, tmp_path)
    monkeypatch.setattr(requests, "nodes", MagicMock())
    run.begin()
    made = list[int]()
    with pytest.raises(Preempted, match="saved after step 8"):
        made.extend(accumulate(run, left_s))
    assert [one.position.step for one in run.checkpoints] == [8]
    assert made == [0] * 8, "one was made before"


def test_a_drain_without_a_deadline_has_one_from_when_it_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray ends the worker group 120 s after it has seen it."""
    of_group = SimpleNamespace(preemption_info=None)
    monkeypatch.setattr(
        training, "train_context", lambda: SimpleNamespace(preemption_context=of_group)
    )
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    deadline = training.PreemptionDeadline()
    assert deadline.read() is None
    of_group.preemption_info = PreemptionInfo(deadline_ms=None, preempted_node_to_ranks={"a": [0]})
    assert deadline.read() == 1120.0
    now = 1060.0
    assert deadline.read() == 1120.0
    of_group.preemption_info = PreemptionInfo(deadline_ms=1_090_000, preempted_node_to_ranks={})
    assert deadline.read() == 1090.0, "a later drain may have one"
