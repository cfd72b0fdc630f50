"""One rank of a run: what it begins from, and what it does on a preemption notice."""

import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import ray
import ray.train
from ray.train.collective import broadcast_from_rank_zero

from trainingrun_protocol.contract import RunContract

from ..checkpoints import checkpoint_files
from ..checkpoints.background import behind_training
from ..checkpoints.downloads import Fetched
from ..coordinator.ranks import RankProcess
from ..coordinator.standstill import At
from ..data import kept_batch
from ..data.kept_batch import KeptBatch
from ..progress.process_start import process_began
from ..progress.rank_measures import read_oom_kills
from ..progress.rank_reporter import UseReporter
from ..ray_internals import nodes, training
from ..store import manifest
from ..store.bucket import Bucket
from ..store.lease import LossHistory
from ..store.manifest import Manifest
from ..store.reported_metrics import Origin
from ..store.start_traces import RankTimes
from ..store.storage_retry import StorageRetry, report_to
from . import leaving_a_rank, prestarted_worker, restore
from .preemption_notice import PreemptionNotice, PreemptionNoticeWatcher
from .standstill_watcher import StandstillWatcher

if TYPE_CHECKING:  # PyTorch, which the image may not have
    from ..progress.rank_reporter import ReportRecorder


log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Longest wait for the coordinator to learn what it may need when a rank is lost."""

SILENT_AFTER_S = 30.0
"""Seconds after which a function without a session, and without a report, is taken to train."""

_REPORTS_BY = {
    "lightning": "add trainingrun_runtime.frameworks.lightning.SessionCallback(seed=0) to the "
    "trainer's callbacks",
    "transformers": "train with "
    "trainingrun_runtime.frameworks.transformers.prepare_trainer(trainer, seed=0)",
    "accelerate": "use prepared_session and batches of trainingrun_runtime.frameworks.accelerate",
    "deepspeed": "use trainingrun_runtime.frameworks.deepspeed.prepared_session(engine, seed=0)",
    "xgboost": "use trainingrun_runtime.frameworks.xgboost.train",
    "lightgbm": "use trainingrun_runtime.frameworks.lightgbm.train",
    "jax": "use Tree of trainingrun_runtime.frameworks.jax in a Session",
    "tensorflow": "use trainingrun_runtime.frameworks.tensorflow.fit",
}
"""By the framework's module; the first one that is imported counts, as some import others."""


class RegisteredSession(Protocol):
    """What others need of the `Session` of a training function."""

    noted_steps: Any
    """The state after the last step: `survivors.noted_steps.NotedSteps`."""
    reports: "ReportRecorder"
    """What this rank has reported."""

    def finish(self, **metrics: Any) -> None:
        """Final metrics."""
        ...

    def conclude(self) -> None:
        """The training function has returned."""
        ...


