"""Who is to blame for an error, and whether to go on inside the attempt.

Ray counts every lost worker against one budget. Here losing infrastructure is always survived in
place, and only an error of the user's own code ends the attempt: the operator, whose counters
outlive this process, then decides about a retry.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import FailureConfig, TrainingFailedError, WorkerGroupError

from trainingrun.api.contract import Failure, RecordKind

from .checkpoints.storage_errors import StorageError, recognize
from .checkpoints.storage_retry import limit_s
from .error_text import first_line
from .ray_internals.controller import (
    ControllerError,
    FailureDecision,
    FailurePolicy,
    PreemptionError,
    WorkerHealthCheckFailedError,
)
from .restart_backoff import MAX_STORAGE_S, Restarts


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
    STORAGE = auto()
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
    storage: StorageError | None = None
    """What storage said, where that is the reason."""


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
        storage = recognize(error.controller_failure)
        if storage is not None:
            return Verdict(Blame.STORAGE, str(storage), storage=storage)
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
    bugs = {rank: reason for rank, reason in own.items() if recognize(reason) is None}
    if not bugs:
        rank, reason = next(iter(own.items()))
        storage = recognize(reason)
        return Verdict(Blame.STORAGE, f"rank {rank}: {storage}", tuple(own), storage)
    rank, reason = next(iter(bugs.items()))
    return Verdict(
        Blame.APPLICATION,
        f"rank {rank} raised {type(reason).__name__}: {first_line(reason)}",
        tuple(own),
    )


class AttemptPolicy(FailurePolicy):
    """Ray's controller asks this after each failure; it tells the board and decides.

    Args:
        board: handle of the `Board` actor.
    """

    def __init__(self, board: Any) -> None:
        super().__init__(FailureConfig(max_failures=-1, controller_failure_limit=-1))
        self._board = board
        self._restarts = Restarts()

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        """RETRY within the attempt, or RAISE to end it."""
        verdict = judge(training_failed_error)
        if verdict.blame is Blame.SUSPENDED:
            return FailureDecision.RAISE
        if verdict.blame is Blame.APPLICATION:
            self._fail("Application", verdict.message, training_failed_error)
            return FailureDecision.RAISE
        # Waited for: what is committed must be known, and the state be told before the wait.
        commits = ray.get(self._board.commits.remote())
        wait_s = (
            self._after_storage(verdict, commits)
            if verdict.blame is Blame.STORAGE
            else self._after_loss(verdict, commits)
        )
        if wait_s is None:
            self._fail(*self._reason(verdict), training_failed_error)
            return FailureDecision.RAISE
        time.sleep(wait_s)  # no worker trains, so there is nothing that the controller misses
        return FailureDecision.RETRY

    def _after_loss(self, verdict: Verdict, commits: int) -> float | None:
        kind = {Blame.PREEMPTED: RecordKind.PREEMPTED, Blame.WORKER_LOST: RecordKind.WORKER_LOST}
        if verdict.blame in kind:
            self._board.disrupted.remote(kind[verdict.blame], verdict.message, verdict.ranks)
        return self._restarts.after_loss(commits, at_once=verdict.blame is Blame.PREEMPTED)

    def _after_storage(self, verdict: Verdict, commits: int) -> float | None:
        storage = verdict.storage
        self._board.storage.remote("rank training", verdict.message)
        self._board.interrupted.remote()
        if storage is not None and storage.waited:
            return None
        limit = limit_s() if storage is not None and storage.lasting else MAX_STORAGE_S
        return self._restarts.for_storage(commits, time.monotonic(), limit)

    def _reason(self, verdict: Verdict) -> tuple[Any, str]:
        if verdict.blame is Blame.STORAGE:
            return "Storage", verdict.message
        return "Infrastructure", (
            f"{self._restarts.without_checkpoint} worker groups in a row ended without a newer "
            f"checkpoint, the last one because {verdict.message}; look at the workers' nodes and "
            "logs, and make checkpoints more often if they are lost sooner than one is made"
        )

    def _fail(self, kind: Any, message: str, error: Exception) -> None:
        failure = Failure(kind=kind, message=message, traceback=str(error)[-4000:])
        # Waited for: the driver ends right after the decision, and the reason must not be lost.
        ray.get(self._board.failed.remote(failure))
