"""What the status shows of a sweep, and how many workers and pods it has."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_progress, a_run, unix
from support.goldens import rendered
from support.reconciled import a_polled_run, condition, in_the_way, reconcile
from trainingrun.reconciling import Observed
from trainingrun.reconciling.status.progress_status import result, sweep
from trainingrun.rendering import RenderSettings, contract
from trainingrun_protocol.contract import ContractSweep
from trainingrun_protocol.progress import (
    Progress,
    ProgressResult,
    RunState,
    SweepTable,
    TrialRow,
    TrialState,
)
from trainingrun_runtime.sweep.record import Trial
from trainingrun_runtime.sweep.summary import Summary

SWEEP: dict[str, Any] = {
    "search": "grid",
    "metric": "loss",
    "mode": "min",
    "concurrency": 3,
    "scheduler": "ASHA",
    "reductionFactor": 2,
    "space": [{"name": "lr", "values": [0.1, 0.2, 0.3, 0.4]}],
}


def a_table(*states: TrialState, best: int | None = None, **facts: Any) -> SweepTable:
    rows = [
        TrialRow(number=number, state=state, config={"lr": number / 10}, **facts)
        for number, state in enumerate(states, start=1)
    ]
    return SweepTable(metric="loss", best=best, trials=rows)


@pytest.fixture
def training() -> Observed:
    return a_polled_run()


def test_there_are_pods_for_all_trials_at_once():
    run = a_run(sweep=SWEEP, workers={"count": 4, "perPod": 2})
    assert (run.spec.total_workers, run.spec.worker_pods) == (12, 6)
    (job,) = [each for each in rendered(run) if each["kind"] == "RayJob"]
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (6, 6, 6)


def test_the_contract_has_the_world_size_of_a_trial_and_the_settings_of_the_sweep():
    found = contract(a_run(sweep=SWEEP), 1, RenderSettings())
    assert found.workers == 2
    assert found.sweep is not None
    assert (found.sweep.concurrency, found.sweep.asha) == (3, True)
    assert (found.sweep.grace_steps, found.sweep.reduction_factor) == (100, 2)
    assert found.sweep.space[0].values == [0.1, 0.2, 0.3, 0.4]
    assert (found.sweep.max_hangs, found.sweep.max_losses) == (3, -1)


def records(number: int, kind: str) -> list[dict[str, Any]]:
    return [
        {"number": n, "kind": kind, "time": unix(60), "message": "trial 1: no step"}
        for n in range(1, number + 1)
    ]


@pytest.mark.parametrize(
    ("failures", "kind", "most", "reason"),
    [
        ({"maxHangs": 1}, "Hang", 8, "HangsExhausted"),
        ({"maxHangs": 0}, "Hang", 4, "HangsExhausted"),
    ],
)
def test_what_one_trial_may_use_of_a_budget_leaves_that_of_the_others(
    failures: dict[str, Any], kind: str, most: int, reason: str
):
    """The driver ends a trial that has used its own; of four trials each may."""
    swept = a_polled_run(sweep=SWEEP, failures=failures)
    within = replace(swept, progress=a_progress(records=records(most, kind)))
    assert reconcile(within).status.attempts[-1].outcome == "Running"
    beyond = replace(swept, progress=a_progress(records=records(most + 1, kind)))
    failed = condition(reconcile(beyond), "Failed")
    assert (failed.status, failed.reason) == ("True", reason)
    assert "for each of 4 trials" in failed.message


def test_no_trial_is_shown_as_running_once_the_attempt_has_ended():
    table = a_table(TrialState.RUNNING, TrialState.SUCCEEDED)
    swept = a_polled_run(sweep=SWEEP, failures={"maxHangs": 0})
    plan = reconcile(replace(swept, progress=a_progress(sweep=table, records=records(9, "Hang"))))
    assert plan.status.attempts[-1].outcome == "Lost"
    assert plan.status.sweep is not None
    assert (plan.status.sweep.running, plan.status.sweep.pending) == (0, 1)
    assert plan.status.sweep.trials[0].state is TrialState.PENDING


def test_the_status_counts_and_lists_the_trials(training: Observed):
    states = TrialState.SUCCEEDED, TrialState.STOPPED, TrialState.RUNNING, TrialState.PENDING
    table = a_table(*states, best=1, step=7, value=0.25)
    status = reconcile(replace(training, progress=a_progress(sweep=table))).status
    assert status.sweep is not None
    assert status.sweep.best == 1
    assert (status.sweep.succeeded, status.sweep.stopped, status.sweep.failed) == (1, 1, 0)
    assert (status.sweep.running, status.sweep.pending) == (1, 1)
    assert status.sweep.trials[1].to_dict() == {
        "number": 2,
        "state": "Stopped",
        "config": {"lr": 0.2},
        "step": 7,
        "value": 0.25,
        "message": "",
    }


def test_ranks_of_a_trial_that_wait_for_others_are_said_while_the_other_trials_train(
    training: Observed,
):
    """From the trials' documents to the condition of the run."""
    waits = "rank 0 waits in ray.train.report for over 30 s for rank 1, which is elsewhere"
    trials = {n: Trial(number=n, config={}, state=TrialState.RUNNING) for n in (1, 2)}
    facts = {"state": RunState.TRAINING, "step": 7, "step_time": 5.0, "world_size": 2}
    documents = {1: Progress(attempt=1, **facts), 2: Progress(attempt=1, **facts, standstill=waits)}
    settings = ContractSweep(metric="loss", mode="min", concurrency=2, space=[])
    whole = Summary(settings, trials).progress(trials, documents, a_progress())
    plan = reconcile(replace(training, progress=whole))
    stalled = in_the_way(plan)
    assert (stalled.status, stalled.reason) == ("True", "RanksWait")
    assert stalled.message == f"trial 2: {waits}"
    assert plan.status.attempts[-1].outcome == "Running"


