"""What the page of a run says: from a folder, from a status, from both, and from very little."""

import html as entities
import json
import math
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from support import large_tables, sweeps
from support.report_runs import BEGAN, FAILURE, failed_run
from trainingrun import RunError
from trainingrun.api.status import MOST_LOSSES
from trainingrun.client import run_page
from trainingrun.client.places import Place
from trainingrun_protocol.contract import ContractStorage, RunContract
from trainingrun_protocol.progress import (
    Progress,
    Record,
    RecordKind,
    RunState,
    Seconds,
    SweepTable,
    TrialRow,
)
from trainingrun_runtime.driver import run_settings
from trainingrun_runtime.report_page import charts, contents, folder, page, timeline
from trainingrun_runtime.report_page.contents import Contents
from trainingrun_runtime.report_page.curves import Series
from trainingrun_runtime.report_page.folder import LastLines, RunFolder
from trainingrun_runtime.report_page.history import MOST_IN_STATUS
from trainingrun_runtime.report_page.spending import causes_of
from trainingrun_runtime.store import kept_output, metrics_table
from trainingrun_runtime.store import run_settings as stored_settings
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.last_progress import Driver
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.store.metrics_table import Part
from trainingrun_runtime.store.reported_metrics import Origin, Row, printable_metrics
from trainingrun_runtime.store.start_traces import StartTrace

NOW = BEGAN + 3600


@pytest.fixture
def failed(tmp_path: Path) -> RunFolder:
    bucket = Bucket.open((tmp_path / "demo-1a2b3c4d").as_uri())
    failed_run(bucket)
    return folder.read(bucket)


def shown(found: RunFolder, run: dict[str, Any] | None = None) -> Contents:
    return contents.of("demo", found, run, NOW, "From a test.")


def text(found: Contents) -> str:
    """What a reader of the page sees, about."""
    body = page.html(found).partition("<body>")[2]
    return " ".join(entities.unescape(re.sub("<[^>]*>", " ", body)).split())


def test_of_a_failed_run_the_cause_and_the_remedy_come_first(failed: RunFolder) -> None:
    found = shown(failed)
    assert (found.state, found.tone, found.message) == ("Failed", "bad", f"{FAILURE}.")
    assert text(found).startswith(f"demo Failed {FAILURE}.")
    assert "line 88, in train" in found.traceback
    assert [each.value for each in found.figures][:1] == ["331"]


def test_each_attempt_has_a_row_also_one_whose_head_has_left_nothing(failed: RunFolder) -> None:
    rows = shown(failed).attempts
    assert [(one.number, one.outcome) for one in rows] == [
        (1, "Lost"),
        (2, "No record"),
        (3, "Failed"),
    ]
    assert rows[0].message.startswith("Last heard of at 2026-")
    assert (rows[2].resumed_from, rows[2].last_step) == (200, 331)


