"""The checkpoint that a worker group begins from: the run's own, else that of another run.

The other run's folder is only read: nothing in it is created, changed or deleted.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from trainingrun_protocol.contract import ContractRestore

from . import lease, manifest, verification
from .bucket import Bucket
from .manifest import Manifest
from .verification import Skipped

SHOWN_STEPS = 10
"""Steps that a sentence names, the newest."""


class NothingToRestore(LookupError):
    """`storage.restoreFrom` names no intact checkpoint. The text is one sentence for the user."""


class Chosen(NamedTuple):
    """What a worker group begins from."""

    manifest: Manifest | None
    """The checkpoint; none: training begins at step 0."""
    foreign: bool
    """Whether it is in the folder of the other run."""
    skipped: list[Skipped]
    """Newer checkpoints that are not intact, newest first; the run's own before the other's."""


def choose(
    bucket: Bucket,
    wanted: ContractRestore | None,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Chosen:
    """The run's own newest intact checkpoint, or where there is none, the other run's.

    Args:
        bucket: The run's own folder, in which a driver has its lease.
        wanted: `storage.restoreFrom`, if set.
        refused: As for `newest_intact`. Files are not read here, since the ranks do that.

    Raises:
        NothingToRestore: There is none in either, or another version of this project has written
            the newest: after a rollback of the image the run would do its steps again, and delete
            it later.
        StorageError: The store did not answer, or an empty list of the run's own folder is no
            proof that it has none, so it is unknown.
    """
    own, skipped = verification.newest_intact(bucket, deep=False, refused=refused)
    if own is None and not skipped:
        lease.require_empty(bucket, manifest.FOLDER, lambda: manifest.listed(bucket))
    _require_known(bucket, skipped)
    if own is not None or wanted is None:
        return Chosen(own, False, skipped)
    found, more = find(wanted, refused)
    return Chosen(found, True, [*skipped, *more])


def _require_known(bucket: Bucket, skipped: list[Skipped]) -> None:
    for one in skipped:
        if one.other_version:
            raise of_other_version(bucket, one.reason)


def of_other_version(bucket: Bucket, reason: str) -> NothingToRestore:
    """The error for an object that another version of this project has written."""
    return NothingToRestore(
        f"in {bucket.at()} {reason}; go on with the version of trainingrun that wrote it, or "
        "delete it to begin at an older one"
    )


def folder(wanted: ContractRestore) -> Bucket:
    """The other run's folder.

    Raises:
        NothingToRestore: It is a folder of this machine and does not exist.
        StorageError: The URI cannot be used.
    """
    parts = urlsplit(wanted.uri)
    # `Bucket.open` would make the folder.
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise NothingToRestore(
            f"storage.restoreFrom is {wanted.uri}, which is no folder here; name the folder of a "
            "run that has a checkpoint"
        )
    return Bucket.open(wanted.uri, wanted.endpoint, wanted.region)


def find(
    wanted: ContractRestore, refused: Mapping[str, str] = MappingProxyType({})
) -> tuple[Manifest, list[Skipped]]:
    """The other run's checkpoint.

    Args:
        wanted: Its folder, and the step if a certain one is wanted.
        refused: As for `newest_intact`.

    Returns:
        The checkpoint, and the newer ones that were skipped, newest first.

    Raises:
        NothingToRestore: It has no intact one, or none of that step, or as for `choose`.
        StorageError: The store did not answer, so it is unknown.
    """
    bucket = folder(wanted)
    found, skipped = verification.newest_intact(bucket, wanted.step, False, refused)
    if wanted.step is None:
        _require_known(bucket, skipped)
    if found is not None:
        return found, skipped
    at = bucket.at()
    damaged = [one for one in skipped if one.manifest is not None]
    if damaged and wanted.step is not None:
        raise NothingToRestore(
            f"storage.restoreFrom.step is {wanted.step}, and in {at} {damaged[0].reason}; choose "
            "another step, or leave step out for the newest intact checkpoint"
        )
    _require_known(bucket, skipped)  # of which step it is, is unknown
    if skipped and wanted.step is None:
        raise NothingToRestore(
            f"storage.restoreFrom: no checkpoint in {at} is intact ({skipped[0].reason}); begin "
            "from another run, or without restoreFrom"
        )
    steps = sorted({one.step for one in manifest.committed(bucket)})
    if not steps:
        raise NothingToRestore(
            f"storage.restoreFrom: there is no checkpoint in {at}; name a run's own folder, such "
            "as s3://bucket/folder/digits-1a2b3c4d, of a run that has made one"
        )
    if wanted.step is None:
        return find(wanted, refused)  # it has committed one meanwhile
    known = ", ".join(map(str, steps[-SHOWN_STEPS:]))
    raise NothingToRestore(
        f"storage.restoreFrom.step is {wanted.step}, and {at} has checkpoints of other steps only "
        f"({known}); choose one of them, or leave step out for the newest"
    )
