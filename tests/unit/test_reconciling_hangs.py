"""Hangs have a budget of their own, and the status says where each rank stood."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_pod, a_progress, a_run, pods, unix
from support.reconciled import condition, in_the_way, reconcile, then, wanting
from trainingrun.api.status import LossReason
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete
from trainingrun.rendering import RenderSettings, contract
from trainingrun_protocol.progress import Progress

HEAD, ONE, TWO = pods()
MESSAGE = (
    "no step for 20 s: rank 0 waits in backward (train.py:9); rank 1 has been in read (a.py:1)"
)
HANG = {
    "time": unix(60),
    "seconds": 20.4,
    "message": MESSAGE,
    "ranks": [
        {"rank": 1, "pod": "worker-2", "where": "in read (a.py:1)", "hangs": True},
        {"rank": 0, "pod": "worker-1", "where": "in backward (train.py:9)"},
    ],
    "stacks": "s3://runs/demo/stacks/1/20260101T000100Z",
}


def hung(*numbers: int, pod: str = "worker-2", **fields: Any) -> Progress:
    records = [
        {"number": n, "kind": "Hang", "time": unix(60), "message": MESSAGE, "pod": pod}
        for n in numbers
    ]
    return a_progress(records=records, hang=HANG, **fields)


def counts(observed: Observed, seconds: float = 60) -> dict[str, int]:
    found = reconcile(observed, seconds).status.disruptions.to_dict()
    return {name: number for name, number in found.items() if number and name != "history"}


def test_a_hang_is_counted_against_its_own_budget_each_time(training: Observed) -> None:
    once = replace(training, progress=hung(1))
    plan = reconcile(once)
    assert counts(once) == {"hangs": 1}
    assert plan.status.restarts == 0
    assert [(event.reason, event.message) for event in plan.events] == [("Hang", MESSAGE)]
    twice = then(once, progress=hung(1, 2))
    assert counts(twice) == {"hangs": 2}, "the same pod, and another hang"
    assert counts(then(twice)) == {"hangs": 2}


def test_the_run_fails_when_it_hangs_more_often_than_max_hangs(training: Observed) -> None:
    thrice = replace(training, progress=hung(1, 2, 3))
    assert reconcile(thrice).status.attempts[-1].outcome == "Running"
    plan = reconcile(replace(training, progress=hung(1, 2, 3, 4)))
    found = condition(plan, "Failed")
    assert (plan.status.phase, found.reason) == ("Failed", "HangsExhausted")
    assert f"hung 4 times and failures.maxHangs is 3, at last with {MESSAGE}; " in found.message
    assert plan.status.attempts[-1].reason == LossReason.HANG
    unlimited = wanting(replace(training, progress=hung(1, 2, 3, 4)), failures={"maxHangs": -1})
    assert reconcile(unlimited).status.phase != "Failed"


def test_other_losses_never_use_up_max_hangs_and_hangs_nothing_else(training: Observed) -> None:
    none = {"maxHangs": 0, "maxPreemptions": -1}
    dead = replace(training, pods=(HEAD, ONE, a_pod("worker-2", exit_code=137)))
    assert reconcile(wanting(dead, failures=none)).status.phase != "Failed"
    others = {"maxPreemptions": 0, "maxRestarts": 0}
    once = wanting(replace(training, progress=hung(1)), failures=others)
    assert reconcile(once).status.phase != "Failed"


def test_the_status_says_where_each_rank_stood(training: Observed) -> None:
    found = reconcile(replace(training, progress=hung(1))).status.hang
    assert found is not None
    assert (found.seconds, found.message, found.stacks) == (20, MESSAGE, HANG["stacks"])
    assert [(one.rank, one.where, one.hangs) for one in found.ranks] == [
        (0, "in backward (train.py:9)", False),
        (1, "in read (a.py:1)", True),
    ]


def test_while_it_hangs_the_condition_says_so(training: Observed) -> None:
    observed = replace(training, progress=a_progress(hang={**HANG, "underWay": True}))
    found = in_the_way(reconcile(observed))
    assert (found.status, found.reason, found.message) == ("True", "Hang", MESSAGE)
    over = in_the_way(reconcile(replace(observed, progress=a_progress(hang=HANG))))
    assert over.status == "False"


@pytest.mark.parametrize("lives", [True, False])
def test_a_pod_whose_process_cannot_be_ended_is_deleted_and_is_no_loss_of_its_own(
    training: Observed, lives: bool
) -> None:
    stuck = replace(
        training, progress=a_progress(stuck_pods=["worker-2", "other", HEAD["metadata"]["name"]])
    )
    deleted = [one for one in reconcile(stuck).actions if isinstance(one, Delete)]
    assert [(one.ref.name, one.ref.uid, one.grace_s) for one in deleted] == [
        ("worker-2", TWO["metadata"]["uid"], 0)
    ]
    terminating = a_pod("worker-2", terminating_at=60, grace=0)
    left = (HEAD, ONE, terminating) if lives else (HEAD, ONE)
    after = then(stuck, pods=left, progress=hung(1))
    assert counts(after) == {"hangs": 1}


def test_a_later_loss_of_a_pod_in_which_a_rank_hung_counts_by_itself(training: Observed) -> None:
    once = replace(training, progress=hung(1))
    ended = then(once, 300, pods=(HEAD, ONE, a_pod("worker-2", exit_code=137)))
    assert counts(ended, 300) == {"hangs": 1, "workerFailures": 1}


def test_the_contract_has_what_counts_as_a_hang() -> None:
    default = contract(a_run(), 1, RenderSettings()).hang
    assert (default.after_seconds, default.action) == (None, "Restart")
    given = a_run(failures={"hang": {"afterSeconds": 20, "action": "Report"}})
    found = contract(given, 1, RenderSettings()).hang
    assert (found.after_seconds, found.action) == (20, "Report")
