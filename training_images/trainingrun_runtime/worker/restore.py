"""The checkpoint that a worker group restores: all ranks agree on it, and have it downloaded."""

import os
import socket
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ray
import ray.train
from ray.train.collective import barrier, broadcast_from_rank_zero

from trainingrun_protocol.contract import ONE_MACHINE_ENV, ContractRestore

from ..checkpoints.downloads import STATE_FILE, Fetched, Share, share_of, small_files
from ..store import restore_source
from ..store.bucket import Bucket
from ..store.manifest import Manifest
from ..store.storage_retry import StorageRetry

MOST_TRIED = 100
"""Checkpoints that are tried one after the other; a run that trains may make and delete more."""


class Chosen(NamedTuple):
    """What a worker group restores."""

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
    retry: StorageRetry,
    source: ContractRestore | None,
) -> Chosen:
    """The newest checkpoint of which every rank has found its share intact.

    Args:
        rank: this rank.
        world_size: number of ranks.
        coordinator: handle of the `Coordinator` actor.
        own: the run's folder.
        retry: of this rank's requests to the store.
        source: `storage.restoreFrom`, if set.

    Raises:
        NothingToRestore: on rank 0: `source` has none. On all ranks: too many were tried.
        UnknownForm: a later version has written this rank's share. An older checkpoint is not
            restored instead: the driver would delete this one later.
    """
    disk, in_pod = _temporary_folder(), ray.train.get_context().get_local_world_size()
    if ONE_MACHINE_ENV in os.environ:
        in_pod = world_size
    uri, refused = "", dict[str, str]()
    for _ in range(MOST_TRIED):
        chosen: Any = None
        if rank == 0:
            search, known = ray.get(coordinator.search_begins.remote())
            found = retry(partial(restore_source.choose, own, source, known))
            document = found.manifest.model_dump() if found.manifest else None
            reasons = [skipped.reason for skipped in found.skipped]
            chosen = (search, document, found.foreign, reasons)
        search, document, foreign, skipped = broadcast_from_rank_zero(chosen)
        bucket = restore_source.folder(source) if foreign and source is not None else own
        if document is None:
            return Chosen(None, False, own, skipped)
        manifest = Manifest.model_validate(document)
        fetched, uri = Fetched(bucket, manifest, retry, in_pod), bucket.uri(manifest.key)
        mine = str(fetched.folder)
        shared = ray.get(coordinator.restore_folder.remote(search, disk, mine))
        former, session = manifest.world_size, manifest.session
        share = share_of(manifest.files, rank, world_size, former, session)
        part = share if shared == mine else share._replace(common=())
        try:
            reason = retry(partial(fetched.fetch, part)) or _unreadable(fetched, part)
        except BaseException:
            fetched.close()
            raise
        if reason is not None:
            ray.get(coordinator.refuse.remote(uri, reason))
        barrier()
        refused = ray.get(coordinator.refused.remote())
        if uri not in refused:
            # No rank closes its files before all have taken them over: the number of the worker
            # group is awaited by all ranks together, after this.
            if shared != mine:
                fetched.take_over(Path(shared), share.common)
            return Chosen(fetched, foreign, bucket, skipped)
        fetched.close()
    raise restore_source.NothingToRestore(
        f"{MOST_TRIED} checkpoints were tried and none could be restored, the last of them {uri} "
        f"({refused[uri]}); begin from a run that has ended, or name one of its steps in "
        "storage.restoreFrom"
    )


def _temporary_folder() -> str:
    """The folder in which files are downloaded, told apart from those of other pods.

    Ranks of a pod have the same one, and so have Ray's nodes that are on one machine without pods.
    """
    found = os.stat(tempfile.gettempdir())  # pods of one machine may share its host name alone
    return f"{socket.gethostname()} {found.st_dev} {found.st_ino}"


def _unreadable(fetched: Fetched, part: Share) -> str | None:
    """Why what this rank has downloaded cannot be read, though it is as committed."""
    if fetched.manifest.session is False or STATE_FILE not in fetched.names():
        return None  # code without a session reads it in its own way
    from ..checkpoints import snapshot  # PyTorch

    return snapshot.unreadable(fetched, small_files((*part.kept, *part.common)))
