"""Which checkpoints are deleted, and in which order, so that no manifest lacks its files.

A driver deletes after each commit (`sweep`), and a person by `checkpoints prune` (`plan_pruning`).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from trainingrun_protocol.contract import ContractCheckpoints

from . import manifest, run_result, verification
from .bucket import Bucket
from .lease import not_listed
from .manifest import CHECKPOINTS, METRICS_FOLDER, Manifest, name_of, read_all

Best = tuple[str, Literal["min", "max"]]
"""A metric's name, and whether its smallest or largest value is the best."""

_HANGS = "/hang_detector"
_NAME = re.compile(
    r"(?:step-\d{10,}|folder-\d{6,}|checkpoint_\d{4}(?:-\d\d){2}_\d\d(?:-\d\d){2}\.\d+)"
    r"-(?P<group>\d+)(?:\.(?:alone-)?\d+)?",
    re.ASCII,
)
"""The folder of a checkpoint as sessions, ranks with torchrun and Ray Train name it, in its worker
group. The user's code may give others."""


class NothingIntact(Exception):
    """No checkpoint is intact. The text is one sentence for the user."""


class Pruning(NamedTuple):
    """What is to be deleted, and what stays; both oldest first."""

    dropped: list[Manifest]
    kept: list[Manifest]


def wanted(checkpoints: ContractCheckpoints) -> Best | None:
    """The metric that the operator named, if it did."""
    name = checkpoints.best_metric
    return (name, checkpoints.best_order) if name else None


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


def best_known(committed: Sequence[Manifest]) -> Manifest | None:
    """The best one by the metric that the newest names, where only the run's folder is known."""
    newest = max(committed, key=lambda m: m.sort_key, default=None)
    if newest is None or newest.best_metric is None:
        return None
    return best_of(committed, (newest.best_metric, newest.best_order))


def expired(
    committed: Iterable[Manifest], rule: ContractCheckpoints, used: Collection[str] = ()
) -> list[Manifest]:
    """The checkpoints to delete, oldest first.

    Args:
        committed: All of the run.
        rule: Says which are kept.
        used: Folders of checkpoints that something reads now; they are kept, too.
    """
    by_age = sorted(committed, key=lambda m: m.sort_key)
    kept, best = by_age[-rule.keep :] if rule.keep > 0 else [], wanted(rule)
    if best is not None:
        kept += by_score(by_age, best)[-rule.keep_best :]
    return [m for m in by_age if m not in kept and m.path not in used]


def sweep(
    bucket: Bucket,
    current_token: int,
    rule: ContractCheckpoints,
    used: Collection[str] = (),
    left: list[Manifest] | None = None,
    group: float = 0,
    written: dict[str, Manifest] | None = None,
) -> list[Manifest]:
    """Delete expired checkpoints, and uncommitted folders of former drivers and worker groups.

    Args:
        bucket: The run's folder.
        current_token: The caller's fencing token.
        rule: As for `expired`.
        used: As for `expired`. Uncommitted ones are kept, too.
        left: Those that former sweeps of the caller could not delete whole: they are deleted, and
            the list becomes what this one cannot delete.
        group: Number of the worker group that trains. Of the caller's uncommitted folders those of
            earlier groups are deleted: nothing is uploaded to them any longer that will count.
        written: By key, as for `require_listed`. Those that expire are taken out; the others stay.

    Returns:
        The checkpoints that have expired, which are deleted.

    Raises:
        NotListedError: As of `require_listed`. Nothing is deleted.
        StorageError: The store did not answer. No committed checkpoint is partly deleted.
    """
    readings = read_all(bucket)
    committed = [found for _, found in readings if isinstance(found, Manifest)]
    written = {} if written is None else written
    require_listed(bucket, committed, list(written.values()))
    # Until this driver has committed a checkpoint of its own, the one that it restored may be the
    # only intact one, with damaged ones before it in the row. And where none of its own is listed,
    # others may be left out, too, whose files would then be nobody's.
    if all(m.fencing_token != current_token for m in committed):
        return []
    # What an unreadable manifest names is unknown, so the folders of its fencing token are kept.
    unreadable = {
        manifest.token_of(name_of(key)) for key, found in readings if isinstance(found, str)
    }
    dropped = expired(committed, rule, used)
    kept = {m.path for m in committed if m not in dropped}
    left, there = ([] if left is None else left), {m.key for m in committed}
    # Whose manifest is still there expires again, or is kept by now. Of the others nothing names
    # the folder, and one of the caller's own token is no orphan: the files of a manifest that was
    # deleted just before the store went away would stay.
    begun = [m for m in left if m.key not in there]
    left[:] = [*begun, *(m.model_copy(update={"files": {}}) for m in dropped)]
    gone = {m.key for m in dropped}
    for key in gone:
        written.pop(key, None)
    delete(bucket, dropped, kept)
    remaining = {name_of(key) for key, _ in readings if key not in gone}
    manifest.delete_metrics(
        bucket,
        # Checkpoints of later drivers are not known to this one.
        lambda name: name not in remaining and manifest.token_of(name) <= current_token,
    )
    needed = {*kept, *used, *(m.path for m in written.values())}
    for folder in _orphans(bucket, current_token, group, needed, unreadable):
        bucket.delete_folder(folder)
    # Last: one that can never be deleted keeps no other from it.
    delete(bucket, begun, kept)
    left.clear()
    return dropped


