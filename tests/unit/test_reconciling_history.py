"""status.disruptions.history: each loss once, with where it happened and what it cost."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_node, a_pod, a_progress, a_ray_job, nodes, pods, unix
from support.reconciled import a_polled_run, reconcile, then
from trainingrun.api.status import MOST_LOSSES, Loss
from trainingrun.reconciling import Observed

HEAD, ONE, TWO = pods()
SPOT = {
    "kubernetes.io/hostname": "spot-1",
    "topology.kubernetes.io/zone": "zone-b",
    "trainingrun.dev/capacity": "spot",
}
BEGUN = {"number": 1, "kind": "Restored", "time": unix(40), "step": 0, "message": "resumed"}


@pytest.fixture
def training() -> Observed:
    """A run at step 10, whose first worker is on a spot node."""
    begun = replace(a_polled_run(), nodes=nodes(a_node("spot-1", labels=SPOT)))
    return then(replace(begun, progress=a_progress(records=[BEGUN])), 62)


def history(observed: Observed, seconds: float = 64) -> list[Loss]:
    return reconcile(observed, seconds).status.disruptions.history


def a_record(number: int, kind: str, at: float, step: int, **record: Any) -> dict[str, Any]:
    return {"number": number, "kind": kind, "time": unix(at), "step": step, **record}


def recovered(step: int, restored: int, **document: Any) -> Any:
    """The driver after a loss at step 12: it has restored a step, and done some since."""
    records = [
        BEGUN,
        a_record(2, "WorkerLost", 66, 12, pod="worker-1", node="spot-1", message="rank 0 died"),
        a_record(3, "Restored", 80, restored, message=f"resumed from step {restored}"),
    ]
    seconds = {"productive": 26.0, "lost_work": 6.0, **document.pop("seconds", {})}
    told = {"records": records, "step": step, "step_time": unix(90), "seconds": seconds}
    return a_progress(**{**told, **document})


def test_a_lost_node_has_one_entry_that_says_where_it_was(training: Observed) -> None:
    gone = a_node("spot-1", exists=False, ready=False, labels=SPOT)
    lost = replace(training, nodes=nodes(gone), confirmed=True)
    (entry,) = history(lost)
    assert (entry.reason, entry.node, entry.pods) == ("NodeLost", "spot-1", ["worker-1"])
    assert (entry.zone, entry.capacity, entry.attempt) == ("zone-b", "Spot", 1)
    assert "its Node object is gone" in entry.signs
    assert (entry.step, entry.lost_steps, entry.lost_seconds, entry.action) == (10, None, None, "")


def test_what_it_cost_is_known_with_the_next_step(training: Observed) -> None:
    dead = replace(training, pods=(HEAD, a_pod("worker-1", exit_code=137), TWO))
    lost = then(dead, 66)
    (entry,) = history(replace(lost, progress=recovered(10, 10, step_time=unix(66))), 82)
    assert entry.lost_steps is None, "it has not done a step since"
    back = replace(lost, pods=(HEAD, a_pod("worker-3"), TWO), progress=recovered(11, 10))
    (entry,) = history(back, 92)
    assert (entry.step, entry.lost_steps) == (12, 2)
    assert entry.lost_seconds == 34, "30 s have passed, and 4 s of steps were done in vain"
    assert entry.action == "resumed from step 10, in attempt 1"
    assert history(then(back, 92), 94) == [entry]


def test_the_same_is_found_by_an_operator_that_was_away(training: Observed) -> None:
    back = replace(training, pods=(HEAD, a_pod("worker-3"), TWO), progress=recovered(30, 10))
    (entry,) = history(back, 300)
    assert (entry.reason, entry.pods, entry.node) == ("WorkerLost", ["worker-1"], "spot-1")
    assert (entry.step, entry.lost_steps) == (12, 2)


def test_pods_lost_together_share_one_restart(training: Observed) -> None:
    dead = (HEAD, a_pod("worker-1", exit_code=1), a_pod("worker-2", node="spot-2", exit_code=1))
    lost = then(replace(training, pods=dead), 66)
    back = replace(lost, progress=recovered(11, 10))
    first, second = history(back, 92)
    assert (first.lost_steps, first.lost_seconds) == (2, 34)
    assert (second.lost_steps, second.lost_seconds, second.action) == (0, 0, first.action)


def test_a_loss_that_another_one_explains_leaves_the_history(training: Observed) -> None:
    dead = (HEAD, a_pod("worker-1", exit_code=137), TWO)
    first = then(replace(training, pods=dead), 66)
    assert [loss.reason for loss in first.run.status.disruptions.history] == ["WorkerLost"]
    gone = a_node("spot-1", exists=False, ready=False, labels=SPOT)
    lingering = (HEAD, *dead[1:], a_pod("worker-4", node="spot-1"))
    explained = replace(first, pods=lingering, nodes=nodes(gone), confirmed=True)
    (entry,) = history(explained, 68)
    assert (entry.reason, entry.node, entry.number) == ("NodeLost", "spot-1", 2)


def test_a_lost_head_costs_the_steps_up_to_the_next_driver(training: Observed) -> None:
    lost = then(replace(training, pods=(a_head(exit_code=137), ONE, TWO)), 66)
    restored = a_record(1, "Restored", 100, 4, message="resumed from step 4")
    successor = a_progress(
        fencing_token=2, resumed_from_step=4, step=5, step_time=unix(110), records=[restored],
        seconds={"productive": 3.0},
    )  # fmt: skip
    (entry,) = history(replace(lost, pods=pods(), progress=successor), 112)
    assert (entry.reason, entry.pods) == ("HeadLost", ["digits-1-head"])
    assert (entry.step, entry.lost_steps) == (10, 6)


def test_an_error_of_the_code_is_in_the_history_and_costs_up_to_the_next_attempt(
    training: Observed,
) -> None:
    failure = {"kind": "Application", "message": "ValueError: boom (train.py:3)"}
    failed = a_progress(state="Failed", failure=failure, records=[BEGUN])
    ended = then(replace(training, progress=failed), 70)
    (entry,) = ended.run.status.disruptions.history
    assert (entry.reason, entry.signs) == ("ApplicationError", "ValueError: boom (train.py:3)")


def test_a_run_that_fails_says_so_of_its_last_loss() -> None:
    begun = a_polled_run(failures={"maxRestarts": 0})
    failure = {"kind": "Application", "message": "ValueError: boom"}
    failed = replace(begun, progress=a_progress(state="Failed", failure=failure))
    (entry,) = history(failed)
    assert entry.action.startswith("the run failed: The training failed by itself")
    assert (entry.lost_steps, entry.lost_seconds) == (None, None)


def test_in_a_sweep_the_cost_of_a_loss_is_not_known(training: Observed) -> None:
    dead = replace(training, pods=(HEAD, a_pod("worker-1", exit_code=137), TWO))
    restored = {"number": 2, "kind": "Restored", "time": unix(80), "message": "trial 3: resumed"}
    sweep = a_progress(records=[BEGUN, restored], step=20, step_time=unix(90))
    (entry,) = history(replace(then(dead, 66), progress=sweep), 92)
    assert (entry.lost_steps, entry.lost_seconds) == (None, None)
    assert entry.action == "trial 3: resumed, in attempt 1"


def test_numbers_go_on_where_the_bookkeeping_was_lost(training: Observed) -> None:
    dead = replace(training, pods=(HEAD, a_pod("worker-1", exit_code=137), TWO))
    status = then(dead, 66).run.status.model_copy(update={"seen": {"fencingToken": "no number"}})
    lost = replace(dead, run=dead.run.model_copy(update={"status": status}))
    assert [entry.number for entry in history(lost, 68)] == [1, 2]


def test_the_newest_losses_are_kept(training: Observed) -> None:
    reported = [
        a_record(n, "WorkerLost", 61, 10, pod=f"gone-{n}", message="it died") for n in range(2, 92)
    ]
    seen = replace(training, progress=a_progress(records=reported))
    found = history(seen)
    assert len(found) == MOST_LOSSES
    assert [loss.number for loss in found] == list(range(41, 91))
    assert reconcile(then(seen, 64), 66).status.disruptions.history == found


def test_texts_of_an_entry_are_bounded(training: Observed) -> None:
    record = a_record(2, "WorkerLost", 61, 10, pod="gone", message="\x1b[31m" + "x" * 1900)
    (entry,) = history(replace(training, progress=a_progress(records=[record])))
    assert len(entry.signs) == 300
    assert entry.signs.isprintable()


def test_an_attempt_whose_ray_job_someone_deletes_is_one_loss(training: Observed) -> None:
    deleted = replace(training, ray_jobs=(a_ray_job(terminating=True),))
    (entry,) = history(deleted)
    assert entry.reason == "InfrastructureError"
    assert entry.signs == "RayJob digits-1 was deleted by someone else"


def a_restored(number: int, at: float, step: int, message: str) -> dict[str, Any]:
    return a_record(number, "Restored", at, step, message=message)


DIED = a_record(2, "WorkerLost", 66, 12, pod="worker-1", node="spot-1", message="rank 0 died")
FEWER = a_restored(3, 70, 10, "resumed from step 10; 1 worker instead of 2")
GREW = a_restored(4, 120, 60, "resumed from step 60; 2 workers instead of 1")
SMALLER = {"number": 1, "step": 10, "time": unix(70), "from_workers": 2, "to_workers": 1}
LARGER = {"number": 2, "step": 60, "time": unix(120), "from_workers": 1, "to_workers": 2}
GONE = nodes(a_node("spot-1", exists=False, ready=False, labels=SPOT))
WENT_ON = "went on with 1 of 2 workers: resumed from step 10; 1 worker instead of 2, in attempt 1"


@pytest.fixture
def elastic() -> Observed:
    """The same run where one worker of two goes on."""
    begun = a_polled_run(workers={"count": 2, "minimum": 1})
    begun = replace(begun, nodes=nodes(a_node("spot-1", labels=SPOT)))
    return then(replace(begun, progress=a_progress(records=[BEGUN])), 62)


def went_on(at: float = 90, **document: Any) -> Any:
    """The driver that goes on with one worker of two after the loss of the other."""
    told = {"records": [BEGUN, DIED, FEWER], "step": 30, "resizes": [SMALLER], "world_size": 1}
    return a_progress(**{**told, "step_time": unix(at), **document})


def grown(at: float = 130, *records: dict[str, Any], **document: Any) -> Any:
    """The same once it trains with both again."""
    told = {"records": [BEGUN, DIED, FEWER, GREW, *records], "resizes": [SMALLER, LARGER]}
    return went_on(at, **{**told, "step": 70, "world_size": 2, **document})


def test_a_node_that_is_seen_to_be_lost_late_has_cost_what_the_driver_went_on_with(
    elastic: Observed,
) -> None:
    """Kubernetes shows the loss of a node most of a minute after the driver has."""
    died = then(replace(elastic, progress=went_on(seconds={"productive": 26, "lost_work": 4})), 92)
    (first,) = died.run.status.disruptions.history
    assert (first.reason, first.lost_steps, first.action) == ("WorkerLost", 2, WENT_ON)
    late = then(replace(died, nodes=GONE, confirmed=True), 110)
    (entry,) = late.run.status.disruptions.history
    assert (entry.reason, entry.node, entry.number) == ("NodeLost", "spot-1", 2)
    cost = (first.step, first.lost_steps, first.lost_seconds, first.action)
    assert (entry.step, entry.lost_steps, entry.lost_seconds, entry.action) == cost
    assert "interruption" not in late.run.status.seen
    back = replace(late, pods=(HEAD, a_pod("worker-3"), TWO), nodes=nodes(), progress=grown())
    assert history(back, 132) == [entry]


def test_a_growth_settles_no_loss(elastic: Observed) -> None:
    """Of two pods that are lost together the driver's record names one."""
    died = then(replace(elastic, progress=went_on()), 92)
    evicted = a_pod("worker-2", node="spot-2", terminating_at=110)
    late = then(replace(died, pods=(HEAD, a_pod("worker-3"), evicted)), 112)
    assert [one.action for one in late.run.status.disruptions.history] == [WENT_ON, ""]
    back = replace(late, pods=(HEAD, a_pod("worker-3"), a_pod("worker-4")), progress=grown())
    assert [one.action for one in history(back, 132)] == [WENT_ON, ""]


