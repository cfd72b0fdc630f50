"""Which metrics a checkpoint has: those of its step, and of former ones what rates no weights."""

import math

import pytest

from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.session.loop_totals import whole_number
from trainingrun_runtime.session.session_context import ProgressState

BEST = ("error",)


@pytest.fixture
def progress() -> ProgressState:
    """Of a training that has reported its loss, and after it an evaluation, of step 5."""
    progress = ProgressState(Position(step=4))
    progress.report(5, {"loss": 0.5})
    progress.report(5, {"error": 0.1})
    return progress


def test_what_is_reported_of_one_step_is_kept_together(progress: ProgressState) -> None:
    assert progress.metrics == {"loss": 0.5, "error": 0.1}
    assert progress.metrics_after(5, BEST) == progress.metrics


def test_no_later_checkpoint_is_rated_by_what_was_measured_with_former_weights(
    progress: ProgressState,
) -> None:
    assert progress.metrics_after(6, BEST) == {"loss": 0.5}
    assert progress.metrics_after(6, ()) == {"loss": 0.5, "error": 0.1}
    progress.report(6, {"loss": 0.4})
    assert progress.metrics_after(6, BEST) == {"loss": 0.4}


@pytest.mark.parametrize("total", [5, 5.0, True + 4])
def test_a_loop_takes_a_whole_number(total: float) -> None:
    assert whole_number(total, "steps") == 5


@pytest.mark.parametrize("total", [312.5, math.inf, math.nan, "5", None])
def test_another_length_of_a_loop_is_refused_with_what_to_write(total: object) -> None:
    with pytest.raises(ValueError, match=r"is no whole number of steps; round it.*2\*\*31"):
        whole_number(total, "steps")
