"""The driver of a sweep: Ray Tune trains the trials, each in a process and a folder of its own.

What is known of them is written to the bucket whenever it changes, so that the next driver trains
only what is left: trials that are done are not repeated, and the others go on from their newest
checkpoints.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, NoReturn

import ray

from trainingrun_protocol.contract import ContractSweep, ContractTrial, RunContract
from trainingrun_protocol.exit_codes import (
    DONE_EXIT_CODE,
    FAILED_EXIT_CODE,
    LEASE_LOST_EXIT_CODE,
    SUSPEND_EXIT_CODE,
)
from trainingrun_protocol.progress import (
    Failure,
    Progress,
    ProgressResult,
    RunState,
    TrialState,
)

from ..coordinator.checkpoints import Command
from ..coordinator.coordinator import trial_coordinator
from ..coordinator.run_progress import StoreErrors
from ..driver import run_page
from ..driver.background import Background, keep_lease, suspend_requested
from ..error_text import first_line
from ..progress import document as progress_document
from ..progress.document import Documents
from ..state_directory import state_directory
from ..store import run_result
from ..store.lease import Lease, Superseded
from ..store.storage_errors import StorageError
from ..store.storage_retry import StorageRetry
from ..worker.preemption_notice import PreemptionNotice, PreemptionNoticeWatcher
from . import record, search, summary, tuning
from .schedulers import Population
from .trial import JobFolder, TrialJob
from .trial_folders import TrialFolders
from .trial_table import STOP_WAIT_S, TrialTable

log = logging.getLogger(__name__)

WATCH_S = 0.5
CALL_S = 5.0
"""Seconds for which a trial's coordinator may take to answer."""


