"""failures.rules and the budgets that fill again: who pays for a failure, and what follows it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from support.builders import (
    a_node,
    a_pod,
    a_progress,
    a_ray_cluster,
    a_ray_job,
    at,
    nodes,
    pods,
    unix,
)
from support.reconciled import (
    a_polled_run,
    a_training_run,
    begins,
    condition,
    reconcile,
    then,
    wanting,
)
from trainingrun.api.failures_spec import Failures
from trainingrun.api.status import RuleUse
from trainingrun.reconciling import Observed, Plan
from trainingrun.reconciling.model import Apply, Delete, ExcludeNodes
from trainingrun_protocol.failure_rules import FailureFacts, first_match

HEAD, ONE, TWO = pods()


def ruled(*rules: dict[str, Any], **failures: Any) -> Observed:
    return a_polled_run(failures={"rules": list(rules), **failures})


def rule(then: str, *, max_restarts: int | None = None, **when: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"when": when, "then": then}
    return found if max_restarts is None else {**found, "maxRestarts": max_restarts}


def failed(kind: str = "Application", **failure: Any) -> Any:
    found = {"kind": kind, "message": "rank 1 raised ValueError: nan", "rank": 1, **failure}
    return a_progress(state="Failed", failure=found)


def lost(*numbers: int, kind: str = "WorkerLost", **facts: Any) -> Any:
    records = [
        {"number": n, "kind": kind, "time": unix(60 + n), "message": "rank 1 died", "facts": facts}
        for n in numbers
    ]
    return a_progress(records=records)


def uses(plan: Plan) -> list[tuple[int, int]]:
    return [(use.matches, use.used) for use in plan.status.failure_rules or ()]


OOM: dict[str, Any] = {"exit_code": 137, "ended_because": "OOMKilled"}
VALUE_ERROR = {"reasons": ["ValueError"], "exitCodes": [3], "matched": ["nan"]}


@pytest.mark.parametrize(
    ("when", "meets"),
    [
        pytest.param({"classes": ["ApplicationError"]}, True, id="class"),
        pytest.param({"classes": ["Hang", "ApplicationError"]}, True, id="one of two classes"),
        pytest.param({"classes": ["Hang"]}, False, id="another class"),
        pytest.param({"reasons": ["KeyError", "ValueError"]}, True, id="reason"),
        pytest.param({"reasons": ["Value"]}, False, id="a reason is a whole word"),
        pytest.param({"exitCodes": [3, 4]}, True, id="exit code"),
        pytest.param({"logPattern": "nan"}, True, id="pattern that the driver has found"),
        pytest.param({"logPattern": "na."}, False, id="pattern that it has not tried"),
        pytest.param({"reasons": ["ValueError"], "exitCodes": [4]}, False, id="all have to hold"),
        pytest.param({"reasons": ["ValueError"], "logPattern": "nan"}, True, id="all of them hold"),
    ],
)
def test_a_rule_is_met_where_all_that_it_says_holds(when: dict[str, Any], meets: bool) -> None:
    rules = Failures.model_validate({"rules": [{"when": when, "then": "Fail"}]}).contract_rules
    facts = FailureFacts.model_validate(VALUE_ERROR)
    assert (first_match(rules, "ApplicationError", facts) is not None) is meets


def test_a_rule_keeps_its_count_when_its_numbers_or_its_place_change() -> None:
    def keys(*rules: dict[str, Any]) -> list[str]:
        found = Failures.model_validate({"rules": list(rules)}).contract_rules
        return [each.key for each in found]

    one, other = rule("Restart", classes=["Hang"]), rule("Ignore", classes=["Hang"])
    assert keys(one, other) == keys(other, one)[::-1]
    assert keys(one) == keys({**one, "maxRestarts": 7, "backoff": {}})
    assert keys(one) != keys(other)


def test_the_first_rule_that_an_attempt_s_end_meets_counts() -> None:
    training = ruled(
        rule("Ignore", reasons=["KeyError"]),
        rule("Fail", reasons=["ValueError"]),
        rule("Restart", classes=["ApplicationError"]),
    )
    plan = reconcile(replace(training, progress=failed(facts=VALUE_ERROR)))
    found = condition(plan, "Failed")
    assert (found.status, found.reason) == ("True", "FailedByRule")
    assert found.message == (
        "Rule 2 of failures.rules ends the run with such a failure: rank 1 raised ValueError: nan"
    )
    assert plan.status.attempts[-1].rule == 2
    assert uses(plan) == [(0, 0), (1, 0), (0, 0)]


def test_an_ignored_error_uses_no_budget_and_is_bounded_by_progress() -> None:
    seen = ruled(rule("Ignore", classes=["ApplicationError"]), maxRestarts=0)
    for number in (1, 2, 3):
        seen = replace(seen, progress=failed(facts={}).model_copy(update={"attempt": number}))
        plan = reconcile(seen, 60 * number)
        assert (plan.status.restarts, plan.status.disruptions.application_errors) == (0, number)
        if number == 3:
            break
        seen = then(seen, 60 * number, ray_jobs=(), ray_clusters=(), pods=(), progress=None)
        assert begins(reconcile(seen, 60 * number + 40)) == number + 1
        job, cluster = a_ray_job(number + 1, status="RUNNING"), a_ray_cluster(number + 1)
        seen = replace(seen, ray_jobs=(job,), ray_clusters=(cluster,), pods=pods(number + 1))
        seen = then(seen, 60 * number + 50)
    assert condition(plan, "Failed").reason == "NoProgress"


def test_a_rule_with_max_restarts_has_a_budget_of_its_own() -> None:
    training = ruled(rule("Restart", max_restarts=1, exitCodes=[3]), maxRestarts=0)
    once = reconcile(replace(training, progress=failed(facts=VALUE_ERROR)))
    assert (condition(once, "Failed").status, once.status.restarts) == ("False", 0)
    assert uses(once) == [(1, 1)]
    counted = training.run.status.model_copy(update={"seen": {**once.status.seen}})
    again = replace(training, run=training.run.model_copy(update={"status": counted}))
    twice = reconcile(replace(again, progress=failed(facts=VALUE_ERROR)))
    assert condition(twice, "Failed").reason == "RuleExhausted"
    assert "Rule 1 of failures.rules was met 2 times and its maxRestarts is 1" in (
        condition(twice, "Failed").message
    )


@pytest.mark.parametrize("max_preemptions", [0, 1])
def test_a_rule_pays_for_losses_inside_an_attempt(max_preemptions: int) -> None:
    """And never the other way round: what meets no rule uses the budget of its class."""
    rules = [rule("Ignore", reasons=["ActorDiedError"])]
    training = ruled(*rules, maxPreemptions=max_preemptions)
    free = reconcile(replace(training, progress=lost(1, 2, reasons=["ActorDiedError"])))
    assert free.status.disruptions.worker_failures == 2
    assert free.status.attempts[-1].outcome == "Running"
    assert uses(free) == [(2, 0)]
    other = reconcile(replace(training, progress=lost(1, reasons=["NodeDiedError"])))
    ended = other.status.attempts[-1].outcome == "Lost"
    assert ended is (max_preemptions == 0)


def test_a_rule_ends_the_run_for_a_loss_inside_an_attempt() -> None:
    training = ruled(rule("Fail", classes=["OutOfMemory"]))
    plan = reconcile(replace(training, pods=(HEAD, a_pod("worker-1", **OOM), TWO)))
    assert condition(plan, "Failed").reason == "FailedByRule"
    last = plan.status.attempts[-1]
    assert (last.outcome, last.reason) == ("Failed", "OutOfMemory")
    assert "worker-1" in last.message


def test_pods_without_memory_are_one_failure_for_a_rule_too() -> None:
    training = ruled(rule("Restart", max_restarts=1, exitCodes=[137]), maxRestarts=0)
    both = (HEAD, a_pod("worker-1", **OOM), a_pod("worker-2", **OOM))
    seen = then(replace(training, pods=(HEAD, a_pod("worker-1", **OOM), TWO)))
    plan = reconcile(replace(seen, pods=both))
    assert (uses(plan), plan.status.disruptions.out_of_memory) == ([(1, 1)], 1)
    assert plan.status.attempts[-1].outcome == "Running"


def test_what_pod_and_driver_say_of_one_loss_is_put_together() -> None:
    """The pod comes first, and what the rank has printed with the driver's record."""
    training = ruled(rule("Ignore", exitCodes=[1], logPattern="nan"), maxPreemptions=5)
    died = replace(training, pods=(HEAD, a_pod("worker-1", exit_code=1), TWO))
    first = reconcile(died)
    assert uses(first) == [(0, 0)]
    record = {"number": 1, "kind": "WorkerLost", "time": unix(60), "pod": "worker-1"}
    told = a_progress(records=[{**record, "facts": {"matched": ["nan"]}}])
    plan = reconcile(then(died, progress=told))
    assert (uses(plan), plan.status.disruptions.worker_failures) == ([(1, 0)], 1)
    assert plan.status.seen["forgiven"] == {"infrastructure": 1}


