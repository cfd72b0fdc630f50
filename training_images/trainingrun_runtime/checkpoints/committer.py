"""Commits checkpoints, in the driver: in the order of their uploads, and until it has worked.

Ray's controller hears of every rank's upload and must not wait for the store, since it watches
over the workers; so it hands each upload to the board, and a thread of the driver takes it from
there. A checkpoint that is uploaded and not committed is never forgotten while the driver lives.
"""

import hashlib
import json
import logging
import threading
import time
from typing import Any

import ray

from trainingrun.api.contract import RunContract

from ..coordination.lease import Lease
from . import manifest, retention
from .bucket import Bucket
from .manifest import DIGEST_FOLDER, FileDigest, Manifest
from .storage_errors import StorageError
from .storage_retry import Patience, told_to
from .uploaded_checkpoint import Upload

log = logging.getLogger(__name__)

_LONG_POLL_S = 1.0
_END_S = 60.0
"""More than the longest request to the store."""


class Committer:
    """Writes a checkpoint's manifest once all ranks have uploaded their part.

    Args:
        board: handle of the `Board` actor.
        contract: what the operator said.
        lease: this driver's lease.
    """

    def __init__(self, board: Any, contract: RunContract, lease: Lease) -> None:
        self._board, self._contract, self._lease = board, contract, lease
        self._bucket: Bucket = lease.bucket
        self._ended = threading.Event()
        self._tell_board = told_to(board, "commits")
        self._patience = Patience(self._tell, self._ended.wait)
        self._index = 0
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self.failure: StorageError | None = None
        """Why the newest upload was not committed; none: it was, or is still to be."""

    def start(self) -> None:
        """Begin to commit, in a thread."""
        self._thread.start()

    def drain(self, limit_s: float | None = None) -> None:
        """Return once every upload is committed or given up, at the latest after `limit_s`."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while ray.get(self._board.uploads_waiting.remote()):
            if deadline is not None and time.monotonic() >= deadline:
                log.warning("the attempt ends with checkpoints that are not committed")
                return
            time.sleep(0.05)

    def stop(self) -> None:
        """Take no further upload, and return once nothing more is asked of Ray."""
        self._ended.set()
        self._thread.join(_END_S)

    def _tell(self, trouble: str | None) -> None:
        if self._ended.is_set():
            raise SystemExit  # of this thread: the attempt has ended, and Ray goes next
        self._tell_board(trouble)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                upload = ray.get(self._board.next_upload.remote(_LONG_POLL_S))
                if upload is not None:
                    self._settle(upload)
            except ray.exceptions.RayActorError as error:
                log.error("the board is gone: %s", error)
                return  # the driver's own calls fail likewise, and end the attempt
            except Exception:  # the upload is still the board's oldest one: it is tried again
                log.exception("a commit was interrupted")
                time.sleep(_LONG_POLL_S)

    def _settle(self, upload: Upload) -> None:
        self._index += 1
        try:
            committed = self._patience(lambda: self._manifest(upload))
            self._patience(lambda: manifest.commit(self._bucket, committed))
        except Exception as error:
            # Training goes on: the next checkpoint may fare better, and the last one must.
            log.exception("the checkpoint of step %d was not committed", upload.step)
            message = f"the checkpoint of step {upload.step} could not be committed: {error}"
            self.failure = StorageError(message)
            ray.get(self._board.abandoned.remote(upload))
            return
        self.failure = None
        ray.get(self._board.committed.remote(upload, committed, self._bucket.uri(committed.path)))
        self._sweep()

    def _manifest(self, upload: Upload) -> Manifest:
        path = self._bucket.key_of(upload.path)
        return Manifest(
            path=path,
            step=upload.step,
            world_size=upload.world_size,
            attempt=self._contract.attempt,
            epoch=self._lease.epoch,
            index=self._index,
            metrics=upload.metrics,
            files=_digests(self._bucket, path),
            time=time.time(),
        )

    def _sweep(self) -> None:
        checkpoints = self._contract.checkpoints
        try:
            # A superseded driver deletes nothing: the other one may just be restoring it.
            self._lease.require()
            best = retention.wanted(checkpoints)
            retention.sweep(self._bucket, self._lease.epoch, checkpoints.keep, best)
        except Exception as error:  # the next sweep removes what this one left
            log.warning("old checkpoints were not removed: %s", error)


def _digests(bucket: Bucket, path: str) -> dict[str, FileDigest]:
    """Digests of a checkpoint's files: the ranks' own, made before the upload.

    Code that uploads by itself leaves none; its files are then read back once.
    """
    found: dict[str, FileDigest] = {}
    prefix = f"{path}/"
    entries = bucket.list(path)
    for entry in entries:
        name = entry.key.removeprefix(prefix)
        if name.startswith(f"{DIGEST_FOLDER}/"):
            part = json.loads(bucket.get(entry.key) or b"{}")
            found.update({file: FileDigest(**digest) for file, digest in part.items()})
    return found or {
        entry.key.removeprefix(prefix): _digest(bucket, entry.key) for entry in entries
    }


def _digest(bucket: Bucket, key: str) -> FileDigest:
    size, sha256 = 0, hashlib.sha256()
    for piece in bucket.stream(key):
        size += len(piece)
        sha256.update(piece)
    return FileDigest(size, sha256.hexdigest())