def test_where_no_rank_has_failed_the_lines_of_the_driver_come_first(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1a2b3c4d").as_uri())
    failed_run(bucket, rank_failed=False)
    found = folder.read(bucket)
    assert found.output[0].rank is None
    assert not any(one.failed_first for one in found.output)


def test_the_last_lines_are_those_of_the_driver_that_has_followed_a_lost_head(
    tmp_path: Path,
) -> None:
    """Each driver numbers its worker groups from 1."""
    bucket = Bucket.open((tmp_path / "demo-1a2b3c4d").as_uri())
    Lease.take(bucket, 1, "demo-1-head", BEGAN)
    for group, after, said in ((1, 10, "one"), (2, 20, "two"), (1, 300, "after the head")):
        key = kept_output.key(kept_output.Source(1, group, 0), BEGAN + after)
        bucket.put(key, kept_output.written(BEGAN + after, said).encode())
    # That of a bucket which was away has the time at which it could be written.
    bucket.put(kept_output.key(kept_output.Source(1, 2, 0), BEGAN + 400, last=True), b"")
    bucket.put(kept_output.key(kept_output.Source(1), BEGAN + 500), b"of the driver\n")
    ranks = [one for one in folder.read(bucket).output if one.rank is not None]
    assert [(one.rank, one.lines[-1]) for one in ranks] == [(0, "after the head")]


def test_a_run_that_begins_is_not_said_to_be_restored(failed: RunFolder) -> None:
    own_progress = failed.drivers[-1].progress
    assert own_progress is not None

    def restored(*steps: int | None, drivers: int = 1) -> list[int | None]:
        records = [
            Record(number=number, kind=RecordKind.RESTORED, time=BEGAN + number, step=step)
            for number, step in enumerate(steps, 1)
        ]
        own = replace(
            failed.drivers[-1],
            progress=own_progress.model_copy(update={"records": records}),
        )
        return [event.step for event in shown(replace(failed, drivers=[own] * drivers)).events]

    assert restored(0) == []
    assert restored(0, 0) == [0], "after a loss all steps are done again"
    assert restored(120) == [120], "from another run's checkpoint"
    assert restored(0, drivers=2) == [0], "a later driver has found no checkpoint"
    assert restored(None, None) == [], "two trials of a sweep"


def test_columns_without_a_value_are_left_out(failed: RunFolder) -> None:
    assert "GPU" in text(shown(failed))
    newest = failed.drivers[-1]
    assert newest.progress is not None
    ranks = [one.model_copy(update={"accelerator_share": None}) for one in newest.progress.ranks]
    bare = replace(newest, progress=newest.progress.model_copy(update={"ranks": ranks}))
    words = text(shown(replace(failed, drivers=[*failed.drivers[:-1], bare])))
    assert "GPU" not in words
    assert "Waits for data" in words


def test_a_curve_tells_its_values_at_some_of_its_steps(failed: RunFolder) -> None:
    series = Series("loss", [(step, 1 / step, 1) for step in range(1, 1001)], 0)
    curve = charts.curve(series, [])
    assert len(curve.points) <= charts.POINTS + 1
    assert curve.points[-1].title == "step 1,000: 0.001, attempt 1"
    assert curve.points[0].left == 0


def test_an_epoch_is_no_curve(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    rows = [Row(n, float(n), {"epoch": n, "loss": 1 / n}) for n in (1, 2)]
    part = Part(1, 1, 1, None, metrics_table.table_of(rows, 1))
    bucket.put(part.key, metrics_table.encoded(part))
    assert [series.name for series in folder.read(bucket).curves] == ["loss"]


def test_a_metric_that_is_no_number_any_more_is_named(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    values = [(1, 0.3, math.nan), (2, 0.2, math.nan), (3, math.nan, math.inf)]
    rows = [Row(n, float(n), {"loss": loss, "norm": norm}) for n, loss, norm in values]
    part = Part(1, 1, 1, None, metrics_table.table_of(rows, 1))
    bucket.put(part.key, metrics_table.encoded(part))
    words = text(shown(folder.read(bucket)))
    assert "loss last finite value 0.2, from 0.2 to 0.3" in words
    assert "1 value is NaN or infinite and not drawn" in words
    assert "nearly all of their values are NaN or infinite: norm" in words


def test_last_lines_and_stacks_of_what_failed_are_there(failed: RunFolder) -> None:
    assert [(one.rank, one.lines[-1], len(one.lines)) for one in failed.output] == [
        (6, "tensor b is 32", 2),
        (2, "reading shard 41 79", 50),
        (None, "training failed 79", 50),
    ]
    found = shown(failed)
    assert "Last lines of rank 6 in attempt 3, which failed first tensor a is 64" in text(found)
    attempts = [{"number": 9, "failedRank": 4, "lastLines": ["no space left"]}]
    alone = shown(RunFolder("s3://runs/demo-1"), {"status": {"attempts": attempts}})
    assert "Last lines of rank 4 in attempt 9, which failed first no space left" in text(alone)
    assert found.hang is not None
    assert [one.rank for one in found.hang.ranks if one.hangs] == [2]
    assert (len(found.stacks), found.stacks_left_out) == (16, 4)


def test_losses_are_those_of_the_status_and_before_them_those_of_the_bucket(
    failed: RunFolder,
) -> None:
    (own,) = shown(failed).losses
    assert (own.reason, own.lost_steps, own.lost_seconds) == ("Preempted", 0, 24.5)
    lost = {
        "time": "2026-11-26T13:40:00Z",
        "attempt": 1,
        "reason": "NodeLost",
        "pods": ["demo-1-head"],
        "node": "spot-1",
        "zone": "eu-west-1b",
        "capacity": "Spot",
        "signs": "Its Lease is not renewed",
        "lostSteps": 40,
        "lostSeconds": 31.4,
        "action": "resumed from step 200",
    }
    assert MOST_IN_STATUS == MOST_LOSSES
    history = [{**lost, "number": number} for number in range(2, MOST_LOSSES + 2)]
    found = shown(failed, {"status": {"disruptions": {"nodeLosses": 50, "history": history}}})
    assert [loss.reason for loss in found.losses] == ["Preempted", *["NodeLost"] * MOST_LOSSES]
    words = text(found)
    assert "demo-1-head, spot-1, eu-west-1b, Spot Its Lease is not renewed; resumed from" in words
    assert "Disruptions 51 2,000 steps lost" in words
    alone = shown(replace(failed, losses=[])).losses
    assert [loss.reason for loss in alone] == ["Preempted", "ApplicationError"], "by the records"


def test_a_loss_that_the_operator_saw_late_is_listed_once(failed: RunFolder) -> None:
    """A document has the time of the last step, and the status that of the sight."""
    late = timeline.clock(failed.losses[0].time + 300).removesuffix(" UTC").replace(" ", "T")
    for number in (1, 7):
        seen = {"number": number, "time": f"{late}Z", "attempt": 1, "reason": "Preempted"}
        status = {"disruptions": {"preemptions": 1, "history": [seen]}}
        assert len(shown(failed, {"status": status}).losses) == 1, "numbers have gaps"


def test_what_a_run_cost_is_there_where_the_operator_knows_it(failed: RunFolder) -> None:
    cost = {
        "unit": "accelerator",
        "totalSeconds": 1000.0,
        "seconds": {"training": 750.0, "lost": 200.0, "starting": 50.0, "waiting": 0.0},
        "currency": "EUR",
        "amount": 1234.5,
        "wasted": 308.6,
    }
    words = text(shown(failed, {"status": {"cost": cost}}))
    assert "In all 1,234.50 EUR" in words
    assert "Not in steps that counted 308.60 EUR" in words
    assert "Accelerators held for" in words
    assert "75.0 %" in words
    assert "What it cost" not in text(shown(failed))


def test_seconds_of_steps_that_were_done_again_are_lost_work(failed: RunFolder) -> None:
    found = shown(failed)
    seconds = {cause.kind: cause.seconds for cause in found.causes}
    # Attempt 3 continues at step 200 of the 240 that attempt 1 has done in 270 s.
    assert seconds["lost"] == pytest.approx(270 * 40 / 240)
    assert seconds["training"] == pytest.approx(270 * 200 / 240 + 140)
    assert sum(cause.percent for cause in found.causes) == pytest.approx(100)


def test_the_slow_rank_is_marked_and_a_rank_that_is_like_the_others_is_not(
    failed: RunFolder,
) -> None:
    assert shown(failed).slow_rank == 2
    ranks = page.html(shown(failed)).partition('id="ranks"')[2]
    assert ranks.count('class="marked"') == 1
    newest = failed.drivers[-1]
    assert newest.progress is not None
    assert newest.progress.slowest_rank is not None
    even = newest.progress.slowest_rank.model_copy(update={"own_seconds": 0.44})
    document = newest.progress.model_copy(update={"slowest_rank": even})
    drivers = [*failed.drivers[:-1], replace(newest, progress=document)]
    assert shown(replace(failed, drivers=drivers)).slow_rank is None


def test_the_status_says_what_the_bucket_does_not_know(failed: RunFolder) -> None:
    status = {
        "phase": "Recovering",
        "conditions": [
            {"type": "Ready", "status": "False", "message": "not this"},
            {"type": "Waiting", "status": "True", "message": "No node has 8 GPUs."},
        ],
        "attempts": [
            {
                "number": 2,
                "outcome": "Lost",
                "reason": "NodeLost",
                "capacity": "spot",
                "startTime": "2026-11-26T13:40:00Z",
                "endTime": "2026-11-26T13:41:00Z",
                "message": "node spot-7 is gone",
            }
        ],
        "goodput": {
            "percent": 61,
            "productiveSeconds": 610.0,
            "lostSeconds": {"queue": 90.0, "startup": 100.0, "recovery": 200.0},
        },
    }
    found = shown(failed, {"status": status})
    assert (found.state, found.tone, found.message) == (
        "Recovering",
        "busy",
        "No node has 8 GPUs.",
    )
    assert [(one.number, one.outcome, one.reason) for one in found.attempts][1] == (
        2,
        "Lost",
        "NodeLost",
    )
    assert "61 %" in [figure.value for figure in found.figures]
    assert [cause.percent for cause in found.causes] == [61, 9, 10, 20]
    assert "Waiting for admission or capacity" in text(found)


def test_a_page_of_the_status_alone_has_what_it_has_and_leaves_out_the_rest() -> None:
    found = shown(RunFolder("s3://runs/demo-1", notes=["The bucket was away."]), {"status": {}})
    words = text(found)
    assert "The bucket was away." in words
    for section in ("Time line", "Metrics over steps", "Ranks", "Checkpoints", "Attempts"):
        assert section not in words
    assert (found.state, found.message) == ("Pending", "No operator has seen the run yet.")
    assert shown(RunFolder("s3://runs/demo-1")).state == "Unknown"


def of_status(**status: Any) -> Contents:
    """The page of a run of which nothing but its status is known."""
    return shown(RunFolder("s3://runs/demo-1"), {"metadata": {"name": "demo"}, "status": status})


def test_an_edit_that_is_refused_is_said_while_the_attempt_goes_on() -> None:
    refused = {"type": "Accepted", "status": "False", "message": "workers.count may not change"}
    found = of_status(phase="Running", conditions=[refused])
    assert found.warnings == ["workers.count may not change"]


def test_a_run_that_is_being_deleted_says_so() -> None:
    deleted = {"name": "demo", "deletionTimestamp": "2026-11-26T22:15:00Z"}
    for phase, said in (("Running", "Deleting"), ("Succeeded", "Succeeded")):
        run = {"metadata": deleted, "status": {"phase": phase}}
        assert shown(RunFolder("s3://runs/demo-1"), run).state == said


def test_counts_are_those_of_the_run_and_not_of_what_the_status_keeps() -> None:
    start = "2026-11-26T22:00:00Z"
    kept = [{"number": n, "outcome": "Lost", "startTime": start} for n in (29, 30)]
    loss = {"number": 60, "reason": "NodeLost", "time": start, "signs": "", "lostSteps": 4}
    found = of_status(
        phase="Running",
        attempt=30,
        attempts=kept,
        disruptions={"nodeLosses": 40, "preemptions": 20, "history": [loss]},
    )
    figures = {figure.label: (figure.value, figure.note) for figure in found.figures}
    assert figures["Attempts"][0] == "30"
    assert figures["Disruptions"] == ("60", "at least 4 steps lost")
    assert "28 earlier ones are left out" in text(found)
    assert "59 earlier ones are left out" in text(found)


def test_what_an_attempt_did_is_not_known_without_its_driver() -> None:
    attempt = {"number": 1, "outcome": "Running", "startTime": "2026-11-26T22:00:00Z"}
    found = of_status(phase="Running", attempts=[attempt])
    assert [span.kind for span in found.spans] == ["unknown"]
    assert "what it did is not known here" in text(found)


def test_of_many_ranks_the_page_says_how_many_it_has_not() -> None:
    ranks = [{"rank": rank, "stepSeconds": 0.1} for rank in range(16)]
    found = of_status(phase="Running", progress={"ranks": ranks, "worldSize": 64})
    assert "48 further ranks are left out" in text(found)
    few = of_status(phase="Running", progress={"ranks": ranks[:3], "worldSize": 64})
    assert "further ranks" not in text(few), "the others have not reported"


def test_money_below_a_cent_is_no_nothing() -> None:
    found = of_status(phase="Running", cost={"amount": 0.0042, "wasted": 0.0, "currency": "USD"})
    assert found.money == [("In all", "0.0042 USD"), ("Not in steps that counted", "0.00 USD")]


def test_goodput_without_an_operator_is_as_the_operator_counts_it() -> None:
    """Rounded down, and of six of eight workers three quarters."""
    progress = Progress.model_validate(
        {
            "attempt": 1,
            "fencingToken": 1,
            "state": "Succeeded",
            "step": 100,
            "resumedFromStep": 0,
            "seconds": {"productive": 996.0, "startup": 4.0},
        }
    )
    driver = Driver(1, 1, BEGAN, NOW, progress)
    assert causes_of({}, [driver], 8)[0] == 99
    sizes = [{"workers": 6, "seconds": 996.0}]
    fewer = Driver(
        1, 1, BEGAN, NOW, Progress.model_validate({**progress.to_dict(), "sizes": sizes})
    )
    percent, causes = causes_of({}, [fewer], 8)
    assert percent == 74
    assert {cause.label: cause.seconds for cause in causes}[
        "Training without the workers that were missing"
    ] == 249.0


def test_of_long_last_lines_the_end_is_there() -> None:
    lines = [*(["x" * 1000] * 49), "ValueError: what went wrong"]
    found = text(shown(RunFolder("s3://runs/demo-1", output=[LastLines(1, 0, lines)])))
    assert "ValueError: what went wrong" in found
    assert "characters before this are left out" in found


def test_what_ranks_warned_of_is_said_while_they_train_and_of_a_run_that_has_ended() -> None:
    warned = {"warnings": ["rank 3 runs out of memory"]}
    for phase, said in (("Running", True), ("Failed", True), ("Queued", False)):
        run = {"metadata": {"name": "demo"}, "status": {"phase": phase, "progress": warned}}
        assert shown(RunFolder("s3://runs/demo"), run).warnings == warned["warnings"] * said, phase


def test_a_run_that_trains_says_when_it_was_last_heard_of() -> None:
    progress = Progress(
        attempt=1, fencing_token=1, state=RunState.TRAINING, time=NOW - 30, step=7, total_steps=9
    )
    driver = Driver(1, 1, BEGAN, NOW - 30, progress)
    found = shown(RunFolder("s3://runs/demo-1", drivers=[driver]))
    assert (found.state, found.tone) == ("Running", "busy")
    assert found.message.endswith(f"{timeline.clock(NOW - 30)}, at step 7.")


def test_the_page_has_the_phases_of_the_latest_start_and_recovery(failed: RunFolder) -> None:
    def start(group: int, **seconds: float) -> StartTrace:
        times = {name: BEGAN + after for name, after in seconds.items()}
        numbers = {"attempt": 1, "fencing_token": 1, "group": group, "world_size": 4}
        return StartTrace.model_validate({**numbers, "times": times})

    starts = [
        start(1, asked=5, created=9),
        start(2, last_step=50, lost=51, asked=52, created=90),
        start(3, last_step=100, lost=101, asked=102, created=110),
    ]
    run = {"metadata": {"creationTimestamp": timeline.clock(BEGAN).replace(" UTC", "Z")}}
    found = shown(replace(failed, starts=starts), run)
    assert [(one.title[:8].strip(), one.seconds) for one in found.traces] == [
        ("Start in", 9),
        ("Recovery", 10),
    ]
    words = text(found)
    assert "ray.train.worker_group.start worker group 5.00 s 4.00 s" in words
    assert "trainingrun.loss.detect worker group 0.00 s 1.00 s" in words
    assert 'style="flex:0.2000 0 0"></b><i class="starting" style="flex:0.8000' in page.html(found)
    assert "Where the time of a start went" not in text(shown(failed))


def test_a_start_of_which_no_phase_is_known_has_an_empty_table(failed: RunFolder) -> None:
    asked = {"attempt": 1, "fencing_token": 1, "group": 1, "times": {"asked": BEGAN}}
    found = shown(replace(failed, starts=[StartTrace.model_validate(asked)]))
    assert [(one.rows, one.seconds > 0) for one in found.traces] == [([], True)]
    assert "no first step is known" in text(found)


def test_pages_of_a_suspended_run_do_not_count_the_time_of_its_suspension() -> None:
    def driver(token: int, state: RunState, began: float) -> Driver:
        progress = Progress(
            attempt=token,
            fencing_token=token,
            state=state,
            time=began + 100,
            resumed_from_step=10 * (token - 1),
            step=10 * token,
            seconds=Seconds(startup=10, productive=90),
        )
        return Driver(token, token, began, began + 100, progress)

    drivers = [
        driver(1, RunState.SUSPENDED, BEGAN),
        driver(2, RunState.TRAINING, BEGAN + 9_000),
    ]
    causes = shown(RunFolder("s3://runs/demo-1", drivers=drivers)).causes
    assert {cause.kind: cause.seconds for cause in causes} == {
        "training": 180,
        "starting": 10,
        "paused": 10,
    }


def test_trials_of_a_sweep_are_listed_with_the_best_one() -> None:
    rows = [
        TrialRow.model_validate({"number": 1, "state": "Failed", "message": "out of memory"}),
        TrialRow.model_validate(
            {"number": 2, "state": "Succeeded", "config": {"lr": 0.1}, "value": 0.25}
        ),
    ]
    sweep = SweepTable(metric="loss", best=2, trials=rows)
    words = text(shown(RunFolder("s3://runs/demo-1", sweep=sweep)))
    assert "out of memory" in words
    assert "Succeeded , the best one" in words
    assert "lr 0.1" in words


def test_trials_are_those_of_the_status_where_the_bucket_is_not_read() -> None:
    trials = [
        {"number": 1, "state": "Running", "config": {"lr": 0.1}, "step": 7, "value": 0.5},
        {"number": 2, "state": "Pending"},
    ]
    sweep = {"pending": 1, "running": 1, "best": 1, "trials": trials}
    run = {"spec": {"sweep": {"metric": "loss"}}, "status": {"phase": "Running", "sweep": sweep}}
    words = text(shown(RunFolder("s3://runs/demo-1"), run))
    assert "Trial State Step loss Config Why it failed 1 Running , the best one 7 0.5" in words
    own = SweepTable(metric="loss", trials=[TrialRow(number=3)])
    assert shown(RunFolder("s3://runs/demo-1", sweep=own), run).sweep == own
    for other in ({"trials": "x"}, {"trials": [{}]}, None, {}):
        run["status"]["sweep"] = other
        assert "Trials" not in text(shown(RunFolder("s3://runs/demo-1"), run)), other


def test_a_sweep_has_its_page_before_a_trial_has_reported_the_metric(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1a2b3c4d").as_uri())
    lease = Lease.take(bucket, 1, "demo-1-head", BEGAN)
    sweeps.note(lease, sweeps.a_trial(1, None), sweeps.a_trial(2, None, state="Running"))
    printed = kept_output.written(BEGAN + 9, "two trials begin")
    bucket.put(kept_output.key(kept_output.Source(1), BEGAN + 9), printed.encode())
    run = {"metadata": {"name": "demo"}, "status": {"phase": "Running"}}
    place = Place(str(tmp_path / "demo-1a2b3c4d"), name="demo")
    words = text(run_page.of_status(run, lambda: run_page.read(place)))
    assert "No trial has reported 'error' yet, so that metrics, checkpoints and ranks" in words
    assert "2 Running" in words
    assert "two trials begin" in words
    with pytest.raises(RunError, match=r"trial 1 of the sweep .* has not begun to train"):
        run_page.read(replace(place, trial=1))


def test_text_of_a_run_becomes_neither_markup_nor_control_characters(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    failed_run(bucket, "</td><script>alert(1)</script>\"'\x1b]0;x\x07\x1b[31m\u202e\x00&")
    written = page.html(shown(folder.read(bucket)))
    assert written.count("&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;") > 10
    for forbidden in ("<script", "\x1b", "\u202e", "\x00", 'href="http', "src="):
        assert forbidden not in written


def test_what_is_damaged_in_the_bucket_is_left_out_and_named(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    failed_run(bucket)
    bucket.put("progress/000003.json", b"\xff")
    bucket.put("lease/000002.json", json.dumps({"attempt": 1e400, "taken": "x"}).encode())
    bucket.put("manifests/000009-000001.json", b"{}")
    bucket.put("result/000003.json", b"[]")
    found = shown(folder.read(bucket))
    assert [one.outcome for one in found.attempts] == ["No record", "Lost", "No record"]
    words = text(found)
    assert "manifests/000009-000001.json cannot be read" in words
    assert "result/000003.json is not a result; remove it" in words


def test_a_table_that_is_too_large_for_a_head_is_named_instead_of_read(
    tmp_path: Path,
) -> None:
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    failed_run(bucket)
    found = folder.read(bucket, largest_table=100)
    assert (found.curves, len(found.notes)) == ([], 1)
    assert "`trainingrun report --html` draws it" in found.notes[0]


def test_a_table_with_more_rows_than_a_head_decodes_is_named_instead(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    large_tables.put(bucket, parts=2, metrics=1)
    assert [len(each.points) for each in folder.read(bucket, most_rows=10_000).curves] == [10_000]
    found = folder.read(bucket, most_rows=9_999)
    assert found.curves == []
    assert " with 10,000 rows, too much for the head to draw" in found.notes[0]


def test_a_table_takes_memory_for_some_of_its_columns_at_once(tmp_path: Path) -> None:
    """A tenth of the table's values are drawn, and all of them were objects of Python."""
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    large_tables.put(bucket, parts=12, metrics=120)
    assert sum(entry.size for entry in bucket.list()) < 2e6
    said = subprocess.check_output(
        [sys.executable, "-m", "support.large_tables", bucket.root],
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    drawn, left_out, mib = map(int, said.split())
    assert (drawn, left_out) == (folder.MOST_CURVES, 120 - folder.MOST_CURVES)
    assert mib < 300


def test_of_a_long_curve_each_extreme_is_kept_and_each_attempts_ends(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    loss = {step: math.sin(step / 500) for step in range(1, 40_001)}
    loss |= {7_777: 99.0, 31_111: -99.0, 20_000: math.nan}
    for attempt, steps in ((1, range(1, 25_001)), (2, range(25_001, 40_001))):
        origin = Origin(1, 1, 25_000) if attempt == 2 else None
        rows = [Row(n, float(n), printable_metrics({"loss": loss[n]})) for n in steps]
        part = Part(attempt, 1, 1, origin, metrics_table.table_of(rows, attempt))
        bucket.put(part.key, metrics_table.encoded(part))
    (series,) = folder.read(bucket).curves
    assert series.left_out == 1
    assert len(series.points) < 20_000
    steps_kept = [step for step, _, _ in series.points]
    assert steps_kept == sorted(set(steps_kept))
    assert {1, 7_777, 25_000, 25_001, 31_111, 40_000} <= set(steps_kept)
    assert {attempt for step, _, attempt in series.points if step > 25_000} == {2}
    assert all(value == loss[step] for step, value, _ in series.points)


def test_metrics_that_are_numbers_are_drawn_losses_first(failed: RunFolder) -> None:
    assert [each.name for each in failed.curves] == [
        "loss",
        "learning_rate",
        "samples_per_second",
        "gradient_norm",
        "accuracy",
    ]
    drawn = shown(failed).curves
    assert [line.attempt for line in drawn[0].lines] == [1, 3]
    assert (drawn[3].left_out, drawn[1].logarithmic, drawn[0].logarithmic) == (1, True, False)
    assert drawn[0].marks == pytest.approx([(103 - 1) / 330 * 100])


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 5,
        [1e308, -1e308],
        [5e-324, 1e308, 1.0],
        [1.0, 1.0 + 2e-16],
        [2.0**60, 2.0**60 + 1024],
        [-1.0, 1.0],
    ],
    ids=str,
)
def test_every_curve_stays_inside_its_chart(values: list[float]) -> None:
    points = [(step, value, 1) for step, value in enumerate(values)]
    found = charts.curve(Series("loss", points, 0), [0, 10**9])
    numbers = [float(each) for each in re.findall(r"-?[\d.]+(?:e-?\d+)?", found.lines[0].path)]
    assert all(-0.01 <= each <= 100.01 for each in numbers)
    assert 1 <= len(found.y_labels) <= 12
    assert all(-0.01 <= label.at <= 100.01 for label in found.x_labels + found.y_labels)


def test_a_long_curve_is_drawn_by_its_extremes() -> None:
    points = [(step, 5.0 if step == 77_777 else 1.0, 1) for step in range(200_000)]
    found = charts.curve(Series("loss", points, 0), [])
    assert len(found.lines[0].path) < 20_000
    assert found.lines[0].path.count(" 0.00") == 1, "the one value that stands out is there"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7260, "2 h 1 min")],
)
def test_durations(seconds: float, written: str) -> None:
    assert timeline.duration(seconds) == written


def test_the_time_of_a_lease_is_the_begin_of_its_driver(tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1").as_uri())
    Lease.take(bucket, 4, "pod", 1000).renew(1060)
    (driver,) = folder.read(bucket).drivers
    assert (driver.attempt, driver.began, driver.seen) == (4, 1000, 1060)


def a_contract(**fields: Any) -> RunContract:
    known: dict[str, Any] = {
        "function": "train:main",
        "storage": ContractStorage(uri="s3://runs/demo-1"),
        "resources_per_worker": {"CPU": 4.0, "GPU": 1.0, "trainingrun_worker": 1.0},
    }
    return RunContract(name="demo", namespace="a", uid="0", attempt=4, **known | fields)


def with_settings(found: RunFolder, contract: RunContract, **environment: str) -> Contents:
    return shown(replace(found, settings=run_settings.of(contract, environment)))


def test_the_page_tells_what_the_newest_driver_has_begun_with(
    failed: RunFolder, tmp_path: Path
) -> None:
    assert "Config" not in text(shown(failed)), "of a folder that an older version has written"
    bucket = Bucket.open((tmp_path / "demo-1a2b3c4d").as_uri())
    for number, rate in ((4, 0.1), (5, 0.25)):
        contract = a_contract(
            image="registry.example.org/train:7",
            workers=8,
            minimum_workers=6,
            config={"lr": rate, "model": {"depth": 12, "names": ["a", "b"]}, "off": None},
        )
        held = Lease.take(bucket, number, f"demo-{number}-head", BEGAN + 800)
        stored_settings.write(held, run_settings.of(contract, {}))
    words = text(shown(folder.read(bucket)))
    assert "Function train:main" in words
    assert "Workers 8, at least 6" in words
    assert "Each worker 4 CPU, 1 GPU Image registry.example.org/train:7" in words
    assert f"Versions Python {platform.python_version()}, PyTorch {torch_version()}" in words
    assert 'Config lr 0.25 model.depth 12 model.names ["a", "b"] off null' in words


def torch_version() -> str:
    return metadata.version("torch")


def test_settings_that_cannot_be_read_are_left_out(failed: RunFolder, tmp_path: Path) -> None:
    bucket = Bucket.open((tmp_path / "demo-1a2b3c4d").as_uri())
    for content in (b"\xff", b"[]", b"{}", b" " * 2**21):
        bucket.put("settings/000003.json", content)
        assert folder.read(bucket).settings is None


def test_no_secret_of_a_config_or_of_a_scripts_arguments_is_on_the_page(failed: RunFolder) -> None:
    config = {
        "api_key": "hidden-1",
        "logger": {"credentials": {"user": "hidden-2"}},
        "sinks": [{"password": "hidden-3"}, {"url": "https://me:hidden-4@example.org/x"}],
        "tokens": ["hidden-5"],
        "note": "sent with hidden-6",
        "max_tokens": 4096,
    }
    arguments = ["--wandb-key=hidden-7", "--token", "hidden-8", "db.password=hidden-9", "--lr=1"]
    arguments += ["--secret", "--epochs", "20"]
    contract = a_contract(function=None, script="train.py", script_args=arguments, config=config)
    words = text(with_settings(failed, contract, HF_TOKEN="hidden-6"))
    assert "hidden" not in words
    shown_arguments = "--wandb-key=*** --token *** db.password=*** --lr=1 --secret --epochs 20"
    assert f"Script train.py Arguments {shown_arguments}" in words
    assert "note sent with ***" in words
    assert "max_tokens 4096" in words


def test_a_large_config_is_cut_with_a_sentence(failed: RunFolder) -> None:
    config = {f"layer-{number}": {"text": "x" * 1000} for number in range(1000)}
    contract = a_contract(config=config)
    found = run_settings.of(contract, {})
    assert len(json.dumps(found.to_dict())) < 2**18
    words = text(with_settings(failed, contract))
    assert "800 further values of the config are left out; spec.training.config of the" in words
    assert f"layer-0.text {'x' * 499}… layer-1.text" in words


def test_a_hostile_config_becomes_no_markup(failed: RunFolder) -> None:
    hostile = "</td><script>alert(1)</script>\x1b[31m\ud800"
    contract = a_contract(config={hostile: hostile, "deep": [[[{hostile: [hostile]}]]]})
    written = page.html(with_settings(failed, contract))
    assert written.count("&lt;script&gt;alert(1)") == 4
    assert "<script" not in written
