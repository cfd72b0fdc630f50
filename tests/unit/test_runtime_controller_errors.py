"""What follows an error of Ray's controller, such as one that a reported value makes it raise."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.train import ControllerError

from trainingrun_protocol.contract import MAX_GROUPS_WITHOUT_CHECKPOINT
from trainingrun_protocol.failure_rules import ContractRule, ContractWhen
from trainingrun_protocol.progress import Failure, RecordKind
from trainingrun_runtime.driver import failure_policy
from trainingrun_runtime.driver.failure_policy import AttemptPolicy
from trainingrun_runtime.ray_internals.training import (
    FailureDecision,
    WorkerGroupStartupTimeoutError,
)


class Coordinator:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.records: list[tuple[RecordKind, str]] = []
        self.failures: list[Failure] = []
        self.interruptions = 0
        self.number_of_commits = 0

    def disrupted(self, kind: RecordKind, message: str, *_: Any) -> None:
        self.records.append((kind, message))

    def interrupted(self) -> None:
        self.interruptions += 1

    def concluding(self, failure: Failure) -> None:
        self.failures.append(failure)

    def commits(self) -> int:
        return self.number_of_commits

    def place_of(self, ranks: object) -> None: ...


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.setattr(failure_policy.ray, "get", lambda answer: answer)
    monkeypatch.setattr(failure_policy.time, "sleep", lambda seconds: None)
    return Coordinator()


@pytest.fixture
def policy(coordinator: Coordinator, request: pytest.FixtureRequest) -> AttemptPolicy:
    """By its parameter with a rule that ends the run for such an error."""

    def remote(name: str) -> Any:
        return SimpleNamespace(remote=getattr(coordinator, name))

    told = ("disrupted", "interrupted", "concluding", "commits", "place_of")
    bucket: Any = None
    known = SimpleNamespace(**{name: remote(name) for name in told})
    rules = [ContractRule(when=ContractWhen(classes=["InfrastructureError"]), then="Fail")]
    rules *= getattr(request, "param", False)
    return AttemptPolicy(known, bucket, 1, rules, resources_per_worker={"CPU": 1.0})


def report(value: str) -> None:
    value.encode()


def name_it(value: str) -> None:
    value.encode("ascii")


def raised(work: Callable[..., None], *arguments: Any) -> ControllerError:
    """As Ray's callback manager hands it on."""
    try:
        work(*arguments)
    except Exception as error:
        return ControllerError(error)
    raise AssertionError


def test_the_second_one_at_the_same_place_ends_the_attempt_with_its_sentence(
    policy: AttemptPolicy, coordinator: Coordinator
) -> None:
    assert policy.make_decision(raised(report, "m\udce4dchen")) is FailureDecision.RETRY
    assert policy.make_decision(raised(report, "ju\udcefn")) is FailureDecision.RAISE
    ((kind, message),) = coordinator.records
    assert kind is RecordKind.INFRASTRUCTURE_ERROR
    assert message.startswith(
        "Ray's controller raised UnicodeEncodeError (test_runtime_controller_errors.py:"
    )
    assert "can't encode character" in message
    (failure,) = coordinator.failures
    assert failure.kind == "Infrastructure"
    assert failure.message.startswith("the same error has ended two worker groups: Ray's")


def test_checkpoints_in_between_do_not_make_it_another_error(
    policy: AttemptPolicy, coordinator: Coordinator
) -> None:
    policy.make_decision(raised(report, "\udce4"))
    coordinator.number_of_commits = 5
    assert policy.make_decision(raised(report, "\udce4")) is FailureDecision.RAISE


def test_errors_at_different_places_each_restart_the_group_and_are_recorded(
    policy: AttemptPolicy, coordinator: Coordinator
) -> None:
    assert policy.make_decision(raised(report, "\udce4")) is FailureDecision.RETRY
    assert policy.make_decision(raised(name_it, "ä")) is FailureDecision.RETRY
    assert len(coordinator.records) == 2


def fetch(error: Exception) -> None:
    raise error


def of_a_task(error: Exception) -> Exception:
    """As Ray raises it in another process than the one in which it was raised."""
    task = RayTaskError("reported", "Traceback …", error)
    return task.as_instanceof_cause()


def test_an_error_of_the_coordinator_counts_as_the_controller_s(policy: AttemptPolicy) -> None:
    def decide(text: str) -> FailureDecision:
        return policy.make_decision(raised(fetch, of_a_task(ValueError(text))))

    assert decide("no 1") is FailureDecision.RETRY
    assert decide("no 2") is FailureDecision.RAISE


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("no workers"),
        ConnectionError("reset"),
        ActorDiedError(),
        of_a_task(ConnectionError("reset")),
    ],
    ids=repr,
)
def test_what_a_lost_node_may_cause_is_no_repetition(
    policy: AttemptPolicy, coordinator: Coordinator, error: Exception
) -> None:
    for _ in range(3):
        assert policy.make_decision(raised(fetch, error)) is FailureDecision.RETRY
    assert not coordinator.records
    assert coordinator.interruptions == 3, "no group trains that could hang"


NO_NODE = ControllerError(WorkerGroupStartupTimeoutError(2))


def living_nodes(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    room = {f"node-{each}:1": 1 for each in range(number)}
    monkeypatch.setattr(failure_policy.nodes, "room_for", lambda each: room)


@pytest.mark.parametrize("policy", [False, True], indirect=True, ids=["no rule", "a rule"])
def test_a_wait_for_missing_nodes_ends_nothing_however_long_it_is(
    policy: AttemptPolicy, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(failure_policy.time, "sleep", waits.append)
    living_nodes(monkeypatch, 1)
    for _ in range(3 * MAX_GROUPS_WITHOUT_CHECKPOINT):
        assert policy.make_decision(NO_NODE) is FailureDecision.RETRY
    assert (coordinator.records, coordinator.failures, waits) == ([], [], [])
    assert coordinator.interruptions, "no group trains that could hang"


def test_where_there_are_nodes_and_ray_starts_nothing_the_attempt_ends(
    policy: AttemptPolicy, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    living_nodes(monkeypatch, 2)
    made = [policy.make_decision(NO_NODE) for _ in range(MAX_GROUPS_WITHOUT_CHECKPOINT)]
    assert made.index(FailureDecision.RAISE) == MAX_GROUPS_WITHOUT_CHECKPOINT - 1
    (failure,) = coordinator.failures
    assert failure.kind == "Infrastructure"
