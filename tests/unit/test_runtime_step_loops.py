"""Loops over steps that are left and begun again, also by a run that was interrupted meanwhile."""

import re
from collections import deque
from typing import Any
from unittest.mock import MagicMock

import pytest

from trainingrun_runtime import ResumableDataLoader, Session
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.data.drawn_batches import DrawnBatches
from trainingrun_runtime.session.loop_totals import LoopTotals
from trainingrun_runtime.session.session_context import Loops, ProgressState
from trainingrun_runtime.worker.step_consensus import StepValues


class LoopsAlone(Session):
    """A session of one rank without Ray, which counts its steps and saves nothing.

    Its loaders `a` and `b` have 10 and 4 batches.
    """

    def __init__(self, **restored: Any) -> None:
        self.a, self.b = (
            ResumableDataLoader(list(range(n)), batch_size=1, rank=0, world_size=1) for n in (10, 4)
        )
        self._progress = ProgressState(Position(**restored))
        self._context: Any = MagicMock(reporter=None)
        self._context.worker.keeps_batch = False
        self._requests: Any = MagicMock()
        self._requests.agree.return_value = StepValues()
        self._saving: Any = MagicMock()
        self._saving.interval.is_due_after.return_value = False
        self._data = DrawnBatches({"a": self.a, "b": self.b})
        self._random = self._times_reporter = self.noted_steps = MagicMock()
        self._epochs = self._total = self._save_after = self._between_since = None
        self._loop_totals, self._parallel, self._left = LoopTotals(), [], ()
        self._lengths = deque(maxlen=1)
        self._begun = self._step_began = 0.0

    def had_drawn(self, a: int, b: int = 0) -> "LoopsAlone":
        """So many batches of the epoch were handed out before the checkpoint."""
        for loader, n in ((self.a, a), (self.b, b)):
            state = {**loader.state_dict(), "epoch": self.epoch, "consumed": n, "batches": n}
            loader.load_state_dict(state)
        return self


def count(loop: Any, leave_after: int | None = None) -> int:
    """Steps of a loop, which is left after so many of them."""
    done = 0
    for _ in loop:
        done += 1
        if done == leave_after:
            break
    return done


def test_a_loop_that_was_left_goes_on_when_it_is_begun_again() -> None:
    loops = Loops()
    loops.begin(100)
    loops.leave()
    assert loops.end() == 100
    assert loops.left == (100,)
    assert not loops.was_left(100)
    loops.begin(100)
    assert loops.left == (100,)  # a run that is resumed in the second one passes the first


def test_a_resumed_run_does_not_begin_a_loop_again_that_it_had_left() -> None:
    resumed = Loops(left=(100,))
    assert resumed.was_left(100)
    assert not resumed.was_left(100)  # a second loop to the same end goes on with the steps
    assert resumed.left == (100,)  # still so in the next checkpoint
    assert not resumed.was_left(200)


def test_only_one_and_the_same_end_again_is_a_mistake() -> None:
    loops = Loops()
    assert not loops.already_reached(5)
    loops.reached(5)
    assert loops.already_reached(5)
    assert not loops.already_reached(10)
    loops.reached(10)
    assert not loops.already_reached(10)  # such as min(epoch * 5, 10)


def test_a_loop_of_no_steps_is_a_loop() -> None:
    loops = Loops()
    loops.begin(0)
    assert loops.inside
    assert loops.end() == 0
    assert loops.end() is None
    assert not loops.inside


@pytest.mark.parametrize("done", [10, 3])
def test_another_loop_before_one_over_all_batches_is_refused_with_the_call_that_is_meant(
    done: int,
) -> None:
    """Its steps count from the run's first one: it would take some of its batches, or none."""
    session = LoopsAlone()
    assert count(session.batches(session.a), leave_after=done) == done
    with pytest.raises(ValueError, match="counts the 4 steps of its loader") as told:
        count(session.batches(session.b))
    assert str(told.value) == (
        "session.batches(loader) counts the 4 steps of its loader from the run's first one, and a "
        f"loop before it has done {done} of the run's steps; call session.batches(loader, {done} + "
        "4), the steps of both, or give each loop epochs of its own in one loop over "
        "session.epochs()"
    )
    assert count(session.batches(session.b, done + 4)) == 4