def test_a_failure_is_counted_once_however_often_it_is_seen() -> None:
    seen = replace(
        ruled(rule("Ignore", classes=["WorkerLost"])), progress=lost(1, reasons=["ActorDiedError"])
    )
    for _ in range(3):
        seen = then(seen)
        assert uses(reconcile(seen)) == [(1, 0)]


def test_a_rule_s_own_wait_comes_before_any_other() -> None:
    backoff = {"initialSeconds": 300, "maxSeconds": 300}
    training = ruled({**rule("Restart", classes=["InfrastructureError"]), "backoff": backoff})
    plan = reconcile(replace(training, progress=failed("Infrastructure")))
    assert plan.status.next_attempt_time == at(360)
    without = reconcile(replace(a_polled_run(), progress=failed("Infrastructure")))
    assert without.status.next_attempt_time is None


def test_a_rule_comes_before_the_end_by_a_repeated_error() -> None:
    training = ruled(rule("Restart", reasons=["ValueError"]))
    error = failed(facts=VALUE_ERROR, retry="UnlessRepeated").model_copy(
        update={"step": 0, "step_time": None}
    )
    before = training.run.status.attempts[-1].model_copy(
        update={"number": 0, "outcome": "Failed", "reason": "ApplicationError"}
    )
    before = before.model_copy(update={"message": "rank 1 raised ValueError: nan", "last_step": 0})
    attempts = [before, training.run.status.attempts[-1].model_copy(update={"last_step": 0})]
    status = training.run.status.model_copy(update={"attempts": attempts})
    seen = replace(training, run=training.run.model_copy(update={"status": status}))
    assert condition(reconcile(replace(seen, progress=error)), "Failed").status == "False"


