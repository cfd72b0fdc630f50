"""Loops that are left by `break` or by `stop()`, and what follows them.

A run that begins at any of their checkpoints trains as an undisturbed one. The sessions are
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
from trainingrun_runtime.random_numbers import StepRandom
from trainingrun_runtime.session.session_context import ProgressState
from trainingrun_runtime.survivors.noted_steps import _agreed_position
from trainingrun_runtime.worker.step_consensus import StepValues


class Training:
    """A weight, and its moving average, as often as the program asks for it."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.averaged = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.averaged.weight)

    def __call__(self, batch: torch.Tensor) -> None:
        """Do a step."""
        self.optimizer.zero_grad()
        (self.model(batch) - 1).square().mean().backward()
        self.optimizer.step()

    def average(self) -> None:
        self.averaged.weight.data.lerp_(self.model.weight.data, 0.5)


def a_warm_up(session: Session, loader: ResumableDataLoader, step: Training) -> None:
    for done in session.steps(8):
        step(torch.randn(2, 1) * 0.01)
        if done >= 2:
            break
    for _ in session.steps(8):
        step(torch.randn(2, 1))


def epochs_in_halves(session: Session, loader: ResumableDataLoader, step: Training) -> None:
    for _ in session.epochs(2):
        for batch in session.batches(loader):
            step(batch)
            if session.steps_of_epoch == 1:
                break
        for batch in session.batches(loader):
            step(-batch)


def phases_in_turn(session: Session, loader: ResumableDataLoader, step: Training) -> None:
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
    session: Session, loader: ResumableDataLoader, step: Training
) -> None:
    for done in session.steps(8):
        step(torch.randn(2, 1))
        if done == 2:
            session.stop()
            break
    for _ in session.steps(16):
        step(torch.randn(2, 1))


def a_stop_in_a_later_loop(session: Session, loader: ResumableDataLoader, step: Training) -> None:
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


def an_average_after_each_loop_that_is_left(
    session: Session, loader: ResumableDataLoader, step: Training
) -> None:
    for epoch in session.epochs(3):
        for batch in session.batches(loader, 8 - 2 * epoch):  # all end at one step
            step(batch)
            if session.steps_of_epoch == 1:
                break
        step.average()


def an_average_at_the_end(session: Session, loader: ResumableDataLoader, step: Training) -> None:
    for done in session.steps(8):
        step(torch.randn(2, 1))
        if done == 2:
            break
    step.average()


def a_stop_in_an_epoch(session: Session, loader: ResumableDataLoader, step: Training) -> None:
    for _ in session.epochs(4):
        for done in session.steps(4):
            step(torch.randn(2, 1))
            if done == 4:
                session.stop()
        step.average()


def a_stop_in_the_step_that_leaves_an_epoch(
    session: Session, loader: ResumableDataLoader, step: Training
) -> None:
    for _ in session.epochs(4):
        for done in session.steps(4):
            step(torch.randn(2, 1))
            if done == 5:
                session.stop()
                break
        step.average()


def a_stop_before_the_steps_of_an_epoch(
    session: Session, loader: ResumableDataLoader, step: Training
) -> None:
    for epoch in session.epochs(4):
        if epoch == 2:
            session.stop()
        for _ in session.steps(2):
            step(torch.randn(2, 1))
        step.average()


def a_stop_after_the_steps_of_an_epoch(
    session: Session, loader: ResumableDataLoader, step: Training
) -> None:
    for epoch in session.epochs(4):
        for _ in session.steps(2):
            step(torch.randn(2, 1))
        step.average()
        if epoch == 1:
            session.stop()


def a_stop_in_a_warm_up(session: Session, loader: ResumableDataLoader, step: Training) -> None:
    for done in session.steps(8):
        step(torch.randn(2, 1))
        if done == 1:
            session.stop()
            break
    for _ in session.epochs(3):
        for _ in session.steps(4):
            step(torch.randn(2, 1))
        step.average()


def a_warm_up_before_epochs(session: Session, loader: ResumableDataLoader, step: Training) -> None:
    for done in session.steps(8):
        step(torch.randn(2, 1) * 0.01)
        if done == 2:
            break
    for _ in session.epochs(3):  # the second one ends where the warm-up would have
        for _ in session.steps(4):
            step(torch.randn(2, 1))


