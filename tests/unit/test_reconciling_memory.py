"""Workers that run out of memory together are one failure, whoever shows it first."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import a_head, a_pod, a_progress, a_ray_job, unix
from support.reconciled import a_training_run, reconcile, then
from trainingrun.api.status import LossReason
from trainingrun.reconciling import Observed

WORKERS = [f"worker-{number}" for number in range(1, 5)]
FAILED = {"kind": "Application", "message": "RuntimeError: connection closed by peer"}


def healthy(name: str, **pod: Any) -> dict[str, Any]:
    return a_pod(name, node=f"spot-{name[-1]}", **pod)


def killed(name: str, ended_at: float, **pod: Any) -> dict[str, Any]:
    return healthy(name, exit_code=137, ended_because="OOMKilled", ended_at=ended_at, **pod)


def a_run_of_four(**spec: Any) -> Observed:
    begun = a_training_run(workers={"count": 4}, **spec)
    shown = (a_head(), *(healthy(name) for name in WORKERS))
    return then(replace(begun, pods=shown, progress=a_progress(), progress_age_s=0.5), 32)


def in_this_order(
    shown: list[tuple[str, str]], ends: dict[str, float], named: bool, **spec: Any
) -> Observed:
    """Pods and records show the failure one after the other, a reconcile after each."""
    seen = a_run_of_four(**spec)
    dead: dict[str, float] = {}
    reported: list[dict[str, Any]] = []
    for seconds, (witness, name) in enumerate(shown):
        if witness == "pod":
            dead[name] = ends[name]
        else:
            record = {"kind": "WorkerLost", "time": unix(ends[name])}
            reported.append({**record, "number": len(reported) + 1, "pod": name if named else None})
        workers = [killed(n, dead[n]) if n in dead else healthy(n) for n in WORKERS]
        seen = replace(seen, pods=(a_head(), *workers), progress=a_progress(records=reported))
        seen = then(seen, 50 + seconds)
    return seen


WITNESSES = [(witness, name) for witness in ("pod", "record") for name in WORKERS]


@settings(max_examples=150)
@given(
    st.permutations(WITNESSES),
    st.lists(st.integers(40, 49), min_size=4, max_size=4),
    st.booleans(),
)
def test_four_workers_out_of_memory_are_one_failure_in_any_order(
    shown: list[tuple[str, str]], moments: list[int], named: bool
) -> None:
    ends = dict(zip(WORKERS, map(float, moments), strict=True))
    seen = in_this_order(shown, ends, named)
    status = seen.run.status
    counts = status.disruptions.to_dict()
    assert len(counts.pop("history")) == 4, "each pod has an entry"
    assert {name: n for name, n in counts.items() if n} == {"outOfMemory": 1}
    assert status.attempts[-1].outcome == "Running"


@pytest.mark.parametrize(
    ("trained_until", "reason"),
    [(45.0, LossReason.OUT_OF_MEMORY), (200.0, LossReason.APPLICATION_ERROR)],
    ids=["the training has not gone on", "it trained for minutes since"],
)
def test_a_driver_that_ends_without_a_word_ended_of_a_lost_worker_unless_it_has_trained_since(
    trained_until: float, reason: LossReason
) -> None:
    seen = in_this_order([("pod", "worker-1")], {"worker-1": 45.0}, True)
    workers = [healthy("worker-9"), *(healthy(name) for name in WORKERS[1:])]
    trains = a_progress(step_time=unix(trained_until), time=unix(205))
    seen = then(replace(seen, pods=(a_head(), *workers), progress=trains), 210)
    failed = replace(seen, ray_jobs=(a_ray_job(status="FAILED"),), progress_age_s=0.5)
    ended = then(then(failed, 220), 300)
    status = ended.run.status
    assert status.attempts[0].reason is reason
    errors = status.disruptions.application_errors
    assert (errors, status.disruptions.out_of_memory) == (reason is LossReason.APPLICATION_ERROR, 1)


def test_all_at_once_use_one_restart_and_no_more() -> None:
    ends = dict.fromkeys(WORKERS, 45.0)
    once = in_this_order(WITNESSES, ends, True, failures={"maxRestarts": 1})
    assert once.run.status.attempts[-1].outcome == "Running"
    none = in_this_order(WITNESSES[:1], ends, True, failures={"maxRestarts": 0})
    assert none.run.status.attempts[-1].reason is LossReason.OUT_OF_MEMORY
    assert none.run.status.phase == "Failed"


def test_the_exception_that_a_peer_without_memory_leaves_behind_is_the_same_failure() -> None:
    seen = in_this_order(WITNESSES[:1], dict.fromkeys(WORKERS, 45.0), True)
    failed = reconcile(
        replace(seen, progress=a_progress(state="Failed", failure=FAILED)), 55
    ).status
    counts = failed.disruptions
    assert (counts.out_of_memory, counts.application_errors, failed.restarts) == (1, 0, 1)
    assert failed.attempts[-1].reason is LossReason.OUT_OF_MEMORY


def told_of_an_error(at: float) -> dict[str, Any]:
    """A final document that was written anew later, as its page of the run was uploaded."""
    record = {"number": 1, "kind": "ApplicationError", "time": unix(at), "message": "closed"}
    return {"time": unix(at + 120), "records": [record]}


@pytest.mark.parametrize("seconds", [155, 200, 300, 700])
@pytest.mark.parametrize(
    ("document", "failures"),
    [
        pytest.param({"time": unix(150)}, (1, 0, 1), id="5 s later"),
        pytest.param(told_of_an_error(150), (1, 0, 1), id="5 s later, by its record"),
        pytest.param(told_of_an_error(60), (1, 1, 2), id="long before, by its record"),
    ],
)
def test_whether_an_exception_is_of_full_memory_is_told_by_its_time_however_late_both_are_read(
    document: dict[str, Any], failures: tuple[int, int, int], seconds: float
) -> None:
    """The operator was away from before the failure until then."""
    pods = (a_head(), killed("worker-1", 145), *(healthy(name) for name in WORKERS[1:]))
    failed = a_progress(state="Failed", failure=FAILED, **document)
    status = reconcile(replace(a_run_of_four(), pods=pods, progress=failed), seconds).status
    counts = status.disruptions
    assert (counts.out_of_memory, counts.application_errors, status.restarts) == failures


def test_the_clock_of_a_head_that_is_ahead_makes_no_second_failure() -> None:
    pods = (a_head(), killed("worker-1", 45), *(healthy(name) for name in WORKERS[1:]))
    failed = a_progress(state="Failed", failure=FAILED, time=unix(5000))
    status = reconcile(replace(a_run_of_four(), pods=pods, progress=failed), 55).status
    assert (status.disruptions.application_errors, status.restarts) == (0, 1)


def test_a_replacement_that_runs_out_of_memory_again_is_the_next_failure() -> None:
    """However soon it comes: else a loop of such failures would never end."""
    seen = a_run_of_four()
    for turn in range(3):
        at = 50 + 20 * turn
        pod = killed("worker-1", at + 15, uid=f"worker-1-{turn}", created_at=at)
        others = [healthy(name) for name in WORKERS[1:]]
        seen = then(replace(seen, pods=(a_head(), pod, *others)), at + 16)
    assert seen.run.status.disruptions.out_of_memory == 3


@pytest.mark.parametrize(
    "order", [pytest.param((0, 1), id="in order"), pytest.param((1, 0), id="reversed")]
)
def test_failures_further_apart_are_two_in_either_order(order: tuple[int, int]) -> None:
    seen = a_run_of_four()
    late = {0: killed("worker-1", 100), 1: killed("worker-2", 200)}
    dead: dict[int, Any] = {}
    for number in order:
        dead[number] = late[number]
        workers = [dead.get(n, healthy(name)) for n, name in enumerate(WORKERS)]
        seen = then(replace(seen, pods=(a_head(), *workers)), 210 + len(dead))
    assert seen.run.status.disruptions.out_of_memory == 2


def test_the_head_s_memory_counts_with_the_job_that_it_ends() -> None:
    seen = a_run_of_four()
    head = a_head(exit_code=137, ended_because="OOMKilled", ended_at=45)
    failed = replace(seen, pods=(head,), ray_jobs=(a_ray_job(status="FAILED"),), progress=None)
    status = reconcile(failed, 60).status
    assert (status.disruptions.out_of_memory, status.restarts) == (1, 1)


WORKER_SAYS = (
    "Pod worker-1 ended: it used more memory than its limit; raise workers.resources.memory, or "
    "make the batch smaller and accumulate gradients"
)
HEAD_SAYS = (
    "Pod digits-1-head ended: it used more memory than its limit; raise head.resources.memory"
)


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        pytest.param((a_head(), killed("worker-1", 45)), WORKER_SAYS, id="worker"),
        pytest.param(
            (a_head(exit_code=137, ended_because="OOMKilled", ended_at=45),), HEAD_SAYS, id="head"
        ),
    ],
)
def test_the_event_and_the_failed_run_name_the_field_of_the_pod_without_memory(
    pods: tuple[Any, ...], says: str
) -> None:
    seen = replace(a_run_of_four(failures={"maxRestarts": 0}), pods=pods)
    plan = reconcile(seen, 50)
    events = [event.message for event in plan.events if event.reason == "OutOfMemory"]
    assert events == [f"{says} (exit code 137)"]
    assert plan.status.attempts[-1].message == says
    failed = next(each for each in plan.status.conditions if each.type == "Failed")
    assert failed.message == (
        f"The training failed by itself once and failures.maxRestarts is 0: {says}"
    )


def test_an_attempt_that_the_head_s_memory_has_ended_says_so() -> None:
    head = a_head(exit_code=137, ended_because="OOMKilled", ended_at=45)
    jobs = (a_ray_job(status="FAILED"),)
    failed = replace(a_run_of_four(), pods=(head,), ray_jobs=jobs, progress=None)
    assert reconcile(failed, 60).status.attempts[-1].message == HEAD_SAYS