def test_a_driver_that_a_rule_has_ended_says_for_which_loss() -> None:
    training = ruled(rule("Fail", classes=["Hang"]))
    plan = reconcile(replace(training, progress=failed("Infrastructure", loss="Hang", facts={})))
    assert condition(plan, "Failed").reason == "FailedByRule"
    assert (plan.status.attempts[-1].reason, plan.status.disruptions.hangs) == ("Hang", 1)


def test_rules_of_the_ray_job_s_own_reasons_and_the_driver_s_exit_code() -> None:
    message = "entrypoint command failed with exit code 9"
    job = a_ray_job(status="FAILED", reason="AppFailed", message=message)
    for when in ({"reasons": ["AppFailed"]}, {"exitCodes": [9]}):
        training = replace(a_training_run(failures={"rules": [rule("Fail", **when)]}))
        plan = reconcile(then(replace(training, ray_jobs=(job,)), 60), 91)
        assert condition(plan, "Failed").reason == "FailedByRule"


# Budgets that fill again.


def saved(step: int, **document: Any) -> Any:
    return a_progress(
        step=step, checkpoint={"uri": "s3://c", "step": step, "time": unix(60)}, **document
    )


def with_one_restart_used(**failures: Any) -> Observed:
    """Attempt 1 has failed after step 10; attempt 2 trains."""
    training = a_polled_run(failures={"maxRestarts": 1, **failures})
    ended = then(replace(training, progress=failed()), ray_jobs=(), ray_clusters=(), pods=())
    job, cluster = a_ray_job(2, status="RUNNING"), a_ray_cluster(2)
    again = replace(ended, ray_jobs=(job,), ray_clusters=(cluster,), pods=pods(2), progress=None)
    return then(again, 100)


@pytest.mark.parametrize(
    ("failures", "document", "restarts"),
    [
        pytest.param({"refillAfterSteps": 50}, {"step": 60}, 0, id="enough steps"),
        pytest.param({"refillAfterSteps": 50}, {"step": 59}, 1, id="too few: it was at step 10"),
        pytest.param({}, {"step": 5000}, 1, id="never by default"),
        pytest.param(
            {"refillAfterSeconds": 100},
            {"step": 60, "seconds": {"productive": 130}},
            0,
            id="enough seconds",
        ),
        pytest.param(
            {"refillAfterSeconds": 100},
            {"step": 60, "seconds": {"productive": 129}},
            1,
            id="too few seconds",
        ),
        pytest.param(
            {"refillAfterSeconds": 100},
            {"step": 10, "seconds": {"productive": 999}},
            1,
            id="no newer checkpoint",
        ),
    ],
)
def test_a_budget_is_full_again_after_sustained_progress(
    failures: dict[str, Any], document: dict[str, Any], restarts: int
) -> None:
    seen = with_one_restart_used(**failures)
    assert seen.run.status.restarts == 1
    plan = reconcile(replace(seen, progress=saved(attempt=2, **document)), 200)
    assert plan.status.restarts == restarts
    assert plan.status.disruptions.application_errors == 1, "what happened stays in the status"
    assert any(event.reason == "BudgetRefilled" for event in plan.events) is (restarts == 0)
    seen = then(replace(seen, progress=saved(attempt=2, **document)), 200)
    error = failed().model_copy(update={"attempt": 2, "fencing_token": 2, "step": 60})
    after = reconcile(replace(seen, progress=error), 300)
    assert (condition(after, "Failed").status == "False") is (restarts == 0)


def test_steps_without_a_checkpoint_are_no_progress() -> None:
    seen = with_one_restart_used(refillAfterSteps=50)
    plan = reconcile(replace(seen, progress=a_progress(2, step=5000)), 200)
    assert plan.status.restarts == 1


def test_lost_infrastructure_does_not_keep_the_application_s_budget_from_filling() -> None:
    seen = with_one_restart_used(refillAfterSteps=50)
    record = {"number": 1, "kind": "Preempted", "time": unix(150), "message": "taken"}
    seen = then(replace(seen, progress=saved(40, attempt=2, records=[record])), 160)
    assert reconcile(replace(seen, progress=saved(60, attempt=2)), 200).status.restarts == 0


def test_a_rule_s_own_budget_fills_again() -> None:
    first = {**rule("Restart", max_restarts=1, classes=["WorkerLost"])}
    seen = ruled(first, refillAfterSteps=50)
    seen = then(replace(seen, progress=lost(1)))
    use = RuleUse(rule=1, then="Restart", matches=1, used=1, last_time=at(60))
    assert seen.run.status.failure_rules == [use]
    assert uses(reconcile(replace(seen, progress=saved(60)), 200)) == [(1, 0)]