class SweepDriver:
    """One attempt to train all trials, from the lease to the exit code.

    Args:
        contract: the operator's settings of this attempt.
        sweep: the contract's sweep.
        lease: this driver's lease.
        started: Unix time at which the driver started.
        documents: writes the documents before the first trial begins.
    """

    def __init__(
        self,
        contract: RunContract,
        sweep: ContractSweep,
        lease: Lease,
        started: float,
        documents: Documents,
    ) -> None:
        self._contract, self._sweep, self._lease = contract, sweep, lease
        self._started, self._documents, self._bucket = started, documents, lease.bucket
        self._store_errors = StoreErrors()
        self._report_store = partial(self._store_errors.storage, "sweep")
        self._retry = StorageRetry(self._report_store)
        self._folder = state_directory() / record.TRIALS
        # Documents of a former driver on this head would be taken for this one's.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._job_folder = JobFolder(self._folder, lease, str(state_directory()))
        every = sweep.perturbation_interval
        population = Population(sweep, every, contract.uid) if every is not None else None
        self._folders = TrialFolders(contract, sweep, lease, population)
        self._chosen_late = sweep.library is not None or population is not None
        draw = search.library_search(sweep, contract.uid)
        trials = StorageRetry(documents.waiting)(self._folders.trials)
        self._table = TrialTable(sweep, trials, self._give_up, population, draw)
        self._jobs: dict[int, TrialJob] = {}
        self._stopping: set[int] = set()
        self._asked: set[int] = set()
        self._failure: Failure | None = None
        self._failed_at = 0.0
        self._final = RunState.STARTING
        self._result: ProgressResult | None = None
        self._report_uri: str | None = None
        self._ending = False  # by its failure
        self._writing, self._following = threading.Lock(), threading.Lock()
        self._recording = threading.Lock()
        self._background = Background()
        self._notice = PreemptionNoticeWatcher(self._checkpoint_on_notice)

    def run(self) -> int:
        """Train what is left; the exit code.

        Raises:
            Superseded: another driver holds the run.
        """
        StorageRetry(self._documents.waiting)(self._record)
        lease, reports = self._lease, partial(self._store_errors.storage, "lease")
        self._background.start(
            lease=partial(keep_lease, lease, lambda: lease.renew(time.time()), reports),
            trials=self._watch,
        )
        self._notice.start()
        try:
            missing = search.missing_library(self._sweep)
            if missing is not None:
                failure = Failure(kind="Application", message=missing, retry="UnlessRepeated")
                self._give_up(failure)
            if self._table.left() and self._failure is None:
                calls = tuning.Calls(
                    self._table.reported, self._lost, self._halts, self._is_over, self._begin_next
                )
                tuning.run(self._sweep, self._job_folder, calls)
            return self._conclude()
        finally:
            self._background.ended.set()
            self._notice.stop()
            self._background.join()

    def fail(self, failure: Failure) -> None:
        """Report that the attempt failed; a reason that was reported before is kept."""
        self._failure = self._failure or failure
        self._end(RunState.FAILED)

    def _begin_next(self) -> str | None:
        """Ray Tune may run one more trial: name of the job that begins now, if there is one."""
        if self._halts():
            return None
        with self._following:
            self._follow()  # what has just ended counts for what begins
            trial = self._table.begin_next()
            if trial is None:
                return None
            self._jobs.pop(trial.number, None)  # of a leg that is over
        # The others are followed while the store is waited for.
        if self._chosen_late:
            # Before it begins: the next driver must not choose other values for its folder.
            try:
                self._retry(self._record)
            except Superseded as error:  # Tune would make a failure of it
                _end_superseded(error)
            self._folders.remove_outdated(self._table.trials)
        self._asked.discard(trial.number)
        name = f"{trial.number:04d}-{trial.leg:02d}"
        self._jobs[trial.number] = self._job_folder.write(name, self._folders.contract(trial))
        return name

    def _lost(self, number: int) -> None:
        """The process of a trial has ended without a reason."""
        message = f"the process of trial {number}, in the head's pod, ended unexpectedly"
        self._give_up(Failure(kind="Infrastructure", message=message))

    def _halts(self) -> bool:
        """Whether no further trial is to begin."""
        return self._failure is not None or suspend_requested()

    def _is_over(self) -> bool:
        """Whether no further trial is to begin, and all have ended that were begun."""
        if not self._halts():
            return False
        if self._failed_at and time.monotonic() - self._failed_at > STOP_WAIT_S:
            return True
        documents = (progress_document.read(job.document) for job in self._jobs.values())
        return all(found is None or found.state.final for found in documents)

    def _watch(self, ended: threading.Event) -> None:
        """Follow the trials: note what changes, stop those that are to be stopped, report."""
        while not ended.wait(WATCH_S):
            try:
                with self._following:
                    self._follow()
                self._note_changes()
                if self._failure is not None:
                    for number in self._table.under_way():
                        self._suspend(number)
                self._write()
            except Superseded as error:
                _end_superseded(error)
            except Exception:  # the next round tries again
                log.exception("the trials could not be followed")

    def _follow(self) -> None:
        trials = self._table.trials
        for number, job in list(self._jobs.items()):
            of = job.contract.trial
            if of is not None and of.leg != trials[number].leg:
                continue  # the trial stands where it goes on from, which may be another one's
            found = progress_document.read(job.document)
            if found is not None:
                self._table.follow(number, found)

    def _note_changes(self) -> None:
        """Tell the next driver what has changed, and then the trials that are to be stopped.

        In this order: the next driver must not train on what was stopped.
        """
        changes = self._table.changes()
        if changes is not None:
            _, stopping = changes
            try:
                self._record()
            except StorageError as error:
                self._table.keep_changes()
                self._report_store(str(error))
                return
            self._report_store(None)
            self._stopping = stopping
        for number in self._stopping:
            self._suspend(number)

    def _record(self) -> None:
        with self._recording:  # what is written later is newer
            record.write(self._lease, self._table.trials, self._sweep)

    def _give_up(self, failure: Failure) -> None:
        """End the attempt, once the other trials have saved their state."""
        if self._failure is None:
            self._failure, self._failed_at = failure, time.monotonic()

    def _suspend(self, number: int) -> None:
        """Have a trial save its state and end."""
        trial = self._jobs[number].contract.trial
        if number not in self._asked and trial is not None and _suspend_trial(trial):
            self._asked.add(number)  # else the next round asks again

    def _write(self) -> None:
        with self._writing:
            progress_document.write(self._documents.path, self._document(self._final))

    def _document(self, state: RunState) -> Progress:
        head = Progress(
            attempt=self._contract.attempt,
            fencing_token=self._lease.fencing_token,
            state=state,
            time=time.time(),
            failure=self._failure if state is RunState.FAILED or self._ending else None,
            result=self._result,
            report_uri=self._report_uri,
            **self._store_errors.fields(),
        )
        return self._table.progress(head)

    def _end(self, state: RunState) -> None:
        self._ending = state is RunState.FAILED
        self._write()  # the page takes memory, for want of which the head may end
        if state is not RunState.FAILED or self._failure is None or self._failure.kind != "Storage":
            name = self._contract.name
            self._report_uri = run_page.write(self._lease, name, self._document(state))
        self._final = state
        self._write()

    def _conclude(self) -> int:
        """Write the outcome to bucket and document; returns the exit code."""
        self._follow()
        unfinished = self._table.postpone()
        trials = self._table.trials
        best = record.best_done(trials, self._sweep.mode)
        self._retry(self._record)
        if self._failure is None and unfinished:
            if suspend_requested():
                self._end(RunState.SUSPENDED)
                return SUSPEND_EXIT_CODE
            self._lost(unfinished[0])
        if self._failure is None and best is None:
            last = next((t for t in reversed(trials.values()) if t.message), None)
            why = f"; trial {last.number}: {last.message}" if last is not None else ""
            done = sum(trial.state is TrialState.SUCCEEDED for trial in trials.values())
            what = (
                f"none of the {done} trials that were trained to their end has a value to compare"
                if done
                else f"none of the {len(trials)} trials was trained to its end"
            )
            # The next attempt would try those again that failed, and has nothing else to train.
            again = any(trial.state is TrialState.FAILED for trial in trials.values())
            retry: Literal["Always", "Never"] = "Always" if again else "Never"
            self._failure = Failure(kind="Application", message=what + why, retry=retry)
        if self._failure is not None or best is None:
            log.error("the sweep failed: %s", self._failure)
            self._end(RunState.FAILED)
            return FAILED_EXIT_CODE
        result = ProgressResult(
            metrics=best.metrics,
            checkpoint_uri=best.checkpoint_uri,
            best_checkpoint_uri=best.best_checkpoint_uri,
            sweep=record.SweepRecord.of(trials, self._sweep).table(),
        )
        # A later driver that finds the result reports it in a document, too.
        alone = Progress(attempt=self._contract.attempt, result=result)
        kept = summary.bounded(alone, self._sweep.mode).result or result
        self._result = self._retry(lambda: run_result.write(self._lease, kept))
        self._end(RunState.SUCCEEDED)
        return DONE_EXIT_CODE

    def _checkpoint_on_notice(self, notice: PreemptionNotice) -> None:
        """The head pod has a preemption notice: each trial makes a checkpoint before Ray ends."""
        under_way = [self._jobs[number].contract.trial for number in self._table.under_way()]
        _checkpoint_all([one for one in under_way if one], notice.deadline)
        self._notice.confirm_saved()


