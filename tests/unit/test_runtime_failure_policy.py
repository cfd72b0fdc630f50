"""How often an attempt begins again by itself, and what it says of the groups that it has lost."""

import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import ControllerError, TrainingFailedError, WorkerGroupError

from trainingrun_protocol.contract import MAX_GROUPS_WITHOUT_CHECKPOINT, ContractTrial
from trainingrun_protocol.failure_rules import ContractRule, ContractWhen
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.coordinator.rank_comparison import RankPlace
from trainingrun_runtime.driver import failure_policy
from trainingrun_runtime.driver.failure_policy import (
    LONGEST_WAIT_S,
    MAX_STORAGE_S,
    AttemptPolicy,
    RestartBackoff,
    remedied,
)
from trainingrun_runtime.known_errors import remedies
from trainingrun_runtime.known_errors.failure_causes import (
    ClassifiedFailure,
    OwnPodPreempted,
    PeerLost,
    Preempted,
    classify,
)
from trainingrun_runtime.ray_internals.training import FailureDecision, WorkerHealthCheckFailedError
from trainingrun_runtime.store import kept_output
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.kept_output import Source
from trainingrun_runtime.store.lease import LossHistory
from trainingrun_runtime.store.storage_errors import DeniedError, UnreachableError


def death(reason: str) -> ClassifiedFailure:
    error = WorkerHealthCheckFailedError("it failed", failure=RuntimeError(reason))
    return classify(WorkerGroupError("failed", {0: error}))


def lost_peer(error: Exception) -> ClassifiedFailure:
    return classify(WorkerGroupError("failed", {0: PeerLost(remedies.explained(error))}))


KILLED = death("Task was killed due to the node running low on memory.")
DIED = death("The actor died.")
NCCL = lost_peer(RuntimeError("NCCL error in: ProcessGroupNCCL.cpp, unhandled system error"))
RESET = lost_peer(RuntimeError("gloo: Connection reset by peer"))


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        pytest.param([KILLED, DIED, RESET], KILLED, id="only one loss tells of the memory"),
        pytest.param([NCCL, DIED], NCCL, id="NCCL cannot be set up, and a rank dies"),
        pytest.param([NCCL, RESET], NCCL, id="the last one tells less"),
        pytest.param([RESET, DIED], None, id="nobody knows what to do"),
        pytest.param([NCCL, KILLED], KILLED, id="why a rank died says more than what others met"),
        pytest.param([KILLED, NCCL], KILLED, id="also if it comes first"),
    ],
)
def test_what_one_of_the_losses_says_to_do_is_kept(
    failures: list[ClassifiedFailure], said: ClassifiedFailure | None
) -> None:
    found = None
    for failure in failures:
        found = remedied(found, failure)
    assert found is said


def test_a_crash_loop_ends_however_the_step_varies():
    """Steps are no argument: only a newer committed checkpoint is progress."""
    restarts = RestartBackoff()
    waits = [restarts.after_loss(commits=3, at_once=False) for _ in range(1000)]
    assert waits.index(None) == MAX_GROUPS_WITHOUT_CHECKPOINT - 1


def test_a_newer_checkpoint_begins_the_count_anew():
    restarts = RestartBackoff()
    for commits in range(1000):
        assert restarts.after_loss(commits, at_once=False) is not None


def test_one_loss_restarts_at_once_and_more_of_them_wait_longer_up_to_a_limit():
    restarts = RestartBackoff()
    waits = [restarts.after_loss(commits=0, at_once=False) for _ in range(9)]
    assert waits[:4] == [0.0, 1.0, 2.0, 4.0]
    assert max(wait for wait in waits if wait is not None) == LONGEST_WAIT_S


def test_after_a_notice_nothing_is_waited_for():
    restarts = RestartBackoff()
    assert [restarts.after_loss(0, at_once=True) for _ in range(5)] == [0.0] * 5


def test_an_outage_of_ten_minutes_uses_up_nothing():
    restarts, now = RestartBackoff(), 0.0
    while now < 600:
        wait = restarts.for_storage(commits=1, step=10, now=now, limit_s=MAX_STORAGE_S)
        assert wait is not None
        now += wait + 1
    assert restarts.without_checkpoint == 0
    assert restarts.after_loss(commits=1, at_once=False) == 0.0


def test_a_lasting_storage_error_ends_the_attempt_after_the_limit():
    restarts = RestartBackoff()
    assert restarts.for_storage(commits=1, step=10, now=0.0, limit_s=300) is not None
    assert restarts.for_storage(commits=1, step=10, now=299.0, limit_s=300) is not None
    assert restarts.for_storage(commits=1, step=10, now=300.0, limit_s=300) is None