def test_a_loss_after_which_training_goes_on_has_cost_nothing(elastic: Observed) -> None:
    died = then(replace(elastic, progress=went_on()), 92)
    evicted = a_pod("worker-2", node="spot-2", terminating_at=110)
    late = then(replace(died, pods=(HEAD, a_pod("worker-3"), evicted)), 112)
    still = replace(late, progress=grown(200))
    assert history(still, 202)[1].action == "", "it is there, and may still train"
    gone = replace(late, pods=(HEAD, a_pod("worker-3"), a_pod("worker-4")))
    assert history(replace(gone, progress=grown(171)), 172)[1].action == "", "not for a minute"
    first, second = history(replace(gone, progress=grown(173)), 174)
    assert first.action == WENT_ON
    assert (second.lost_steps, second.lost_seconds) == (0, 0)
    assert second.action == "training went on without a restart, in attempt 1"


def test_each_of_several_losses_has_the_recovery_that_followed_it(elastic: Observed) -> None:
    """As an operator finds them that was away."""
    again = a_record(5, "WorkerLost", 140, 75, pod="worker-2", node="spot-2", message="it died")
    resumed = a_restored(6, 150, 60, "resumed from step 60; 1 worker instead of 2")
    smaller = {**SMALLER, "number": 3, "time": unix(150), "step": 60}
    told = {"resizes": [SMALLER, LARGER, smaller], "world_size": 1}
    back = replace(elastic, progress=grown(160, again, resumed, **told))
    first, second = history(back, 300)
    assert (first.step, first.lost_steps, first.action) == (12, 2, WENT_ON)
    assert (second.step, second.lost_steps) == (75, 15)
    assert second.action == f"went on with 1 of 2 workers: {resumed['message']}, in attempt 1"
    assert (first.lost_seconds, second.lost_seconds) == (None, None), "known together alone"


