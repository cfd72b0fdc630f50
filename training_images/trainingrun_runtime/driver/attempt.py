"""One attempt to train, from the lease to the exit code, and what it reports meanwhile."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ray

from trainingrun_protocol.contract import RunContract
from trainingrun_protocol.exit_codes import DONE_EXIT_CODE, FAILED_EXIT_CODE, SUSPEND_EXIT_CODE
from trainingrun_protocol.failure_rules import ContractRule, FailureFacts
from trainingrun_protocol.progress import (
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RunState,
)

from .. import stacks
from ..coordinator.checkpoints import Command
from ..coordinator.coordinator import start_coordinator
from ..error_text import first_line, in_words, text_of, trace_of
from ..imports import BackgroundImports
from ..known_errors.remedies import explained
from ..progress.document import Documents
from ..store import (
    last_progress,
    loss_documents,
    retention,
    run_result,
    start_traces,
)
from ..store.lease import Lease, Superseded
from ..store.manifest import Manifest
from ..store.metrics_writer import ReportWriter
from ..store.reported_metrics import Batch
from ..store.restore_source import NothingToRestore
from ..store.storage_errors import StorageError, recognize
from ..store.storage_retry import StorageRetry, report_to
from ..worker import prestarted_worker, user_code
from ..worker.preemption_notice import PreemptionNotice, PreemptionNoticeWatcher
from . import run_page, script
from .background import Background, keep_lease, keep_progress, watch_suspend_request
from .committer import Committer
from .document_writer import DocumentWriter

log = logging.getLogger(__name__)

COMMITS_AFTER_FAILURE_S = 60.0
"""Seconds for which a failed attempt waits for the commits of uploaded checkpoints."""
FAREWELL_S = 10.0
"""Seconds for which a driver that has ended tries to say so in its lease."""
FAREWELL_AGAIN_S = 1.0
"""Seconds between two tries."""
COORDINATOR_TIMEOUT_S = 30.0


def start_imports() -> BackgroundImports:
    """Import what `fit()` needs, in a thread."""
    return BackgroundImports("ray.train", "ray.train.torch")


def failure_of(error: BaseException) -> Failure:
    """The failure for an error that was not raised by training code."""
    if isinstance(error, script.ArgumentsRefused):
        return Failure(kind="Application", message=str(error), retry="Never")
    if isinstance(error, NothingToRestore):
        return Failure(kind="Application", message=str(error), retry="UnlessRepeated")
    if isinstance(error, user_code.CodeError | user_code.Uninstallable):
        return Failure(kind="Application", message=str(error))
    if isinstance(error, user_code.IndexSilent):
        return Failure(kind="Infrastructure", message=str(error))
    storage = recognize(error)
    if storage is not None:
        return Failure(kind="Storage", message=str(storage))
    name = type(error).__name__
    # Those of Ray pass the script too, where it calls `fit()`.
    place = None if type(error).__module__.startswith("ray") else stacks.raised_at(error)
    where = f" ({place})" if place else ""
    return Failure(kind="Infrastructure", message=f"{name}: {explained(error, where)}")


def facts_of(rules: Sequence[ContractRule], error: BaseException, message: str) -> FailureFacts:
    """What failures.rules ask for, of an error that no rank has raised."""
    from ..known_errors.failure_causes import exit_codes
    from .failure_rules import matched

    kind = type(error).__name__
    return FailureFacts(
        reasons=[kind],
        exit_codes=list(exit_codes(kind, text_of(error))),
        matched=matched(rules, message, ()),
    )


def _traceback(error: BaseException) -> str:
    """Of the error itself, as Python prints it."""
    shown = error.raised if isinstance(error, script.FailedAfterTraining) else error
    return trace_of(shown)


class Attempt:
    """One attempt to train a run or a trial of a sweep, from the lease to the exit code.

    Args:
        contract: the operator's settings of this attempt.
        lease: this driver's.
        started: Unix time at which the driver started.
        documents: the final documents.
        committed: the run's checkpoints.
        imports: of what `fit()` needs.
        times: when this process was where; see `store.start_traces.DRIVER_MARKS`.
    """

    def __init__(
        self,
        contract: RunContract,
        lease: Lease,
        started: float,
        documents: Documents,
        committed: list[Manifest],
        imports: BackgroundImports,
        times: Mapping[str, float] | None = None,
    ) -> None:
        self._documents, self._imports = documents, imports
        self._contract, self._lease, self._bucket = contract, lease, lease.bucket
        newest = committed[-1] if committed else None
        checkpoint = (
            LastCheckpoint(uri=self._bucket.uri(newest.path), step=newest.step, time=newest.time)
            if newest
            else None
        )
        self._coordinator = start_coordinator(
            contract,
            lease.fencing_token,
            started,
            documents.path,
            checkpoint,
            lease.history,
            lease.lost,
        )
        if times:
            pod = os.environ.get("POD_NAME", "")
            self._coordinator.driver_times.remote(times, pod, os.getpid())
        self._loss_writer = DocumentWriter(
            self._coordinator.losses.remote, partial(loss_documents.write, self._bucket)
        )
        self._trace_writer = DocumentWriter(
            self._coordinator.start_traces.remote, partial(start_traces.write, self._bucket)
        )
        self._retry = StorageRetry(report_to(self._coordinator, "driver"))
        reports = ReportWriter(self._bucket, lease.fencing_token, contract.attempt, self._rows)
        self._background = Background()
        self._committer = Committer(self._coordinator, contract, lease, reports)
        self._watcher = PreemptionNoticeWatcher(self._checkpoint_on_notice)

    def run(self) -> int:
        """Train; the exit code.

        Raises:
            Superseded: another driver holds the run.
        """
        coordinator, retries = self._coordinator, report_to(self._coordinator, "lease")
        suspend = partial(coordinator.request.remote, Command.SUSPEND)
        self._background.start(
            lease=partial(keep_lease, self._lease, self._renew_lease, retries),
            suspend=partial(watch_suspend_request, suspend),
            committer=self._committer.run,
            losses=self._loss_writer.run,
            traces=self._trace_writer.run,
            hangs=self._watch_for_hangs,
            progress=partial(keep_progress, self._keep_progress),
        )
        if self._contract.trial is None:
            self._background.start(
                prestart=lambda _: prestarted_worker.prestart_all(
                    coordinator, self._imports, self._contract.resources_per_worker
                )
            )
            # The head's notice is for all trials of a sweep, and their driver answers it.
            self._watcher.start()
        try:
            return self._conclude(self._train())
        finally:
            self._background.ended.set()
            self._watcher.stop()
            self._background.join()
            self._loss_writer.write()
            self._trace_writer.write()

    def _watch_for_hangs(self, ended: threading.Event) -> None:
        from ..hangs.hang_watch import HangWatch  # Ray Train, for which no start waits

        HangWatch(self._coordinator, self._contract, self._bucket).run(ended)

    def fail(self, failure: Failure) -> None:
        """Report that the attempt failed; a reason that was reported before is kept."""
        if failure.kind != "Storage":
            self._write_page(RunState.FAILED, failure=failure)
        self._write_final(
            self._coordinator.failed.remote(failure), lambda: self._documents.failed(failure)
        )
        self._loss_writer.write()
        self._say_in_lease_that_it_ended()

    def _rows(self, seen: int) -> list[Batch]:
        rows = self._coordinator.rows.remote(seen)
        return list(ray.get(rows, timeout=COORDINATOR_TIMEOUT_S))

    def _write_final(self, call: Any, otherwise: Callable[[], None]) -> None:
        """Have the coordinator write the final document; if the call fails, write it here."""
        try:
            ray.get(call, timeout=COORDINATOR_TIMEOUT_S)
        except Exception:
            log.exception("the coordinator did not write the final document")
            otherwise()

    def _progress(self) -> Progress:
        document = self._coordinator.document.remote()
        found: Progress = ray.get(document, timeout=COORDINATOR_TIMEOUT_S)
        return found

    def _keep_progress(self) -> None:
        last_progress.write(self._bucket, self._progress())

    def _write_page(self, state: RunState, **outcome: Any) -> None:
        """Write the page of the run, before the document that says that this driver has ended.

        It is for people: whatever keeps it from being written changes nothing else. How the driver
        ends is in its document before: the page takes memory, for want of which the head may end.
        """
        try:
            told = self._coordinator.concluding.remote(**outcome)
            ray.get(told, timeout=COORDINATOR_TIMEOUT_S)
            progress = self._progress()
            # The reason that was reported first is kept.
            update = {"state": state, **outcome}
            update |= {"failure": progress.failure} if progress.failure is not None else {}
            ended = progress.model_copy(update=update)
            uri = run_page.write(self._lease, self._page_name, ended)
            if uri is not None:
                written = self._coordinator.page_written.remote(uri)
                ray.get(written, timeout=COORDINATOR_TIMEOUT_S)
        except Exception as error:
            log.warning("the page of the run was not written: %s", first_line(error))

    @property
    def _page_name(self) -> str:
        trial = self._contract.trial
        return f"{self._contract.name}, trial {trial.number}" if trial else self._contract.name

    def _train(self) -> BaseException | None:
        """Run the function or the script; returns the error of its `fit()`, None: it succeeded.

        The outcome of `fit` decides: code that catches its exception and returns has not trained.
        """
        try:
            self._imports.wait("ray.train.torch")
        except ImportError as error:
            if self._contract.script is None:
                return error  # of the image, so of the user's own
        from .trainer import Trainers

        trainers = Trainers(self._contract, self._coordinator, self._lease, self._committer)
        fit = trainers.intercept()
        raised: BaseException | None = None
        try:
            if self._contract.script is not None:
                script.run(self._contract.script, self._contract.script_args, self._contract.config)
            else:
                trainers.fit_function()
        except (Exception, SystemExit) as error:
            if not isinstance(error, SystemExit) or error.code:
                raised = error
        raised = fit.error or raised
        if raised is None and not fit.succeeded:
            did = "while fit() still ran" if fit.begun else "without calling fit()"
            return RuntimeError(
                f"the script ended {did}, so nothing is trained; call fit() of a Ray Train trainer "
                "at the script's top level, where it runs as __main__, and let it return"
            )
        if raised is None:
            return self._unknown_end()
        return script.FailedAfterTraining(raised) if fit.succeeded else raised

    def _unknown_end(self) -> BaseException | None:
        """Why it is not known that the training is done, though Ray takes it for done."""
        silent = ray.get(self._coordinator.not_returned.remote(), timeout=COORDINATOR_TIMEOUT_S)
        if not silent:
            return None
        return RuntimeError(
            f"the training function of {in_words(silent)} has ended without returning, and without "
            "an error that Ray could tell; see what it has printed last with `trainingrun logs`"
        )

    def _conclude(self, error: BaseException | None) -> int:
        """Write the outcome to bucket and document; returns the exit code.

        In this order, so that a head that is lost in between leaves a consistent state: the
        checkpoint is committed, then the result, then the document, then the process ends.
        """
        coordinator = self._coordinator
        if error is None:
            self._commit_all()
            result, step = self._result()
            final = ray.get(coordinator.complete.remote(result, step))
            written = self._retry(lambda: run_result.write(self._lease, final))
            self._committer.sweep(at_end=True)
            self._write_page(RunState.SUCCEEDED, result=written)
            self._write_final(
                coordinator.succeeded.remote(written), lambda: self._documents.succeeded(written)
            )
            return DONE_EXIT_CODE
        from ray.train import TrainingFailedError

        from ..known_errors.failure_causes import FailureCause, classify

        if (
            isinstance(error, TrainingFailedError)
            and classify(error).cause is FailureCause.SUSPENDED
        ):
            self._commit_all()
            self._retry(self._lease.require)
            self._retry(self._renew_lease)  # no step is lost: the next driver counts no loss
            self._write_page(RunState.SUSPENDED)
            self._write_final(coordinator.suspended.remote(), self._documents.suspended)
            self._say_in_lease_that_it_ended()
            return SUSPEND_EXIT_CODE
        log.error("training failed", exc_info=error)
        self._committer.drain(COMMITS_AFTER_FAILURE_S)
        with contextlib.suppress(StorageError):
            self._committer.write_reports()
        # The failure policy in Ray's controller has reported its failures; this is for others.
        if isinstance(error, script.FailedAfterTraining):
            message = error.sentence(self._has_checkpoint())
            failure = Failure(kind="Application", message=message, retry="Never")
        else:
            failure = failure_of(error)
        outside = isinstance(error, ray.exceptions.RayError | TrainingFailedError)
        if failure.kind == "Infrastructure" and not outside:
            from ..known_errors.failure_causes import retry_of

            update = {"kind": "Application", "retry": retry_of(error)}
            failure = failure.model_copy(update=update)
        if failure.kind == "Application" and not failure.traceback:
            failure = Failure(**{**dict(failure), "traceback": _traceback(error)})  # which cuts it
        if self._contract.rules:
            facts = facts_of(self._contract.rules, error, failure.message)
            failure = failure.model_copy(update={"facts": facts})
        self.fail(failure)
        return FAILED_EXIT_CODE

    def _commit_all(self) -> None:
        self._committer.drain()
        if self._committer.failure is not None:
            raise self._committer.failure
        self._retry(self._committer.write_reports)

    def _result(self) -> tuple[ProgressResult, int]:
        """What the bucket has, and the newest checkpoint's step; 0: there is no checkpoint."""
        committed = self._retry(self._committer.listed)
        newest = committed[-1] if committed else None
        best = retention.best_of(committed, retention.wanted(self._committer.checkpoints))
        result = ProgressResult(
            metrics=newest.metrics if newest else {},
            checkpoint_uri=self._bucket.uri(newest.path) if newest else None,
            best_checkpoint_uri=self._bucket.uri(best.path) if best else None,
        )
        return result, newest.step if newest else 0

    def _has_checkpoint(self) -> bool | None:
        """Whether the run has a committed checkpoint. None: the bucket does not say."""
        try:
            return bool(self._committer.listed())
        except StorageError as error:
            log.warning("the checkpoints were not listed: %s", error)
            return None

    def _renew_lease(self) -> None:
        """Write what the next driver has to know about the losses of the run."""
        try:
            history = self._coordinator.loss_history.remote()
            self._lease.history = ray.get(history, timeout=COORDINATOR_TIMEOUT_S)
        except ray.exceptions.RayError as error:  # the lease counts, the history does not
            log.warning("the coordinator did not tell the losses of the run: %s", error)
        self._lease.renew(time.time())

    def _say_in_lease_that_it_ended(self) -> None:
        """After the final document: this driver was not lost, so the next one counts no loss."""
        until = time.monotonic() + FAREWELL_S
        while True:
            try:
                self._renew_lease()
                return
            except Superseded:
                return
            except StorageError as error:
                if time.monotonic() >= until:
                    log.warning("the lease does not say that this driver has ended: %s", error)
                    return
            time.sleep(FAREWELL_AGAIN_S)

    def _checkpoint_on_notice(self, notice: PreemptionNotice) -> None:
        """The head pod has a preemption notice: make a checkpoint before its Ray ends."""
        before = ray.get(self._coordinator.commits.remote())
        while not ray.get(self._coordinator.save_and_exit.remote(before)):
            if time.time() >= notice.deadline:
                break
            time.sleep(0.1)
        try:
            self._renew_lease()  # saved in time: the next driver counts no loss
        except (StorageError, Superseded) as error:
            log.warning("the lease was not renewed: %s", error)
        self._watcher.confirm_saved()
