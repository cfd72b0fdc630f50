"""The cause of an error that ended a worker group."""

import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Literal

import ray.train
from ray.exceptions import RayActorError, RayTaskError
from ray.train import ControllerError, PreemptionError, TrainingFailedError, WorkerGroupError

from .. import stacks
from ..error_text import first_line, text_of
from ..ray_internals.training import (
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ..store.storage_errors import StorageError, recognize
from .remedies import advised, explained, find, texts


class Preempted(Exception):
    """Raised on every rank once the checkpoint for a notice is committed, or abandoned."""


class OwnPodPreempted(Preempted):
    """Raised instead on the ranks of the pod that has the notice."""


class Resized(Exception):
    """Raised on every rank where a worker group of another size takes this one's place.

    That is once the checkpoint is committed from which a larger one begins, or at once where this
    one is too large for what is left of an epoch.

    Args:
        text: why, in a sentence.
        most: workers that the next group may have; None: as many as there are.
    """

    def __init__(self, text: str, most: int | None = None) -> None:
        super().__init__(text, most)
        self.text, self.most = text, most

    def __str__(self) -> str:
        return self.text


class TooManyWorkers(ValueError):
    """There are more ranks than samples left in an epoch.

    Args:
        text: that, and what to do, in a sentence.
        most: ranks that the samples suffice for.
    """

    def __init__(self, text: str, most: int) -> None:
        super().__init__(text, most)
        self.text, self.most = text, most

    def __str__(self) -> str:
        return self.text


class Suspended(Exception):
    """Raised on every rank once the checkpoint for `suspend` is committed."""


class PeerLost(Exception):
    """A collective failed, as it does on the other ranks when a rank is lost."""


class DataLost(Exception):
    """What Ray Data had loaded is lost, as it is on the other ranks when rank 0 is lost."""


class GpuBroken(Exception):
    """A rank's own error says that its GPU is broken.

    Args:
        sign: what says so.
        message: the error, in a sentence.
    """

    def __init__(self, sign: str, message: str) -> None:
        super().__init__(sign, message)
        self.sign, self.message = sign, message

    def __str__(self) -> str:
        return self.message


class RaisedOnRank(Exception):
    """What training code has raised, as text: its own type may not be known elsewhere.

    Args:
        kind: name of its type.
        text: its own.
        place: file and line of the user's code, such as `train.py:31`; None: it has passed none.
        trace: its traceback, with those of its causes.
        retry: of `Failure`.
    """

    def __init__(
        self,
        kind: str,
        text: str,
        place: str | None,
        trace: str,
        retry: Literal["Always", "UnlessRepeated"] = "Always",
    ) -> None:
        super().__init__(kind, text, place, trace, retry)
        self.kind, self.text, self.place, self.trace, self.retry = kind, text, place, trace, retry

    def __str__(self) -> str:
        return self.text or self.kind


class FailureCause(Enum):
    """Why a worker group ended."""

    SUSPENDED = auto()
    RESIZED = auto()
    PREEMPTED = auto()
    WORKER_LOST = auto()
    HANG = auto()
    STORAGE = auto()
    APPLICATION = auto()
    INFRASTRUCTURE = auto()


@dataclass(frozen=True)
class ClassifiedFailure:
    """A failure with its cause."""

    cause: FailureCause
    message: str
    """One sentence."""
    ranks: tuple[int, ...] = ()
    """The ranks that failed first."""
    storage: StorageError | None = None
    """The error of the store, where that is the cause."""
    saved: bool = False
    """Whether the ranks ended by themselves, after a checkpoint of their last step, which is
    committed or abandoned."""
    lost: tuple[int, ...] = ()
    """Those of `ranks` that no longer answer."""
    remedied: bool = False
    """Whether the sentence of a loss says what to do about it."""
    traceback: str = ""
    """Of an error of the application."""
    retry: Literal["Always", "UnlessRepeated"] = "Always"
    """Of `Failure`."""
    kinds: tuple[str, ...] = ()
    """Types of the error that ended the group."""
    exit_codes: tuple[int, ...] = ()
    """Those of `sys.exit(42)` in the training code."""
    most_workers: int | None = None
    """Workers that the next group may have; None: as many as there are."""
    bad_node: str | None = None
    """Why the node of the first of `ranks` is no good, in a phrase."""
    repeats_at: tuple[str, ...] = ()
    """Of an error of Ray's controller that no lost node causes: its type, and the calls in which it
    was raised. Another one with the same will follow."""
    awaited_workers: int | None = None
    """For so many workers Ray has waited in vain; none trained meanwhile."""


_LEAVING = (
    (Suspended, FailureCause.SUSPENDED),
    (Preempted, FailureCause.PREEMPTED),
    (Resized, FailureCause.RESIZED),
)
"""What all ranks raise that end by themselves, after a checkpoint."""
_OF_CODE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    FileNotFoundError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Errors that code raises alike each time, where nothing else is behind them."""
_MAY_PASS = re.compile(
    r"^\w*(Connect|Timeout|Timed|HTTP|URL|SSL|Socket|Network|Proxy|Protocol|Memory|Ray)\w*\b|"
    r"^OSError\b|out of memory|timed? ?out|CUDA|NCCL|HIP error|gloo|temporar|unavailable|too many",
    re.IGNORECASE,
)
"""What says that another attempt may succeed, in an error and in those that caused it."""

_RUNTIME = "/trainingrun_runtime/"

_COLLECTIVE = re.compile(
    r"gloo|nccl|connection (closed|reset)|broken pipe|socket (closed|timeout)|"
    r"timed out waiting|process group|by peer",
    re.IGNORECASE,
)
_OF_A_GROUP = re.compile(r"gloo|nccl|process group", re.IGNORECASE)
_OF_THE_CODE = re.compile(
    r"NCCL built in|only supported with GPUs|Duplicate GPU|"
    r"ProcessGroupGloo::\w+: |ProcessGroupGloo\.cpp:\d+\] Check failed: "
)
"""Errors of NCCL, and arguments that Gloo refuses, that each start meets again."""
_COLLECTIVES = "torch.distributed."
"""The package by which ranks send each other something."""
_LOST = (RayActorError, WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError)
"""Of ranks that do not answer: their process has ended, or was stopped."""
_NCCL_HANG: type[Exception] | tuple[()] = getattr(ray.train, "NCCLHangError", ())
"""What Ray's detector raises, from Ray 2.60 on."""
_OF_TREES = re.compile(
    r"src[/\\]collective[/\\]|another worker|socket (recv|send) error|by peer", re.IGNORECASE
)
"""What XGBoost and LightGBM say when a rank is lost; their errors are of one type each."""

_OF_TENSORFLOW = "Collective ops is aborted by"
"""What TensorFlow says in an `UnavailableError` when a task does not answer; ranks whose code
differs get errors of other types."""


def retry_of(error: BaseException) -> Literal["Always", "UnlessRepeated"]:
    """Whether another attempt may end otherwise, though nothing is changed."""
    if not isinstance(error, _OF_CODE):
        return "Always"
    return "Always" if any(map(_MAY_PASS.search, texts(error))) else "UnlessRepeated"


def is_collective_error(error: BaseException) -> bool:
    """Whether an exception of the training code is one that the loss of another rank causes."""
    if isinstance(error, DataLost):
        return True
    kind = type(error).__name__
    if _OF_THE_CODE.search(text_of(error)):
        return False
    if kind in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        return True
    if kind in ("XGBoostError", "LightGBMError"):
        return bool(_OF_TREES.search(text_of(error)))
    if kind == "UnavailableError":
        return _OF_TENSORFLOW in text_of(error)
    if isinstance(error, ConnectionError) and not _may_be_of_a_collective(error):
        return False
    return isinstance(error, RuntimeError | ConnectionError) and bool(
        _COLLECTIVE.search(text_of(error))
    )


def _may_be_of_a_collective(error: ConnectionError) -> bool:
    """Whether it is not of some other connection, such as that of an HTTP client.

    Sockets raise the same error for all of them: the module that used the socket decides.
    """
    if _OF_A_GROUP.search(text_of(error)):
        return True
    modules = [
        str(frame.f_globals.get("__name__"))
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in sys.stdlib_module_names
    ]
    # Without one it was not raised here, and nothing is known of it.
    return not modules or f"{modules[-1]}.".startswith(_COLLECTIVES)


def classify(error: TrainingFailedError) -> ClassifiedFailure:
    """The cause of a failure of a worker group or of Ray's controller.

    The loss of a rank takes precedence over exceptions of other ranks: their collectives fail as a
    consequence, and an unrelated bug is raised again by the next worker group.
    """
    if isinstance(error, PreemptionError):
        # Not counted as lost: they answer until their node is taken away.
        ranks = tuple(error.preemption_info.preempted_ranks)
        return ClassifiedFailure(FailureCause.PREEMPTED, "the node was drained", ranks)
    if isinstance(error, ControllerError):
        storage = recognize(error.controller_failure)
        if storage is not None:
            return ClassifiedFailure(FailureCause.STORAGE, str(storage), storage=storage)
        return _of_controller(error.controller_failure)
    if not isinstance(error, WorkerGroupError):
        return ClassifiedFailure(FailureCause.INFRASTRUCTURE, explained(error))
    if isinstance(error, _NCCL_HANG):
        # The first line of its text is that of every error of a worker group.
        said = text_of(error).partition("\n")[2].partition("\n")[0][:500]
        return ClassifiedFailure(FailureCause.HANG, f"NCCL hangs: {said or first_line(error)}")
    failures: Mapping[int, Exception] = error.worker_failures
    lost = {rank: reason for rank, reason in failures.items() if isinstance(reason, _LOST)}
    for kind, cause in _LEAVING:
        marked = [rank for rank, reason in failures.items() if isinstance(reason, kind)]
        if marked:
            # All ranks raise it, but the loss is that of the pod with the notice. None here has
            # one where it is the head's, or a drain that Ray announced.
            noticed = tuple(r for r in marked if isinstance(failures[r], OwnPodPreempted))
            first = failures[marked[0]]
            most = first.most if isinstance(first, Resized) else None
            return ClassifiedFailure(
                cause, first_line(first), noticed, saved=True, most_workers=most
            )
    if lost:
        rank, reason = next(iter(lost.items()))
        told = getattr(reason, "health_check_failure", reason)
        preempted = isinstance(told, RayActorError) and told.preempted
        return ClassifiedFailure(
            FailureCause.PREEMPTED if preempted else FailureCause.WORKER_LOST,
            f"rank {rank} {_end_of(reason)}: {explained(reason)}",
            tuple(lost),
            lost=tuple(lost),
            remedied=find(reason) is not None,
            kinds=(type(reason).__name__,),
        )
    broken = _of_broken_gpu(failures)
    if broken is not None:
        return broken
    own = {rank: e for rank, e in failures.items() if not isinstance(e, PeerLost)}
    if not own:
        rank, reason = next(iter(failures.items()))
        message = f"rank {rank} lost a peer: {first_line(reason)}"
        return ClassifiedFailure(FailureCause.WORKER_LOST, message, remedied=advised(message))
    bugs = {
        rank: reason
        for rank, reason in own.items()
        if isinstance(reason, RaisedOnRank) or recognize(reason) is None
    }
    if not bugs:
        rank, reason = next(iter(own.items()))
        storage = recognize(reason)
        return ClassifiedFailure(
            FailureCause.STORAGE, f"rank {rank}: {storage}", tuple(own), storage
        )
    rank, reason = next(iter(bugs.items()))
    raised = reason if isinstance(reason, RaisedOnRank) else None
    name = raised.kind if raised else type(reason).__name__
    where = f" ({raised.place})" if raised and raised.place else ""
    return ClassifiedFailure(
        FailureCause.APPLICATION,
        f"rank {rank} raised {name}: {explained(reason, where)}",
        (rank, *(other for other in own if other != rank)),
        traceback=raised.trace if raised else "",
        retry=raised.retry if raised else retry_of(reason),
        kinds=(name,),
        exit_codes=exit_codes(name, raised.text if raised else text_of(reason)),
    )


def _of_controller(error: BaseException) -> ClassifiedFailure:
    """The same of an error of Ray's controller itself, or of a callback that it has called."""
    raised = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(raised, WorkerGroupStartupTimeoutError):
        return ClassifiedFailure(
            FailureCause.INFRASTRUCTURE, explained(error), awaited_workers=raised.num_workers
        )
    if retry_of(raised) == "Always":
        return ClassifiedFailure(FailureCause.INFRASTRUCTURE, explained(error))
    kind = type(raised).__name__
    calls = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name != "start_or_end"  # of `end_groups_that_fail_to_start`
    ]
    own = [call for call in calls if stacks.is_of_the_user(call[0]) or _RUNTIME in call[0]]
    where = f" ({Path(own[-1][0]).name}:{own[-1][1]})" if own else ""
    return ClassifiedFailure(
        FailureCause.INFRASTRUCTURE,
        f"Ray's controller raised {kind}{where}: {explained(raised)}",
        kinds=(kind,),
        repeats_at=(kind, *(f"{file}:{line}" for file, line in calls)),
    )


