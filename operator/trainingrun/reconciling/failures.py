"""Why a pod ended, who pays for it, and how long the next attempt waits.

Exit codes alone decide nothing: 137 is preemption, drain, node loss and out of memory alike.
"""

from collections.abc import Collection
from datetime import timedelta

from ..api.reasons import ConditionReason
from ..api.status import Attempt, LossReason, RunStatus
from ..api.v1alpha1 import Backoff, Failures
from . import pod_status
from .bookkeeping import Bookkeeping
from .findings import RunFailure
from .model import NodeState, Object
from .timestamps import parsed

NODE_GOING = frozenset({"Terminated", "Shutdown", "NodeShutdown", "Preempting"})
"""Pod status reasons of a kubelet that makes room or shuts down: the node gave notice."""

NEVER_RAN = frozenset(
    {"NodeAffinity", "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods"}
)
"""Pod status reasons of a kubelet that refused the pod, often after its node was born again."""

NODE_GONE_TAINTS = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
"""Taints of a node that is, or is taken to be, gone."""

NODE_LEAVING_TAINTS = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "remediator.kubernetes.azure.com/unschedulable",
    }
)
"""Taints of a node that is being taken away."""

KILLED = frozenset({137, 143})
"""Exit codes of a process that was killed from outside."""


STORAGE_WAIT_S = (60.0, 600.0)
"""First and longest wait after an attempt that had no storage, in seconds: a bucket or credentials
are put right by a person, and attempts meanwhile would use up maxAttemptsWithoutProgress."""


def why_pod_ended(pod: Object, node: NodeState | None) -> LossReason | None:
    """Why the pod ended or is about to; None: it goes on.

    The first sign that holds decides. What the pod says of itself comes before what its node
    looks like, which may have changed since.
    """
    endings = list(pod_status.terminations(pod))
    if (pod_status.ray_ending(pod) or {}).get("reason") == "OOMKilled":
        return LossReason.OUT_OF_MEMORY
    status_reason = pod.get("status", {}).get("reason")
    disruption = pod_status.condition(pod, "DisruptionTarget")
    if disruption and disruption.get("status") == "True":
        if disruption.get("reason") in ("DeletionByTaintManager", "DeletionByPodGC"):
            return LossReason.NODE_LOST
        return LossReason.EVICTED if status_reason == "Evicted" else LossReason.PREEMPTED
    if status_reason in NODE_GOING:
        return LossReason.PREEMPTED
    if status_reason == "NodeLost":
        return LossReason.NODE_LOST
    if status_reason == "Evicted":
        return LossReason.EVICTED
    if status_reason in NEVER_RAN:
        return LossReason.INFRASTRUCTURE_ERROR
    if pod_status.leaving(pod) and not _died_before_deletion(pod, endings):
        return LossReason.PREEMPTED
    if not pod_status.ended(pod) and not endings:
        return None
    killed = any(ending.get("exitCode") in KILLED for ending in endings) or not endings
    if killed and node is not None and (not node.exists or not node.ready or _taken(node)):
        return LossReason.NODE_LOST
    # The main process of every pod is Ray's own: the training code runs below it, and what goes
    # wrong there arrives through the driver's word, never as a pod's exit code.
    return LossReason.HEAD_LOST if pod_status.is_head(pod) else LossReason.WORKER_LOST


def _died_before_deletion(pod: Object, endings: list[Object]) -> bool:
    """Whether KubeRay merely clears a pod away that had died by itself."""
    asked = pod_status.deletion_asked(pod)
    finished = [parsed(end["finishedAt"]) for end in endings if end.get("finishedAt")]
    return asked is not None and bool(finished) and max(finished) <= asked


def _taken(node: NodeState) -> bool:
    return any(taint in NODE_GONE_TAINTS | NODE_LEAVING_TAINTS for taint in node.taints)


def application_failures(status: RunStatus) -> int:
    """What counts against failures.maxRestarts."""
    return status.disruptions.application_errors + status.disruptions.out_of_memory