def require_listed(
    bucket: Bucket, committed: Iterable[Manifest], written: Collection[Manifest]
) -> None:
    """Make sure that a list of all checkpoints has what its reader itself has written.

    Args:
        bucket: The run's folder.
        committed: The list.
        written: Those that the reader has committed, or to which it has added metrics, and not
            deleted since; with the added metrics alone.

    Raises:
        NotListedError: It lacks the newest of them, or all metrics that were added to one.
    """
    listed = {m.key: m for m in committed}
    newest = max(written, key=lambda m: m.sort_key, default=None)
    if newest is not None and newest.key not in listed:
        raise not_listed(bucket, newest.key)
    for m in written:
        found = listed.get(m.key, m).metrics
        if m.metrics and all(found.get(name) != value for name, value in m.metrics.items()):
            raise not_listed(bucket, f"what is in {METRICS_FOLDER}/{m.name}/")


def plan_pruning(bucket: Bucket, keep: int, needed_steps: Collection[int] = ()) -> Pruning:
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
    best = best_known(committed)
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
    delete(bucket, pruning.dropped, {one.path for one in pruning.kept})
    manifest.delete_metrics(bucket, {one.name for one in pruning.dropped}.__contains__)


def delete(bucket: Bucket, dropped: Iterable[Manifest], kept: Collection[str]) -> None:
    """Delete checkpoints.

    Args:
        bucket: The run's folder.
        dropped: The checkpoints.
        kept: Folders of the others, which one of these may be in.

    Raises:
        StorageError: The store did not answer. No committed checkpoint is partly deleted.
    """
    # Manifest first. An error in between leaves files that the caller's next sweep removes, and a
    # crash files that a later driver's does; the other order leaves a manifest whose files are
    # missing.
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
    bucket: Bucket, current_token: int, group: float, kept: set[str], kept_tokens: set[int]
) -> list[str]:
    """Folders that no manifest names, of former drivers and of the caller's former worker groups:
    of one checkpoint, or of a whole driver.

    Checkpoints are in `checkpoints/<attempt>-<fencing token>/<checkpoint>/…`.
    """
    found: set[str] = set()
    entries = bucket.list_begun(CHECKPOINTS)
    # What Ray's detector of hangs has written beside the checkpoints.
    kept = kept | {
        f"{one.key.partition(_HANGS)[0]}{_HANGS}" for one in entries if _HANGS in one.key
    }
    for entry in entries:
        parts = entry.key.split("/")
        token = parts[1].rpartition("-")[2]
        if not (token.isascii() and token.isdigit()):  # int() refuses some digits of Unicode
            continue
        if int(token) > current_token or int(token) in kept_tokens:
            continue
        own = int(token) == current_token
        if own and not _is_of_former_group(parts[2], group):
            continue
        parent = "/".join(parts[:2])
        checkpoint = "/".join(parts[:3])
        if not own and not any(_overlap(parent, path) for path in kept):
            found.add(parent)
        elif len(parts) > 3 and not any(_overlap(checkpoint, path) for path in kept):
            found.add(checkpoint)
    return sorted(found)


def _is_of_former_group(name: str, group: float) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and int(found["group"]) < group