@pytest.mark.parametrize("first", ["steps", "batches", "microbatches"])
def test_another_loop_before_it_in_the_epoch_is_refused_too(first: str) -> None:
    session = LoopsAlone()
    for epoch in session.epochs(3):
        before = session.steps(10) if first == "steps" else getattr(session, first)(session.a)
        assert count(before) == 10
        call = "session.microbatches(loader, 10 + 4)"
        with pytest.raises(ValueError, match=re.escape(f"of the epoch's steps; call {call},")):
            count(session.microbatches(session.b))
        assert count(session.batches(session.b, 10 + 4)) == 4
        assert session.step == 14 * (epoch + 1)


def test_a_loop_over_all_batches_is_entered_anew_in_each_epoch() -> None:
    session = LoopsAlone()
    assert [count(session.batches(session.a)) for _ in session.epochs(2)] == [10, 10]
    for epoch in session.epochs(4):
        loader = session.a if epoch % 2 else session.b
        assert count(session.batches(loader)) == len(loader)

    session = LoopsAlone()
    for epoch in session.epochs(2):
        if epoch == 0:  # whose loop would end within the next epoch
            count(session.batches(session.b, 12), leave_after=3)
        else:
            assert count(session.batches(session.a)) == 10


def test_a_loop_over_all_batches_after_the_epochs_is_refused() -> None:
    """Also over the same loader: its batches count from the run's first step then."""
    for name in ("a", "b"):
        session = LoopsAlone()
        for _ in session.epochs(2):
            count(session.batches(session.a))
        loader = getattr(session, name)
        call = f"call session.batches(loader, 20 + {len(loader)}), the steps of both"
        with pytest.raises(ValueError, match=re.escape(call)):
            count(session.batches(loader))
        session = LoopsAlone()
        for _ in session.epochs(2):
            count(session.batches(session.a), leave_after=4)
            break
        with pytest.raises(ValueError, match="a loop before it has done 4 of the run's steps"):
            count(session.batches(getattr(session, name)))


def test_a_loop_before_the_epochs_is_told_of_in_the_first_one_and_counts_in_no_other() -> None:
    session = LoopsAlone()
    count(session.steps(5))
    for epoch in session.epochs(2):
        if epoch == 0:
            with pytest.raises(ValueError, match=r"done 5 of the epoch's steps; give each loop "):
                count(session.batches(session.a))
            count(session.steps(6))
        else:
            assert count(session.batches(session.a)) == 10

    resumed = LoopsAlone(step=8, epoch=1, epoch_began=6).had_drawn(2)
    assert count(resumed.steps(5)) == 0
    assert [count(resumed.batches(resumed.a)) for _ in resumed.epochs(2)] == [8]


def test_loops_over_the_same_loader_take_what_is_left_of_its_batches() -> None:
    session = LoopsAlone()
    assert count(session.batches(session.a, 3)) == 3
    assert count(session.batches(session.a), leave_after=2) == 2
    assert count(session.batches(session.a)) == 5


def test_a_loop_without_steps_before_it_changes_nothing() -> None:
    session = LoopsAlone()
    count(session.steps(0))
    assert count(session.batches(session.a), leave_after=7) == 7
    resumed = LoopsAlone(step=7).had_drawn(7)
    count(resumed.steps(0))
    assert count(resumed.batches(resumed.a)) == 3
    session = LoopsAlone()
    count(session.steps(5))
    count(session.steps(0))
    with pytest.raises(ValueError, match="a loop before it has done 5 of the run's steps"):
        count(session.batches(session.a))


