"""A trial of a sweep: in a process of Ray Tune's it does what the driver does for a run.

It has a folder of its own in the bucket, a coordinator, a committer and a progress document of its
own. Its contract says nothing of the sweep; its fencing token is that of the run's lease.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from trainingrun_protocol.contract import STATE_DIRECTORY_ENV, RunContract

from ..coordinator.coordinator import trial_coordinator
from ..driver import run_settings
from ..driver.attempt import Attempt, failure_of, start_imports
from ..progress.document import Documents
from ..store import lease, manifest, restore_source, run_result
from ..store.bucket import Bucket
from ..store.lease import Lease, LossHistory, Superseded
from ..store.reported_metrics import number_of
from ..store.storage_retry import StorageRetry
from .schedulers import STEP, VALUE

log = logging.getLogger(__name__)

POLL_S = 0.25


@dataclass(kw_only=True)
class TrialLease(Lease):
    """A trial's lease: the run's own fencing token, in the trial's folder.

    It is held as long as the driver holds the run. Its object has the trial's losses, and is what a
    result in that folder is valid by.
    """

    run: Lease
    """The driver's lease of the run."""

    @classmethod
    def of(cls, run: Lease, bucket: Bucket) -> "TrialLease":
        """Take a trial over for the driver that holds the run.

        Raises:
            Superseded: A later driver holds the run.
            StorageError: The store did not answer.
        """
        run.require()
        former = lease.newest_document(bucket)
        # A drained head has its trials save, and renews no lease of theirs after that.
        saved = max((one.step for one in manifest.committed(bucket)), default=-1)
        found = cls(
            bucket=bucket,
            fencing_token=run.fencing_token,
            attempt=run.attempt,
            holder=run.holder,
            taken=time.time(),
            nonce=run.nonce,
            history=LossHistory.of_next_driver(former.get("history"), saved),
            run=run,
        )
        found.renew(found.taken)
        return found

    def require(self) -> None:
        """Raise unless the driver still holds the run; see `Lease.require`."""
        self.run.require()


@dataclass(frozen=True)
class TrialJob:
    """What a trial's process needs."""

    contract: RunContract
    """The trial's contract."""
    run: Lease
    """The driver's lease of the run."""
    state_directory: str
    """The driver's, which has the file that asks for a suspension."""
    document: str
    """Where the trial writes its progress document."""


@dataclass(frozen=True)
class JobFolder:
    """A folder of the head's pod by which the driver gives jobs to the trials' processes.

    A job is not known before its trial begins, and Ray Tune would write it into its own files. This
    object is sent through Ray instead.
    """

    path: Path
    """Has a contract and a document for each trial that has begun."""
    run: Lease
    """The driver's lease of the run."""
    state_directory: str
    """The driver's."""

    def write(self, name: str, contract: RunContract) -> TrialJob:
        """A trial begins: leave its contract for its process, under a name of its own."""
        (self.path / f"{name}.contract").write_text(contract.model_dump_json(by_alias=True))
        return self._job(name, contract)

    def read(self, name: str) -> TrialJob:
        """The job that was written there."""
        content = (self.path / f"{name}.contract").read_bytes()
        return self._job(name, RunContract.model_validate_json(content))

    def _job(self, name: str, contract: RunContract) -> TrialJob:
        document = str(self.path / f"{name}.json")
        return TrialJob(contract, self.run, self.state_directory, document)


def train(job: TrialJob, report: Callable[[dict[str, Any]], Any]) -> None:
    """Train the trial to its end, whatever that is; its document says it.

    Args:
        job: what to train.
        report: called with steps and metric whenever the training has reported the metric.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    os.environ[STATE_DIRECTORY_ENV] = job.state_directory
    os.environ.update(job.contract.identity())
    thread = threading.Thread(target=_drive, args=(job,), name="trial", daemon=True)
    thread.start()
    reported: tuple[int, Any] | None = None
    while True:
        thread.join(POLL_S)
        if not thread.is_alive():
            return
        found = _rating(job.contract)
        if found is not None and found != reported:
            reported = found
            report({STEP: found[0], VALUE: number_of(found[1])})


def _rating(contract: RunContract) -> tuple[int, Any] | None:
    if contract.trial is None:
        return None
    try:
        coordinator = ray.get_actor(trial_coordinator(contract.trial))
        found: tuple[int, Any] | None = ray.get(coordinator.rating.remote(), timeout=10)
    except (ValueError, ray.exceptions.RayError):  # it does not run yet, or no longer
        return None
    return found


def _drive(job: TrialJob) -> None:
    contract, started = job.contract, time.time()
    documents = Documents(contract.attempt, Path(job.document))
    try:
        storage = contract.storage
        bucket = Bucket.open(storage.uri, storage.endpoint, storage.region)
        retry = StorageRetry(documents.waiting)
        done = retry(lambda: run_result.read(bucket))
        if done is not None:
            # The driver was lost before it had noted this.
            documents.succeeded(done)
            return
        imports = start_imports()
        lease = retry(lambda: TrialLease.of(job.run, bucket))
        run_settings.write(lease, contract)
        committed = retry(lambda: manifest.committed(bucket))
        source = contract.restore_from
        if source is not None and not committed:
            retry(lambda: restore_source.choose(bucket, source))
        attempt = Attempt(contract, lease, started, documents, committed, imports)
    except Superseded as error:
        log.error("%s", error)
        return
    except Exception as error:
        documents.failed(failure_of(error))
        log.exception("the trial did not start")
        return
    try:
        attempt.run()
    except Superseded as error:
        log.error("%s", error)
    except Exception as error:
        log.exception("the trial ended with an unexpected error")
        attempt.fail(failure_of(error))
