"""When a rank is lost without notice, another one saves the last finished step for all.

Where the state is sharded and the parts have replicas (HSDP), some do together. Ray's controller
asks the other ranks before it ends the worker group. They answer beside their
training threads, which may hang in a collective or have failed in one. Whatever goes wrong here,
the next worker group begins from the last checkpoint.
"""

import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ray

from ..coordinator.checkpoints import UploadedCheckpoint
from ..error_text import first_line, in_words
from ..ray_internals import training

if TYPE_CHECKING:
    from ..coordinator.ranks import Survivors
    from ..worker.worker import Worker
    from .noted_steps import NotedSteps

log = logging.getLogger(__name__)

CALL_S = 5.0
"""Seconds for an answer of the coordinator."""
FIRST_OFFER_S = 10.0
"""Seconds for the first offer: a rank whose machine is busy may need some."""
OFFER_S = 2.0
"""Seconds for the others' answers after it; a rank on the same lost node gives none."""
SAVE_S = 30.0
"""Seconds that saving may take in all, while the store answers the head."""
AWAY_S = 3600.0
"""Seconds for which a step is held while the store answers nobody. The next worker group could
restore nothing meanwhile, so the wait costs no time, and no step."""
CHECK_S = 2.0
"""Seconds between requests by which the head knows whether the store answers."""


class NotHeld(Exception):
    """The ranks that are left do not hold the last step whole; a sentence says why."""


def save_last_step(
    coordinator: Any, lost: Collection[int], store_answers: Callable[[], bool]
) -> None:
    """Ray's controller: have the last step saved, if the ranks that are left have all of it.

    Never raises, and takes a minute at most; `AWAY_S` more while the store answers nobody. Costs
    two calls where no rank notes its steps. Where the step is not saved, the coordinator has the
    reason, for the record of what is done again.

    Args:
        coordinator: handle of the `Coordinator` actor.
        lost: the ranks that are known to be lost.
        store_answers: whether the store answers this process.
    """
    try:
        _save_last_step(coordinator, lost, store_answers)
    except Exception as error:
        reason = _why(error)
        log.warning("the last step was not saved, so the last checkpoint is used: %s", reason)
        coordinator.not_saved_alone.remote(reason)


def _save_last_step(
    coordinator: Any, lost: Collection[int], store_answers: Callable[[], bool]
) -> None:
    group: Survivors = ray.get(coordinator.survivors.remote(), timeout=CALL_S)
    if not group.actors:
        raise NotHeld(f"no rank notes its steps: {group.without_notes}")
    asked = {
        training.call_beside(actor, offered_step): rank
        for rank, actor in sorted(group.actors.items())
        if rank not in lost
    }
    if not asked:
        raise NotHeld("every rank was lost that notes its steps")
    offers, without = _offers(asked)
    newest = max((offer.step for offer in offers.values()), default=0)
    if newest <= group.saved_step:  # as new as the last checkpoint, or none at all
        if without:
            raise NotHeld(without[min(without)])
        return
    offers = {rank: offer for rank, offer in offers.items() if offer.step == newest}
    if len({offer.fingerprint for offer in offers.values()}) > 1:
        raise NotHeld(f"{in_words(offers)} hold different states of step {newest}")
    parts = holders(offers)
    upload, ranks = _save(group.actors, parts, newest, store_answers)
    ray.get(coordinator.saved_alone.remote(upload, ranks), timeout=CALL_S)


def holders(offers: Mapping[int, "Offer"]) -> list[list[int]]:
    """The ranks that hold each part of the state, lowest first.

    Raises:
        NotHeld: none holds one of the parts.
    """
    found: dict[int, list[int]] = {}
    for rank, offer in sorted(offers.items()):
        found.setdefault(offer.part, []).append(rank)
    missing = set().union(*(offer.parts for offer in offers.values())) - found.keys()
    if missing:
        raise NotHeld(
            f"the state is sharded, and none of {in_words(offers)}, which are left, holds "
            f"{len(missing)} of its {len(missing | found.keys())} parts"
        )
    return list(found.values())


def _save(
    actors: Mapping[int, bytes],
    parts: Sequence[Sequence[int]],
    step: int,
    store_answers: Callable[[], bool],
) -> tuple[UploadedCheckpoint, tuple[int, ...]]:
    """Have one rank save each part of the step; the checkpoint, and these ranks.

    Where one of them fails, since it may be lost meanwhile, all begin anew, in another folder.
    """
    began, left = time.monotonic(), SAVE_S
    failed: set[int] = set()
    for trial in itertools.count(1):
        if left <= 0:
            raise TimeoutError(f"step {step} was not saved within {SAVE_S:.0f} s")
        candidates = [[rank for rank in ranks if rank not in failed] for ranks in parts]
        if not all(candidates):
            break
        ranks = sorted(each[0] for each in candidates)
        calls = {
            rank: training.call_beside(actors[rank], save, step, trial, rank == ranks[0])
            for rank in ranks
        }
        left = _until_saved(list(calls.values()), left, store_answers)
        uploads = {}
        for rank, call in calls.items():
            try:
                uploads[rank] = ray.get(call, timeout=0)
            except Exception as error:
                log.warning("rank %d did not save step %d: %s", rank, step, _why(error))
                failed.add(rank)
        if uploads.keys() == calls.keys():
            seconds = time.monotonic() - began
            log.info("%s saved step %d in %.1f s", in_words(ranks), step, seconds)
            return replace(uploads[ranks[0]], ranks=tuple(ranks)), tuple(ranks)
    raise NotHeld(f"no rank is left that could save step {step}")