def test_a_resumed_run_passes_its_first_loop_and_goes_on_in_the_second() -> None:
    resumed = LoopsAlone(step=12).had_drawn(10, 2)
    assert count(resumed.batches(resumed.a)) == 0
    assert count(resumed.batches(resumed.b, 10 + 4)) == 2

    left = LoopsAlone(step=5, left=(10,)).had_drawn(5)
    assert count(left.batches(left.a)) == 0
    assert count(left.batches(left.a)) == 5

    in_an_epoch = LoopsAlone(step=26, epoch=1, epoch_began=14).had_drawn(10, 2)
    done = [
        (
            count(in_an_epoch.batches(in_an_epoch.a)),
            count(in_an_epoch.batches(in_an_epoch.b, 10 + 4)),
        )
        for _ in in_an_epoch.epochs(3)
    ]
    assert done == [(0, 2), (10, 4)]


def test_a_stopped_training_passes_all_loops() -> None:
    session = LoopsAlone()
    count(session.batches(session.a), leave_after=3)
    session._progress.stop_at = 3
    assert count(session.batches(session.b)) == 0


@pytest.mark.parametrize("epochs", [False, True])
def test_all_batches_of_a_loader_again_are_called_for_by_totals(epochs: bool) -> None:
    session = LoopsAlone()
    for _ in session.epochs(2) if epochs else [0]:
        count(session.batches(session.a))
        with pytest.raises(ValueError, match="would do no step, because it counts from") as told:
            count(session.batches(session.a))
        call = "session.batches(loader, 10) and then session.batches(loader, 20) for 10 more"
        assert str(told.value).startswith("session.batches(loader) was reached before and ")
        assert str(told.value).partition("; call ")[2].startswith(call)
        assert ("over session.epochs()" in str(told.value)) is not epochs
    session = LoopsAlone()
    for _ in session.epochs(2) if epochs else [0]:
        assert count(session.batches(session.a, 10)) == 10
        assert count(session.batches(session.a, 20)) == 10


def test_steps_again_in_an_epoch_are_called_for_by_what_counts_from_its_first_one() -> None:
    session = LoopsAlone()
    for _ in session.epochs(2):
        count(session.steps(10))
        with pytest.raises(ValueError, match=r"call session\.steps\(20\) for 10 more$"):
            count(session.steps(10))


def test_epochs_that_were_trained_are_called_for_by_a_larger_total() -> None:
    session = LoopsAlone()
    assert [*session.epochs(3)] == [0, 1, 2]
    for total, larger in ((3, 6), (2, 5)):
        with pytest.raises(ValueError, match=rf"^session\.epochs\({total}\) was reached") as told:
            next(session.epochs(total))
        assert str(told.value).endswith(f"call session.epochs({larger}) for {total} more")
    assert [*session.epochs(0)] == []
    assert [*session.epochs(6)] == [3, 4, 5]


def test_epochs_that_an_interrupted_run_had_trained_are_passed() -> None:
    resumed = LoopsAlone(step=40, epoch=4, epoch_began=40)
    assert [*resumed.epochs(3)] == []
    assert [*resumed.epochs(6)] == [4, 5]
    ended = LoopsAlone(step=30, epoch=3, epoch_began=30)
    assert [[*ended.epochs(3)] for _ in range(2)] == [[], []]


@pytest.mark.parametrize("restored", [0, 7])
def test_totals_of_epochs_up_to_a_largest_one_may_reach_it_again(restored: int) -> None:
    session = LoopsAlone(epoch=restored)
    rounds = [[*session.epochs(min(5 * number, 10))] for number in (1, 2, 3)]
    assert [epoch for each in rounds for epoch in each] == [*range(restored, 10)]


def test_epochs_that_were_left_or_stopped_may_be_begun_again() -> None:
    session = LoopsAlone()
    assert count(session.epochs(3), leave_after=2) == 2
    assert [*session.epochs(3)] == [1, 2]
    session._progress.stop_at = 0
    assert [*session.epochs(3)] == []
