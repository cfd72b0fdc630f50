"""The driver: takes the run's lease, trains until done, and says how it ended by its exit code."""

import json
import logging
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray

from trainingrun.api.contract import (
    CONTRACT_ENV,
    LEASE_LOST_EXIT_CODE,
    PROGRESS_FILE,
    SUSPEND_EXIT_CODE,
    SUSPEND_FILE,
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RunContract,
    RunState,
)

from . import board as board_module
from . import manifest, progress_document, result, retention
from .bucket import Bucket
from .lease import Lease, Superseded
from .notice import Notice, NoticeWatcher, state_folder
from .storage_error import StorageError

log = logging.getLogger(__name__)

DONE, FAILED = 0, 1
LEASE_LOOK_S = 3.0
LEASE_RENEW_S = 10.0


def main() -> int:
    """Run one attempt; the process's exit code.

    0: done. 1: failed, `failure` of the progress document says why. 3: another driver holds the
    run. 75: suspended.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    started = time.time()
    contract = RunContract.model_validate_json(os.environ[CONTRACT_ENV])
    document = state_folder() / PROGRESS_FILE
    try:
        bucket = Bucket.open(
            contract.storage.uri, contract.storage.endpoint, contract.storage.region
        )
        bucket.check()
        done = result.read(bucket)
        if done is not None:
            # The head was lost after the end and before anyone read it: say it again.
            _write_final(document, contract, RunState.SUCCEEDED, result=done)
            return DONE
        lease = Lease.take(bucket, contract.attempt, os.environ.get("POD_NAME", ""), started)
    except StorageError as error:
        failure = Failure(kind="Storage", message=str(error))
        _write_final(document, contract, RunState.FAILED, failure=failure)
        log.error("%s", error)
        return FAILED
    except Superseded as error:
        log.error("%s", error)
        return LEASE_LOST_EXIT_CODE
    return _Attempt(contract, bucket, lease, started, document).run()


def _write_final(document: Path, contract: RunContract, state: RunState, **facts: Any) -> None:
    progress = Progress(attempt=contract.attempt, state=state, time=time.time(), **facts)
    progress_document.write(document, progress)


class _Attempt:
    """One driver's hold on the run, from the lease to the exit code."""

    def __init__(
        self, contract: RunContract, bucket: Bucket, lease: Lease, started: float, document: Path
    ) -> None:
        self._contract, self._bucket, self._lease = contract, bucket, lease
        newest = next(reversed(manifest.committed(bucket)), None)
        self._base_step = newest.step if newest else 0
        checkpoint = (
            LastCheckpoint(uri=bucket.uri(newest.path), step=newest.step, time=newest.time)
            if newest
            else None
        )
        ray.init(
            address=os.environ.get("RAY_ADDRESS", "auto"),
            namespace="trainingrun",
            log_to_driver=True,
            configure_logging=False,
        )
        self._board = board_module.start(contract, lease.epoch, started, document, checkpoint)
        self._watcher = NoticeWatcher(self._head_leaves)
        self._ended = threading.Event()

    def run(self) -> int:
        """Train; the exit code."""
        for work in (self._keep_lease, self._watch_orders):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        self._watcher.start()
        try:
            error = self._train()
        finally:
            self._ended.set()
            self._watcher.stop()
        return self._conclude(error)

    def _train(self) -> BaseException | None:
        """Run the function or the script; what it raised."""
        from .trainer import Trainers  # imports torch: after the lease, beside the board's start

        trainers = Trainers(self._contract, self._board, self._bucket, self._lease, self._base_step)
        try:
            if self._contract.script is not None:
                trainers.intercept()
                self._run_script(self._contract.script)
            else:
                trainers.fit_function()
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and not error.code:
                return None
            return error
        return None

    def _run_script(self, script: str) -> None:
        path = Path(script)
        os.environ.setdefault("TRAININGRUN_CONFIG", json.dumps(self._contract.config))
        sys.argv = [str(path)]
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name="__main__")

    def _conclude(self, error: BaseException | None) -> int:
        board = self._board
        if error is None:
            committed = manifest.committed(self._bucket)
            newest = committed[-1] if committed else None
            best = retention.best_of(committed, retention.wanted(self._contract.checkpoints))
            final = ProgressResult(
                metrics=newest.metrics if newest else {},
                checkpoint_uri=self._bucket.uri(newest.path) if newest else None,
                best_checkpoint_uri=self._bucket.uri(best.path) if best else None,
            )
            # The bucket first: a head that is lost right now then still ends the run as done.
            final = ray.get(board.complete.remote(final))
            result.write(self._bucket, final)
            ray.get(board.succeeded.remote(final))
            return DONE
        from ray.train import TrainingFailedError

        from .failures import Blame, first_line, judge

        if isinstance(error, TrainingFailedError) and judge(error).blame is Blame.SUSPENDED:
            ray.get(board.suspended.remote())
            return SUSPEND_EXIT_CODE
        log.error("training failed", exc_info=error)
        # The policy in Ray's controller has told the board already; this is for what failed here.
        kind = "Infrastructure" if isinstance(error, ray.exceptions.RayError) else "Application"
        message = f"{type(error).__name__}: {first_line(error)}"
        ray.get(board.failed.remote(Failure(kind=kind, message=message)))
        return FAILED

    def _keep_lease(self) -> None:
        """Renew the lease; end this process at once when another driver holds the run."""
        renewed = time.monotonic()
        while not self._ended.wait(LEASE_LOOK_S):
            try:
                if not self._lease.held():
                    log.error("another driver took over this run; this one ends")
                    # Without unwinding: it may no longer write anything.
                    os._exit(LEASE_LOST_EXIT_CODE)
                if time.monotonic() - renewed >= LEASE_RENEW_S:
                    self._lease.renew(time.time())
                    renewed = time.monotonic()
            except StorageError as error:
                # Unknown is not lost. Without the bucket nothing can be committed either.
                log.warning("the lease cannot be checked: %s", error)

    def _watch_orders(self) -> None:
        suspend = state_folder() / SUSPEND_FILE
        while not self._ended.wait(0.25):
            if suspend.exists():
                self._board.order.remote(board_module.SUSPEND)
                return

    def _head_leaves(self, notice: Notice) -> None:
        """The head pod has its notice: save what there is before Ray goes with it."""
        before, _ = ray.get(self._board.commits.remote())
        self._board.order.remote(board_module.LEAVE)
        while time.time() < notice.deadline:
            commits, _ = ray.get(self._board.commits.remote())
            if commits > before:
                break
            time.sleep(0.1)
        self._watcher.saved()
