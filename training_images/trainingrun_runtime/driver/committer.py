"""Commits checkpoints in the order of their uploads, with retries, in a thread of the driver.

Ray's controller is called after every rank's upload and must not wait for the store, since it polls
the workers; so it adds each upload to the coordinator's queue, which this thread processes. An
uploaded checkpoint stays in the queue until it is committed or abandoned.
"""

import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import ray
from blake3 import blake3

from trainingrun_protocol.contract import RunContract

from ..coordinator.checkpoints import LateMetrics, UploadedCheckpoint
from ..store import manifest, retention, verification
from ..store.bucket import Bucket
from ..store.lease import Lease
from ..store.manifest import DIGEST_FOLDER, FileDigest, Manifest, digest_file
from ..store.metrics_writer import ReportWriter
from ..store.reported_metrics import printable_metrics
from ..store.storage_errors import AbsentError, DamagedError, StorageError, recognize
from ..store.storage_retry import StorageRetry, report_to

log = logging.getLogger(__name__)

_LONG_POLL_S = 1.0
_REPORTS_S = 30.0
"""Seconds after which reports are written also without a checkpoint."""


class Committer:
    """Writes a checkpoint's manifest once all ranks have uploaded their part.

    Args:
        coordinator: handle of the `Coordinator` actor.
        contract: the operator's settings of this attempt.
        lease: this driver's lease.
        reports: writes what was reported up to a checkpoint before that is committed.
    """

    def __init__(
        self, coordinator: Any, contract: RunContract, lease: Lease, reports: ReportWriter
    ) -> None:
        self._coordinator, self._contract, self._lease = coordinator, contract, lease
        self.checkpoints = contract.checkpoints
        """Which checkpoints are kept."""
        self._bucket: Bucket = lease.bucket
        self._reports, self._reports_due = reports, time.monotonic() + _REPORTS_S
        self._retry = StorageRetry(report_to(coordinator, "commits"))
        self._pause: Callable[[float], Any] = time.sleep
        self._index = 0
        self._left: list[Manifest] = []  # of which a sweep may have deleted the manifest alone
        self._written: dict[str, Manifest] = {}  # by key; see `retention.require_listed`
        self._sweeping = threading.Lock()
        self._swept_group, self._next_sweep = 0, 0.0
        self.failure: StorageError | None = None
        """Why the newest upload with files was not committed; none: it was, or it is still in the
        queue."""

    def drain(self, limit_s: float | None = None) -> None:
        """Return once every upload is committed or abandoned, or after `limit_s` seconds."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while ray.get(self._coordinator.uploads_waiting.remote()):
            if deadline is not None and time.monotonic() >= deadline:
                log.warning("the attempt ends with checkpoints that are not committed")
                return
            time.sleep(0.05)

    def run(self, ended: threading.Event) -> None:
        """Commit what is uploaded until `ended`; in a thread, of which it may be the end."""
        to_coordinator = report_to(self._coordinator, "commits")

        def report(error: str | None) -> None:
            if ended.is_set():
                raise SystemExit  # the attempt has ended, and Ray is shut down next
            to_coordinator(error)

        self._retry, self._pause = StorageRetry(report, ended.wait), ended.wait
        while not ended.is_set():
            try:
                upload = ray.get(self._coordinator.next_upload.remote(_LONG_POLL_S))
                if isinstance(upload, LateMetrics):
                    self._attach(upload)
                elif upload is not None:
                    self._commit(upload)
                else:
                    self._sweep_for_a_new_group()
                    if time.monotonic() >= self._reports_due:
                        self._write_reports_once()
            except ray.exceptions.RayActorError as error:
                log.error("the coordinator has ended: %s", error)
                return  # the driver's own calls fail too, and end the attempt
            except Exception:  # the upload is still the oldest one in the queue: it is retried
                log.exception("a commit was interrupted")
                time.sleep(_LONG_POLL_S)

    def _commit(self, upload: UploadedCheckpoint) -> None:
        self._index += 1
        try:
            # First: a later worker group that restores it continues the table at its step.
            self._retry(self.write_reports)
            committed = self._verified(upload)
            if committed.files:
                self._retry(lambda: manifest.commit(self._bucket, committed))
        except Exception as error:
            # Training continues: the next checkpoint may be committed, and the last one has to be.
            log.exception("the checkpoint of step %d was not committed", upload.step)
            message = f"the checkpoint of step {upload.step} could not be committed: {error}"
            self.failure = StorageError(message)
            ray.get(self._coordinator.abandoned.remote(upload))
            return
        if not committed.files:
            log.warning(
                "the checkpoint of step %d was reported without any file, so it is not committed; "
                "write its files before the report, or report metrics alone",
                upload.step,
            )
            ray.get(self._coordinator.abandoned.remote(upload))
            return
        self.failure = None
        self._note_written(committed, {})
        ray.get(
            self._coordinator.committed.remote(upload, committed, self._bucket.uri(committed.path))
        )
        self.sweep()

    def _attach(self, late: LateMetrics) -> None:
        """Add metrics to the newest checkpoint of their step, which was committed before."""
        try:
            self._retry(lambda: self._add(late))
        except Exception:
            log.exception("metrics of step %d were not added to its checkpoint", late.step)
        ray.get(self._coordinator.attached.remote(late))
        self.sweep()

    def _add(self, late: LateMetrics) -> None:
        # A superseded driver adds nothing: the new one may have made this step's checkpoint again.
        self._lease.require()
        path = self._bucket.key_of(late.path) if late.path is not None else None
        made = [m for m in self.listed() if m.step == late.step and path in (None, m.path)]
        if not made:
            log.warning("metrics of step %d are not kept: no checkpoint is of it", late.step)
            return
        manifest.add_metrics(self._bucket, made[-1].name, self._lease.fencing_token, late.metrics)
        self._note_written(made[-1], late.metrics)

    def _note_written(self, made: Manifest, added: dict[str, Any]) -> None:
        known = self._written.get(made.key)
        metrics = {**(known.metrics if known is not None else {}), **added}
        self._written[made.key] = made.model_copy(update={"files": {}, "metrics": metrics})

    def listed(self) -> list[Manifest]:
        """All committed checkpoints of the run, oldest first.

        Raises:
            NotListedError: The list lacks what this driver has written.
            StorageError: The store did not answer.
        """
        found = manifest.committed(self._bucket)
        retention.require_listed(self._bucket, found, list(self._written.values()))
        return found

    def write_reports(self) -> None:
        """Write what was reported until now to the bucket.

        Raises:
            StorageError: The store does not answer; a later call writes them too. Other errors are
                logged: no checkpoint depends on them.
        """
        self._reports_due = time.monotonic() + _REPORTS_S
        try:
            self._reports.write()
        except Exception as error:
            storage = recognize(error)
            if storage is not None and not storage.lasting:
                raise storage from None
            log.exception("reported metrics were not written")

    def _write_reports_once(self) -> None:
        try:
            self.write_reports()
        except StorageError as error:  # they are written with the next checkpoint
            log.warning("reported metrics were not written: %s", error)

    def _verified(self, upload: UploadedCheckpoint) -> Manifest:
        """The manifest of an upload whose files are all there, as long as their digests say.

        It has no file where none was uploaded, as by code that writes in some epochs alone.

        Raises:
            AbsentError, DamagedError: One is not, also when it was asked for again.
            StorageError: The store did not answer.
        """
        for pause in verification.PAUSES_S:
            try:
                return self._retry(lambda: self._manifest(upload))
            except (AbsentError, DamagedError) as error:
                # One wrong answer, such as a 404 while a server of the store starts, would cost all
                # steps since the checkpoint before.
                log.warning("the store is asked again in %g s: %s", pause, error)
                self._pause(pause)
        return self._retry(lambda: self._manifest(upload))

    def _manifest(self, upload: UploadedCheckpoint) -> Manifest:
        checkpoints = self.checkpoints
        path = self._bucket.key_of(upload.path)
        files = digests(self._bucket, path, upload.ranks)
        if not files:
            # A list may be empty for a proxy's page, and such a checkpoint is given up. So it is
            # asked for again once a list has what is always there.
            self._lease.require()
            files = digests(self._bucket, path, upload.ranks)
        return Manifest(
            path=path,
            step=upload.step,
            world_size=upload.world_size,
            attempt=self._contract.attempt,
            fencing_token=self._lease.fencing_token,
            index=self._index,
            metrics=printable_metrics(upload.metrics, self._contract.needed_metrics),
            files=files,
            time=time.time(),
            group=upload.group,
            session=upload.session,
            best_metric=checkpoints.best_metric,
            best_order=checkpoints.best_order,
        )

    def _sweep_for_a_new_group(self) -> None:
        """Delete what a lost worker group has not uploaded whole, once another one trains.

        Not with its first commit alone, for which a full store may have no room until then.
        """
        if not self._written or time.monotonic() < self._next_sweep:
            return  # without a commit of its own this driver deletes nothing
        group, _ = ray.get(self._coordinator.in_use.remote())
        if group != self._swept_group:
            self._next_sweep = time.monotonic() + _REPORTS_S  # where this one fails
            self.sweep(expire=False)

    def sweep(self, *, at_end: bool = False, expire: bool = True) -> None:
        """Delete what no checkpoint needs, of this driver's uncommitted folders those of worker
        groups before the one that trains; `at_end` none trains any more.

        Committed checkpoints stay without `expire`: a group that begins may restore one of them.
        """
        with self._sweeping:
            try:
                # A superseded driver deletes nothing: the new one may be restoring it.
                self._lease.require()
                group, used = ray.get(self._coordinator.in_use.remote())
                rule = self.checkpoints
                retention.sweep(
                    self._bucket,
                    self._lease.fencing_token,
                    rule if expire else rule.model_copy(update={"keep": sys.maxsize}),
                    {self._bucket.key_of(path) for path in used},
                    self._left,
                    math.inf if at_end else group,
                    self._written,
                )
                self._swept_group = group
            except Exception as error:  # the next sweep removes them
                log.warning("old checkpoints were not removed: %s", error)


def digests(
    bucket: Bucket, path: str, ranks: Collection[int] | None = None
) -> dict[str, FileDigest]:
    """Digests of an uploaded checkpoint's files, as the ranks have computed them before.

    Read back are files of which there are no digests, as of code that uploads by itself, and those
    that several ranks have uploaded with different contents: the last one is what is there. Of all
    others the folder has to have as many bytes as their digests say: an upload that has returned is
    no proof of it.

    Args:
        bucket: The run's folder.
        path: Of the checkpoint's folder.
        ranks: Those that have uploaded a part with digests. None: unknown, the folder is listed.

    Raises:
        AbsentError: A file, or the digests of one of the ranks, is not there.
        DamagedError: A file has another size than its digest says, or digests cannot be read.
    """
    sizes = {entry.key.removeprefix(f"{path}/"): entry.size for entry in bucket.list(path)}
    parts, names = {digest_file(rank) for rank in ranks or ()}, set[str]()
    if ranks is None:
        names = set(sizes)
        parts = {name for name in names if name.startswith(f"{DIGEST_FOLDER}/")}
    known: dict[str, FileDigest] = {}
    different = set()
    for part in sorted(parts):
        content = bucket.get(f"{path}/{part}")
        if content is None:
            raise AbsentError(f"{path}/{part} is missing, with the digests of a rank's files")
        for file, digest in _digests_of(content, f"{path}/{part}").items():
            if known.setdefault(file, digest) != digest:
                different.add(file)
    for file in known.keys() - different:
        # By name, too: whether a list has all objects that were written before depends on the
        # store.
        size = sizes[file] if file in sizes else bucket.size(f"{path}/{file}")
        if size is None:
            raise AbsentError(f"{path}/{file} is missing, though a rank has uploaded it")
        if size != known[file].size:
            raise DamagedError(
                f"{path}/{file} has {size} bytes; a rank has uploaded {known[file].size}"
            )
    read_back = different | (names - parts - known.keys())
    return {**known, **{file: _digest(bucket, f"{path}/{file}") for file in sorted(read_back)}}


def _digests_of(content: bytes, key: str) -> dict[str, FileDigest]:
    try:
        return {file: FileDigest(**digest) for file, digest in json.loads(content).items()}
    except ValueError:  # such as of a body that was cut off
        raise DamagedError(f"{key}, with the digests of a rank's files, cannot be read") from None


def _digest(bucket: Bucket, key: str) -> FileDigest:
    size, digest = 0, blake3()
    for piece in bucket.stream(key):
        size += len(piece)
        digest.update(piece)
    return FileDigest(size, digest.hexdigest())