def test_the_limit_restarts_with_each_newer_checkpoint():
    restarts = RestartBackoff()
    assert restarts.for_storage(commits=1, step=10, now=0.0, limit_s=300) is not None
    assert restarts.for_storage(commits=2, step=10, now=300.0, limit_s=300) is not None


@pytest.mark.parametrize("limit_s", [300, MAX_STORAGE_S])
def test_two_short_errors_of_a_store_are_not_one_that_lasts(limit_s: float) -> None:
    """A group in between has gone further: the store has answered it."""
    restarts = RestartBackoff()
    assert restarts.for_storage(commits=1, step=10, now=0.0, limit_s=limit_s) == 1.0
    assert restarts.for_storage(commits=1, step=500, now=7200.0, limit_s=limit_s) == 1.0


def test_an_object_that_is_refused_for_ever_ends_the_attempt_whatever_is_done_again_before_it():
    """Each group does the same steps again, from the same checkpoint up to that object."""
    restarts = RestartBackoff()
    assert restarts.for_storage(commits=1, step=150, now=0.0, limit_s=300) is not None
    assert restarts.for_storage(commits=1, step=149, now=299.0, limit_s=300) is not None
    assert restarts.for_storage(commits=1, step=150, now=600.0, limit_s=300) is None


class Coordinator:
    """Of a run on a node of a cluster, without a commit."""

    def __init__(self, *, newest_is_committed: bool = True, pod: str = "pod-0") -> None:
        self._committed, self._pod = newest_is_committed, pod
        self.told: dict[str, tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        place = RankPlace("r0", "node-0", self._pod)
        known = {"place_of": place, "commits": 0, "newest_group": 1}
        known["newest_is_committed"] = self._committed
        known["loss_history"] = LossHistory(step=10)

        def remote(*arguments: Any) -> Any:
            self.told[name] = arguments
            return known.get(name)

        return SimpleNamespace(remote=remote)


@pytest.mark.parametrize("committed", [True, False])
def test_ranks_that_leave_on_a_notice_are_asked_for_the_step_that_was_not_committed(
    monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Their checkpoint may be abandoned, and they hold the step until the group is ended."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(failure_policy.ray, "get", lambda answer: answer)
    monkeypatch.setattr(failure_policy.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(
        failure_policy.survivors, "save_last_step", lambda _, lost, __: asked.append(tuple(lost))
    )
    left = {0: Preempted("a pod is preempted"), 1: OwnPodPreempted("a pod is preempted")}
    bucket: Any = None
    policy = AttemptPolicy(Coordinator(newest_is_committed=committed), bucket, 1)
    assert policy.make_decision(WorkerGroupError("left", left)) is FailureDecision.RETRY
    assert asked == ([] if committed else [()])


def refused() -> DeniedError:
    """For as long as the settings allow, of the run's own bucket."""
    error = DeniedError("access to s3://runs/x was denied (403)")
    error.waited = True
    return error


UNREACHABLE = UnreachableError("s3://data cannot be reached; check the network")


@pytest.mark.parametrize(
    ("failed", "saves"),
    [
        pytest.param(
            WorkerGroupError("failed", {1: UNREACHABLE}), True, id="of the training code's own data"
        ),
        pytest.param(
            WorkerGroupError("failed", {1: refused()}), False, id="which takes no step either"
        ),
        pytest.param(
            ControllerError(UNREACHABLE), False, id="of no rank, so that all may still train"
        ),
    ],
)
def test_ranks_save_the_last_step_where_a_store_has_failed_one_of_them(
    monkeypatch: pytest.MonkeyPatch, failed: TrainingFailedError, saves: bool
) -> None:
    monkeypatch.setattr(failure_policy.ray, "get", lambda answer: answer)
    monkeypatch.setattr(failure_policy.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(failure_policy.last_lines, "keep", lambda *_: [])
    coordinator = Coordinator()
    asked: list[set[str]] = []
    monkeypatch.setattr(
        failure_policy.survivors,
        "save_last_step",
        lambda *_: asked.append({"storage", "interrupted"} & coordinator.told.keys()),
    )
    bucket: Any = None
    AttemptPolicy(coordinator, bucket, 1).make_decision(failed)
    told_before = {"storage", "interrupted"}  # a save may take long, and is no hang
    assert asked == ([told_before] if saves else [])


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), False, id="a full disk"),
        pytest.param(
            WorkerHealthCheckFailedError("it failed", failure=RuntimeError("The actor died.")),
            True,
            id="a lost rank",
        ),
    ],
)
def test_another_pod_is_waited_for_only_where_the_operator_is_told_to_make_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception, waits: bool
) -> None:
    asked: list[None] = []

    def dead_nodes() -> set[str]:
        asked.append(None)
        return {"r0"}

    monkeypatch.setattr(failure_policy.ray, "get", lambda answer: answer)
    monkeypatch.setattr(failure_policy.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(failure_policy.survivors, "save_last_step", lambda *_: None)
    monkeypatch.setattr(failure_policy.nodes, "dead_nodes", dead_nodes)
    classes = ["StorageError", "WorkerLost"]
    rule = ContractRule(when=ContractWhen(classes=classes), then="RestartOnOtherNode")
    bucket: Any = None
    policy = AttemptPolicy(Coordinator(), bucket, 1, [rule])
    assert policy.make_decision(WorkerGroupError("failed", {0: error})) is FailureDecision.RETRY
    assert bool(asked) is waits


@pytest.mark.parametrize(
    ("age_s", "decision"),
    [
        pytest.param(60.0, FailureDecision.RETRY, id="of a driver whose head was lost"),
        pytest.param(0.0, FailureDecision.RAISE, id="of the group that has failed"),
    ],
)
def test_a_rule_is_met_by_no_line_of_a_former_driver_s_worker_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, decision: FailureDecision
) -> None:
    """Each driver counts its groups from 1, and a head is replaced within the attempt."""
    monkeypatch.setattr(failure_policy.ray, "get", lambda answer: answer)
    monkeypatch.setattr(failure_policy.survivors, "save_last_step", lambda *_: None)
    monkeypatch.setattr(failure_policy.last_lines, "_WAIT_S", 0.0)
    bucket, source = Bucket.open(f"file://{tmp_path}/run"), Source(1, 1, 0)
    rule = ContractRule(when=ContractWhen(log_pattern="Xid 79"), then="Fail")
    policy = AttemptPolicy(Coordinator(), bucket, 1, [rule])
    printed = time.time() - age_s
    text = kept_output.written(printed, "Xid 79: the GPU has fallen off the bus")
    bucket.put(kept_output.key(source, printed), text.encode())
    dead = WorkerHealthCheckFailedError("it failed", failure=RuntimeError("The actor died."))
    assert policy.make_decision(WorkerGroupError("failed", {0: dead})) is decision


