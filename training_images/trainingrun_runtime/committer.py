"""Commits checkpoints in Ray's controller: the one place that hears of every rank's upload."""

import json
import logging
import time
from typing import Any

import ray
from ray.train.v2._internal.execution.callback import ReportCallback

from trainingrun.api.contract import RunContract

from . import manifest, retention
from .bucket import Bucket
from .manifest import FileDigest, Manifest
from .seam.training import DIGEST_FOLDER

log = logging.getLogger(__name__)


class Committer(ReportCallback):
    """Writes a checkpoint's manifest once all ranks have uploaded their part.

    Args:
        board: handle of the `Board` actor.
        contract: what the operator said.
        epoch: the lease's epoch.
        base_step: step of the checkpoint that the driver begins from, for training code that
            reports no step of its own.
    """

    def __init__(self, board: Any, contract: RunContract, epoch: int, base_step: int) -> None:
        self._board, self._contract, self._epoch = board, contract, epoch
        self._reports = base_step
        self._index = 0
        self._bucket: Bucket | None = None

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Every rank has reported; with a checkpoint, all of it is uploaded."""
        self._reports += 1
        own = metrics[0] if metrics else {}
        self._board.reported.remote(step_of(own, self._reports), own)
        if training_report.checkpoint is None:
            return
        try:
            self._commit(training_report.checkpoint, metrics)
        except Exception:
            # An exception here would end the run. An uncommitted checkpoint just does not count:
            # the next one does, and a loss meanwhile costs the steps since the former one.
            log.exception("a checkpoint was not committed; training goes on")

    def _commit(self, checkpoint: Any, metrics: list[dict[str, Any]]) -> None:
        storage, checkpoints = self._contract.storage, self._contract.checkpoints
        if self._bucket is None:
            self._bucket = Bucket.open(storage.uri, storage.endpoint, storage.region)
        bucket = self._bucket
        _, root = bucket.pyarrow()
        path = checkpoint.path.removeprefix(root).strip("/")
        own = metrics[0] if metrics else {}
        self._index += 1
        committed = Manifest(
            path=path,
            step=step_of(own, self._reports),
            world_size=len(metrics),
            attempt=self._contract.attempt,
            epoch=self._epoch,
            index=self._index,
            metrics=own,
            files=_digests(bucket, checkpoint, path),
            time=time.time(),
        )
        manifest.commit(bucket, committed)
        ray.get(self._board.committed.remote(committed, bucket.uri(path)))
        best = retention.wanted(checkpoints)
        retention.sweep(bucket, self._epoch, checkpoints.keep, best)


def step_of(metrics: dict[str, Any], reports: int) -> int:
    """The step that plain training code means: its own count where it reports one."""
    for name in ("step", "global_step", "training_iteration", "epoch"):
        value = metrics.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return reports


def _digests(bucket: Bucket, checkpoint: Any, path: str) -> dict[str, FileDigest]:
    """Digests of a checkpoint's files: the ranks' own, made before the upload.

    Code that uploads by itself leaves none; its files are then read back once.
    """
    found: dict[str, FileDigest] = {}
    prefix = f"{path}/"
    for entry in bucket.list(path):
        name = entry.key.removeprefix(prefix)
        if name.startswith(f"{DIGEST_FOLDER}/"):
            part = json.loads(bucket.get(entry.key) or b"{}")
            found.update({file: FileDigest(**digest) for file, digest in part.items()})
    if found:
        return found
    with checkpoint.as_directory() as folder:
        return manifest.digest_folder(folder)
