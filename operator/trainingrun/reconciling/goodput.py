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
from . import pods
from .draft import Draft
from .ledger import Ledger, Spent
from .moments import from_unix, parsed, seconds_since
from .scene import Scene


def hear(scene: Scene, draft: Draft, attempt: int) -> None:
    """Take in the driver's seconds, and bring status.goodput up to its last step.

    Up to the last step, not to now: else the status would change, and be written, at every look.
    """
    _queue(scene, draft, attempt)
    word = scene.word(attempt)
    if word is None or word.epoch < max(draft.ledger.driver_epoch, 1):
        return
    if word.resumed_from_step is None and not word.step:
        return  # it does not know yet where it goes on
    if word.epoch > draft.ledger.driver_epoch:
        _close(draft, word)
    draft.note(
        driver_epoch=word.epoch,
        last_step=word.step,
        driver=Spent(
            productive=word.seconds.productive,
            lost_work=word.seconds.lost_work,
            checkpoint=word.seconds.checkpoint,
        ),
    )
    if word.step_time is not None:
        settle(draft, from_unix(word.step_time))


def settle(draft: Draft, until: datetime) -> None:
    """Bring status.goodput up to a moment: a step, or the end of the run."""
    status, ledger = draft.status, draft.ledger
    if status.start_time is None:
        return
    elapsed = max((until - parsed(status.start_time)).total_seconds(), 0.0)
    elapsed = max(elapsed - status.suspended_seconds, 0.0)
    spent = _total(ledger)
    queue = min(ledger.queue_seconds or 0.0, elapsed)
    rest = max(elapsed - queue - spent.productive - spent.lost_work - spent.checkpoint, 0.0)
    if ledger.startup_seconds is None and spent.productive + spent.lost_work > 0:
        draft.note(startup_seconds=round(rest, 1))
    known = draft.ledger.startup_seconds
    startup = rest if known is None else min(known, rest)
    draft.set(
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


def _queue(scene: Scene, draft: Draft, attempt: int) -> None:
    start = draft.status.start_time
    if draft.ledger.queue_seconds is not None or start is None:
        return
    seen = scene.pods(attempt)
    if len(seen) < (draft.ledger.workers or scene.run.spec.workers.count) + 1:
        return
    times = [moment for pod in seen if (moment := pods.scheduled_at(pod))]
    if len(times) < len(seen):
        return
    waited = seconds_since(start, max(times))
    draft.note(queue_seconds=max(waited - draft.status.suspended_seconds, 0.0))


def _close(draft: Draft, word: Progress) -> None:
    """Add the former driver's time to that of all earlier ones; `word` is its successor's."""
    ledger = draft.ledger
    resumed = word.resumed_from_step
    if resumed is None:
        resumed = word.step
    done = ledger.last_step - ledger.first_step
    again = min(max(ledger.last_step - resumed, 0), max(done, 0))
    lost = ledger.driver.productive * again / done if done > 0 else 0.0
    earlier, driver = ledger.earlier, ledger.driver
    draft.note(
        earlier=Spent(
            productive=round(earlier.productive + driver.productive - lost, 3),
            lost_work=round(earlier.lost_work + driver.lost_work + lost, 3),
            checkpoint=round(earlier.checkpoint + driver.checkpoint, 3),
        ),
        driver=Spent(),
        first_step=resumed,
        last_step=resumed,
    )


def _total(ledger: Ledger) -> Spent:
    return Spent(
        productive=ledger.earlier.productive + ledger.driver.productive,
        lost_work=ledger.earlier.lost_work + ledger.driver.lost_work,
        checkpoint=ledger.earlier.checkpoint + ledger.driver.checkpoint,
    )
