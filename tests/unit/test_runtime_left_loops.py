"""Loops that are left by `break`, and others to the same end after them.

A run that begins at any of their checkpoints does the steps of an undisturbed one. The sessions are
those of `support.session_without_ray`, whose Ray is a stand-in.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.session_without_ray import Checkpoint, Run
from trainingrun_runtime import ResumableDataLoader, Session
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.frameworks.driven_loop import DrivenLoop
from trainingrun_runtime.session.session_context import ProgressState
from trainingrun_runtime.survivors.noted_steps import _agreed_position
from trainingrun_runtime.worker.step_consensus import StepValues

Step = Callable[[torch.Tensor], None]


def a_warm_up(session: Session, loader: ResumableDataLoader, step: Step) -> None:
    for done in session.steps(8):
        step(torch.randn(2, 1) * 0.01)
        if done >= 2:
            break
    for _ in session.steps(8):
        step(torch.randn(2, 1))


def epochs_in_halves(session: Session, loader: ResumableDataLoader, step: Step) -> None:
    for _ in session.epochs(2):
        for batch in session.batches(loader):
            step(batch)
            if session.steps_of_epoch == 1:
                break
        for batch in session.batches(loader):
            step(-batch)


def phases_in_turn(session: Session, loader: ResumableDataLoader, step: Step) -> None:
    for _ in range(3):
        for done in session.steps(100):
            step(torch.randn(2, 1))
            if done % 4 == 1:
                break
        for done in session.steps(100):
            step(torch.randn(2, 1) * 2)
            if done % 4 == 3:
                break


def a_stop_in_the_step_that_leaves(
    session: Session, loader: ResumableDataLoader, step: Step
) -> None:
    for done in session.steps(8):
        step(torch.randn(2, 1))
        if done == 2:
            session.stop()
            break
    for _ in session.steps(16):
        step(torch.randn(2, 1))


def a_stop_in_a_later_loop(session: Session, loader: ResumableDataLoader, step: Step) -> None:
    for done in session.steps(8):
        step(torch.randn(2, 1))
        if done == 1:
            break
    for _ in session.steps(3):
        step(torch.randn(2, 1))
    for done in session.steps(16):
        step(torch.randn(2, 1))
        if done == 5:
            session.stop()


Program = Callable[[Session, ResumableDataLoader, Step], None]


def trained(run: Run, program: Program, restored: Checkpoint | None = None) -> tuple[int, float]:
    """Steps that were done, and the weight."""
    run.begin(restored)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.tensor([float(number)]) for number in range(8)]
    loader = ResumableDataLoader(data, batch_size=2, seed=3, rank=0, world_size=1)
    session = Session(seed=7, model=model, optimizer=optimizer, loader=loader)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        (model(batch) - 1).square().mean().backward()
        optimizer.step()

    program(session, loader, step)
    run.end()
    return session.step, model.weight.item()


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        (a_warm_up, 8),
        (epochs_in_halves, 8),
        (phases_in_turn, 12),
        (a_stop_in_the_step_that_leaves, 3),
        (a_stop_in_a_later_loop, 7),
    ],
)
def test_a_run_that_begins_at_any_checkpoint_trains_as_an_undisturbed_one(
    program: Program, steps: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, tmp_path, every_steps=1)
    undisturbed = trained(run, program)
    assert undisturbed[0] == steps
    assert len(run.checkpoints) > steps  # the last one is of the function's end
    found = {
        checkpoint.position: trained(Run(monkeypatch, tmp_path, every_steps=1), program, checkpoint)
        for checkpoint in run.checkpoints
    }
    assert [position for position, one in found.items() if one != undisturbed] == []


def test_a_resumed_run_that_was_interrupted_again_passes_the_same_loops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = Run(monkeypatch, tmp_path, every_steps=1)
    undisturbed = trained(first, phases_in_turn)
    second = Run(monkeypatch, tmp_path, every_steps=1)
    trained(second, phases_in_turn, first.checkpoints[4])
    for checkpoint in second.checkpoints:
        assert trained(Run(monkeypatch, tmp_path), phases_in_turn, checkpoint) == undisturbed


def test_a_framework_that_ended_twice_within_an_epoch_goes_on_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, ended = Run(monkeypatch, tmp_path), None
    for last in (4, 7, 10):
        run.begin(ended)
        loop = DrivenLoop(Session(), 1, lambda: 10)
        assert run.session is not None
        for step in range(run.session.step, last):
            loop.begin_step(0)
            assert run.session.step == step
        loop.end()
        ended = run.end()
    assert ended is not None
    assert ended.position.step == 10


def test_a_survivor_saves_that_the_run_has_stopped_where_it_left_its_loop() -> None:
    progress = ProgressState(Position())
    progress.loops.begin(8)
    progress.loops.leave()
    progress.step = 3
    result = progress.noted(lambda: StepValues(stop=True, step=3))
    position = _agreed_position(progress.position, result, driven=False, compared=True)(False)
    assert position == Position(3, stop_at=3, left=(8,))
    assert progress.noted(lambda: None)() is None
