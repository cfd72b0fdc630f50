"""Why a pod ended and what to do about it, in words; pure."""

from ..api.status import LossReason
from .bookkeeping import Bookkeeping

_MORE_MEMORY = {
    "head": "raise head.resources.memory",
    "worker": "raise workers.resources.memory, or make the batch smaller and accumulate gradients",
}
"""By the pod's role."""


def describe(reason: LossReason, *, head: bool = False) -> str:
    """Why a pod, the head or a worker's, ended: for a sentence that begins with the pod."""
    return {
        LossReason.PREEMPTED: "it was deleted or drained",
        LossReason.EVICTED: "it was evicted from its node",
        LossReason.NODE_LOST: "its node was lost",
        LossReason.HEAD_LOST: "the head was lost",
        LossReason.WORKER_LOST: "it died without notice",
        LossReason.INFRASTRUCTURE_ERROR: "its node refused it",
        LossReason.OUT_OF_MEMORY: "it used more memory than its limit; "
        + _MORE_MEMORY["head" if head else "worker"],
    }[reason]


def last_without_memory(bookkeeping: Bookkeeping) -> str | None:
    """Which pod of the attempt ran out of memory last, and what to do; None: none did."""
    found = [
        (known.ended or known.time, key == bookkeeping.head, known.pod)
        for key, known in bookkeeping.counted.items()
        if known.reason is LossReason.OUT_OF_MEMORY and not known.collateral
    ]
    if not found:
        return None
    _, head, pod = max(found, key=lambda each: each[0])
    return f"Pod {pod} ended: {describe(LossReason.OUT_OF_MEMORY, head=head)}"
