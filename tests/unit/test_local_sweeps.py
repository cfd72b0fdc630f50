"""What a sweep on this machine says when it is interrupted, and what its trials use up."""

from pathlib import Path

import pytest

from support.builders import a_run
from trainingrun.api.failures_spec import Failures
from trainingrun.local.attempts import GiveUp, Standing, Tally, after_loss
from trainingrun.local.folder import Folder, own_run
from trainingrun.local.interruptions import unsaved
from trainingrun_protocol.progress import (
    LastCheckpoint,
    Progress,
    Record,
    RecordKind,
    SweepTable,
    TrialRow,
    TrialState,
)

HANG = Record(number=1, kind=RecordKind.HANG, time=1.0, message="trial 1: no step for 30 s")


def a_table(*states: TrialState) -> SweepTable:
    rows = [TrialRow(number=n, state=state) for n, state in enumerate(states, start=1)]
    return SweepTable(metric="loss", trials=rows)


def a_document(step: int, saved: int | None, has_session: bool = True) -> Progress:
    checkpoint = LastCheckpoint(uri="s3://a/1", step=saved, time=1.0) if saved is not None else None
    return Progress(attempt=1, step=step, checkpoint=checkpoint, has_session=has_session)


RUNNING, PENDING, DONE = TrialState.RUNNING, TrialState.PENDING, TrialState.SUCCEEDED


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (None, ", without a last checkpoint"),
        (Progress(attempt=1, sweep=a_table(DONE, PENDING, PENDING)), ""),
        (
            Progress(attempt=1, sweep=a_table(PENDING, RUNNING)),
            ", trial 2 without a last checkpoint",
        ),
        (
            Progress(attempt=1, sweep=a_table(RUNNING, DONE, RUNNING)),
            ", trials 1, 3 without a last checkpoint",
        ),
        (a_document(7, 7), ""),
        (a_document(7, 5), ", without a last checkpoint"),
        (a_document(7, None), ", without a last checkpoint"),
        (a_document(7, 7, has_session=False), ", without a last checkpoint"),
    ],
)
def test_only_what_is_not_saved_is_said_to_be_without_a_checkpoint(
    progress: Progress | None, said: str
) -> None:
    """The driver was ended before it had ended itself: Ray may take longer than the trials."""
    assert unsaved(progress) == said


def test_the_hangs_of_a_trial_are_counted_by_its_driver_and_not_against_the_run() -> None:
    rules = Failures(max_hangs=0)
    tally, ended = after_loss(rules, Tally(), HANG, Standing(), of_trial=True)
    assert (dict(tally.used), ended) == ({}, None)
    _, ended = after_loss(rules, Tally(), HANG, Standing())
    assert isinstance(ended, GiveUp)


def test_no_trial_is_shown_as_running_once_the_driver_has_ended(tmp_path: Path) -> None:
    record = Folder.prepare(a_run(name="one"), tmp_path, False).record
    record.no_trial_runs()  # there is no sweep
    record.show(Progress(attempt=1, sweep=a_table(RUNNING, DONE)))
    record.no_trial_runs()
    sweep = own_run("one", tmp_path)[1]["status"]["sweep"]
    assert [row["state"] for row in sweep["trials"]] == [PENDING, DONE]
    assert (sweep.get("running", 0), sweep["pending"], sweep["succeeded"]) == (0, 1, 1)
