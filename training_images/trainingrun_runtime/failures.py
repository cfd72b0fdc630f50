"""Who is to blame for an error, and whether to go on inside the attempt.

Ray counts every lost worker against one budget. Here losing infrastructure is always survived in
place, and only an error of the user's own code ends the attempt: the operator, whose counters
outlive this process, then decides about a retry.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import FailureConfig, TrainingFailedError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2.api.exceptions import ControllerError, PreemptionError

from trainingrun.api.contract import Failure, RecordKind

MAX_STARTS_WITHOUT_STEP = 10
"""Groups in a row that may fail without one step before the attempt is given up. Ray would try
for ever; a fresh attempt on other nodes has better odds."""


class Preempted(Exception):
    """Raised on every rank once the checkpoint for a notice is committed."""


class Suspended(Exception):
    """Raised on every rank once the checkpoint for `suspend` is committed."""


class PeerLost(Exception):
    """A collective broke, as it does on the survivors when a peer dies."""


class Blame(Enum):
    """Why a worker group ended."""

    SUSPENDED = auto()
    PREEMPTED = auto()
    WORKER_LOST = auto()
    APPLICATION = auto()
    INFRASTRUCTURE = auto()


@dataclass(frozen=True)
class Verdict:
    """What a failure means."""

    blame: Blame
    message: str
    """One sentence."""
    ranks: tuple[int, ...] = ()
    """The ranks that caused it."""


_COLLECTIVE = re.compile(
    r"gloo|nccl|connection (closed|reset)|broken pipe|socket (closed|timeout)|"
    r"timed out waiting|process group|by peer",
    re.IGNORECASE,
)


def is_collective_error(error: BaseException) -> bool:
    """Whether an exception of the training code is what a dying peer causes on the others."""
    kind = type(error).__name__
    if kind in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        return True
    return isinstance(error, RuntimeError | ConnectionError) and bool(
        _COLLECTIVE.search(str(error))
    )


def judge(error: TrainingFailedError) -> Verdict:
    """Why a worker group, or the controller, failed.

    Any rank's loss outweighs the other ranks' exceptions: survivors routinely fail with broken
    collectives, and a bug that merely coincided shows again without a loss.
    """
    if isinstance(error, PreemptionError):
        ranks = tuple(error.preemption_info.preempted_ranks)
        return Verdict(Blame.PREEMPTED, "the node was drained", ranks)
    if isinstance(error, ControllerError):
        return Verdict(Blame.INFRASTRUCTURE, first_line(error.controller_failure))
    if not isinstance(error, WorkerGroupError):
        return Verdict(Blame.INFRASTRUCTURE, first_line(error))
    failures: Mapping[int, Exception] = error.worker_failures
    lost = {
        rank: reason
        for rank, reason in failures.items()
        if isinstance(reason, RayActorError | WorkerHealthCheckFailedError)
    }
    for kind, blame in ((Suspended, Blame.SUSPENDED), (Preempted, Blame.PREEMPTED)):
        marked = tuple(rank for rank, reason in failures.items() if isinstance(reason, kind))
        if marked:
            return Verdict(blame, first_line(failures[marked[0]]), marked)
    if lost:
        rank, reason = next(iter(lost.items()))
        preempted = isinstance(reason, RayActorError) and reason.preempted
        return Verdict(
            Blame.PREEMPTED if preempted else Blame.WORKER_LOST,
            f"rank {rank} died: {first_line(reason)}",
            tuple(lost),
        )
    own = {rank: e for rank, e in failures.items() if not isinstance(e, PeerLost)}
    if not own:
        rank, reason = next(iter(failures.items()))
        return Verdict(Blame.WORKER_LOST, f"rank {rank} lost a peer: {first_line(reason)}")
    rank, reason = next(iter(own.items()))
    return Verdict(
        Blame.APPLICATION,
        f"rank {rank} raised {type(reason).__name__}: {first_line(reason)}",
        tuple(own),
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 500 characters; its type where it has no text."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:500]


class AttemptPolicy(FailurePolicy):
    """Ray's controller asks this after each failure; it tells the board and decides.

    Args:
        board: handle of the `Board` actor.
    """

    def __init__(self, board: Any) -> None:
        super().__init__(FailureConfig(max_failures=-1, controller_failure_limit=-1))
        self._board = board
        self._step_at_last_failure: int | None = None
        self._without_step = 0

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        """RETRY within the attempt, or RAISE to end it."""
        verdict = judge(training_failed_error)
        if verdict.blame is Blame.SUSPENDED:
            return FailureDecision.RAISE
        if verdict.blame is Blame.APPLICATION:
            self._fail("Application", verdict.message, training_failed_error)
            return FailureDecision.RAISE
        kind = {Blame.PREEMPTED: RecordKind.PREEMPTED, Blame.WORKER_LOST: RecordKind.WORKER_LOST}
        if verdict.blame in kind:
            self._board.disrupted.remote(kind[verdict.blame], verdict.message, verdict.ranks)
        step = ray.get(self._board.last_step.remote())
        self._without_step = self._without_step + 1 if step == self._step_at_last_failure else 0
        self._step_at_last_failure = step
        if self._without_step >= MAX_STARTS_WITHOUT_STEP:
            self._fail(
                "Infrastructure",
                f"{self._without_step} worker groups in a row ended before their first step, the "
                f"last one because {verdict.message}; look at the workers' nodes",
                training_failed_error,
            )
            return FailureDecision.RAISE
        return FailureDecision.RETRY

    def _fail(self, kind: Any, message: str, error: Exception) -> None:

        failure = Failure(kind=kind, message=message, traceback=str(error)[-4000:])
        # Waited for: the driver ends right after the decision, and the reason must not be lost.
        ray.get(self._board.failed.remote(failure))