def samples_drawn_between_loops(
    session: Session, loader: ResumableDataLoader, step: Training
) -> None:
    for done in session.steps(4):
        step(torch.randn(2, 1))
        if done == 0:
            break
    session.save()
    drawn = torch.randn(2, 1)
    for done in session.steps(4):
        step(drawn)
        if done == 1:
            break
    drawn = torch.randn(2, 1)
    for _ in session.epochs(2):
        for _ in session.steps(4):
            step(drawn)
            break
        own = torch.randn(2, 1)
        for _ in session.steps(4):
            step(own)
    between = torch.randn(2, 1)
    for _ in session.steps(10):
        step(between)
    drawn = torch.randn(2, 1)
    for _ in session.epochs(4):
        for _ in session.steps(4):
            step(drawn + between)


def a_warm_up_whose_iterator_is_kept(
    session: Session, loader: ResumableDataLoader, step: Training
) -> None:
    bar = session.steps(8)
    for done in bar:
        step(torch.randn(2, 1) * 0.01)
        if done == 2:
            break
    for _ in session.epochs(3):
        for _ in session.steps(4):
            step(torch.randn(2, 1))


Program = Callable[[Session, ResumableDataLoader, Training], None]


def trained(
    run: Run, program: Program, restored: Checkpoint | None = None
) -> tuple[int, float, float]:
    """Steps that were done, the weight, and its average."""
    run.begin(restored)
    step = Training()
    data = [torch.tensor([float(number)]) for number in range(8)]
    loader = ResumableDataLoader(data, batch_size=2, seed=3, rank=0, world_size=1)
    session = Session(
        seed=7,
        model=step.model,
        optimizer=step.optimizer,
        averaged=step.averaged,
        loader=loader,
    )
    program(session, loader, step)
    run.end()
    return session.step, step.model.weight.item(), step.averaged.weight.item()


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        (a_warm_up, 8),
        (epochs_in_halves, 8),
        (phases_in_turn, 12),
        (a_stop_in_the_step_that_leaves, 3),
        (a_stop_in_a_later_loop, 7),
        (an_average_after_each_loop_that_is_left, 6),
        (an_average_at_the_end, 3),
        (a_stop_in_an_epoch, 6),
        (a_stop_in_the_step_that_leaves_an_epoch, 6),
        (a_stop_before_the_steps_of_an_epoch, 4),
        (a_stop_after_the_steps_of_an_epoch, 4),
        (a_stop_in_a_warm_up, 2),
        (a_warm_up_before_epochs, 12),
        (samples_drawn_between_loops, 16),
        (a_warm_up_whose_iterator_is_kept, 12),
    ],
)
def test_a_run_that_begins_at_any_checkpoint_trains_as_an_undisturbed_one(
    program: Program, steps: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, tmp_path, everywhere=True)
    undisturbed = trained(run, program)
    assert undisturbed[0] == steps
    assert len(run.checkpoints) > steps
    # With the last one the run is done.
    wrong = [
        checkpoint.position
        for checkpoint in run.checkpoints[:-1]
        if trained(Run(monkeypatch, tmp_path), program, checkpoint) != undisturbed
    ]
    assert wrong == []


def test_what_is_drawn_after_a_loop_that_was_left_is_the_same_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each takes its part of the same split, as of the data."""

    def drawn(rank: int) -> tuple[float, list[float]]:
        Run(monkeypatch, tmp_path).begin()
        session = Session(seed=7)
        session._random = StepRandom(7, rank)
        found = []
        for _ in range(2):
            for _ in session.steps(8):
                in_step = torch.rand(1).item()
                break
            found.append(torch.rand(1).item())
        for _ in session.epochs(2):
            for _ in session.steps(4):
                break
            found.append(torch.rand(1).item())
        return in_step, found

    (in_step, one), (in_others_step, other) = drawn(0), drawn(1)
    assert in_step != in_others_step
    assert one == other
    assert len({*one}) == len(one)


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
