"""Phase, progress, checkpoint and goodput: what a user reads, from what the driver reports."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_pod, a_progress, a_ray_job, at, pods, unix
from support.reconciled import a_polled_run, condition, reconcile, then
from trainingrun.api.status import Goodput
from trainingrun.reconciling import Observed


@pytest.fixture
def training() -> Observed:
    return a_polled_run()


def test_progress_is_the_driver_s(training: Observed) -> None:
    progress = reconcile(training).status.progress
    assert progress
    assert progress.to_dict() == {
        "step": 10,
        "totalSteps": 100,
        "percent": 10,
        "metrics": {"loss": 0.5},
        "updateTime": at(60),
    }


def test_the_page_that_a_driver_has_written_stays_named(training: Observed) -> None:
    uri = "s3://runs/demo-1a2b3c4d/report.html"
    assert reconcile(training).status.report_uri is None
    ended = replace(training, progress=a_progress(report_uri=uri))
    assert reconcile(ended).status.report_uri == uri
    assert reconcile(then(ended, progress=a_progress())).status.report_uri == uri


def test_the_interval_between_checkpoints_is_shown_in_whole_seconds(training: Observed) -> None:
    reported = replace(training, progress=a_progress(checkpoint_interval_seconds=415.7))
    progress = reconcile(reported).status.progress
    assert progress
    assert progress.checkpoint_interval_seconds == 416


def test_the_share_of_time_spent_waiting_for_data_is_shown(training: Observed) -> None:
    waiting = a_progress(data_wait_share=0.3456, data_wait_rank=3)
    progress = reconcile(replace(training, progress=waiting)).status.progress
    assert progress
    assert (progress.data_wait_share, progress.data_wait_rank) == (0.35, 3)


def test_the_slowest_rank_and_the_fullest_memory_are_shown(training: Observed) -> None:
    warning = "rank 1 on node b is slow: a step takes it 0.300 s of its own"
    reported = a_progress(
        world_size=2,
        step_seconds=0.31234,
        communication_wait_share=0.6789,
        communication_wait_rank=0,
        slowest_rank={"rank": 1, "node": "b", "own_seconds": 0.30004, "median_seconds": 0.1},
        memory={"rank": 1, "node": "b", "used_bytes": 2**30, "limit_bytes": 2**31},
        warnings=[warning],
    )
    plan = reconcile(replace(training, progress=reported))
    progress = plan.status.progress
    assert progress
    assert progress.step_seconds == 0.312
    assert (progress.communication_wait_share, progress.communication_wait_rank) == (0.68, 0)
    assert progress.slowest_rank
    assert progress.slowest_rank.to_dict() == {
        "rank": 1,
        "node": "b",
        "ownSeconds": 0.3,
        "medianSeconds": 0.1,
    }
    assert progress.memory
    assert progress.memory.to_dict() == {
        "rank": 1,
        "node": "b",
        "usedBytes": 2**30,
        "limitBytes": 2**31,
    }
    ready = condition(plan, "Ready")
    assert (ready.status, ready.message) == ("True", f"2 workers train; {warning}")


def test_the_same_document_read_again_later_changes_nothing(training: Observed) -> None:
    first = then(training, 62)
    assert reconcile(first, 64).status.to_dict() == first.run.status.to_dict()
    newer = replace(first, progress=a_progress(time=unix(64)))
    assert reconcile(newer, 90).status.to_dict() == first.run.status.to_dict()


def test_metrics_in_status_are_few_and_small(training: Observed) -> None:
    wild: dict[str, Any] = {
        "text": "x" * 1000,
        "list": [1] * 1000,
        "nan": "nan",
        **{f"m{n}": n for n in range(99)},
    }
    reported = reconcile(replace(training, progress=a_progress(metrics=wild))).status.progress
    assert reported
    assert len(reported.metrics) == 50
    assert (len(reported.metrics["text"]), reported.metrics["nan"]) == (100, "nan")
    assert "list" not in reported.metrics


def test_a_starting_driver_does_not_wipe_what_was_reached(training: Observed) -> None:
    known = then(training, 62)
    starting = replace(known, progress=a_progress(fencing_token=2, step=0, resumed_from_step=None))
    assert reconcile(starting).status.progress == known.run.status.progress
    resumed = replace(known, progress=a_progress(fencing_token=2, step=8, resumed_from_step=8))
    assert reconcile(resumed).status.progress.step == 8  # type: ignore[union-attr]


def test_the_attempt_shows_where_it_went_on_and_how_far_it_came(training: Observed) -> None:
    known = then(replace(training, progress=a_progress(resumed_from_step=4)), 62)
    later = a_progress(fencing_token=2, step=7, resumed_from_step=6)
    last = reconcile(replace(known, progress=later)).status.attempts[-1]
    assert (last.resumed_from_step, last.last_step) == (4, 10)


def test_the_newest_checkpoint_is_shown(training: Observed) -> None:
    saved = a_progress(checkpoint={"uri": "s3://c/10", "step": 10, "time": unix(59)})
    found = reconcile(replace(training, progress=saved)).status.checkpoint
    assert found
    assert (found.uri, found.step, found.time) == ("s3://c/10", 10, at(59))


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        pytest.param({}, "Running", id="trains"),
        pytest.param({"progress": None}, "Starting", id="no document"),
        pytest.param({"progress": a_progress(state="Recovering")}, "Recovering", id="recovering"),
        pytest.param({"progress": a_progress(state="Starting", step=0)}, "Starting", id="starting"),
        pytest.param({"pods": pods()[1:]}, "Recovering", id="head gone"),
        pytest.param(
            {"pods": (a_head(created_at=61, uid="new"),), "progress_age_s": 20.0},
            "Recovering",
            id="new head",
        ),
        pytest.param({"ray_jobs": (a_ray_job(queued=True),), "pods": ()}, "Queued", id="queued"),
    ],
)
def test_the_phase_says_where_the_run_stands(
    training: Observed, changes: dict[str, Any], phase: str
) -> None:
    assert reconcile(replace(training, **changes), 62).status.phase == phase


def test_a_run_is_ready_while_all_its_workers_train(training: Observed) -> None:
    assert condition(reconcile(training), "Ready").status == "True"
    fewer = replace(training, progress=a_progress(world_size=1))
    assert condition(reconcile(fewer), "Ready").status == "False"


def test_a_run_whose_pods_hold_two_workers_each_is_ready_while_all_of_them_train() -> None:
    training = a_polled_run(workers={"count": 4, "perPod": 2})
    assert condition(reconcile(training), "Ready").status == "False"
    ready = condition(reconcile(replace(training, progress=a_progress(world_size=4))), "Ready")
    assert (ready.status, ready.message) == ("True", "4 workers train")


def test_a_condition_s_time_changes_only_with_its_status(training: Observed) -> None:
    ready = then(training, 62)
    assert condition(reconcile(ready, 90), "Ready").last_transition_time == at(62)
    lost = then(replace(ready, pods=pods()[1:]), 95)
    assert condition(reconcile(lost, 99), "Ready").last_transition_time == at(95)


def goodput(observed: Observed, seconds: float = 62) -> Goodput:
    found = reconcile(observed, seconds).status.goodput
    assert found
    return found


def test_the_queue_ends_with_the_last_pod_however_many_workers_it_holds() -> None:
    training = a_polled_run(workers={"count": 16, "perPod": 8})
    assert goodput(training).lost_seconds.queue == 3
    waits = a_polled_run(workers={"count": 16})
    assert goodput(waits).lost_seconds.queue == 0, "14 pods are missing"


def test_every_second_is_in_exactly_one_place(training: Observed) -> None:
    seconds = {"productive": 30.0, "startup": 20.0, "checkpoint": 2.0, "lost_work": 1.0}
    found = goodput(replace(training, progress=a_progress(seconds=seconds)))
    lost = found.lost_seconds
    assert (lost.queue, lost.startup, lost.checkpoint, lost.lost_work) == (3, 24, 2, 1)
    total = found.productive_seconds + lost.queue + lost.startup + lost.checkpoint + lost.lost_work
    assert total + lost.recovery == 60
    assert found.percent == 50


def test_a_successor_starts_from_zero_and_nothing_is_counted_twice(training: Observed) -> None:
    first = then(training, 62)
    successor = a_progress(
        fencing_token=2,
        resumed_from_step=10,
        step=20,
        step_time=unix(120),
        seconds={"productive": 30.0, "startup": 15.0},
    )
    second = replace(first, progress=successor)
    assert goodput(second, 122).productive_seconds == 60
    again = then(second, 122)
    assert goodput(again, 124).productive_seconds == 60, "an operator restarted changes nothing"
    assert goodput(again, 124).lost_seconds.recovery == 30
    assert goodput(replace(again, progress=first.progress), 126).productive_seconds == 60


def test_steps_that_a_successor_does_again_were_lost_work(training: Observed) -> None:
    first = then(training, 62)
    successor = a_progress(fencing_token=2, resumed_from_step=5, step=5, step_time=None, seconds={})
    resumed = then(replace(first, progress=successor), 80)
    stepped = a_progress(
        fencing_token=2,
        resumed_from_step=5,
        step=6,
        step_time=unix(90),
        seconds={"productive": 3.0},
    )
    found = goodput(replace(resumed, progress=stepped), 92)
    assert (found.productive_seconds, found.lost_seconds.lost_work) == (18, 15)


def test_suspended_time_is_no_one_s_loss(training: Observed) -> None:
    status = training.run.status.model_copy(update={"suspended_seconds": 1000.0})
    run = training.run.model_copy(update={"status": status})
    late = a_progress(step_time=unix(1060), seconds={"productive": 30.0})
    assert goodput(replace(training, run=run, progress=late), 1062).percent == 50


def test_the_queue_is_the_wait_until_the_last_of_the_first_pods_has_a_node(
    training: Observed,
) -> None:
    waiting = then(replace(training, progress=None, pods=pods()[:2]), 31)
    assert waiting.run.status.seen["queueSeconds"] == 3, "it was known already"
    fresh = replace(training, run=training.run.model_copy(update={"status": _unqueued(training)}))
    pending = (*pods()[:2], a_pod("worker-2", unschedulable="0/3 nodes"))
    assert "queueSeconds" not in reconcile(replace(fresh, pods=pending)).status.seen
    scheduled = (*pods()[:2], a_pod("worker-2", created_at=40))
    assert reconcile(replace(fresh, pods=scheduled)).status.seen["queueSeconds"] == 43


def _unqueued(training: Observed) -> Any:
    status = training.run.status
    seen = {key: value for key, value in status.seen.items() if key != "queueSeconds"}
    return status.model_copy(update={"seen": seen})
