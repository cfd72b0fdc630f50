"""The driver: takes the run's lease, trains until done, and says how it ended by its exit code."""

import json
import logging
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

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

from .checkpoints import manifest, retention, run_result
from .checkpoints.bucket import Bucket
from .checkpoints.committer import Committer
from .checkpoints.manifest import Manifest
from .checkpoints.storage_errors import StorageError, recognize
from .checkpoints.storage_retry import Patience, told_to
from .coordination import coordinator as board_module
from .coordination.lease import Lease, Superseded
from .coordination.preemption_notice import Notice, NoticeWatcher, state_folder
from .error_text import first_line
from .progress import document as progress_document

log = logging.getLogger(__name__)

DONE, FAILED = 0, 1
LEASE_LOOK_S = 3.0
LEASE_RENEW_S = 10.0
COMMITS_AFTER_FAILURE_S = 60.0
"""For how long a failed attempt still waits for the commits of what was uploaded."""
BOARD_TIMEOUT_S = 30.0
THREADS_END_S = 60.0
"""More than the longest request to the store."""


def main() -> int:
    """Run one attempt; the process's exit code.

    0: done. 1: failed, `failure` of the progress document says why. 3: another driver holds the
    run. 75: suspended.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    started = time.time()
    contract = RunContract.model_validate_json(os.environ[CONTRACT_ENV])
    final = _Documents(contract, started)
    try:
        storage = contract.storage
        bucket = Bucket.open(storage.uri, storage.endpoint, storage.region)
        patience = Patience(final.waiting)
        patience(bucket.check)
        done = patience(lambda: run_result.read(bucket))
        if done is not None:
            # The head was lost after the end and before anyone read it: say it again.
            final.succeeded(done)
            return DONE
        holder = os.environ.get("POD_NAME", "")
        lease = patience(lambda: Lease.take(bucket, contract.attempt, holder, started))
        done = patience(lambda: run_result.adopt(lease))
        if done is not None:
            final.succeeded(done)
            return DONE
        committed = patience(lambda: manifest.committed(bucket))
        attempt = _Attempt(contract, lease, started, final, committed)
    except Superseded as error:
        log.error("%s", error)
        return LEASE_LOST_EXIT_CODE
    except Exception as error:
        final.failed(_failure_of(error))
        log.exception("the attempt did not begin")
        return FAILED
    try:
        return attempt.run()
    except Superseded as error:
        log.error("%s", error)
        return LEASE_LOST_EXIT_CODE
    except Exception as error:
        log.exception("the attempt did not end as it should")
        attempt.give_up(_failure_of(error))
        return FAILED


def _failure_of(error: BaseException) -> Failure:
    """What an error that no training code raised means."""
    storage = recognize(error)
    if storage is not None:
        return Failure(kind="Storage", message=str(storage))
    return Failure(kind="Infrastructure", message=f"{type(error).__name__}: {first_line(error)}")


def _refuse_silent_success() -> None:
    """Have `os._exit(0)` in a script end this process as failed: 0 means that the run is done."""
    leave, driver = os._exit, os.getpid()

    def refusing(code: int) -> NoReturn:
        leave(code if code or os.getpid() != driver else FAILED)  # a forked child ends as it likes

    os._exit = refusing


class _Documents:
    """The progress documents of a driver that has no board: before it has begun, or after."""

    def __init__(self, contract: RunContract, started: float) -> None:
        self.path = state_folder() / PROGRESS_FILE
        self._attempt, self._started = contract.attempt, started
        self._waiting_since: float | None = None

    def waiting(self, trouble: str | None) -> None:
        """The store does not do what it is asked, or it does again."""
        since = (self._waiting_since or time.time()) if trouble else None
        self._waiting_since = since
        self._write(RunState.STARTING, storage_error=trouble, storage_error_since=since)

    def succeeded(self, done: ProgressResult) -> None:
        """The run is done."""
        self._write(RunState.SUCCEEDED, result=done)

    def suspended(self) -> None:
        """The driver ends because it was asked to."""
        self._write(RunState.SUSPENDED)

    def failed(self, failure: Failure) -> None:
        """The driver gives up."""
        self._write(RunState.FAILED, failure=failure)

    def _write(self, state: RunState, **facts: Any) -> None:
        progress = Progress(attempt=self._attempt, state=state, time=time.time(), **facts)
        progress_document.write(self.path, progress)


class _Attempt:
    """One driver's hold on the run, from the lease to the exit code."""

    def __init__(
        self,
        contract: RunContract,
        lease: Lease,
        started: float,
        documents: _Documents,
        committed: list[Manifest],
    ) -> None:
        self._documents = documents
        self._contract, self._lease, self._bucket = contract, lease, lease.bucket
        newest = committed[-1] if committed else None
        self._base_step = newest.step if newest else 0
        checkpoint = (
            LastCheckpoint(uri=self._bucket.uri(newest.path), step=newest.step, time=newest.time)
            if newest
            else None
        )
        ray.init(
            address=os.environ.get("RAY_ADDRESS", "auto"),
            namespace="trainingrun",
            log_to_driver=True,
            configure_logging=False,
        )
        self._board = board_module.start(contract, lease.epoch, started, documents.path, checkpoint)
        self._patience = Patience(told_to(self._board, "driver"))
        self._committer = Committer(self._board, contract, lease)
        self._watcher = NoticeWatcher(self._head_leaves)
        self._ended = threading.Event()

    def run(self) -> int:
        """Train; the exit code.

        Raises:
            Superseded: another driver holds the run.
        """
        threads = [
            threading.Thread(target=work, name=work.__name__, daemon=True)
            for work in (self._keep_lease, self._watch_orders)
        ]
        for thread in threads:
            thread.start()
        self._committer.start()
        self._watcher.start()
        try:
            return self._conclude(self._train())
        finally:
            self._ended.set()
            self._committer.stop()
            self._watcher.stop()
            # Whoever asks Ray for something after it was shut down ends the process with 1.
            for thread in threads:
                thread.join(THREADS_END_S)

    def give_up(self, failure: Failure) -> None:
        """Say that the attempt failed; where the board said so before, its reason stays."""
        self._say(self._board.failed.remote(failure), lambda: self._documents.failed(failure))

    def _say(self, told: Any, otherwise: Callable[[], None]) -> None:
        """Have the board write the final document, or write it without the board."""
        try:
            ray.get(told, timeout=BOARD_TIMEOUT_S)
        except Exception:
            log.exception("the board cannot be told")
            otherwise()

    def _train(self) -> BaseException | None:
        """Run the function or the script; what it raised, or what became of its `fit()`.

        What `fit` did decides: code that catches its exception and returns has not trained.
        """
        from .trainer import Trainers  # imports torch: after the lease, beside the board's start

        trainers = Trainers(self._contract, self._board, self._bucket, self._lease, self._base_step)
        fit = trainers.intercept()
        try:
            if self._contract.script is not None:
                self._run_script(self._contract.script)
            else:
                trainers.fit_function()
        except (Exception, SystemExit) as error:
            if not isinstance(error, SystemExit) or error.code:
                return fit.error or error
        if fit.error is None and not fit.succeeded:
            did = "while fit() still ran" if fit.begun else "without calling fit()"
            return RuntimeError(
                f"the script ended {did}, so nothing is trained; call fit() of a Ray Train trainer "
                "at the script's top level, where it runs as __main__, and let it return"
            )
        return fit.error

    def _run_script(self, script: str) -> None:
        path = Path(script)
        os.environ.setdefault("TRAININGRUN_CONFIG", json.dumps(self._contract.config))
        sys.argv = [str(path)]
        sys.path.insert(0, str(path.parent))
        _refuse_silent_success()
        runpy.run_path(str(path), run_name="__main__")

    def _conclude(self, error: BaseException | None) -> int:
        """Make bucket, document and exit code say the same; the exit code.

        In this order, so that a head that is lost between two lines leaves what is true: the
        checkpoint is committed, then the result, then the document, then the process ends.
        """
        board = self._board
        if error is None:
            self._committer.drain()
            if self._committer.failure is not None:
                raise self._committer.failure
            final = ray.get(board.complete.remote(self._result()))
            written = self._patience(lambda: run_result.write(self._lease, final))
            self._say(board.succeeded.remote(written), lambda: self._documents.succeeded(written))
            return DONE
        from ray.train import TrainingFailedError

        from .failure_causes import Blame, judge

        if isinstance(error, TrainingFailedError) and judge(error).blame is Blame.SUSPENDED:
            self._committer.drain()
            if self._committer.failure is not None:
                raise self._committer.failure
            self._patience(self._lease.require)
            self._say(board.suspended.remote(), self._documents.suspended)
            return SUSPEND_EXIT_CODE
        log.error("training failed", exc_info=error)
        self._committer.drain(COMMITS_AFTER_FAILURE_S)
        # The policy in Ray's controller has told the board already; this is for what failed here.
        failure = _failure_of(error)
        outside = isinstance(error, ray.exceptions.RayError | TrainingFailedError)
        if failure.kind == "Infrastructure" and not outside:
            failure = failure.model_copy(update={"kind": "Application"})
        self.give_up(failure)
        return FAILED

    def _result(self) -> ProgressResult:
        committed = self._patience(lambda: manifest.committed(self._bucket))
        newest = committed[-1] if committed else None
        best = retention.best_of(committed, retention.wanted(self._contract.checkpoints))
        return ProgressResult(
            metrics=newest.metrics if newest else {},
            checkpoint_uri=self._bucket.uri(newest.path) if newest else None,
            best_checkpoint_uri=self._bucket.uri(best.path) if best else None,
        )

    def _keep_lease(self) -> None:
        """Renew the lease; end this process at once when another driver holds the run."""
        renewed = time.monotonic()
        tell = told_to(self._board, "lease")
        while not self._ended.wait(LEASE_LOOK_S):
            try:
                if not self._lease.held():
                    log.error("another driver took over this run; this one ends")
                    # Without unwinding: it may no longer write anything.
                    os._exit(LEASE_LOST_EXIT_CODE)
                if time.monotonic() - renewed >= LEASE_RENEW_S:
                    self._lease.renew(time.time())
                    renewed = time.monotonic()
                trouble = None
            except StorageError as error:
                # Unknown is not lost. Without the bucket nothing can be committed either.
                log.warning("the lease cannot be checked: %s", error)
                trouble = str(error)
            if not self._ended.is_set():
                tell(trouble)

    def _watch_orders(self) -> None:
        suspend = state_folder() / SUSPEND_FILE
        while not self._ended.wait(0.25):
            if suspend.exists():
                self._board.order.remote(board_module.SUSPEND)
                return

    def _head_leaves(self, notice: Notice) -> None:
        """The head pod has its notice: save what there is before Ray goes with it."""
        before = ray.get(self._board.commits.remote())
        self._board.order.remote(board_module.LEAVE)
        while time.time() < notice.deadline:
            if ray.get(self._board.commits.remote()) > before:
                break
            time.sleep(0.1)
        self._watcher.saved()
