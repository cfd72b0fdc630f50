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
