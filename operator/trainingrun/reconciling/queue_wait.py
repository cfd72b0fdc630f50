"""How long Kueue keeps the run waiting, which its deadline does not count: as with Jobs.

Kueue suspends the RayJob until it is admitted, and when its capacity is taken back.
"""

from ..api.status import RunStatus
from .bookkeeping import Bookkeeping
from .context import ReconcileContext
from .findings import Findings
from .timestamps import seconds_since, written


def record(
    context: ReconcileContext, status: RunStatus, bookkeeping: Bookkeeping, attempt: int | None
) -> Findings:
    """Record when a wait begins, and how long it was once it has ended.

    Args:
        context: What was observed.
        status: The status so far.
        bookkeeping: The bookkeeping so far.
        attempt: The running attempt; None: none runs.
    """
    since = bookkeeping.queued_since
    if attempt is not None:
        if context.job(attempt) is None and not context.deleted(attempt):
            return Findings()  # it cannot be seen
        if context.suspended_by_queue(attempt):
            return Findings(bookkeeping={} if since else {"queued_since": written(context.now)})
    if since is None:
        return Findings()
    seconds = max(seconds_since(since, context.now), 0.0)
    return Findings(
        status={"queued_seconds": status.queued_seconds + seconds},
        bookkeeping={"queued_since": None},
    )
