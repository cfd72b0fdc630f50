"""Which checkpoints are deleted, and in which order, so that no manifest lacks its files."""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from trainingrun_protocol.contract import ContractCheckpoints

from . import late_metrics
from .bucket import Bucket
from .manifest import CHECKPOINTS, Manifest, name_of, read_all

FOLDER = CHECKPOINTS
"""Where checkpoints are, below the run's folder: `<attempt>-<fencing token>/<checkpoint>/…`."""

Best = tuple[str, Literal["min", "max"]]
"""A metric's name, and whether its smallest or largest value is the best."""


def wanted(checkpoints: ContractCheckpoints) -> Best | None:
    """The metric that the operator named, if it did."""
    name = checkpoints.best_metric
    return (name, checkpoints.best_order) if name else None


def wanted_by(committed: Sequence[Manifest]) -> Best | None:
    """The metric that the newest checkpoint names, where only the run's folder is known."""
    newest = max(committed, key=lambda m: m.sort_key, default=None)
    if newest is None or newest.best_metric is None:
        return None
    return newest.best_metric, newest.best_order


def by_score(committed: Iterable[Manifest], best: Best) -> list[Manifest]:
    """Those that have the metric as a number, the best one last; of equals the newest."""
    name, order = best
    sign = 1 if order == "max" else -1
    rated = [(sign * value, m) for m in committed if (value := m.number(name)) is not None]
    return [m for _, m in sorted(rated, key=lambda pair: (pair[0], pair[1].sort_key))]


def best_of(committed: Sequence[Manifest], best: Best | None) -> Manifest | None:
    """The best checkpoint; of equals the newest. None where none has that metric as a number."""
    rated = by_score(committed, best) if best is not None else []
    return rated[-1] if rated else None


def expired(
    committed: Sequence[Manifest],
    keep: int,
    best: Best | None,
    keep_best: int = 1,
    used: Collection[str] = (),
) -> list[Manifest]:
    """The checkpoints to delete, oldest first.

    Args:
        committed: All of the run.
        keep: Newest ones to keep.
        best: The metric by which others are kept, too.
        keep_best: How many of those.
        used: Folders of checkpoints that something reads now; they are kept, too.
    """
    by_age = sorted(committed, key=lambda m: m.sort_key)
    kept = by_age[-keep:] if keep > 0 else []
    if best is not None:
        kept += by_score(by_age, best)[-keep_best:]
    return [m for m in by_age if m not in kept and m.path not in used]


def sweep(
    bucket: Bucket,
    current_token: int,
    keep: int,
    best: Best | None,
    keep_best: int = 1,
    used: Collection[str] = (),
) -> list[Manifest]:
    """Delete expired checkpoints, and uncommitted folders of former drivers.

    Args:
        bucket: The run's folder.
        current_token: The caller's fencing token. Its own uncommitted folders are kept: uploads may
            still be running.
        keep: Newest checkpoints to keep.
        best: Also keep the best by this metric.
        keep_best: How many of the best.
        used: Folders of checkpoints that something reads now; they are kept, too.

    Returns:
        The checkpoints that were deleted.

    Raises:
        StorageError: The store did not answer. No committed checkpoint is partly deleted.
    """
    readings = read_all(bucket)
    committed = [found for _, found in readings if isinstance(found, Manifest)]
    # What an unreadable manifest names is unknown, so the folders of its fencing token are kept.
    unreadable = {_token_of(key) for key, found in readings if isinstance(found, str)}
    # Until this driver has committed a checkpoint of its own, the one that it restored may be the
    # only intact one, with damaged ones before it in the row: nothing expires.
    own = any(m.fencing_token == current_token for m in committed)
    dropped = expired(committed, keep, best, keep_best, used) if own else []

    kept = {m.path for m in committed if m not in dropped}
    delete(bucket, dropped, kept)
    gone = {m.key for m in dropped}
    remaining = [name_of(key) for key, _ in readings if key not in gone]
    late_metrics.sweep(bucket, current_token, remaining)
    for folder in _orphans(bucket, current_token, kept, unreadable):
        bucket.delete_folder(folder)
    return dropped


def delete(bucket: Bucket, dropped: Iterable[Manifest], kept: Collection[str]) -> None:
    """Delete checkpoints.

    Args:
        bucket: The run's folder.
        dropped: The checkpoints.
        kept: Folders of the others, which one of these may be in.

    Raises:
        StorageError: The store did not answer. No committed checkpoint is partly deleted.
    """
    # Manifest first. A crash in between leaves files that the next sweep removes; the other order
    # leaves a manifest whose files are missing.
    for m in dropped:
        bucket.delete([m.key])
        if not any(_overlap(m.path, path) for path in kept):
            bucket.delete_folder(m.path)


def _overlap(one: str, other: str) -> bool:
    """Whether two folders are the same, or one holds the other.

    Training code chooses its own folders in some of Ray's upload modes, and may use one again.
    """
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _orphans(
    bucket: Bucket, current_token: int, kept: set[str], kept_tokens: set[int]
) -> list[str]:
    """Folders of former drivers that no manifest names: of one checkpoint, or of a whole driver."""
    found: set[str] = set()
    for entry in bucket.list(FOLDER):
        parts = entry.key.split("/")
        token = parts[1].rpartition("-")[2]
        if not token.isdigit() or int(token) >= current_token or int(token) in kept_tokens:
            continue
        parent = "/".join(parts[:2])
        checkpoint = "/".join(parts[:3])
        if not any(_overlap(parent, path) for path in kept):
            found.add(parent)
        elif len(parts) > 3 and not any(_overlap(checkpoint, path) for path in kept):
            found.add(checkpoint)
    return sorted(found)


def _token_of(manifest_key: str) -> int:
    digits = manifest_key.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdigit() else 0
