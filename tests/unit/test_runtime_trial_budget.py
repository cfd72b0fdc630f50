"""How often one trial of a sweep may be lost or hang: the run's budgets hold for each of them."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import WorkerGroupError

from trainingrun_protocol.contract import ContractTrial
from trainingrun_protocol.failure_rules import ContractRule, ContractWhen
from trainingrun_protocol.progress import Failure, Hang
from trainingrun_runtime.driver import failure_policy
from trainingrun_runtime.driver.failure_policy import AttemptPolicy
from trainingrun_runtime.ray_internals.training import FailureDecision, WorkerHealthCheckFailedError


class Coordinator:
    """Of a trial of which a rank dies again and again, after a newer checkpoint each time."""

    def __init__(self, hang: Hang | None) -> None:
        self.hang, self.commits_made = hang, 0
        self.failures: list[Failure] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return SimpleNamespace(remote=getattr(self, f"_{name}", lambda *_: None))

    def _hang_of_group(self) -> Hang | None:
        return self.hang

    def _commits(self) -> int:
        self.commits_made += 1
        return self.commits_made

    def _concluding(self, failure: Failure) -> None:
        self.failures.append(failure)


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_policy.ray, "get", lambda answer: answer)
    monkeypatch.setattr(failure_policy.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(failure_policy.survivors, "save_last_step", lambda *_: None)
    monkeypatch.setattr(failure_policy.last_lines, "keep", lambda *_: [])


HANG = Hang(time=1.0, seconds=30.0, message="no step for 30 s: rank 0 has been in read (a.py:1)")


def decisions(
    times: int, coordinator: Coordinator, trial: ContractTrial | None, *rules: ContractRule
) -> list[FailureDecision]:
    bucket: Any = None
    policy = AttemptPolicy(coordinator, bucket, 1, rules, trial)
    dead = WorkerHealthCheckFailedError("it failed", failure=RuntimeError("The actor died."))
    return [policy.make_decision(WorkerGroupError("failed", {0: dead})) for _ in range(times)]


def a_trial(**budgets: int) -> ContractTrial:
    return ContractTrial(number=3, metric="loss", **budgets)


RETRY, RAISE = FailureDecision.RETRY, FailureDecision.RAISE


def test_a_trial_that_hangs_more_often_than_max_hangs_fails_by_itself() -> None:
    coordinator = Coordinator(HANG)
    assert decisions(3, coordinator, a_trial(max_hangs=2)) == [RETRY, RETRY, RAISE]
    (failure,) = coordinator.failures
    assert failure.kind == "Application", "that of this trial alone"
    assert failure.message == (
        "it hung 3 times and failures.maxHangs is 2 for each trial, at last with no step for 30 s: "
        "rank 0 has been in read (a.py:1)"
    )


def test_a_trial_that_is_lost_more_often_than_max_preemptions_fails_by_itself() -> None:
    coordinator = Coordinator(None)
    assert decisions(2, coordinator, a_trial(max_losses=1, max_hangs=0)) == [RETRY, RAISE]
    (failure,) = coordinator.failures
    assert failure.message.startswith(
        "it was lost 2 times and failures.maxPreemptions is 1 for each trial, at last with rank 0"
    )


@pytest.mark.parametrize("trial", [a_trial(), None], ids=["as many as there are", "no trial"])
def test_without_a_budget_it_restarts_each_time(trial: ContractTrial | None) -> None:
    assert decisions(5, Coordinator(HANG), trial) == [RETRY] * 5


def test_a_rule_with_a_budget_of_its_own_pays_instead() -> None:
    rule = ContractRule(when=ContractWhen(classes=["Hang"]), then="Restart", max_restarts=9)
    assert decisions(4, Coordinator(HANG), a_trial(max_hangs=0), rule) == [RETRY] * 4
