"""How many workers a run has that can lack some (`workers.minimum`, `workers.standby`), and for how
long an elastic one trained with each number of them.

Each driver reports its seconds at each size from zero; those of earlier drivers are kept in the
bookkeeping. A second of training with 6 of 8 workers is worth three quarters of one: goodput and
accelerator seconds count the ranks that train. Pods would not tell: they are there before ranks.
"""

from collections.abc import Mapping
from typing import Any

from trainingrun_protocol.progress import MOST_SIZES, Progress

from ...api.status import WorkersAtSize, WorkersStatus
from ..bookkeeping import Bookkeeping
from ..context import ReconcileContext
from ..findings import Findings, StatusDraft


def record(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """Bring status.workers up to the pods that are there and to what the driver reports."""
    if not context.can_lack_pods or context.unknown("Pod"):
        return Findings()
    progress, workers = context.live_progress(attempt), context.run.spec.workers
    wanted, ready = context.wanted_workers(draft), context.index(attempt).ready_workers
    spare = ready.intersection(progress.spare_pods if progress else ())
    status = WorkersStatus(
        wanted=wanted,
        ready=min(len(ready) * context.workers_per_pod(draft), wanted),
        standby=len(spare) if workers.standby else None,
        training=progress.world_size if progress and context.trains(attempt) else 0,
        sizes=[
            WorkersAtSize(workers=workers, seconds=round(seconds, 1))
            for workers, seconds in sorted(_sizes(draft.bookkeeping).items())
        ],
    )
    return Findings(status={"workers": status})


def none_left(draft: StatusDraft) -> Findings:
    """No attempt runs."""
    known = draft.status.workers
    if known is None:
        return Findings()
    waiting = {"standby": 0} if known.standby is not None else {}
    return Findings(
        status={"workers": known.model_copy(update={"ready": 0, "training": 0} | waiting)}
    )


def of_driver(progress: Progress) -> dict[str, Any]:
    """Changes of the bookkeeping by what the driver reports."""
    sizes = {one.workers: round(one.seconds, 3) for one in progress.sizes if one.workers}
    return {"sizes": sizes, "world_size": progress.world_size}


def of_earlier_drivers(bookkeeping: Bookkeeping, lost: float) -> dict[str, Any]:
    """Changes of the bookkeeping once another driver has restored.

    `lost`: seconds of the former one that are done again. They were its last ones.
    """
    if not bookkeeping.sizes:
        return {}
    sizes, last = dict(bookkeeping.sizes), bookkeeping.world_size
    for size in sorted(sizes, key=lambda size: size != last):
        again = min(lost, sizes[size])
        sizes[size], lost = sizes[size] - again, lost - again
    earlier = bookkeeping.earlier_sizes
    return {"earlier_sizes": _most(_added(earlier, sizes)), "sizes": {}}


def share(bookkeeping: Bookkeeping) -> float:
    """Of all workers those that have trained, on average; 1 where the number of workers stays."""
    sizes, workers = _sizes(bookkeeping), bookkeeping.workers
    seconds = sum(sizes.values())
    if not workers or seconds <= 0:
        return 1.0
    return min(sum(size * spent for size, spent in sizes.items()) / (seconds * workers), 1.0)


def _sizes(bookkeeping: Bookkeeping) -> dict[int, float]:
    return _most(_added(bookkeeping.earlier_sizes, bookkeeping.sizes))


def _added(some: Mapping[int, float], more: Mapping[int, float]) -> dict[int, float]:
    return {size: round(some.get(size, 0.0) + more.get(size, 0.0), 3) for size in {*some, *more}}


def _most(sizes: dict[int, float]) -> dict[int, float]:
    """The bookkeeping is bounded, and a world of a thousand workers has as many sizes."""
    if len(sizes) <= MOST_SIZES:
        return sizes
    kept = sorted(sizes, key=lambda size: sizes[size])[-MOST_SIZES:]
    return {size: sizes[size] for size in kept}