def _end_superseded(error: Superseded) -> NoReturn:
    log.error("%s", error)
    os._exit(LEASE_LOST_EXIT_CODE)  # without cleanup: it must not write anything


def _suspend_trial(trial: ContractTrial) -> bool:
    """Have a trial save its state and end; False: its coordinator does not run now."""
    try:
        coordinator = ray.get_actor(trial_coordinator(trial))
    except ValueError:
        return False
    coordinator.request.remote(Command.SUSPEND)
    return True


def _checkpoint_all(trials: Iterable[ContractTrial], deadline: float) -> None:
    """Have trials make a checkpoint before Ray ends; returns once they have, or at the deadline.

    Args:
        trials: those that are trained now.
        deadline: Unix time in seconds.
    """
    waiting: dict[str, int] = {}
    for name in map(trial_coordinator, trials):
        try:
            coordinator = ray.get_actor(name)
            waiting[name] = ray.get(coordinator.commits.remote(), timeout=CALL_S)
        except (ValueError, ray.exceptions.RayError) as error:
            log.warning("%s makes no checkpoint: %s", name, first_line(error))
    while waiting:
        for name, before in list(waiting.items()):
            if _has_saved(name, before):
                del waiting[name]
        if time.time() >= deadline:
            break
        time.sleep(0.1)


def _has_saved(name: str, before: int) -> bool:
    try:
        coordinator: Any = ray.get_actor(name)
        return bool(ray.get(coordinator.save_and_exit.remote(before), timeout=CALL_S))
    except ray.exceptions.GetTimeoutError:
        return False
    except (ValueError, ray.exceptions.RayError):
        return True  # it has ended meanwhile
