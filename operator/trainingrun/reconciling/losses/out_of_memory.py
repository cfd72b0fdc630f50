"""Out of memory or a bug of the training code: told here alone.

The kernel ends the process that exceeds its container's limit, and the kubelet says so of the
container. Where the container lives on, the kernel's counter in it has grown, and the driver says
so in a record. The other ranks then end with an exception of their own, which is no second failure.
Memory is counted by failure and not by pod: workers that hold the same model run out of memory
together. What counts is a function of all that is known, never of the order in which it was shown.
"""

from collections.abc import Iterable
from datetime import datetime

from trainingrun_protocol.progress import Progress, RecordKind

from ...api.status import LossReason
from .. import pod_status
from ..bookkeeping import Bookkeeping, CountedDisruption
from ..findings import AttemptEnd, StatusDraft
from ..model import Object
from ..texts import from_unix, parsed

FORGIVEN = "memory"
"""In `Bookkeeping.forgiven`, how many of the application's failures there ran out of memory."""

TOGETHER_S = 60.0
"""Pods that run out of memory within so many seconds, and an exception so soon after one, are one
failure."""

_REMEDIES = {
    "head": "raise head.resources.memory",
    "worker": "raise workers.resources.memory, or make the batch smaller and accumulate gradients",
}
"""By the pod's role."""


def ended(pod: Object) -> bool:
    """Whether Ray's container ended because it exceeded its limit."""
    return (pod_status.ray_ending(pod) or {}).get("reason") == "OOMKilled"


def description(*, head: bool) -> str:
    """What happened to the head or a worker and what to do, after a phrase that names the pod."""
    return f"it used more memory than its limit; {_REMEDIES['head' if head else 'worker']}"


def failures(counted: Iterable[CountedDisruption]) -> int:
    """How many failures the pods that ran out of memory make up.

    A failure holds every pod that was there when it began and ran out of memory soon after. A pod
    that was created later ran out of memory in the next try.
    """
    ends = sorted((_time(known), known.created_at or "") for known in counted if _is_one(known))
    count, began = 0, ""
    for time, created_at in ends:
        joins = (
            began != ""
            and created_at <= began
            and (parsed(time) - parsed(began)).total_seconds() <= TOGETHER_S
        )
        if not joins:
            count, began = count + 1, time
    return count


def reason_of_end(
    reason: LossReason | None, bookkeeping: Bookkeeping, progress: Progress | None, now: datetime
) -> LossReason | None:
    """The reason of an attempt's end: an exception just after a pod ran out of memory is what a
    peer without memory left behind, one failure that is counted already.

    Args:
        reason: As the driver or the RayJob has it.
        bookkeeping: With the pods that ran out of memory.
        progress: The driver's last document; None: none was read.
        now: The operator may have been away, and see both long after they happened.
    """
    failed = _failed_at(progress, now)
    together = any(
        abs((failed - parsed(_time(known))).total_seconds()) <= TOGETHER_S
        for known in bookkeeping.counted.values()
        if _is_one(known)
    )
    same = reason is LossReason.APPLICATION_ERROR and together
    return LossReason.OUT_OF_MEMORY if same else reason


def _failed_at(progress: Progress | None, now: datetime) -> datetime:
    """When the driver failed, by its record or else by its document; never later than now."""
    if progress is None:
        return now
    errors = [one.time for one in progress.records if one.kind is RecordKind.APPLICATION_ERROR]
    told = errors[-1] if errors else progress.time
    return min(from_unix(told), now) if told else now


def end(draft: StatusDraft) -> AttemptEnd | None:
    """The end of an attempt of which the driver could not say why, where a pod ran out of memory:
    which one did so last, and what to do. None: none did.
    """
    candidates = [
        (_time(known), key, known)
        for key, known in draft.bookkeeping.counted.items()
        if _is_one(known)
    ]
    if not candidates:
        return None
    _, key, last = max(candidates, key=lambda candidate: candidate[0])
    message = f"Pod {last.pod} ended: {description(head=key == draft.bookkeeping.head)}"
    if key.startswith("record:"):  # its pod lives on, and the driver has said which rank it was
        entries = draft.status.disruptions.history
        message = next((one.signs for one in entries if one.number == last.number), message)
    return AttemptEnd("Failed", LossReason.OUT_OF_MEMORY, message)


def _is_one(known: CountedDisruption) -> bool:
    return known.reason is LossReason.OUT_OF_MEMORY and not known.collateral


def _time(known: CountedDisruption) -> str:
    """When its container ended, or else when that was first seen."""
    return known.ended or known.time