@pytest.mark.parametrize(
    "learned",
    [
        pytest.param({"rules": [rule("Ignore", classes=["WorkerLost"])]}, id="a rule that pays"),
        pytest.param({"reason": "OOMKilled"}, id="another budget"),
    ],
)
def test_a_loss_is_forgiven_once_whatever_is_learned_about_it_later(
    learned: dict[str, Any],
) -> None:
    gone = a_pod("worker-1", phase="Failed", exit_code=137, ended_at=60)
    seen = replace(a_polled_run(failures={"refillAfterSteps": 50}), pods=(HEAD, gone, TWO))
    seen = then(then(replace(seen, progress=a_progress())), 61)
    trained = then(replace(seen, progress=saved(90)), 200)
    assert trained.run.status.seen["forgiven"] == {"infrastructure": 1}
    if rules := learned.get("rules"):
        spec = trained.run.spec
        failures = spec.failures.model_validate({"refillAfterSteps": 50, "rules": rules})
        spec = spec.model_copy(update={"failures": failures})
        trained = replace(trained, run=trained.run.model_copy(update={"spec": spec}))
    else:
        known = a_pod(
            "worker-1", phase="Failed", exit_code=137, ended_at=60, ended_because="OOMKilled"
        )
        trained = replace(trained, pods=(HEAD, known, TWO))
    plan = reconcile(replace(trained, progress=saved(95)), 210)
    assert plan.status.seen["forgiven"] == {"infrastructure": 1}
    lost = plan.status.disruptions
    assert (lost.worker_failures, lost.out_of_memory) == (1, 0), "it counts as what it did"


SWEEP = {
    "metric": "loss",
    "mode": "min",
    "samples": 10,
    "space": [{"name": "lr", "values": [0.1, 0.2]}],
}


def test_a_lost_worker_ends_no_sweep_by_a_rule() -> None:
    """Its trial's driver ends the trial; the other trials lose nothing."""
    swept = a_polled_run(sweep=SWEEP, failures={"rules": [rule("Fail", classes=["OutOfMemory"])]})
    plan = reconcile(replace(swept, pods=(HEAD, a_pod("worker-1", **OOM), TWO)), 70)
    assert condition(plan, "Failed").status == "False"
    assert plan.status.disruptions.out_of_memory == 1
    seen = then(replace(swept, pods=(HEAD, a_pod("worker-1", **OOM), TWO)), 70)
    assert condition(reconcile(seen, 600), "Failed").status == "False"


def test_a_lost_head_ends_a_sweep_by_a_rule() -> None:
    swept = a_polled_run(sweep=SWEEP, failures={"rules": [rule("Fail", classes=["HeadLost"])]})
    plan = reconcile(replace(swept, pods=(ONE, TWO)), 70)
    ends = condition(reconcile(then(replace(swept, pods=(ONE, TWO)), 70), 600), "Failed")
    assert "FailedByRule" in (condition(plan, "Failed").reason, ends.reason)


@pytest.mark.parametrize("errors", [3, 4])
@pytest.mark.parametrize(
    "failures",
    [
        pytest.param({}, id="charged"),
        pytest.param({"refillAfterSteps": 50}, id="forgiven by a refill"),
        pytest.param({"rules": [rule("Ignore", classes=["OutOfMemory"])]}, id="paid by a rule"),
    ],
)
def test_memory_of_trials_neither_ends_a_sweep_nor_delays_the_end_by_its_own_errors(
    failures: dict[str, Any], errors: int
) -> None:
    """Each trial may run out of memory so often, and the sweep as a whole may fail so often."""
    swept = a_polled_run(sweep=SWEEP, failures={"maxRestarts": 3, **failures})
    full = [
        {"number": n, "kind": "OutOfMemory", "time": unix(100 * n), "message": "full"}
        for n in range(1, 6)
    ]
    told = {"records": full, "step_time": unix(590)}
    seen = then(replace(swept, progress=a_progress(**told)), 600)
    seen = then(replace(seen, progress=saved(90, **told)), 700)
    assert seen.run.status.disruptions.out_of_memory == 5
    assert seen.run.status.attempts[-1].outcome == "Running"
    found = seen.run.status.disruptions.model_copy(update={"application_errors": errors - 1})
    status = seen.run.status.model_copy(update={"disruptions": found})
    error = failed().model_copy(update={"time": unix(800)})
    seen = replace(seen, run=seen.run.model_copy(update={"status": status}), progress=error)
    ended = condition(reconcile(seen, 800), "Failed")
    assert (ended.status == "True") is (errors == 4)


@pytest.mark.parametrize(
    ("failures", "each"),
    [
        pytest.param({"maxRestarts": 3}, 10, id="its driver gives it up without a checkpoint"),
        pytest.param({"maxRestarts": 11}, 12, id="more may be wanted"),
        pytest.param({"maxRestarts": 3, "maxPreemptions": 14}, 15, id="as its driver counts them"),
        pytest.param({"maxRestarts": 3, "maxPreemptions": 1}, 10, id="its driver counts fewer"),
    ],
)
def test_a_trial_without_memory_ends_a_sweep_by_no_less_than_its_driver_may_take_for_it(
    failures: dict[str, Any], each: int
) -> None:
    """The driver sees a lost worker, and not why its pod has ended."""
    swept = a_polled_run(sweep={**SWEEP, "samples": 2}, failures=failures)
    for times, ends in ((each + 1, False), (2 * each, False), (2 * each + 1, True)):
        full = [
            {"number": n, "kind": "OutOfMemory", "time": unix(100 * n), "message": "full"}
            for n in range(1, times + 1)
        ]
        told = replace(swept, progress=a_progress(records=full, step_time=unix(3990)))
        failed = condition(reconcile(told, 4000), "Failed")
        assert (failed.status == "True") is ends, times
    assert failed.reason == "RestartsExhausted"
    assert failed.message is not None
    assert (
        f"failed by itself {times} times, {times} of them for want of memory, and each of 2 trials "
        f"may do so {each} times"
    ) in failed.message