class Worker:
    """One rank of the run.

    Args:
        coordinator: handle of the `Coordinator` actor.
        contract: the operator's settings of this attempt.
        bucket: the run's folder.
    """

    def __init__(self, coordinator: Any, contract: RunContract, bucket: Bucket) -> None:
        context = ray.train.get_context()
        self.coordinator = coordinator
        self.bucket = bucket
        """The run's folder."""
        self.rank: int = context.get_world_rank()
        self.world_size: int = context.get_world_size()
        self.checkpoints = contract.checkpoints
        """When checkpoints are made."""
        self.history = LossHistory()
        """The run's losses before this worker group; rank 0 alone knows them."""
        self.most_workers = contract.workers if contract.elastic else None
        """Most ranks of a later worker group, where it may have another number; None: it has
        not."""
        self.keeps_batch = contract.keeps_batch
        """Whether each step takes the batches of all workers, however many ranks there are."""
        kept = KeptBatch(contract.workers, self.world_size) if self.keeps_batch else None
        kept_batch.keep(kept)
        self.timeout_s = contract.torch_timeout_seconds
        """Seconds after which a collective call fails."""
        self.restored: Manifest | None = None
        """The run's own checkpoint that this worker group begins from."""
        self.continues: Manifest | None = None
        """The same; of a trial of a sweep also where another trial has made it."""
        self.offered: Any = None
        """The checkpoint that Ray hands on to the training function."""
        self.fetched: Fetched | None = None
        """What this rank has downloaded of the checkpoint that is restored."""
        self.trial = contract.trial
        """Which trial of a sweep this is, if it is one."""
        self.needed_metrics = contract.needed_metrics
        """Metrics by which checkpoints or trials are compared."""
        self._restore_from = contract.restore_from
        self._others_wait = bool(contract.standby)
        tracked = contract.tracking
        self._has_event_files = bool(tracked and tracked.tensorboard_every_seconds)
        self.group = 0
        """Number of the worker group, from 1."""
        self.storage_retry = StorageRetry(report_to(coordinator, f"rank {self.rank}"))
        """Retries requests to the store and reports errors to the coordinator."""
        self._answered = False  # by what the training function calls
        self.session: RegisteredSession | None = None
        """Handles preemption notices, once the training function has made one."""
        self.times: dict[str, float] = {"process": process_began(time.time())}
        """When this process was where; see `store.start_traces.RANK_MARKS`."""
        self.times_are_told = False
        """Whether the coordinator knows them."""
        self._watcher = PreemptionNoticeWatcher(self._handle_notice)
        self._timers: list[threading.Timer] = []
        self._use: UseReporter  # made by `join`
        self._standstill: StandstillWatcher  # made by `start`

    @property
    def notice(self) -> PreemptionNotice | None:
        """This pod's own notice, once there is one."""
        return self._watcher.notice

    def register(self, session: RegisteredSession) -> None:
        """The session handles preemption notices from now on.

        Raises:
            RuntimeError: there is one already.
        """
        if self.session is not None:
            raise RuntimeError(
                "the training function has a Session already, and checkpoints hold one; pass all "
                "objects to the first one"
            )
        self.session = session

    def answers_notices(self) -> None:
        """The training function reads `notice` by itself from now on, without a session."""
        self._answered = True

    def confirm_saved(self) -> None:
        """The session's checkpoint for this pod's notice is committed, and its ranks end."""
        # With event files left to upload, the pod may end once all of its ranks have called `end`.
        if not self._has_event_files:
            self._watcher.confirm_saved()

    def can_save_alone(self) -> None:
        """From now on the policy asks this rank for its last step when another one is lost."""
        actor = training.worker_actor()
        call = self.coordinator.can_save_alone.remote(self.rank, self.group, actor)
        # Another rank may die in the next step, and a coordinator on a busy machine may take a
        # second until then.
        ray.wait([call], timeout=ANSWER_S)

    def cannot_save_alone(self, reason: str) -> None:
        """No last step can be asked for; a sentence without its period says why."""
        self.coordinator.cannot_save_alone.remote(self.group, reason)

    def advise(self, sentence: str) -> None:
        """Rank 0's code would lose something that can be kept: shown with the run, and logged."""
        if self.rank == 0:
            log.warning("%s", sentence)
            self.coordinator.advise.remote(self.group, sentence)

    def allow_pause(self, seconds: float) -> None:
        """For so long it is no hang that no step is done."""
        # Not waited for: the training goes on while the head is slow.
        self.coordinator.allow_pause.remote(float(seconds))

    def join(self, group: int) -> None:
        """Say where this rank is, and from now on what it uses, before the user's code is imported.

        Args:
            group: number of the worker group.
        """
        context = ray.get_runtime_context()
        joined = self.coordinator.joined.remote(
            self.rank,
            context.get_node_id(),
            os.environ.get("NODE_NAME", ""),
            os.environ.get("POD_NAME", ""),
            RankProcess(training.worker_actor(), os.getpid(), psutil.Process().create_time()),
            read_oom_kills(),
        )
        if self._others_wait:
            ray.get(joined)  # before the group begins: a node of no rank is then known to wait
        self._use = UseReporter(self.coordinator, self.rank, group)

    def start(self) -> None:
        """Agree with the other ranks on the newest intact checkpoint and pass it to Ray."""
        if self.rank == 0:
            # Uploads of the former group are complete and about to be committed.
            while ray.get(self.coordinator.uploads_waiting.remote()):
                time.sleep(0.1)
        chosen = restore.agree(
            self.rank,
            self.world_size,
            self.coordinator,
            self.bucket,
            self.storage_retry,
            self._restore_from,
        )
        self.fetched = chosen.fetched
        found = chosen.fetched.manifest if chosen.fetched is not None else None
        own = found if not chosen.foreign else None
        group = None
        if self.rank == 0:
            group = ray.get(
                self.coordinator.group_started.remote(
                    self.world_size,
                    found.step if found else 0,
                    chosen.skipped,
                    chosen.bucket.uri(found.path) if found and chosen.foreign else None,
                    Origin(own.fencing_token, own.group, own.step) if own else None,
                )
            )
            self.history = ray.get(self.coordinator.loss_history.remote())
        self.group = broadcast_from_rank_zero(group)
        if found is not None:
            self.restored = own
            self.continues = found if self.trial is not None else own
            offer = checkpoint_files.offered(chosen.bucket, found)
            self.offered = training.offer_checkpoint(*offer)
        else:
            training.offer_checkpoint(None, None)
        training.attach_checksums(_digest, self.storage_retry)
        training.check_uploads()
        self._standstill = StandstillWatcher(self.coordinator, self.rank, self.group)
        training.change_reports(self._reported)
        training.keep_checkpoints_apart(self.group, lambda: self.waiting(At.REPORT))
        self._watcher.start()
        tells = self._others_wait and self.rank == 0
        told = self.coordinator.prepare_standby.remote if tells else None
        if ray.train.get_context().get_local_rank() == 0:
            self._timers.append(prestarted_worker.schedule(told))
        if self.rank == 0:
            silence = threading.Timer(SILENT_AFTER_S, self._report_silence)
            silence.daemon = True
            silence.start()
            self._timers.append(silence)

    def waiting(self, at: At, where: str = "", steps: int = 0) -> AbstractContextManager[None]:
        """Meanwhile this rank waits for others; see `Location`."""
        return self._standstill.waiting(at, where, steps)

    def returned(self) -> None:
        """The training function has returned, and the last checkpoint is committed."""
        self._standstill.returned()
        # Ray takes a thread that ends without telling an error for one that has returned.
        ray.get(self.coordinator.returned.remote(self.group, self.rank))

    def tell_times(self, **times: float) -> None:
        """The start of this rank is over; nothing waits for the call."""
        if not self.times_are_told:
            self.times_are_told, self.times = True, self.times | times
            pod, pid = os.environ.get("POD_NAME", ""), os.getpid()
            told = RankTimes(rank=self.rank, pod=pod, pid=pid, times=self.times)
            self.coordinator.start_times.remote(self.group, told)

    def end(self) -> None:
        """The training function returned or raised."""
        self.tell_times()
        self._watcher.stop()
        self._standstill.close()
        self._use.close()
        for timer in self._timers:
            timer.cancel()
        if self.fetched is not None:
            self.fetched.close()

    def _reported(self, metrics: Mapping[Any, Any]) -> dict[Any, Any]:
        if self.session is None:
            self.tell_times()
        if self.keeps_batch and self.session is None:
            raise ValueError(
                kept_batch.use_microbatches("this code reports without a trainingrun Session")
            )
        return leaving_a_rank.report(metrics)

    def _report_silence(self) -> None:
        # The coordinator knows whether there was a report.
        if self.session is None and not self._answered:
            self.coordinator.reports_nothing.remote(self.group, silence_sentence(sys.modules))

    def _handle_notice(self, notice: PreemptionNotice) -> None:
        if self.session is not None or self._answered:
            return  # the session reads `notice` after its next step
        # Code without a session reads it from ray.train.get_preemption_info().
        nodes.drain_own_node("the pod is being deleted", notice.deadline)
        before = ray.get(self.coordinator.commits.remote())
        while time.time() < notice.deadline and self.session is None and not self._answered:
            if ray.get(self.coordinator.commits.remote()) > before:
                self._watcher.confirm_saved()
                return
            time.sleep(0.2)


_worker: Worker | None = None


def begin(coordinator: Any, contract: RunContract, bucket: Bucket) -> Worker:
    """Make the worker of this process; see `this_worker`."""
    global _worker
    _worker = Worker(coordinator, contract, bucket)
    return _worker


def this_worker() -> Worker:
    """The worker of this process.

    Raises:
        RuntimeError: the process runs no training function of a TrainingRun.
    """
    if _worker is None:
        raise RuntimeError(
            "a Session works only inside the function that training.function names; "
            "try it on this machine with `trainingrun run FILE --local`"
        )
    return _worker


def _digest(folder: Path) -> dict[str, Any]:
    found = behind_training(lambda: manifest.digest_folder(folder))
    return {name: asdict(digest) for name, digest in found.items()}


def silence_sentence(imported: Collection[str]) -> str:
    """What it costs, and how the training reports.

    Args:
        imported: names of the modules that the training process has imported.
    """
    found = next((text for name, text in _REPORTS_BY.items() if name in imported), None)
    how = found or "make a trainingrun_runtime.Session, or report checkpoints to ray.train.report"
    return (
        f"the training function has reported nothing for {SILENT_AFTER_S:.0f} s, so a loss costs "
        f"all that it has done; {how}"
    )