def a_rule(then: str, **when: list[Any]) -> ContractRule:
    return ContractRule(when=ContractWhen.model_validate(when), then=then)


EVERY_CLASS = ["WorkerLost", "NodeLost", "OutOfMemory", "Evicted", "Preempted"]
BY_CLASS = [a_rule("Ignore", classes=["NodeLost"]), a_rule("Fail", classes=["WorkerLost"])]
TRIAL = ContractTrial(number=1, metric="loss")


@pytest.mark.parametrize(
    ("rules", "local", "trial", "ends"),
    [
        pytest.param(BY_CLASS, False, None, False, id="its node may be lost"),
        pytest.param(BY_CLASS[1:], False, None, False, id="and then no rule is about it"),
        pytest.param([a_rule("Fail", classes=EVERY_CLASS)], False, None, True, id="any class"),
        pytest.param(
            [a_rule("Fail", reasons=["WorkerHealthCheckFailedError"])],
            False,
            None,
            True,
            id="by what the driver has seen",
        ),
        pytest.param(
            [a_rule("Restart", exit_codes=[139]), a_rule("Fail", classes=EVERY_CLASS)],
            False,
            None,
            False,
            id="its pod's exit code may say otherwise",
        ),
        pytest.param(BY_CLASS, True, None, True, id="a local run has no operator"),
        pytest.param(BY_CLASS, False, TRIAL, True, id="nobody else ends a trial alone"),
    ],
)
def test_a_lost_worker_ends_the_attempt_only_by_a_rule_that_holds_whatever_was_lost(
    monkeypatch: pytest.MonkeyPatch,
    rules: list[ContractRule],
    local: bool,
    trial: ContractTrial | None,
    ends: bool,
) -> None:
    """The driver sees of a node or pod that vanishes no more than that a rank has died."""
    monkeypatch.setattr(failure_policy.ray, "get", lambda answer: answer)
    monkeypatch.setattr(failure_policy.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(failure_policy.survivors, "save_last_step", lambda *_: None)
    monkeypatch.setattr(failure_policy.last_lines, "keep", lambda *_: [])
    coordinator = Coordinator()
    bucket: Any = None
    policy = AttemptPolicy(coordinator, bucket, 1, rules, trial, on_one_machine=local)
    dead = WorkerHealthCheckFailedError("it failed", failure=RuntimeError("The actor died."))
    decision = policy.make_decision(WorkerGroupError("failed", {0: dead}))
    assert decision is (FailureDecision.RAISE if ends else FailureDecision.RETRY)
    if ends:
        (failure,) = coordinator.told["concluding"]
        assert failure.loss == "WorkerLost"
    else:
        kind, _, ranks, facts = coordinator.told["disrupted"]
        assert (kind, ranks) == (RecordKind.WORKER_LOST, (0,))
        assert facts.reasons == ["WorkerHealthCheckFailedError"], "the operator asks the same rules"