# Nodes that are left although they are well.

LEAVE = rule("RestartOnOtherNode", classes=["WorkerLost"])


def died_on_spot_1(state: str = "Recovering", **record: Any) -> Any:
    found = {"number": 1, "kind": "WorkerLost", "time": unix(60), "message": "rank 0 died"}
    where = {"node": "spot-1", "pod": "worker-1"}
    return a_progress(state=state, records=[{**found, **where, **record}])


def excluded(plan: Plan) -> list[tuple[str, str]]:
    return [(one.node, one.reason) for one in plan.status.excluded_nodes or ()]


@pytest.mark.parametrize(
    ("rules", "record", "reason"),
    [
        pytest.param([LEAVE], {}, "by rule 1, as rank 0 died", id="by a rule"),
        pytest.param(
            [], {"facts": {"badNode": "its GPU is broken"}}, "its GPU is broken", id="GPU"
        ),
        pytest.param([], {}, None, id="without either"),
        pytest.param([rule("Restart", classes=["WorkerLost"])], {}, None, id="another rule"),
    ],
)
def test_a_node_is_excluded_with_its_reason_and_its_pods_are_replaced(
    rules: list[dict[str, Any]], record: dict[str, Any], reason: str | None
) -> None:
    plan = reconcile(replace(ruled(*rules), progress=died_on_spot_1(**record)))
    assert excluded(plan) == ([("spot-1", reason)] if reason else [])
    patches = [action for action in plan.actions if isinstance(action, ExcludeNodes)]
    deleted = [(a.ref.name, a.grace_s) for a in plan.actions if isinstance(a, Delete)]
    assert [patch.nodes for patch in patches] == ([("spot-1",)] if reason else [])
    on_it = [pod["metadata"]["name"] for pod in (ONE, TWO) if pod["spec"]["nodeName"] == "spot-1"]
    assert deleted == ([(name, 0) for name in on_it] if reason else [])
    if reason:
        order = [type(action) for action in plan.actions]
        assert order.index(ExcludeNodes) < order.index(Delete), "else it would come back there"


def test_nothing_is_ended_where_the_driver_trains_again_already() -> None:
    plan = reconcile(replace(ruled(LEAVE), progress=died_on_spot_1("Training")))
    assert excluded(plan) == [("spot-1", "by rule 1, as rank 0 died")]
    assert not [action for action in plan.actions if isinstance(action, Delete)]


@pytest.mark.parametrize(
    "heard",
    [
        pytest.param({"progress": None}, id="an operator that has just begun"),
        pytest.param({"progress_failing_s": 5.0}, id="the driver does not answer"),
        pytest.param({"progress_age_s": 60.0}, id="what it said is old"),
        pytest.param(
            {"progress_age_s": 60.0, "progress_polled_s": 600.0}, id="it is polled seldom"
        ),
    ],
)
def test_nothing_is_ended_where_the_driver_may_train_again(heard: dict[str, Any]) -> None:
    seen = replace(then(replace(ruled(LEAVE), progress=died_on_spot_1())), **heard)
    plan = reconcile(seen)
    assert excluded(plan) == [("spot-1", "by rule 1, as rank 0 died")]
    assert not [action for action in plan.actions if isinstance(action, Delete)]


def test_the_loss_is_counted_once_and_the_pod_that_goes_is_none() -> None:
    seen = then(replace(ruled(LEAVE), progress=died_on_spot_1()))
    gone = replace(seen, pods=(HEAD, TWO))
    assert reconcile(gone, 70).status.disruptions.worker_failures == 1
    assert uses(reconcile(gone, 70)) == [(1, 0)]


def test_the_next_attempt_s_pods_exclude_the_node_of_the_rank_that_failed() -> None:
    leave = rule("RestartOnOtherNode", reasons=["ValueError"])
    training = ruled(leave)
    error = failed(facts=VALUE_ERROR, node="spot-1")
    ended = then(replace(training, progress=error), ray_jobs=(), ray_clusters=(), pods=())
    plan = reconcile(replace(ended, progress=None), 100)
    assert begins(plan) == 2
    assert '"spot-1"' in json.dumps([a.manifest for a in plan.actions if isinstance(a, Apply)])


def test_a_node_is_taken_back_after_hours_or_once_pods_find_no_other() -> None:
    seen = then(replace(ruled(LEAVE), progress=died_on_spot_1()))
    waits = a_pod("worker-3", node=None, phase="Pending", created_at=100, unschedulable="no GPU")
    training = replace(seen, pods=(HEAD, waits, TWO), progress=a_progress())
    assert excluded(reconcile(training, 690))
    assert not excluded(reconcile(training, 700))
    well = replace(seen, progress=a_progress())
    assert excluded(reconcile(well, 6 * 3600 + 59))
    assert not excluded(reconcile(well, 6 * 3600 + 60))


def test_a_node_on_which_a_rank_is_slow_is_excluded_and_nothing_is_ended() -> None:
    said = "rank 1 was the slow one there 3 times"
    record = {"number": 1, "kind": "NodeSlow", "time": unix(60), "message": said, "node": "spot-1"}
    seen = replace(a_polled_run(), progress=a_progress(records=[record]))
    plan = reconcile(seen)
    assert excluded(plan) == [("spot-1", said)]
    assert [type(action) for action in plan.actions] == [ExcludeNodes]
    assert not plan.status.disruptions.history
    assert [event.reason for event in plan.events] == ["NodeExcluded"]
    later = then(seen)
    assert not excluded(reconcile(replace(later, progress=seen.progress), 7 * 3600)), "told once"