def test_a_later_loss_stays_open_where_an_earlier_one_is_settled(training: Observed) -> None:
    dead = (HEAD, a_pod("worker-1", exit_code=137), TWO)
    lost = then(replace(training, pods=dead), 66)
    records = [BEGUN, DIED, a_restored(3, 80, 10, "resumed from step 10")]
    again = a_record(4, "WorkerLost", 95, 20, pod="worker-2", message="rank 1 died")
    recovering = a_progress(
        state="Recovering", step=20, step_time=unix(94), records=[*records, again],
        seconds={"productive": 26.0, "lost_work": 6.0},
    )  # fmt: skip
    both = then(replace(lost, pods=(HEAD, a_pod("worker-3"), TWO), progress=recovering), 96)
    first, second = both.run.status.disruptions.history
    assert (first.lost_steps, first.action) == (2, "resumed from step 10, in attempt 1")
    assert first.lost_seconds is not None
    assert (second.lost_steps, second.action) == (None, "")
    resumed = a_restored(5, 105, 15, "resumed from step 15")
    back = a_progress(
        step=17, step_time=unix(108), records=[*records, again, resumed],
        seconds={"productive": 26.0, "lost_work": 10.0},
    )  # fmt: skip
    settled = history(replace(both, progress=back), 109)
    assert settled[0] == first
    assert (settled[1].step, settled[1].lost_steps) == (20, 5)
    assert settled[1].action == "resumed from step 15, in attempt 1"


def test_full_memory_that_is_recorded_after_the_restart_is_what_it_followed(
    training: Observed,
) -> None:
    full = a_record(4, "OutOfMemory", 66, 12, pod="worker-1", group_time=unix(40), message="full")
    records = [BEGUN, a_restored(3, 80, 10, "resumed from step 10"), full]
    (entry,) = history(replace(training, progress=recovered(11, 10, records=records)), 92)
    assert (entry.reason, entry.step, entry.lost_steps) == ("OutOfMemory", 12, 2)
    assert entry.action == "resumed from step 10, in attempt 1"


def test_a_node_that_is_lost_long_after_a_process_crashed_there_is_a_loss_of_its_own(
    training: Observed,
) -> None:
    crashed = then(replace(training, progress=recovered(30, 10)), 92)
    (first,) = crashed.run.status.disruptions.history
    later = replace(crashed, nodes=GONE, confirmed=True, progress=recovered(500, 10))
    entries = history(later, 700)
    assert entries[0] == first
    assert (entries[1].reason, entries[1].action) == ("NodeLost", "")