def test_the_result_names_the_best_trial_and_its_config():
    table = a_table(TrialState.SUCCEEDED, TrialState.SUCCEEDED, best=2)
    done = ProgressResult(metrics={"loss": 0.1}, checkpoint_uri="s3://a", sweep=table)
    found = result(a_progress(result=done, sweep=table))
    assert (found.trial, found.config, found.checkpoint_uri) == (2, {"lr": 0.2}, "s3://a")


def test_the_result_ranks_the_trials_that_were_trained_to_their_end_first():
    states = (
        [TrialState.SUCCEEDED] * 2
        + [TrialState.STOPPED, TrialState.FAILED]
        + [TrialState.SUCCEEDED]
    )
    values = [0.5, 0.2, 0.1, 0.0, None]
    table = a_table(*states, best=2)
    rows = [
        row.model_copy(update={"value": v}) for row, v in zip(table.trials, values, strict=True)
    ]
    done = ProgressResult(sweep=table.model_copy(update={"trials": rows}))
    found = result(a_progress(result=done), a_run(sweep=SWEEP).spec.sweep).trials or []
    assert [(one.number, one.value) for one in found] == [(2, 0.2), (1, 0.5), (3, 0.1)]
    most = {**SWEEP, "mode": "max"}
    found = result(a_progress(result=done), a_run(sweep=most).spec.sweep).trials or []
    assert [one.number for one in found] == [1, 2, 3]


def test_the_result_of_a_large_sweep_has_twenty_trials():
    table = a_table(*[TrialState.SUCCEEDED] * 200, best=1, value=1.0)
    done = a_progress(result=ProgressResult(sweep=table))
    found = result(done, a_run(sweep=SWEEP).spec.sweep).trials or []
    assert [one.number for one in found] == [*range(1, 21)], "of equal ones the first"


def test_what_a_pod_reports_of_trials_is_bounded_in_the_status():
    rows = [
        TrialRow(
            number=n,
            state=TrialState.FAILED,
            message="x" * 2000,
            value=float("inf"),
            checkpoint_uri="s3://" + "a" * 2000,
            config={f"p{i}": "y" * 200 for i in range(90)},
        )
        for n in [1, 1, 2]
    ]
    found = sweep(SweepTable(metric="loss", trials=rows)).trials
    assert [trial.number for trial in found] == [1, 2], "the list's key appears once"
    assert len(found[0].message) == 300
    assert found[0].value is None
    assert len(found[0].checkpoint_uri or "") == 1024
    assert len(found[0].config) == 50


def test_a_sweep_is_ready_while_as_many_workers_train_as_trials_are_left_for():
    swept = a_polled_run(sweep=SWEEP)

    def ready(workers: int, *states: TrialState) -> str:
        found = a_progress(world_size=workers, sweep=a_table(*states))
        return condition(reconcile(replace(swept, progress=found)), "Ready").status

    running, done = TrialState.RUNNING, TrialState.SUCCEEDED
    assert ready(6, running, running, running, TrialState.PENDING) == "True"
    assert ready(4, running, running, running, TrialState.PENDING) == "False"
    assert ready(2, done, done, done, running) == "True", "only one trial is left"
    assert ready(1, done, done, done, running) == "False"


def test_a_driver_that_finds_the_sweep_done_reports_its_trials_too(training: Observed):
    table = a_table(TrialState.SUCCEEDED, best=1)
    done = ProgressResult(metrics={"loss": 0.1}, sweep=table)
    found = a_progress(state="Succeeded", result=done)
    status = reconcile(replace(training, progress=found)).status
    assert status.sweep is not None
    assert (status.sweep.succeeded, status.sweep.best) == (1, 1)