def _until_saved(calls: list[Any], left: float, store_answers: Callable[[], bool]) -> float:
    """Wait for these calls, and for `left` seconds in which the store answers; what is left then.

    A rank alone that cannot reach the store keeps the others from their last checkpoint no longer
    than one that is slow.
    """
    until = time.monotonic() + AWAY_S
    while calls and left > 0 and time.monotonic() < until:
        began = time.monotonic()
        _, calls = ray.wait(calls, num_returns=len(calls), timeout=min(left, CHECK_S))
        if not calls or store_answers():
            left -= time.monotonic() - began
    return left


def _offers(asked: dict[Any, int]) -> tuple[dict[int, "Offer"], dict[int, str]]:
    """What each rank has to offer, and of the others a sentence that says why not."""
    found: dict[int, Offer] = {}
    without: dict[int, str] = {}
    others, until = list(asked), time.monotonic() + FIRST_OFFER_S
    while others and (left_s := until - time.monotonic()) > 0:
        wanted = len(others) if found else 1
        answered, others = ray.wait(others, num_returns=wanted, timeout=left_s)
        for call in answered:
            rank = asked[call]
            try:
                offer = ray.get(call, timeout=CALL_S)
            except Exception as error:  # it is lost too, or its state is not whole
                without[rank] = f"rank {rank} could not save the last step: {_why(error)}"
                continue
            # Not from an error on: the call to a rank that is dead, too, fails at once.
            until = until if found else time.monotonic() + OFFER_S
            found[rank] = offer
    without |= {asked[call]: f"rank {asked[call]} did not answer in time" for call in others}
    for reason in without.values():
        log.warning("%s", reason)
    return found, without


def _why(error: Exception) -> str:
    return first_line(getattr(error, "cause", None) or error)


@dataclass(frozen=True)
class Offer:
    """What a rank could save."""

    step: int
    """The last finished step."""
    fingerprint: int
    """See `LastStep.fingerprint`."""
    part: int = 0
    """Which part of the state it has: see `state_comparison.layout`."""
    parts: frozenset[int] = frozenset({0})
    """All parts of the state."""


def offered_step() -> Offer:
    """In a worker: the last finished step, if this rank has its state whole.

    Raises:
        NotWhole: it has not.
    """
    from ..worker.worker import this_worker

    worker = this_worker()
    steps = _noted_steps(worker)
    last_step = steps.last()
    noted, layouts = last_step.noted(), steps.layouts
    return Offer(
        noted.position.step,
        last_step.fingerprint(noted),
        layouts[worker.rank],
        frozenset(layouts),
    )


def _noted_steps(worker: "Worker") -> "NotedSteps":
    from .watched_tensors import NotWhole

    if worker.session is None:
        raise NotWhole("the training function has no session")
    steps: NotedSteps = worker.session.noted_steps
    return steps


def save(step: int, trial: int, shared: bool) -> UploadedCheckpoint:
    """In a worker: upload the state after that step, or this rank's part of it.

    Args:
        step: steps done.
        trial: how often the ranks have begun to save it, this time included.
        shared: whether this rank writes what all ranks share, too.

    Raises:
        NotWhole: this rank has it no longer.
        TimeoutError: the store has not answered for `AWAY_S`.
    """
    from ..checkpoints import snapshot
    from ..checkpoints.upload import upload
    from ..store.storage_retry import StorageRetry, report_to
    from ..worker.worker import this_worker

    worker = this_worker()
    last_step = _noted_steps(worker).last()
    noted = last_step.noted(step)
    taken = last_step.take(step)
    parts = {place: part for state in taken.values() for place, part in state.parts.items()}
    files = snapshot.rank_tensors(parts, worker.rank)
    if shared:
        trees = {name: state.tree for name, state in taken.items()}
        notes = {name: state.notes for name, state in taken.items()}
        files |= snapshot.shared(trees, notes, noted.position, worker.world_size)
    snapshot.require_readable(files)
    deadline = time.monotonic() + AWAY_S

    def wait(seconds: float) -> None:
        if time.monotonic() + seconds > deadline:
            raise TimeoutError(f"the store did not take the checkpoint within {AWAY_S:.0f} s")
        time.sleep(seconds)

    retry = StorageRetry(report_to(worker.coordinator, f"rank {worker.rank}"), wait)
    path = training.stored(f"step-{step:010d}-{worker.group}.alone-{trial}").path
    upload(worker.bucket, worker.bucket.key_of(path), files, worker.rank, retry)
    # Rank 0's metrics are those of a checkpoint.
    metrics = dict(noted.metrics) if worker.rank == 0 else {}
    session = worker.session
    rows = session.reports.recent(step) if session is not None else ()
    return UploadedCheckpoint(path, step, worker.world_size, metrics, rows=rows, session=True)