def test_what_a_rule_pays_for_does_not_delay_the_class_s_own_budget() -> None:
    seen = with_one_restart_used(
        refillAfterSteps=50, rules=[rule("Ignore", reasons=["ConnectionResetError"])]
    )
    before = seen.run.status.seen["chargedAt"]
    error = failed(facts={"reasons": ["ConnectionResetError"]})
    later = error.model_copy(update={"attempt": 2, "fencing_token": 2, "step": 40})
    plan = reconcile(replace(seen, progress=later), 200)
    assert plan.status.seen["chargedAt"]["application"] == before["application"]
    assert plan.status.restarts == 1


# Rules that end the run, while more may be told of the loss.

PROVISIONAL = (
    rule("Ignore", classes=["NodeLost"]),
    rule("Restart", max_restarts=5, classes=["OutOfMemory"]),
    rule("Fail", classes=["WorkerLost"]),
)
LEFT = nodes(a_node("spot-1", lease_age_s=None))
"""The Lease of a node against which Ray has no sign is not read."""


def outcome(plan: Plan) -> tuple[str, str | None]:
    """Of the newest attempt, and why the run has failed."""
    found = condition(plan, "Failed")
    return plan.status.attempts[-1].outcome, found.reason if found.status == "True" else None


RECORDS = died_on_spot_1().records


def rank_died(facts: dict[str, Any] | None = None, **document: Any) -> Any:
    """One on spot-1, of which the driver knows no more than that."""
    records = died_on_spot_1(facts=facts).records
    return a_progress(state="Recovering", records=records, **document)


NODE_LOST: dict[str, Any] = {
    "nodes": nodes(a_node("spot-1", ready=False)),
    "progress": rank_died(lost_nodes=["spot-1"]),
}
GOES_ON = ("Running", None)
ENDED = ("Lost", "FailedByRule")


@pytest.mark.parametrize(
    ("shown", "counted"),
    [
        pytest.param(NODE_LOST, [(1, 0), (0, 0), (0, 0)], id="its node is lost"),
        pytest.param(
            {"pods": (HEAD, a_pod("worker-1", **OOM), TWO)},
            [(0, 0), (1, 1), (0, 0)],
            id="its pod had no memory",
        ),
        pytest.param(
            {"pods": (HEAD, a_pod("worker-1", terminating_at=59), TWO)},
            [(0, 0), (0, 0), (0, 0)],
            id="its pod was deleted",
        ),
    ],
)
def test_a_rule_about_lost_workers_ends_no_run_whose_loss_proves_to_be_another(
    shown: dict[str, Any], counted: list[tuple[int, int]]
) -> None:
    """A rank dies first of all, and its node shows most of a minute later that it is gone."""
    seen = then(replace(ruled(*PROVISIONAL), progress=rank_died(), nodes=LEFT))
    seen = replace(then(seen, 100), **shown)
    plan = reconcile(seen, 105)
    assert (outcome(plan), uses(plan)) == (GOES_ON, counted)
    assert plan.status.disruptions.worker_failures == 0
    later = reconcile(then(seen, 105), 500)
    assert (outcome(later), uses(later)) == (GOES_ON, counted)


@pytest.mark.parametrize(
    ("observed", "ends_at"),
    [
        pytest.param({}, 75, id="its Lease was renewed since"),
        pytest.param({"nodes": LEFT}, 120, id="a dead node would be NotReady by then"),
        pytest.param(
            {"nodes": nodes(a_node("spot-1", ready=False))}, 360, id="it is NotReady, and alone so"
        ),
        pytest.param({"stale": {"Node": "403"}}, 360, id="nodes cannot be read"),
    ],
)
def test_a_lost_worker_ends_the_run_once_its_node_is_known_to_live_or_nothing_shows_the_contrary(
    observed: dict[str, Any], ends_at: float
) -> None:
    seen = replace(ruled(*PROVISIONAL), progress=rank_died(), **observed)
    for seconds in (60, 70, ends_at - 1):
        plan = reconcile(seen, seconds)
        assert (outcome(plan), uses(plan)[2]) == (GOES_ON, (0, 0))
        seen = then(seen, seconds)
    plan = reconcile(seen, ends_at)
    assert (outcome(plan), uses(plan)[2]) == (ENDED, (1, 0))
    last = plan.status.attempts[-1]
    assert (last.reason, last.rule, last.message) == ("WorkerLost", 3, "rank 0 died")
    lost = plan.status.disruptions
    assert (lost.worker_failures, len(lost.history)) == (1, 1)
    assert "otherLosses" not in plan.status.seen, "it is one loss"


