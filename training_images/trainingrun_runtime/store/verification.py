"""Whether a checkpoint's files are as its manifest says, and which checkpoint is restored.

A store, or a proxy before it, may give one wrong answer, such as a 404 while a server of it starts
or a body that was cut off. If the only checkpoint of a run were refused for that, the run would
begin at step 0. So what is wrong is asked for again before it counts as damaged.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial, wraps
from types import MappingProxyType
from typing import NamedTuple, ParamSpec

from blake3 import blake3

from .bucket import Bucket
from .manifest import Manifest, OtherVersion, listed, read_all
from .storage_errors import AbsentError
from .storage_retry import FIRST_WAIT_S

log = logging.getLogger(__name__)

P = ParamSpec("P")

SEARCHES = 20
"""Of a folder that changes while it is searched."""
PAUSES_S = (FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S)
"""Seconds before each further request for what was found to be wrong."""
_FILES_AT_ONCE = 4
"""Files verified at once; each is read with a few requests ahead of its own."""


def _asked_again(wrong: Callable[P, str | None]) -> Callable[P, str | None]:
    """The same, which asks again while something is wrong, as often as there are `PAUSES_S`."""

    @wraps(wrong)
    def ask(*args: P.args, **kwargs: P.kwargs) -> str | None:
        found = wrong(*args, **kwargs)
        for pause in PAUSES_S:
            if found is None:
                break
            log.warning("the store is asked again in %g s: %s", pause, found)
            time.sleep(pause)
            found = wrong(*args, **kwargs)
        return found

    return ask


class Skipped(NamedTuple):
    """A checkpoint that was not restored."""

    manifest: Manifest | None
    """Its manifest; none if that itself cannot be read."""
    reason: str
    """Why, in a sentence."""
    deleted: bool = False
    """Whether it was intact as far as is known, and deleted in order meanwhile."""
    other_version: bool = False
    """Whether nothing else is wrong than that another version of this project has written it."""


def newest_intact(
    bucket: Bucket,
    step: int | None = None,
    deep: bool = True,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Manifest | None, list[Skipped]]:
    """The checkpoint to restore.

    Args:
        bucket: A run's folder.
        step: Only checkpoints of this step count; default: any.
        deep: Also read every file and compare its BLAKE3 digest; otherwise existence and size only.
        refused: By the URI of a manifest, why its checkpoint is not intact, as far as it is known.

    A run that trains meanwhile may delete each checkpoint that was found, once it has a newer one:
    then the search begins anew, `SEARCHES` times at most.

    Returns:
        The newest checkpoint whose files are all as committed, or none; and the newer ones that
        were skipped, newest first, with the reason. An event reports each of them to the user.
    """
    for search in range(SEARCHES):
        readings = read_all(bucket)
        if search < len(PAUSES_S) and any(isinstance(found, str) for _, found in readings):
            time.sleep(PAUSES_S[search])  # a body that was cut off cannot be read either
            continue
        found, skipped = _newest(bucket, readings, step, deep, refused)
        there = {entry.key for entry in listed(bucket)} if found is None else None
        if there is None or there == {key for key, _ in readings}:
            # What is gone by now was deleted, as a run does that makes newer ones.
            return found, [one for one in skipped if not one.deleted]
    return None, skipped


def _newest(
    bucket: Bucket,
    readings: Sequence[tuple[str, Manifest | str]],
    step: int | None,
    deep: bool,
    refused: Mapping[str, str],
) -> tuple[Manifest | None, list[Skipped]]:
    skipped = []
    for key, found in reversed(readings):
        if isinstance(found, str):
            other = isinstance(found, OtherVersion)
            skipped.append(Skipped(None, f"{key} cannot be read: {found}", other_version=other))
            continue
        if step is not None and found.step != step:
            continue
        reason = refused.get(bucket.uri(found.key)) or verify(bucket, found, deep)
        if reason is None:
            return found, skipped
        if bucket.size(found.key) is None:
            reason = f"the checkpoint of step {found.step} was deleted while it was read"
            skipped.append(Skipped(found, reason, deleted=True))
            continue
        skipped.append(Skipped(found, f"the checkpoint of step {found.step} is damaged: {reason}"))
    return None, skipped


def verify(bucket: Bucket, manifest: Manifest, deep: bool = True) -> str | None:
    """Compare a checkpoint's files with its manifest.

    Args:
        bucket: The run's folder.
        manifest: What they must be.
        deep: Also read every file and compare its BLAKE3 digest; otherwise existence and size only.

    Returns:
        None if it is intact, else a sentence that names the first wrong file, which was asked for
        again.

    Raises:
        StorageError: The store did not answer, so it is unknown.
    """
    if not manifest.files:
        return f"{manifest.path} is committed without any file"
    prefix = f"{manifest.path}/"

    # By name, not by listing: other objects in the folder are irrelevant, and one key that the
    # client cannot decode would prevent the verification of the whole checkpoint.
    @_asked_again
    def wrong_size(name: str) -> str | None:
        size, wanted = bucket.size(prefix + name), manifest.files[name].size
        if size is None:
            return f"{prefix}{name} is missing"
        return None if size == wanted else f"{prefix}{name} has {size} bytes instead of {wanted}"

    names = sorted(manifest.files)
    content = partial(wrong_content, bucket, manifest)
    for check in (wrong_size, content) if deep else (wrong_size,):
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            found = next((reason for reason in pool.map(check, names) if reason), None)
        if found:
            return found
    return None


@_asked_again
def wrong_content(
    bucket: Bucket,
    manifest: Manifest,
    name: str,
    copy: Callable[[memoryview, int], memoryview] | None = None,
) -> str | None:
    """Read a file of a checkpoint and compare its BLAKE3 digest.

    Args:
        bucket: The run's folder.
        manifest: What it must be.
        name: Of the file.
        copy: Gets the content too, as for `Bucket.stream`: as many bytes as there must be, or
            fewer, intact or not. What was wrong is read again, and overwrites it.

    Returns:
        None if it is intact, else a sentence.
    """
    key, wanted = f"{manifest.path}/{name}", manifest.files[name]
    size, digest = bucket.size(key), blake3()
    try:
        if size == wanted.size:
            with closing(bucket.stream(key, copy, size)) as pieces:
                for piece in pieces:
                    digest.update(piece)
    except AbsentError:
        size = None
    if size is None:
        return f"{key} is missing"
    if size == wanted.size and digest.hexdigest() == wanted.blake3:
        return None
    return f"{key} has another content than was committed (BLAKE3 differs)"
