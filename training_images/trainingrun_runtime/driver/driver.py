"""The driver: takes the run's lease, trains, and reports the outcome as its exit code."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import ray
from pydantic import ValidationError

from trainingrun_protocol.contract import CONTRACT_ENV, ContractSweep, RunContract
from trainingrun_protocol.exit_codes import DONE_EXIT_CODE, FAILED_EXIT_CODE, LEASE_LOST_EXIT_CODE
from trainingrun_protocol.progress import Failure, RunState

from .. import stacks
from ..output import announced
from ..progress.document import Documents, report_unusable_image
from ..progress.process_start import process_began
from ..store import manifest, restore_source, run_result
from ..store.bucket import Bucket
from ..store.bucket_check import check
from ..store.lease import Lease, Superseded
from ..store.storage_retry import StorageRetry
from ..worker import user_code
from ..worker.user_code import UserCode
from . import run_page, run_settings
from .attempt import Attempt, failure_of, start_imports

log = logging.getLogger(__name__)


class Running(Protocol):
    """An attempt, or that of a sweep."""

    def run(self) -> int:
        """Trains to the end; the process's exit code."""
        ...

    def fail(self, failure: Failure) -> None:
        """Ends it with this failure."""
        ...


StartSweep = Callable[[RunContract, ContractSweep, Lease, float, Documents], Running]
"""Of a contract with a sweep, the sweep, the lease, the driver's start in Unix time, and the final
documents."""


def main(start_sweep: StartSweep) -> int:
    """Run one attempt, or by `start_sweep` that of a sweep; the process's exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    stacks.log_on_signal()
    started = time.time()
    times = {"process": process_began(started), "main": started}
    try:
        contract = RunContract.model_validate_json(os.environ[CONTRACT_ENV])
    except ValidationError as error:
        return report_unusable_image(_of_other_version(error))
    # Requirements may replace what is imported, so that it is not imported before them.
    imports = None if contract.requirements else start_imports()
    os.environ.update(contract.identity())
    with suppress(OSError):
        announced.announce(contract, announced.own_files())
    final = Documents(contract.attempt)
    attempt: Running | None = None
    lease: Lease | None = None
    try:
        storage = contract.storage
        bucket = Bucket.open(storage.uri, storage.endpoint, storage.region)
        retry = StorageRetry(final.waiting)
        retry(lambda: check(bucket))
        done = retry(lambda: run_result.read(bucket))
        if done is not None:
            # The head was lost before the operator read the result: report it again.
            final.succeeded(done)
            return DONE_EXIT_CODE
        holder = os.environ.get("POD_NAME", "")
        lease = taken = retry(lambda: Lease.take(bucket, contract.attempt, holder, started))
        times["lease"] = time.time()
        done = retry(lambda: run_result.adopt(taken))
        if done is not None:
            final.succeeded(done)
            return DONE_EXIT_CODE
        committed = retry(lambda: manifest.committed(bucket))
        source = contract.restore_from
        if source is not None and not committed:
            # A wrong folder or step is known before Ray's workers start; rank 0 reads the files.
            retry(lambda: restore_source.choose(bucket, source))
        code = user_code.prepare(contract, bucket, retry)
        if code is not None:
            code.enter()
        run_settings.write(lease, contract)
        imports = imports or start_imports()
        _connect(code)
        times["connected"] = time.time()
        if contract.sweep is not None:
            attempt = start_sweep(contract, contract.sweep, lease, started, final)
        else:
            attempt = Attempt(contract, lease, started, final, committed, imports, times)
        return attempt.run()
    except Superseded as error:
        log.error("%s", error)
        return LEASE_LOST_EXIT_CODE
    except Exception as error:
        log.exception(
            "the attempt %s", "did not start" if attempt is None else "ended unexpectedly"
        )
        if attempt is not None:
            attempt.fail(failure_of(error))
        else:
            _fail_before_it_began(contract, failure_of(error), lease, final)
        return FAILED_EXIT_CODE


def _of_other_version(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return (
        f"this image cannot use {'.'.join(map(str, first['loc'])) or 'the contract'} as the "
        f"operator writes it ({first['msg']}), since one of them is of another version; use the "
        "training image of the operator's version"
    )


def _fail_before_it_began(
    contract: RunContract, failure: Failure, lease: Lease | None, final: Documents
) -> None:
    uri = None
    if lease is not None and failure.kind != "Storage":
        run_settings.write(lease, contract).join(run_page.TIMEOUT_S)
        token = lease.fencing_token
        ended = final.document(RunState.FAILED, failure=failure, fencing_token=token)
        uri = run_page.write(lease, contract.name, ended)
    final.failed(failure, uri)


def _connect(code: UserCode | None) -> None:
    ray.init(
        address=os.environ.get("RAY_ADDRESS", "auto"),
        namespace="trainingrun",
        log_to_driver=True,
        configure_logging=False,
        runtime_env=code.runtime_environment() if code else None,
    )
