"""Which checkpoints a person may delete, and their deletion."""

from collections.abc import Collection
from typing import NamedTuple

from . import late_metrics, manifest, retention, run_result, verification
from .bucket import Bucket
from .manifest import Manifest


class NothingIntact(Exception):
    """No checkpoint is intact. The text is one sentence for the user."""


class Pruning(NamedTuple):
    """What is to be deleted, and what stays; both oldest first."""

    dropped: list[Manifest]
    kept: list[Manifest]


def plan(bucket: Bucket, keep: int, needed_steps: Collection[int] = ()) -> Pruning:
    """Decide what is deleted; nothing is deleted yet.

    Kept are the newest checkpoints, the newest intact one, whose files are all read for that, the
    best one, those that the result names, and those that others need. A manifest that cannot be
    read is left alone, and so are its files.

    Args:
        bucket: The run's folder.
        keep: How many of the newest are kept, at least 1.
        needed_steps: Steps of checkpoints from which other runs begin.

    Raises:
        NothingIntact: There are checkpoints, and none of them is intact.
        StorageError: The store did not answer.
    """
    committed = manifest.committed(bucket)
    if not committed:
        return Pruning([], [])
    intact, skipped = verification.newest_intact(bucket)
    if intact is None:
        raise NothingIntact(
            f"no checkpoint in {bucket.root} is intact ({skipped[0].reason}), so nothing is deleted"
        )
    result = run_result.read(bucket)
    named = {result.checkpoint_uri, result.best_checkpoint_uri} if result else set()
    best = retention.best_of(committed, retention.wanted_by(committed))
    kept = [
        one
        for age, one in enumerate(reversed(committed))
        if age < keep
        or one.key in (intact.key, best.key if best else None)
        or bucket.uri(one.path) in named
        or one.step in needed_steps
    ][::-1]
    return Pruning([one for one in committed if one not in kept], kept)


def prune(bucket: Bucket, pruning: Pruning) -> None:
    """Delete what was planned.

    Raises:
        StorageError: The store did not answer. No committed checkpoint is partly deleted.
    """
    retention.delete(bucket, pruning.dropped, {one.path for one in pruning.kept})
    late_metrics.delete(bucket, (one.name for one in pruning.dropped))
