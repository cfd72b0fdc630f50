"""How `make chaos` goes from one scenario to the next: runs that end, fail, or lose a pod."""

import copy
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.faults import Fault
from chaos.plan import Drawn, Phase, Scenario
from chaos.runner import Disturber
from e2e.cluster import TestCluster
from e2e.kube import Kubectl
from e2e.long_run import LongRun
from e2e.report import Step
from e2e.runs import TOTAL_STEPS, Run


def worker(name: str) -> dict:
    """Its pod, as far as it is looked at."""
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}"},
        "status": {"phase": "Running", "containerStatuses": [{"restartCount": 0}]},
    }


class FakeRun(Run):
    """A run that does a step whenever someone looks, in a cluster that is not there."""

    def __init__(self, name: str, weights: str = "right") -> None:
        self.kubectl, self.cluster, self.name = FakeKubectl(Path("none")), None, name
        self.journals, self.applied = FakePace(), 0.0
        self._steps, self._weights, self.removed = [], weights, False
        self.attempt, self.alive = 1, {name: worker(name) for name in ("w-1", "w-2")}

    def steps(self) -> list[Step]:
        if len(self._steps) < TOTAL_STEPS:
            self._steps.append(Step(time.time(), len(self._steps) + 1))
        return list(self._steps)

    def start(self, spec, journal=True) -> None: ...

    def remove(self) -> None:
        self.removed = True

    def status(self) -> dict:
        return {
            "attempt": self.attempt,
            "attempts": [],
            "checkpoint": {"step": 1},
            "result": {"metrics": {"weights_sha256": self._weights}},
        }

    def pods(self, role: str = "") -> list[dict]:
        return copy.deepcopy(list(self.alive.values()))

    def workers(self) -> dict[str, str]:
        return {"w-1": "spot", "w-2": "base"}

    def succeed(self, timeout: float = 240) -> dict:
        while len(self.steps()) < TOTAL_STEPS:
            pass
        return self.status()


class FakeKubectl(Kubectl):
    def __call__(self, *words, **_) -> str:
        return ""


class FakePace:
    def set_pace(self, seconds: float) -> None: ...


class OfFakes(Disturber):
    """Its runs are fakes."""

    def __init__(self, acts: dict, weights=(), ends_run=(), keeps_pods=False) -> None:
        self.said: list[str] = []
        cluster = TestCluster("none", FakeKubectl(Path("none")))
        super().__init__(cluster, lambda: "right", self.said.append)
        self._scenarios = {
            name: (
                scenario,
                Fault(name, act, 60.0, keeps_pods=keeps_pods, ends_run=name in ends_run),
            )
            for name, (scenario, act) in acts.items()
        }
        self.runs: list[FakeRun] = []
        self._weights = dict(enumerate(weights))

    def _new_run(self) -> LongRun:
        self.runs.append(FakeRun(f"chaos-{self._runs}", self._weights.get(self._runs, "right")))
        self._runs += 1
        self._long = LongRun(self.runs[-1])
        return self._long


@contextmanager
def nothing(run):
    yield


@contextmanager
def breaks(run):
    raise RuntimeError("the API server says no")
    yield


def drawn(*faults):
    made = {}
    for number, act in enumerate(faults):
        scenario = Scenario(f"fault {number}", Phase.TRAINING, 0.0, 60.0)
        made[scenario.name] = (scenario, act)
    return made, [Drawn(scenario, 0.0) for scenario, _ in made.values()]


@pytest.fixture(autouse=True)
def no_evidence(monkeypatch):
    monkeypatch.setattr("chaos.runner.keep_evidence", lambda *_: "the folder")
    monkeypatch.setattr("e2e.kube.time.sleep", lambda _: None)


def test_after_a_failure_the_next_scenario_has_a_fresh_run():
    acts, group = drawn(nothing, breaks, nothing)
    disturber = OfFakes(acts)
    outcomes = disturber.go_through(group)
    names = [one.scenario.fault for one in outcomes]
    assert names == ["fault 1", "fault 2"], "how the run of the first would have ended is unknown"
    assert [bool(one.failure) for one in outcomes] == [True, False]
    assert "RuntimeError: the API server says no" in outcomes[0].failure
    assert [one.weights_equal for one in outcomes] == [None, True]
    assert [run.removed for run in disturber.runs] == [True, True]
    assert any("FAILED" in said for said in disturber.said)
    assert any("fault 1, training, 0.0 s after" in said for said in disturber.said)


def test_a_run_that_is_deleted_leaves_nothing_and_the_next_scenario_a_fresh_one(monkeypatch):
    acts, group = drawn(nothing, nothing)
    disturber = OfFakes(acts, ends_run=("fault 0, training",))
    asked = []
    monkeypatch.setattr(FakeKubectl, "find", lambda self, *words: asked.append(words))
    left = [{"metadata": {"name": "head", "labels": {"ray.io/cluster": "chaos-0-1-x"}}}]

    def found(self, *words):
        asked.append(words)
        return [left.pop()] if words[0] == "services" and left else []

    monkeypatch.setattr(FakeKubectl, "list", found)
    outcomes = disturber.go_through(group)
    assert [one.failure for one in outcomes] == ["", ""]
    assert [one.weights_equal for one in outcomes] == [None, True]
    assert asked[0] == ("trainingrun", "chaos-0")
    assert asked[1][1] == "trainingrun.dev/run=chaos-0"
    assert [words[0] for words in asked].count("services") == 2, "KubeRay's is waited for too"
    assert len(disturber.runs) == 2


@contextmanager
def replaces_a_worker(run):
    run.alive["w-1"]["metadata"]["uid"] = "of another one"
    yield


@contextmanager
def leaves_a_pod_leaving(run):
    run.alive["w-2"]["metadata"]["deletionTimestamp"] = "now"
    yield


@contextmanager
def restarts_a_container(run):
    run.alive["w-2"]["status"]["containerStatuses"][0]["restartCount"] += 1
    yield


@contextmanager
def begins_another_attempt(run):
    run.attempt += 1
    yield


@contextmanager
def adds_a_pod(run):
    run.alive["w-3"] = worker("w-3")
    yield


@pytest.mark.parametrize(
    "act",
    [
        replaces_a_worker,
        leaves_a_pod_leaving,
        restarts_a_container,
        adds_a_pod,
        begins_another_attempt,
    ],
)
def test_a_fault_that_ends_nothing_has_failed_where_something_ended(act):
    acts, group = drawn(act)
    (outcome,) = OfFakes(acts, keeps_pods=True).go_through(group)
    assert outcome.failure.startswith("AssertionError: ")
    (outcome,) = OfFakes(acts).go_through(group)
    assert outcome.failure == "", "of another fault it may come"


def test_a_fault_that_ends_nothing_survives_in_the_same_pods():
    acts, group = drawn(nothing)
    (outcome,) = OfFakes(acts, keeps_pods=True).go_through(group)
    assert outcome.failure == ""


def test_wrong_weights_are_the_failure_of_every_scenario_of_the_run():
    acts, group = drawn(nothing, nothing)
    disturber = OfFakes(acts, weights=["wrong"])
    outcomes = disturber.go_through(group)
    assert [one.weights_equal for one in outcomes] == [False, False]
    assert all("wrong instead of right" in one.failure for one in outcomes)
    assert disturber.go_through(group[:1])[0].failure == ""
