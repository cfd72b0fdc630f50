"""The checkpoint that a worker group begins from: all ranks agree on it, and have it downloaded."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import ray
import ray.train
from ray.train.collective import barrier, broadcast_from_rank_zero

from trainingrun.api.contract import ContractRestore

from .checkpoints import restore_source
from .checkpoints.bucket import Bucket
from .checkpoints.fetching import Fetched, share_of
from .checkpoints.manifest import Manifest
from .checkpoints.shared_files import machine


class Beginning(NamedTuple):
    """What a worker group begins from."""

    fetched: Fetched | None
    """The checkpoint, and what this rank has of it; None: training begins at step 0."""
    foreign: bool
    """Whether it is another run's."""
    bucket: Bucket
    """The folder of the run whose it is."""
    skipped: list[str]
    """Why newer checkpoints are not restored, a sentence for each."""


def agree(
    rank: int,
    world_size: int,
    coordinator: Any,
    own: Bucket,
    source: ContractRestore | None,
    retry: Callable[[Callable[[], Any]], Any],
) -> Beginning:
    """The newest checkpoint of which every rank has found its share intact.

    Args:
        rank: of this process.
        world_size: how many ranks there are.
        coordinator: handle of the `Coordinator` actor.
        own: the run's own folder.
        source: `storage.restoreFrom`, if set.
        retry: repeats requests to the store.

    Raises:
        NothingToRestore: on rank 0: `source` has none.
    """
    here = machine()
    while True:
        chosen: Any = None
        if rank == 0:
            search, refused = ray.get(coordinator.search_begins.remote())
            found = retry(lambda: restore_source.choose(own, source, refused))  # noqa: B023
            document = found.manifest.model_dump() if found.manifest else None
            reasons = [skipped.reason for skipped in found.skipped]
            chosen = (search, document, found.foreign, reasons)
        search, document, foreign, skipped = broadcast_from_rank_zero(chosen)
        bucket = restore_source.folder(source) if foreign and source is not None else own
        if document is None:
            return Beginning(None, False, own, skipped)
        manifest = Manifest.model_validate(document)
        ranks = ray.train.get_context().get_local_world_size()
        fetched, uri = Fetched(bucket, manifest, ranks), bucket.uri(manifest.key)
        share = share_of(manifest.files, rank, world_size, manifest.world_size)
        claim = partial(_claim, coordinator, search, here) if here is not None else None
        reason = retry(partial(fetched.fetch, share, claim))
        if reason is not None:
            ray.get(coordinator.refuse.remote(uri, reason))
        elif here is not None and fetched.claimed:
            ray.get(coordinator.offer.remote(search, here, fetched.offered(fetched.claimed)))
        barrier()
        refused, offered = ray.get(
            [coordinator.refused.remote(), coordinator.offered.remote(search, here or "")]
        )
        if uri not in refused:
            # No rank closes its files before all have opened them: the number of the worker group
            # is awaited by all ranks together, after this.
            fetched.adopt(offered)
            return Beginning(fetched, foreign, bucket, skipped)
        fetched.close()


def _claim(coordinator: Any, search: int, here: str, names: list[str], most: int) -> list[str]:
    """Those of the files that this rank downloads next for the ranks of its machine."""
    found: list[str] = ray.get(coordinator.claim.remote(search, here, names, most))
    return found