def infrastructure_losses(status: RunStatus, bookkeeping: Bookkeeping) -> int:
    """What counts against failures.maxPreemptions."""
    lost = status.disruptions
    return (
        lost.preemptions
        + lost.node_losses
        + lost.head_losses
        + lost.worker_failures
        + bookkeeping.other_losses
    )


def budgets(reason: LossReason | None) -> set[str]:
    """The budgets that an attempt's end for this reason charged."""
    return {reason.budget} if reason is not None else set()


def exhausted(
    status: RunStatus, bookkeeping: Bookkeeping, failures: Failures, charged: Collection[str]
) -> RunFailure | None:
    """Whether a budget is used up.

    Only budgets that were charged are judged: one that a user lowers ends nothing that is well.
    """
    own = application_failures(status)
    if "application" in charged and own > failures.max_restarts:
        return RunFailure(
            ConditionReason.RESTARTS_EXHAUSTED,
            f"The training failed by itself {_times(own)} and failures.maxRestarts is "
            f"{failures.max_restarts}",
        )
    losses = infrastructure_losses(status, bookkeeping)
    if "infrastructure" in charged and 0 <= failures.max_preemptions < losses:
        return RunFailure(
            ConditionReason.PREEMPTIONS_EXHAUSTED,
            f"Infrastructure was lost {_times(losses)} and failures.maxPreemptions is "
            f"{failures.max_preemptions}; -1 survives as many as there are",
        )
    return None


def without_progress(
    ended: Attempt, bookkeeping: Bookkeeping, failures: Failures
) -> RunFailure | None:
    """Whether too many attempts in a row ended without a newer checkpoint."""
    if bookkeeping.attempts_without_progress < failures.max_attempts_without_progress:
        return None
    limit = f"failures.maxAttemptsWithoutProgress is {failures.max_attempts_without_progress}"
    # Where more checkpoints would not help, the attempt's own words say what does.
    if ended.reason is LossReason.STORAGE_ERROR:
        return RunFailure(
            ConditionReason.NO_PROGRESS,
            f"{_attempts(bookkeeping.attempts_without_progress)} had no storage and {limit}",
        )
    if ended.resumed_from_step is None:
        return RunFailure(
            ConditionReason.NO_PROGRESS,
            f"{_attempts(bookkeeping.attempts_without_progress)} ended untrained and {limit}",
        )
    return RunFailure(
        ConditionReason.NO_PROGRESS,
        f"{_attempts(bookkeeping.attempts_without_progress)} ended without a newer checkpoint "
        f"and {limit}; make checkpoints more often (checkpoints.everySeconds) "
        "or look at why the attempts end",
    )


def backoff(ended: Attempt, attempts_without_progress: int, settings: Backoff) -> timedelta:
    """The wait after an attempt.

    `fruitless` counts the attempts in a row that ended without a newer checkpoint: what makes
    progress is tried again soon. An application failure always waits; the first loss of
    infrastructure does not, for the machine is gone and waiting would not bring it back.
    """
    if ended.reason is None or ended.reason.budget == "none":
        return timedelta(0)
    own = _own_backoff(ended.reason, attempts_without_progress, settings)
    if ended.reason is LossReason.STORAGE_ERROR:
        return max(own, _storage_wait(max(attempts_without_progress, 1)))
    return own


def _own_backoff(
    reason: LossReason, attempts_without_progress: int, settings: Backoff
) -> timedelta:
    waits = (
        attempts_without_progress
        if reason.budget == "application"
        else attempts_without_progress - 1
    )
    if reason.budget == "application":
        waits = max(waits, 1)
    if waits < 1:
        return timedelta(0)
    seconds = min(settings.initial_seconds * settings.factor ** (waits - 1), settings.max_seconds)
    return timedelta(seconds=seconds)


def _storage_wait(attempts_without_progress: int) -> timedelta:
    return timedelta(
        seconds=min(
            STORAGE_WAIT_S[0] * 2 ** min(attempts_without_progress - 1, 10), STORAGE_WAIT_S[1]
        )
    )


def _attempts(number: int) -> str:
    return "The attempt" if number == 1 else f"{number} attempts in a row"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
