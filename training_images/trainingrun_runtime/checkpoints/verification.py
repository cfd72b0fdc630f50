"""Whether a checkpoint's files are as its manifest says, and which checkpoint is restored."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from .bucket import Bucket
from .manifest import Manifest, read_all
from .storage_errors import AbsentError

_FILES_AT_ONCE = 4
"""Files verified at once; each is read with a few requests ahead of its own."""


class Skipped(NamedTuple):
    """A checkpoint that was not restored."""

    manifest: Manifest | None
    """Its manifest; none if that itself cannot be read."""
    reason: str
    """Why, in a sentence."""


def newest_intact(
    bucket: Bucket, step: int | None = None, deep: bool = True
) -> tuple[Manifest | None, list[Skipped]]:
    """The checkpoint to restore.

    Args:
        bucket: A run's folder.
        step: Only checkpoints of this step count; default: any.
        deep: Also read every file and compare its SHA-256; otherwise existence and size only.

    Returns:
        The newest checkpoint whose files are all as committed, or none; and the newer ones that
        were skipped, newest first, with the reason. An event reports each of them to the user.
    """
    skipped = []
    for key, found in reversed(read_all(bucket)):
        if isinstance(found, str):
            skipped.append(Skipped(None, f"{key} cannot be read: {found}"))
            continue
        if step is not None and found.step != step:
            continue
        reason = verify(bucket, found, deep)
        if reason is None:
            return found, skipped
        skipped.append(Skipped(found, f"the checkpoint of step {found.step} is damaged: {reason}"))
    return None, skipped


def verify(bucket: Bucket, manifest: Manifest, deep: bool = True) -> str | None:
    """Compare a checkpoint's files with its manifest.

    Args:
        bucket: The run's folder.
        manifest: What they must be.
        deep: Also read every file and compare its SHA-256; otherwise existence and size only.

    Returns:
        None if it is intact, else a sentence that names the first wrong file.

    Raises:
        StorageError: The store did not answer, so it is unknown.
    """
    if not manifest.files:
        return f"{manifest.path} is committed without any file"
    prefix = f"{manifest.path}/"

    # By name, not by listing: other objects in the folder are irrelevant, and one key that the
    # client cannot decode would prevent the verification of the whole checkpoint.
    def wrong_size(name: str) -> str | None:
        size, wanted = bucket.size(prefix + name), manifest.files[name].size
        if size is None:
            return f"{prefix}{name} is missing"
        return None if size == wanted else f"{prefix}{name} has {size} bytes instead of {wanted}"

    def wrong_content(name: str) -> str | None:
        digest = hashlib.sha256()
        try:
            for piece in bucket.stream(prefix + name):
                digest.update(piece)
        except AbsentError:
            return f"{prefix}{name} is missing"
        if digest.hexdigest() == manifest.files[name].sha256:
            return None
        return f"{prefix}{name} has another content than was committed (SHA-256 differs)"

    names = sorted(manifest.files)
    for check in (wrong_size, wrong_content) if deep else (wrong_size,):
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            found = next((reason for reason in pool.map(check, names) if reason), None)
        if found:
            return found
    return None
