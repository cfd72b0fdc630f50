"""Where the time went. Every second since the start is in exactly one place.

The drivers tell productive seconds, seconds of steps done again and seconds stopped for
checkpoints; each driver starts from zero, so the sums of earlier drivers are kept in the ledger.
The rest is the queue until the first pods have nodes, startup until the first step, and recovery
after it.
Steps that a driver did beyond the checkpoint from which its successor went on were lost: their
share of its productive time moves to lost work.
"""

from datetime import datetime

from ..api.contract import Progress
from ..api.status import Goodput, LostSeconds
from . import pod_status
from .bookkeeping import Bookkeeping, TimeSpent
from .context import ReconcileContext
from .plan_builder import PlanBuilder
from .timestamps import from_unix, parsed, seconds_since


def record_seconds(context: ReconcileContext, builder: PlanBuilder, attempt: int) -> None:
    """Take in the driver's seconds, and bring status.goodput up to its last step.

    Up to the last step, not to now: else the status would change, and be written, at every look.
    """
    _queue(context, builder, attempt)
    progress = context.progress(attempt)
    if progress is None or progress.epoch < max(builder.bookkeeping.driver_epoch, 1):
        return
    if progress.resumed_from_step is None and not progress.step:
        return  # it does not know yet where it goes on
    if progress.epoch > builder.bookkeeping.driver_epoch:
        _close(builder, progress)
    builder.update_bookkeeping(
        driver_epoch=progress.epoch,
        last_step=progress.step,
        driver=TimeSpent(
            productive=progress.seconds.productive,
            lost_work=progress.seconds.lost_work,
            checkpoint=progress.seconds.checkpoint,
        ),
    )
    if progress.step_time is not None:
        settle(builder, from_unix(progress.step_time))


def settle(builder: PlanBuilder, until: datetime) -> None:
    """Bring status.goodput up to a moment: a step, or the end of the run."""
    status, bookkeeping = builder.status, builder.bookkeeping
    if status.start_time is None:
        return
    elapsed = max((until - parsed(status.start_time)).total_seconds(), 0.0)
    elapsed = max(elapsed - status.suspended_seconds, 0.0)
    spent = _total(bookkeeping)
    queue = min(bookkeeping.queue_seconds or 0.0, elapsed)
    rest = max(elapsed - queue - spent.productive - spent.lost_work - spent.checkpoint, 0.0)
    if bookkeeping.startup_seconds is None and spent.productive + spent.lost_work > 0:
        builder.update_bookkeeping(startup_seconds=round(rest, 1))
    known = builder.bookkeeping.startup_seconds
    startup = rest if known is None else min(known, rest)
    builder.update_status(
        goodput=Goodput(
            percent=min(int(spent.productive * 100 / elapsed), 100) if elapsed else 0,
            productive_seconds=round(spent.productive, 1),
            lost_seconds=LostSeconds(
                queue=round(queue, 1),
                startup=round(startup, 1),
                lost_work=round(spent.lost_work, 1),
                recovery=round(rest - startup, 1),
                checkpoint=round(spent.checkpoint, 1),
            ),
        )
    )


def _queue(context: ReconcileContext, builder: PlanBuilder, attempt: int) -> None:
    start = builder.status.start_time
    if builder.bookkeeping.queue_seconds is not None or start is None:
        return
    seen = context.pods(attempt)
    if len(seen) < (builder.bookkeeping.workers or context.run.spec.workers.count) + 1:
        return
    times = [moment for pod in seen if (moment := pod_status.scheduled_at(pod))]
    if len(times) < len(seen):
        return
    waited = seconds_since(start, max(times))
    builder.update_bookkeeping(queue_seconds=max(waited - builder.status.suspended_seconds, 0.0))


def _close(builder: PlanBuilder, progress: Progress) -> None:
    """Add the former driver's time to that of all earlier ones; `word` is its successor's."""
    bookkeeping = builder.bookkeeping
    resumed = progress.resumed_from_step
    if resumed is None:
        resumed = progress.step
    done = bookkeeping.last_step - bookkeeping.first_step
    again = min(max(bookkeeping.last_step - resumed, 0), max(done, 0))
    lost = bookkeeping.driver.productive * again / done if done > 0 else 0.0
    earlier, driver = bookkeeping.earlier, bookkeeping.driver
    builder.update_bookkeeping(
        earlier=TimeSpent(
            productive=round(earlier.productive + driver.productive - lost, 3),
            lost_work=round(earlier.lost_work + driver.lost_work + lost, 3),
            checkpoint=round(earlier.checkpoint + driver.checkpoint, 3),
        ),
        driver=TimeSpent(),
        first_step=resumed,
        last_step=resumed,
    )


def _total(bookkeeping: Bookkeeping) -> TimeSpent:
    return TimeSpent(
        productive=bookkeeping.earlier.productive + bookkeeping.driver.productive,
        lost_work=bookkeeping.earlier.lost_work + bookkeeping.driver.lost_work,
        checkpoint=bookkeeping.earlier.checkpoint + bookkeeping.driver.checkpoint,
    )