_BAD_GPU = re.compile(
    r"uncorrectable ECC|fallen off the bus|GPU is lost|"
    r"\bXid\b[^\n]{0,60}?: ?(?:48|62|63|64|74|79|92|94|95|119|120)\b",
    re.IGNORECASE,
)
"""What CUDA, NCCL and the driver say of a GPU that has to be looked at. Other errors of CUDA, such
as an illegal address, are of the code."""


def broken_gpu(error: BaseException) -> GpuBroken | None:
    """The same as an error of the rank's GPU, where it, or one that caused it, says so.

    NCCL has its last error on the rank that met it; the others only say that a peer is gone.
    """
    found = next(filter(None, map(_BAD_GPU.search, texts(error))), None)
    return GpuBroken(found[0], explained(error)) if found else None


def _of_broken_gpu(failures: Mapping[int, Exception]) -> ClassifiedFailure | None:
    for rank, reason in failures.items():
        if isinstance(reason, GpuBroken):
            return ClassifiedFailure(
                FailureCause.WORKER_LOST,
                f"the GPU of rank {rank} is broken: {reason.message}",
                (rank, *(other for other in failures if other != rank)),
                lost=(rank,),
                remedied=True,
                kinds=(GpuBroken.__name__,),
                bad_node=f"the GPU of rank {rank} is broken there ({reason.sign})",
            )
    return None


def exit_codes(kind: str, text: str) -> tuple[int, ...]:
    """The exit code that an error of this type and text asks for, if any."""
    asks = kind == "SystemExit" and text.isascii() and text.isdecimal() and len(text) <= 3
    return (int(text),) if asks else ()


def _end_of(reason: Exception) -> str:
    stopped = isinstance(reason, WorkerHealthCheckTimeoutError)
    return "does not answer" if stopped else "died"