def test_it_also_ends_the_run_where_training_goes_on_and_the_operator_begins_anew() -> None:
    """No event comes at the end of the wait, and the driver has its pods."""
    seen = then(replace(ruled(*PROVISIONAL), progress=rank_died(), nodes=LEFT))
    restored = {"number": 2, "kind": "Restored", "time": unix(70)}
    trains = a_progress(step=20, step_time=unix(80), records=[*RECORDS, restored])
    seen = then(replace(seen, progress=trains), 85)
    assert seen.run.status.disruptions.history[0].action, "its cost is known"
    anew = replace(seen, progress=None, progress_age_s=None, progress_polled_s=0.0)
    for one in (seen, anew):
        plan = reconcile(one, 100)
        assert (outcome(plan), plan.requeue_after_s) == (GOES_ON, 4.0)
        plan = reconcile(one, 120)
        assert outcome(plan) == ENDED
        assert len(plan.status.disruptions.history) == 1
        assert "otherLosses" not in plan.status.seen, "it is the loss from before those steps"


def test_a_process_that_died_in_a_pod_in_which_a_rank_trains_again_was_no_node() -> None:
    seen = then(replace(ruled(*PROVISIONAL), progress=rank_died(), nodes=LEFT))
    records = [*RECORDS, {"number": 2, "kind": "Restored", "time": unix(63)}]
    row = {"rank": 0, "pod": "worker-1", "node": "spot-1"}
    trains = a_progress(records=records, ranks=[row], step_time=unix(65))
    assert outcome(reconcile(replace(seen, progress=trains), 66)) == ENDED


def test_the_kernel_s_end_of_that_process_is_told_once_a_rank_is_there_again() -> None:
    seen = then(replace(ruled(*PROVISIONAL), progress=rank_died(), nodes=LEFT))
    full = {"number": 2, "kind": "OutOfMemory", "time": unix(60), "pod": "worker-1"}
    records = [{**full, "groupTime": unix(20)}, {"number": 3, "kind": "Restored", "time": unix(63)}]
    row = {"rank": 0, "pod": "worker-1", "node": "spot-1"}
    trains = a_progress(records=records, ranks=[row], step_time=unix(65))
    for seconds in (66, 400):
        seen = then(replace(seen, progress=trains), seconds)
        plan = reconcile(seen, seconds)
        assert (outcome(plan), uses(plan)) == (GOES_ON, [(0, 0), (1, 1), (0, 0)])


def test_a_rule_that_ends_the_run_whatever_the_loss_is_waits_for_nothing() -> None:
    training = ruled(rule("Ignore", classes=["Hang"]), rule("Fail", exitCodes=[1]))
    died = replace(training, pods=(HEAD, a_pod("worker-1", exit_code=1), TWO))
    plan = reconcile(died)
    assert (outcome(plan), plan.status.attempts[-1].rule) == (ENDED, 2)


def test_a_rule_about_nodes_ends_the_run_as_soon_as_one_is_lost() -> None:
    seen = then(replace(ruled(rule("Fail", classes=["NodeLost"])), progress=rank_died()))
    plan = reconcile(replace(seen, **NODE_LOST), 80)
    assert (outcome(plan), uses(plan)) == (ENDED, [(1, 0)])


@pytest.mark.parametrize("returns_at", [260, 500])
def test_an_operator_that_was_away_looks_at_the_node_before_a_rule_ends_the_run(
    returns_at: float,
) -> None:
    """What it reads of first is a rank that died long ago."""
    plan = reconcile(replace(ruled(*PROVISIONAL), **NODE_LOST), returns_at)
    assert (outcome(plan), uses(plan)) == (GOES_ON, [(1, 0), (0, 0), (0, 0)])
    assert plan.status.disruptions.worker_failures == 0


def test_the_attempt_s_end_names_the_loss_that_met_the_rule_and_not_a_later_one() -> None:
    seen = then(replace(ruled(*PROVISIONAL), progress=rank_died(), nodes=LEFT))
    seen = then(replace(seen, pods=(HEAD, ONE, a_pod("worker-2", terminating_at=99))), 100)
    last = reconcile(seen, 120).status.attempts[-1]
    assert (last.reason, last.message, last.rule) == ("WorkerLost", "rank 0 died", 3)


@pytest.mark.parametrize("pod_first", [True, False])
@pytest.mark.parametrize("ending", [{"exit_code": 1}, OOM], ids=["died", "without memory"])
def test_the_first_rule_counts_whichever_source_tells_first(
    pod_first: bool, ending: dict[str, Any]
) -> None:
    """Only the driver has what the rank has printed."""
    fail = rule("Fail", classes=["WorkerLost", "OutOfMemory"])
    pod = {"pods": (HEAD, a_pod("worker-1", **ending), TWO)}
    record = {"progress": rank_died({"matched": ["corrupt"]})}
    first, second = (pod, record) if pod_first else (record, pod)
    seen = then(replace(ruled(rule("Restart", logPattern="corrupt"), fail), **first), 60)
    seen = then(replace(seen, **second), 70)
    plan = reconcile(seen, 400)
    assert (outcome(plan), uses(plan)) == (GOES_ON, [(1, 0), (0, 0)])


@pytest.mark.parametrize(
    ("heard", "ends_at"),
    [
        pytest.param({"progress": rank_died()}, 75, id="and has told of another text"),
        pytest.param({"progress": a_progress(), "progress_age_s": 40.0}, 75, id="and is silent"),
        pytest.param({"progress": a_progress()}, 120, id="and has not told yet"),
    ],
)
def test_what_the_driver_may_tell_is_waited_for_and_not_for_ever(
    heard: dict[str, Any], ends_at: float
) -> None:
    training = ruled(rule("Restart", logPattern="corrupt"), rule("Fail", classes=["OutOfMemory"]))
    seen = replace(training, pods=(HEAD, a_pod("worker-1", **OOM), TWO))
    seen = then(replace(seen, **heard))
    plan = reconcile(seen, ends_at - 1)
    assert outcome(plan) == GOES_ON
    assert plan.requeue_after_s is not None
    assert outcome(reconcile(seen, ends_at)) == ("Failed", "FailedByRule")


