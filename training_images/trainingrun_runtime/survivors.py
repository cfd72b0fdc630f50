"""When a rank is lost without notice, another one saves the last finished step for all.

Ray's controller asks the other ranks before it ends the worker group. They answer beside their
training threads, which may hang in a collective or have failed in one. Whatever goes wrong here,
the next worker group begins from the last checkpoint.
"""

import logging
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from .checkpoints.uploaded_checkpoint import UploadedCheckpoint
from .error_text import first_line
from .ray_internals import training

if TYPE_CHECKING:
    from .checkpoints.last_step import LastStep
    from .worker import Worker

log = logging.getLogger(__name__)

CALL_S = 5.0
"""Seconds for an answer of the coordinator."""
FIRST_OFFER_S = 6.0
"""Seconds for the first answer: a rank whose machine is busy may need some."""
OFFER_S = 2.0
"""Seconds for the others' answers after it; a rank on the same lost node gives none."""
UPLOAD_S = 20.0
"""Seconds for which a rank tries to upload the checkpoint."""
SAVE_S = 30.0
"""Seconds that saving may take in all."""


def save_last_step(coordinator: Any, lost: Collection[int]) -> None:
    """Ray's controller: have the last step saved, if one of the ranks that are left has it.

    Never raises, and takes 50 s at most. Costs one call where no rank notes its steps.

    Args:
        coordinator: handle of the `Coordinator` actor.
        lost: the ranks that are known to be lost.
    """
    try:
        actors, saved = ray.get(coordinator.survivors.remote(), timeout=CALL_S)
        asked = {
            training.call_beside(actor, offered_step): rank
            for rank, actor in sorted(actors.items())
            if rank not in lost
        }
        offers = _offers(asked)
        newest = max((offer.step for offer in offers.values()), default=0)
        if newest <= saved:
            return  # as new as the last checkpoint, or none at all
        ranks = [rank for rank, offer in offers.items() if offer.step == newest]
        if len({offers[rank].fingerprint for rank in ranks}) > 1:
            log.warning("ranks %s hold different states of step %d", ranks, newest)
            return
        _save_by_one(coordinator, {rank: actors[rank] for rank in sorted(ranks)}, newest)
    except Exception as error:
        log.warning("the last step was not saved, so the last checkpoint is used: %s", _why(error))


def _save_by_one(coordinator: Any, actors: Mapping[int, Any], step: int) -> None:
    """Have the first rank save the step that does not fail in it: it may be lost meanwhile."""
    began = time.monotonic()
    for rank, actor in actors.items():
        left = SAVE_S - (time.monotonic() - began)
        if left <= 0:
            raise TimeoutError(f"step {step} was not saved within {SAVE_S:.0f} s")
        try:
            upload = ray.get(training.call_beside(actor, save, step), timeout=left)
        except Exception as error:
            log.warning("rank %d did not save step %d: %s", rank, step, _why(error))
            continue
        ray.get(coordinator.saved_alone.remote(upload, rank), timeout=CALL_S)
        log.info("rank %d saved step %d in %.1f s", rank, step, time.monotonic() - began)
        return


def _offers(asked: dict[Any, int]) -> dict[int, "Offer"]:
    """What each rank has to offer, where it has something."""
    if not asked:
        return {}
    answered, others = ray.wait(list(asked), timeout=FIRST_OFFER_S)
    if answered and others:
        more, _ = ray.wait(others, num_returns=len(others), timeout=OFFER_S)
        answered += more
    found = {}
    for call in answered:
        try:
            found[asked[call]] = ray.get(call, timeout=CALL_S)
        except Exception as error:  # it is lost too, or its state is not whole
            log.warning("rank %d has no step to save: %s", asked[call], _why(error))
    return found


def _why(error: Exception) -> str:
    return first_line(getattr(error, "cause", None) or error)


@dataclass(frozen=True)
class Offer:
    """What a rank could save."""

    step: int
    """The last finished step."""
    fingerprint: int
    """See `LastStep.fingerprint`."""


def offered_step() -> Offer:
    """In a worker: the last finished step, if this rank has its state whole.

    Raises:
        NotWhole: it has not.
    """
    from .worker import this_worker

    last_step = _last_step(this_worker())
    noted = last_step.noted()
    return Offer(noted.position.step, last_step.fingerprint(noted))


def _last_step(worker: "Worker") -> "LastStep":
    from .checkpoints.last_step import NotWhole

    if worker.session is None:
        raise NotWhole("the training function has no session")
    return worker.session.noted_steps.last()


def save(step: int) -> UploadedCheckpoint:
    """In a worker: upload the state after that step.

    Raises:
        NotWhole: this rank has it no longer.
        TimeoutError: the store does not take it in time.
    """
    from .checkpoints import manifest, snapshot
    from .checkpoints.storage_retry import StorageRetry, report_to
    from .worker import this_worker

    worker = this_worker()
    last_step = _last_step(worker)
    noted = last_step.noted()
    states = last_step.take(step)
    files = snapshot.shared(states, (), noted.position, worker.world_size)
    deadline = time.monotonic() + UPLOAD_S

    def wait(seconds: float) -> None:
        if time.monotonic() + seconds > deadline:
            raise TimeoutError(f"the store did not take the checkpoint within {UPLOAD_S:.0f} s")
        time.sleep(seconds)

    retry = StorageRetry(report_to(worker.coordinator, f"rank {worker.rank}"), wait)
    with tempfile.TemporaryDirectory(prefix="checkpoint-", ignore_cleanup_errors=True) as folder:
        snapshot.write(files, Path(folder))
        found = manifest.digest_folder(folder)
        digests = {name: asdict(digest) for name, digest in found.items()}
        name = f"step-{step:010d}-{worker.group}.alone-{worker.rank}"
        path = retry(lambda: training.upload_alone(Path(folder), name, digests))
    # Rank 0's metrics are those of a checkpoint.
    metrics = {**noted.metrics, "step": step} if worker.rank == 0 else {"step": step}
    session = worker.session
    rows = session.reports.recent(step) if session is not None else ()
    return UploadedCheckpoint(path, step, worker.world_size, metrics, rows=rows)
