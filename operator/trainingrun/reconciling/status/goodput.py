"""Where the time went. Every second since the start is in exactly one place.

Each driver reports its productive seconds, seconds of steps done again and seconds stopped for
checkpoints, from zero; the sums of earlier drivers are kept in the bookkeeping.
The rest is the queue until the first pods have nodes, startup until the first step, and recovery
after it. In a sweep the start of each further trial is startup, too.
Steps that a driver did beyond the checkpoint from which its successor continued were lost: their
share of its productive time moves to lost work.
"""

from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any

from trainingrun_protocol.progress import Progress, Seconds, done_again

from ...api.status import Goodput, LostSeconds
from .. import pod_status
from ..bookkeeping import Bookkeeping, TimeSpent
from ..context import ReconcileContext
from ..findings import Findings, StatusDraft
from ..texts import from_unix, parsed, seconds_since
from . import workers


def record_seconds(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """Record the driver's seconds, and bring status.goodput up to its last step.

    Up to the last step, not to now: else the status would change, and be written, at every
    reconcile.
    """
    changes = _queue(context, draft, attempt)
    progress = _newest(context, draft, attempt)
    if progress is None:
        return Findings(bookkeeping=changes)
    if progress.resumed_from_step is None and not progress.step:
        return Findings(bookkeeping=changes)  # its checkpoint is not restored yet
    if progress.fencing_token > draft.bookkeeping.driver_fencing_token:
        changes |= _close(draft.bookkeeping, progress)
        if context.run.spec.sweep and draft.bookkeeping.startup_seconds is not None:
            changes["startup_seconds"] = 0.0  # of this driver, see `_startup`
    changes |= {
        "driver_fencing_token": progress.fencing_token,
        "last_step": progress.step,
        "driver": TimeSpent(
            productive=progress.seconds.productive,
            lost_work=progress.seconds.lost_work,
            checkpoint=progress.seconds.checkpoint,
        ),
    }
    if context.is_elastic:
        changes |= workers.of_driver(progress)
    if progress.step_time is None:
        return Findings(bookkeeping=changes)
    after = draft.changed(Findings(bookkeeping=changes))
    findings = _until(context, after, from_unix(progress.step_time), progress.seconds)
    return findings._replace(bookkeeping={**changes, **findings.bookkeeping})


def until_the_end(
    context: ReconcileContext, draft: StatusDraft, attempt: int, time: datetime
) -> Findings:
    """status.goodput up to the end of the run, where the driver's last document was read.

    Else it stays at the last step: nobody knows what the driver has done since.
    """
    progress = _newest(context, draft, attempt)
    if progress is None or not progress.state.final:
        return Findings()
    return _until(context, draft, time, progress.seconds)


def _newest(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Progress | None:
    """The attempt's document, unless an earlier driver's was read late, or none held the lease."""
    progress = context.progress(attempt)
    if progress is None or progress.fencing_token < max(draft.bookkeeping.driver_fencing_token, 1):
        return None
    return progress


def _until(
    context: ReconcileContext, draft: StatusDraft, time: datetime, told: Seconds
) -> Findings:
    """status.goodput from the start to `time`: a step, or the end of the run.

    `told`: by the newest driver.
    """
    if draft.status.start_time is None:
        return Findings()
    spent = total(draft.bookkeeping)
    measured = spent.productive + spent.lost_work + spent.checkpoint
    elapsed = (time - parsed(draft.status.start_time)).total_seconds()
    # The driver's clock may be ahead of the API server's: what it has measured was spent.
    elapsed = max(elapsed - draft.status.suspended_seconds, measured, 0.0)
    queue = min(draft.bookkeeping.queue_seconds or 0.0, elapsed - measured)
    rest = max(elapsed - measured - queue, 0.0)
    startup, changes = _startup(context, draft, rest, told)
    counted = spent.productive * workers.share(draft.bookkeeping)
    productive, fewer, lost_work, checkpoint, queue, startup, recovery = parts = tenths(
        counted,
        spent.productive - counted,
        spent.lost_work,
        spent.checkpoint,
        queue,
        startup,
        rest - startup,
    )
    goodput = Goodput(
        percent=min(int(counted * 100 / elapsed), 100) if elapsed else 0,
        seconds=round(sum(parts), 1),
        productive_seconds=productive,
        lost_seconds=LostSeconds(
            queue=queue,
            startup=startup,
            lost_work=lost_work,
            recovery=recovery,
            checkpoint=checkpoint,
            fewer_workers=fewer,
        ),
    )
    return Findings(status={"goodput": goodput}, bookkeeping=changes)


def _startup(
    context: ReconcileContext, draft: StatusDraft, rest: float, told: Seconds
) -> tuple[float, dict[str, Any]]:
    """Seconds of `rest` until the first step, and changes of the bookkeeping.

    Each trial of a sweep has a start of its own: to the known ones comes by how much the driver's
    own sum grows, which the bookkeeping then has in the place of the whole.
    """
    known, shown = draft.bookkeeping.startup_seconds, draft.status.goodput
    spent = total(draft.bookkeeping)
    if known is None and spent.productive + spent.lost_work <= 0:
        return rest, {}
    first = max(rest - told.recovery, 0.0)  # an operator that was away finds recoveries with it
    if context.run.spec.sweep is None:
        known = round(first, 1) if known is None else known
        return min(known, rest), {"startup_seconds": known}
    startup = first
    if known is not None and shown is not None:
        grown = max(told.startup - known, 0.0)
        startup = min(shown.lost_seconds.startup + grown, rest)
    return startup, {"startup_seconds": told.startup}


def tenths(*seconds: float) -> list[float]:
    """Each to a tenth of a second, so that their sum is that of the exact ones."""
    ends = [round(end, 1) for end in accumulate(seconds)]
    return [round(end - begin, 1) for begin, end in pairwise([0.0, *ends])]


def _queue(context: ReconcileContext, draft: StatusDraft, attempt: int) -> dict[str, Any]:
    if draft.bookkeeping.queue_seconds is not None or draft.status.start_time is None:
        return {}
    pods = context.pods(attempt)
    times = [time for pod in pods if (time := pod_status.scheduled_at(pod))]
    complete = len(times) == len(pods) >= context.wanted_pods(draft)
    # An attempt that can lack some waits for those alone with which it begins.
    begun = context.can_lack_pods and context.progress(attempt) is not None
    if not times or not (complete or begun):
        return {}
    waited = seconds_since(draft.status.start_time, max(times))
    return {"queue_seconds": max(waited - draft.status.suspended_seconds, 0.0)}


def _close(bookkeeping: Bookkeeping, progress: Progress) -> dict[str, Any]:
    """Add the former driver's time to that of all earlier ones; `progress` is its successor's."""
    resumed = progress.resumed_from_step
    if resumed is None:
        resumed = progress.step
    earlier, driver = bookkeeping.earlier, bookkeeping.driver
    steps = bookkeeping.first_step, bookkeeping.last_step
    lost = done_again(driver.productive, *steps, resumed)
    return workers.of_earlier_drivers(bookkeeping, lost) | {
        "earlier": TimeSpent(
            productive=round(earlier.productive + driver.productive - lost, 3),
            lost_work=round(earlier.lost_work + driver.lost_work + lost, 3),
            checkpoint=round(earlier.checkpoint + driver.checkpoint, 3),
        ),
        "first_step": resumed,
    }


def total(bookkeeping: Bookkeeping) -> TimeSpent:
    """What the run's drivers have measured together."""
    return TimeSpent(
        productive=bookkeeping.earlier.productive + bookkeeping.driver.productive,
        lost_work=bookkeeping.earlier.lost_work + bookkeeping.driver.lost_work,
        checkpoint=bookkeeping.earlier.checkpoint + bookkeeping.driver.checkpoint,
    )