@pytest.mark.parametrize(
    ("state", "changes", "ended"),
    [
        pytest.param("Failed", {}, "FailedByRule", id="it fails otherwise"),
        pytest.param("Succeeded", {}, None, id="it is done"),
        pytest.param("Suspended", {}, None, id="it was suspended"),
        pytest.param(
            "Failed",
            {"nodes": nodes(a_node("spot-1", ready=False))},
            None,
            id="and the node may be lost",
        ),
    ],
)
def test_an_attempt_that_ends_meanwhile_takes_no_rule_away(
    state: str, changes: dict[str, Any], ended: str | None
) -> None:
    seen = then(replace(ruled(*PROVISIONAL), progress=rank_died(), nodes=LEFT))
    result = {"result": {"step": 100}} if state == "Succeeded" else {}
    failure = {"failure": {"kind": "Infrastructure", "message": "no room"}}
    records = {"records": RECORDS}
    final = a_progress(state=state, **records, **(failure if state == "Failed" else result))
    plan = reconcile(replace(seen, progress=final, **changes), 65)
    assert outcome(plan) == ("Lost" if state == "Failed" else state, ended)
    assert uses(plan)[2] == (int(ended is not None), 0)


def test_what_the_driver_says_at_the_end_is_said_of_the_same_loss() -> None:
    """A rank without memory prints why, its peer raises an error, and no record was made."""
    fail = rule("Fail", classes=["OutOfMemory"])
    training = ruled(rule("Restart", logPattern="corrupt"), fail)
    seen = then(replace(training, pods=(HEAD, a_pod("worker-1", **OOM), TWO)))
    for matched, ended in ((["corrupt"], None), ([], "FailedByRule")):
        plan = reconcile(replace(seen, progress=failed(facts={"matched": matched})), 62)
        assert plan.status.attempts[-1].reason == "OutOfMemory"
        assert outcome(plan) == ("Failed", ended)


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        pytest.param(NODE_LOST, "NodeLost", id="a node"),
        pytest.param({"pods": (HEAD, a_pod("worker-1", **OOM), TWO)}, "OutOfMemory", id="memory"),
    ],
)
def test_an_attempt_that_the_driver_ends_for_a_lost_worker_has_the_class_that_was_counted(
    shown: dict[str, Any], reason: str
) -> None:
    """An older driver knows no other class, and ends its attempt by the rule for that."""
    training = ruled(*PROVISIONAL)
    seen = then(replace(training, progress=rank_died(), nodes=LEFT))
    seen = then(replace(seen, **shown), 100)
    final = failed("Infrastructure", loss="WorkerLost", facts={}, node="spot-1")
    plan = reconcile(replace(seen, progress=final), 101)
    last = plan.status.attempts[-1]
    assert (last.reason, condition(plan, "Failed").status) == (reason, "False")
    assert len(plan.status.disruptions.history) == 1
    elsewhere = final.failure.model_copy(update={"node": "spot-3"})
    other = reconcile(replace(seen, progress=final.model_copy(update={"failure": elsewhere})), 101)
    assert other.status.attempts[-1].reason == "WorkerLost"


def test_a_node_that_was_lost_before_the_last_steps_is_not_why_the_driver_ends() -> None:
    seen = then(replace(ruled(*PROVISIONAL), progress=rank_died(), nodes=LEFT))
    seen = then(replace(seen, **NODE_LOST), 100)
    restored = {"number": 2, "kind": "Restored", "time": unix(130)}
    trains = a_progress(step=50, step_time=unix(190), records=[*RECORDS, restored])
    new = replace(seen, nodes=nodes(), pods=(HEAD, a_pod("worker-3", node="spot-3"), TWO))
    seen = then(replace(new, progress=trains), 200)
    died = {"number": 3, "kind": "WorkerLost", "time": unix(290), "pod": "worker-2"}
    told = a_progress(step=50, step_time=unix(190), records=[*trains.records, died])
    ended = failed("Infrastructure", loss="WorkerLost", facts={})
    final = told.model_copy(update={"state": ended.state, "failure": ended.failure})
    assert reconcile(replace(seen, progress=final), 300).status.attempts[-1].reason == "WorkerLost"


def test_the_rules_of_the_end_of_the_wait_count() -> None:
    seen = then(replace(ruled(*PROVISIONAL), progress=rank_died(), nodes=LEFT))
    kept = {"failures": {"rules": [rule("Ignore", classes=["WorkerLost"])]}}
    plan = reconcile(wanting(seen, **kept), 120)
    assert (outcome(plan), uses(plan)) == (GOES_ON, [(1, 0)])
    without = then(wanting(seen), 100)
    assert outcome(reconcile(wanting(without, failures={"rules": PROVISIONAL}), 120)) == GOES_ON


def test_a_rule_that_is_written_later_ends_no_run_for_what_was_before() -> None:
    seen = then(replace(a_polled_run(), progress=rank_died(), nodes=LEFT))
    assert outcome(reconcile(wanting(seen, failures={"rules": PROVISIONAL}), 400)) == GOES_ON
