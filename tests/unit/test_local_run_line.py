"""What of a status is said to be so now: by the phase, and by when the training last reported."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainingrun.local.run_line import LOCAL_FOLDER, progress_line, reasons, time_left, warnings

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SLOW = "rank 3 runs out of memory in 20 minutes"


def a_run(
    phase: str = "Running", silent_s: float = 0, local: bool = False, **progress: Any
) -> dict[str, Any]:
    """A run whose training last reported so many seconds ago; None leaves a field out."""
    reported = (NOW - timedelta(seconds=silent_s)).isoformat()
    measured = {"step": 9, "stepSeconds": 0.5, "secondsLeft": 7200, "warnings": [SLOW]}
    found = {**measured, "updateTime": reported, **progress}
    return {
        "metadata": {"name": "digits", "annotations": {LOCAL_FOLDER: "/runs"} if local else {}},
        "status": {
            "phase": phase,
            "progress": {name: value for name, value in found.items() if value is not None},
        },
    }


NOW_LINE = "Running · step 9 · 2.0 steps/s · 2h left"


@pytest.mark.parametrize(
    ("run", "line", "warned"),
    [
        pytest.param(a_run(), NOW_LINE, True, id="it has just reported"),
        pytest.param(a_run(silent_s=300), NOW_LINE, True, id="a pause"),
        pytest.param(
            a_run(silent_s=7300), "Running · step 9 · last report 2h ago", False, id="silent"
        ),
        pytest.param(
            a_run(silent_s=1200, stepSeconds=120.0),
            "Running · step 9 · 0.0083 steps/s · 2h left",
            True,
            id="ten long steps",
        ),
        pytest.param(
            a_run(silent_s=1201, stepSeconds=120.0),
            "Running · step 9 · last report 20m ago",
            False,
            id="more than ten",
        ),
        pytest.param(
            a_run(silent_s=7300, stepSeconds=None),
            "Running · step 9 · last report 2h ago",
            True,
            id="without a session its ranks are measured between reports",
        ),
        pytest.param(a_run(silent_s=-60), NOW_LINE, True, id="another clock"),
        pytest.param(a_run(updateTime=None), NOW_LINE, True, id="not known"),
        pytest.param(a_run(silent_s=7300, local=True), NOW_LINE, True, id="of this machine"),
    ],
)
def test_rate_time_left_and_warnings_are_those_of_a_training_that_reports(
    run: dict[str, Any], line: str, warned: bool
) -> None:
    assert progress_line(run, now=NOW) == line
    assert (time_left(run, NOW) == "2h") is ("2h left" in line)
    assert warnings(run, NOW) == reasons(run, NOW) == ([SLOW] if warned else [])


@pytest.mark.parametrize(
    "phase", ["Pending", "Queued", "Starting", "Recovering", "Suspended", "Deleting", "Failed"]
)
def test_a_run_that_does_not_train_has_no_warning_of_its_former_ranks(phase: str) -> None:
    run = a_run(phase)
    assert progress_line(run, now=NOW) == f"{phase} · step 9"
    assert warnings(run, NOW) == reasons(run, NOW) == []
