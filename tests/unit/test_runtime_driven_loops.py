"""Loops that a framework drives, and those of one's own, in a run that begins in their middle.

The sessions are those of `support.session_without_ray`, whose Ray is a stand-in.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from support.session_without_ray import Checkpoint, Run
from trainingrun_runtime import Session
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.frameworks.driven_loop import DrivenLoop, Ended, begin_at

STEPS = 10
"""Of an epoch."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    return Run(monkeypatch, tmp_path)


def a_loop(epochs: int, steps: Callable[[], int] = lambda: STEPS, **options: bool) -> DrivenLoop:
    """The loop of a framework in a session that has nothing but its position to restore."""
    return DrivenLoop(Session(), epochs, steps, **options)


def ended_within_an_epoch(run: Run, done: int = 5, **options: bool) -> Checkpoint:
    """The last checkpoint of a training that its framework has ended after so many steps."""
    run.begin()
    loop = a_loop(1, **options)
    for _ in range(done):
        loop.begin_step(0)
    loop.end()
    return run.end()


@pytest.mark.parametrize("another_runs", [True, False])
def test_a_training_that_had_ended_within_an_epoch_goes_on_there(
    run: Run, another_runs: bool
) -> None:
    ended = ended_within_an_epoch(run)
    assert (ended.position.step, ended.position.epoch) == (5, 0)
    run.begin(ended, another_runs=another_runs)
    loop = a_loop(2)
    for step in range(5, 2 * STEPS):
        loop.begin_step(step // STEPS)
        assert run.session is not None
        assert (run.session.step, run.session.epoch) == (step, step // STEPS)
    loop.end()
    assert run.end().position.step == 2 * STEPS


def test_a_training_that_ends_early_does_no_further_step_after_a_loss(run: Run) -> None:
    ended = ended_within_an_epoch(run, ends_early=True)
    run.begin(ended)
    loop = a_loop(1, ends_early=True)
    with pytest.raises(Ended):
        loop.begin_step(0)
    assert run.end().position == ended.position


@pytest.mark.parametrize("another_runs", [False, True])
def test_a_run_that_has_no_step_left_keeps_the_metrics_that_it_had_reported(
    run: Run, another_runs: bool
) -> None:
    run.begin()
    session = Session()
    for _ in session.steps(STEPS):
        session.report(error=0.1)
    run.begin(run.end(), another_runs=another_runs)
    session = Session()
    assert list(session.steps(STEPS)) == []
    session.finish(size=4)
    known = {} if another_runs else {"error": 0.1}
    assert run.end().metrics == {**known, "size": 4}


def test_another_run_begins_where_one_that_ends_early_had_ended_and_trains_on(run: Run) -> None:
    run.begin(ended_within_an_epoch(run, ends_early=True), another_runs=True)
    loop = a_loop(1, ends_early=True)
    for _ in range(5, STEPS):
        loop.begin_step(0)
    loop.end()
    assert run.end().position.step == STEPS


def test_a_step_beyond_the_last_epoch_is_an_error_in_one_sentence(run: Run) -> None:
    run.begin()
    loop = a_loop(1)
    for _ in range(STEPS):
        loop.begin_step(0)
    for _ in range(2):  # also where the first one was caught
        with pytest.raises(Ended, match=r"epoch 1 after step 10, and the session.s 1 epochs are"):
            loop.begin_step(1)


def test_a_step_after_the_sessions_own_stop_is_an_error_that_says_how_to_end(run: Run) -> None:
    run.begin()
    loop = a_loop(1)
    loop.begin_step(0)
    assert run.session is not None
    run.session.stop()
    loop.begin_step(0)
    with pytest.raises(Ended, match=r"after step 2, where session\.stop\(\) has ended .*; end the"):
        loop.begin_step(0)


@pytest.mark.parametrize("made", ["in the loop", "at its end", "after the epoch"])
def test_steps_count_in_their_own_epoch_where_the_next_one_is_longer(
    run: Run, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    lengths = [3, 5]
    run.begin()
    epoch = 0
    loop = a_loop(2, lambda: lengths[epoch])
    for _ in range(lengths[0]):
        loop.begin_step(0)
    session = run.session
    assert session is not None
    # The places at which a checkpoint can be made between the two epochs, in their order.
    at = ["in the loop", "at its end", "after the epoch"].index(made)
    places = 0
    execute = session._requests.execute

    def count(agreed: object) -> None:
        nonlocal places
        execute(agreed)  # type: ignore[arg-type]
        if places == at:
            run.keep(session._context)
        places += 1

    monkeypatch.setattr(session._requests, "execute", count)
    epoch = 1
    loop.begin_step(1)
    assert len(run.checkpoints) == 1

    run.begin(run.checkpoints[0])
    loop = a_loop(2, lambda: lengths[epoch])
    for done in range(lengths[1]):
        loop.begin_step(1)
        assert run.session is not None
        assert (run.session.epoch, run.session.steps_of_epoch) == (1, done)
    loop.end()
    assert run.end().position.step == sum(lengths)


def test_an_epoch_that_the_framework_left_early_is_not_gone_on_with(run: Run) -> None:
    run.begin()
    loop = a_loop(2)
    for _ in range(4):
        loop.begin_step(0)
    assert run.session is not None
    run.session.save()
    loop.begin_step(1)
    assert run.checkpoints[0].position == Position(4, 1, 4)

    run.begin(run.checkpoints[0])
    loop = a_loop(2)
    loop.begin_step(1)
    assert (run.session.epoch, run.session.steps_of_epoch) == (1, 0)


@pytest.mark.parametrize("how", ["break", "stop"])
def test_600_steps_that_begin_from_step_400_of_another_run_are_200(run: Run, how: str) -> None:
    run.begin()
    session = Session()
    for step in session.steps(600):
        if step == 398 and how == "stop":
            session.stop()
        if step == 399 and how == "break":
            break
    left = run.end()
    assert left.position.step == 400

    run.begin(left, another_runs=True)
    assert list(Session().steps(600)) == list(range(400, 600))


def test_a_loop_that_was_left_is_not_begun_again_after_a_loss(run: Run) -> None:
    run.begin()
    for step in Session().steps(600):
        if step == 399:
            break
    run.begin(run.end())
    assert list(Session().steps(600)) == []


def test_a_loader_that_keeps_its_workers_begins_within_an_epoch_after_they_had_begun_it() -> None:
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True)
    iter(loader)
    assert begin_at(loader, 0, 3)
    of_epochs = [[batch[0].tolist() for batch in loader] for _ in range(2)]
    assert of_epochs == [[[6, 7]], [[0, 1], [2, 3], [4, 5], [6, 7]]]
