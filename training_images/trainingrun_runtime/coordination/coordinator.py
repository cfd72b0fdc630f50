"""The coordinator: an actor that workers, Ray's controller and the driver call.

It accounts for the time, writes the progress document, queues uploads for the driver's committer,
and answers each report of rank 0 with a command.
"""

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from trainingrun.api.contract import ContractTrial, RunContract
from trainingrun.api.progress import (
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RecordKind,
    RunState,
)

from ..checkpoints.manifest import Manifest
from ..checkpoints.uploaded_checkpoint import LateMetrics, UploadedCheckpoint
from ..progress import document as progress_document
from ..progress.accelerator_use import AcceleratorUse
from ..progress.memory_use import MemoryUse
from ..progress.rank_comparison import RankComparison
from ..progress.rank_times import RankTimes
from ..progress.time_accounting import StepReport, TimeAccounting
from ..ray_internals import nodes
from ..reports.inbox import Inbox
from ..reports.rows import Batch, Origin, Row
from . import standstill
from .command import Command
from .loss_history import LossHistory
from .standstill import Stand
from .upload_queue import UploadQueue

log = logging.getLogger(__name__)


class Coordinator:
    """Shared state of one driver. Its methods are called from other processes.

    Args:
        contract: the operator's settings of this attempt.
        fencing_token: of the driver's lease.
        started: Unix time at which the driver started.
        document: where the progress document is written.
        checkpoint: the newest intact checkpoint, if there is one.
        history: losses of the run's earlier drivers.
    """

    def __init__(
        self,
        contract: RunContract,
        fencing_token: int,
        started: float,
        document: Path,
        checkpoint: LastCheckpoint | None,
        history: LossHistory | None = None,
    ) -> None:
        self._accounting = TimeAccounting(contract.attempt, fencing_token, started, history)
        self._document = document
        self._command = Command.NONE
        self._commits = 0
        self._uploads = UploadQueue()
        self._refused: dict[str, str] = {}  # URI of a manifest -> what is wrong with its files
        self._inbox = Inbox()
        # reporter -> (error, Unix time of the first report)
        self._storage_errors: dict[str, tuple[str, float]] = {}
        self._places: dict[int, tuple[str, str, str]] = {}  # rank -> (Ray node, node, pod)
        self._actors: dict[int, Any] = {}  # rank -> Ray Train's worker
        self._stands: dict[int, Stand] = {}  # rank -> where it stands for a while
        self._comparison = RankComparison()
        self._saved_alone: tuple[int, tuple[int, ...]] | None = None  # (step, ranks)
        self._lost: dict[str, str] = {}  # Ray node -> Kubernetes node
        self._final_metrics: dict[str, Any] = {}
        self._rated_by = contract.trial.metric if contract.trial else None
        self._rating: tuple[int, Any] | None = None
        self._paused_at: int | None = None
        self._group, self._group_began, self._has_session = 0, 0.0, False
        if checkpoint is not None:
            self._accounting.committed(checkpoint)
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._keep_writing, name="progress", daemon=True).start()

    def close(self) -> None:
        """Update the document no more."""
        self._closed.set()

    def joined(self, rank: int, ray_node: str, node: str, pod: str) -> None:
        """A worker started: its Ray node, Kubernetes node and pod."""
        self._places[rank] = (ray_node, node, pod)
        # A node that is reachable again, or runs a new pod, is not lost.
        self._lost = {dead: name for dead, name in self._lost.items() if name != node}

    def can_save_alone(self, rank: int, group: int, actor: Any) -> None:
        """A worker that notes its steps: it can be called, also while it waits for a lost rank."""
        with self._lock:
            if group == self._group:
                self._actors[rank] = actor

    def survivors(self) -> tuple[dict[int, Any], int]:
        """The actors that note their steps, by rank, and the group's newest step in the bucket."""
        with self._lock:
            return dict(self._actors), self._uploads.saved_step

    def saved_alone(self, upload: UploadedCheckpoint, ranks: tuple[int, ...]) -> None:
        """Ray's controller: these ranks have saved the last step after another one was lost."""
        self._saved_alone = (upload.step, ranks)
        with self._lock:
            metrics = {**self._accounting.metrics_of(upload.step), **upload.metrics}
            # What rank 0 had not sent when it was lost.
            self._inbox.complete(self._group, upload.rows, upload.step)
        self.uploaded(replace(upload, metrics=metrics, rows=()))

    def refuse(self, uri: str, reason: str) -> None:
        """A worker: the checkpoint of the manifest at `uri` is damaged; the first reason counts."""
        with self._lock:
            self._refused.setdefault(uri, reason)

    def refused(self) -> dict[str, str]:
        """The checkpoints that the worker group that begins has found not to be intact, and why."""
        with self._lock:
            return dict(self._refused)

    def group_started(
        self,
        world_size: int,
        resumed_step: int,
        skipped: list[str],
        restored_from: str | None = None,
        origin: Origin | None = None,
    ) -> int:
        """Rank 0: a worker group starts; returns its number.

        Args:
            world_size: Workers of the group.
            resumed_step: Step of the checkpoint that it begins from; 0 from scratch.
            skipped: Why newer checkpoints were not restored, a sentence for each.
            restored_from: URI of that checkpoint, where it is another run's.
            origin: Which checkpoint it is, where it is this run's own.
        """
        with self._lock:
            for message in skipped:
                self._accounting.skipped(time.time(), message)
            if self._command is Command.CHECKPOINT_AND_EXIT:
                self._command = Command.NONE
            self._forget_storage_errors_of_ranks()
            self._group_began, self._has_session = time.time(), False
            self._actors, self._stands = {}, {}
            self._comparison = RankComparison(world_size)
            self._uploads.begin(resumed_step)
            self._refused = {}
            self._paused_at = None
            step, ranks = self._saved_alone or (None, ())
            self._saved_alone = None
            self._group = self._accounting.group_started(
                self._group_began,
                world_size,
                resumed_step,
                restored_from,
                saved_by=ranks if step == resumed_step else (),
            )
            self._inbox.begin(self._group, origin)
            return self._group

    def session_began(self, group: int) -> None:
        """Rank 0: the training code has a session, whose reports are the ones that count."""
        with self._lock:
            self._has_session = self._has_session or group == self._group

    def add_rows(self, group: int, rows: list[Row]) -> None:
        """Rank 0: what it has reported, for the run's table."""
        with self._lock:
            self._inbox.add(group, rows)

    def rows(self, seen: int) -> list[Batch]:
        """The driver: the reports after the batch with this number."""
        with self._lock:
            return self._inbox.take(seen)

    def stepped(self, report: StepReport) -> Command:
        """Rank 0: steps were done; returns the command that applies now."""
        with self._lock:
            self._has_session = True
            self._accounting.stepped(report)
        return self._command

    def rank_times(self, rank: int, group: int, times: RankTimes) -> None:
        """A worker: what its steps take, and for what it waits."""
        with self._lock:
            if group != self._group:
                return
            self._comparison.times(rank, times, time.time())
            if times.data_share is not None:
                self._accounting.waited_for_data(rank, group, times.data_share)

    def rank_memory(self, rank: int, group: int, use: MemoryUse) -> None:
        """A worker: how full its memory is."""
        with self._lock:
            if group == self._group:
                self._comparison.memory(rank, use)

    def rank_accelerators(self, rank: int, group: int, use: AcceleratorUse) -> None:
        """A worker: how busy its accelerators are."""
        with self._lock:
            if group == self._group:
                self._comparison.accelerators(rank, use)

    def stands(self, rank: int, group: int, stand: Stand | None, stood_s: float) -> None:
        """A worker: where it has been for so many seconds; None: it moves again."""
        with self._lock:
            if group != self._group:
                return
            if stand is None:
                self._stands.pop(rank, None)
            else:
                # The clocks of the nodes may differ.
                self._stands[rank] = replace(stand, since=time.time() - stood_s)

    def rated(self, step: int, value: Any) -> None:
        """Rank 0: the metric by which trials of a sweep are compared."""
        self._rating = (step, value)

    def rating(self) -> tuple[int, Any] | None:
        """That metric as it was last reported, and its step; None: it was not yet."""
        return self._rating

    def paused(self, step: int, value: Any) -> None:
        """Rank 0: this trial of a sweep ends here, and waits for others; its metric."""
        self._paused_at, self._rating = step, (step, value)

    def reported(self, step: int, metrics: dict[str, Any]) -> None:
        """Ray's controller: a `ray.train.report`, the only report of code without a session."""
        if self._rated_by is not None and self._rated_by in metrics and not self._has_session:
            self.rated(step, metrics[self._rated_by])
        with self._lock:
            if self._has_session:
                return  # its own reports are earlier and have the duration of the steps
            now = time.time()
            own = progress_document.printable_metrics(metrics)
            self._inbox.add(self._group, [Row(step, now, own)])
            self._accounting.stepped(
                StepReport(
                    group=self._group,
                    step=step,
                    total=None,
                    begun=self._group_began,
                    done=now,
                    productive=now - self._group_began,
                    checkpoint=0.0,
                    metrics=own,
                )
            )

    def loss_history(self) -> LossHistory:
        """The losses of the run until now."""
        with self._lock:
            return self._accounting.history()

    def finished(self, metrics: dict[str, Any]) -> None:
        """Rank 0: the training's final metrics."""
        self._final_metrics = {**self._final_metrics, **metrics}

    def last_step(self) -> int:
        """Steps done."""
        return self._accounting.step

    def request(self, command: Command) -> None:
        """The driver: have the workers execute a command."""
        self._command = max(self._command, command)

    def uploaded(self, upload: UploadedCheckpoint) -> None:
        """Ray's controller: all ranks have uploaded their part of a checkpoint."""
        self._uploads.add(replace(upload, group=self._group))

    def measured(self, step: int, metrics: dict[str, Any]) -> None:
        """Rank 0: metrics of the last step, whose checkpoint was made before."""
        self._uploads.add_metrics(step, metrics)

    def next_upload(self, wait_s: float) -> UploadedCheckpoint | LateMetrics | None:
        """The driver: the oldest upload that is neither committed nor abandoned.

        It may also be metrics for a checkpoint that was uploaded before; see `attached`. None if
        there is neither within `wait_s` seconds.
        """
        return self._uploads.next(wait_s)

    def uploads_waiting(self) -> int:
        """How many uploads are neither committed nor abandoned, and metrics not attached."""
        return len(self._uploads)

    def committed(self, upload: UploadedCheckpoint, manifest: Manifest, uri: str) -> None:
        """The driver: an upload has a manifest now."""
        with self._lock:
            self._commits += 1
            self._accounting.committed(
                LastCheckpoint(uri=uri, step=manifest.step, time=manifest.time)
            )
        self._uploads.settle(upload)

    def abandoned(self, upload: UploadedCheckpoint) -> None:
        """The driver: an upload will not be committed."""
        self._uploads.settle(upload)

    def attached(self, late: LateMetrics) -> None:
        """The driver: the metrics are added to their checkpoint, or cannot be."""
        self._uploads.attached(late)

    def commits(self) -> int:
        """How many checkpoints this driver has committed."""
        return self._commits

    def settled(self, name: str) -> bool:
        """Whether the checkpoint in the folder of this name was committed or abandoned."""
        return self._uploads.settled(name)

    def storage(self, source: str, error: str | None) -> None:
        """Any process: requests of `source` to the store fail with this error; None: no longer."""
        with self._lock:
            if error is None:
                self._storage_errors.pop(source, None)
            else:
                _, since = self._storage_errors.get(source, (error, time.time()))
                self._storage_errors[source] = (error, since)

    def overruled(self, sentences: list[str]) -> None:
        """The driver: settings of the script that are not used, a sentence for each."""
        with self._lock:
            for sentence in sentences:
                self._accounting.overruled(time.time(), sentence)

    def interrupted(self) -> None:
        """Ray's controller: a worker group ended because of the store; no worker was lost."""
        with self._lock:
            self._accounting.interrupted()

    def disrupted(self, kind: RecordKind, message: str, ranks: tuple[int, ...]) -> None:
        """Ray's controller: a worker group ended before training was done."""
        place = next((self._places[rank] for rank in ranks if rank in self._places), None)
        node, pod = (place[1], place[2]) if place else (None, None)
        with self._lock:
            self._forget_storage_errors_of_ranks()
            self._accounting.disrupted(time.time(), kind, message, node=node, pod=pod)

    def _forget_storage_errors_of_ranks(self) -> None:
        """The ranks that reported them have ended; the new ones report their own."""
        for source in [s for s in self._storage_errors if s.startswith("rank ")]:
            del self._storage_errors[source]

    def failed(self, failure: Failure) -> None:
        """The driver ends the attempt; the first reason is kept."""
        with self._lock:
            self._accounting.failed(time.time(), failure)
        self.write()

    def suspended(self) -> None:
        """The driver ends because of a suspend request."""
        with self._lock:
            self._accounting.suspended()
        self.write()

    def complete(self, result: ProgressResult) -> ProgressResult:
        """The result with the training's final metrics on top."""
        return result.model_copy(update={"metrics": {**result.metrics, **self._final_metrics}})

    def succeeded(self, result: ProgressResult) -> None:
        """Training is done, and the result is in the bucket."""
        with self._lock:
            self._accounting.succeeded(result)
        self.write()

    def document(self) -> Progress:
        """The current progress."""
        with self._lock:
            document = self._accounting.document(time.time(), sorted(set(self._lost.values())))
            error, since = min(
                self._storage_errors.values(), key=lambda found: found[1], default=(None, None)
            )
            if document.state in (RunState.STARTING, RunState.TRAINING):
                stuck = standstill.sentence(self._stands, document.world_size, time.time())
                hosts = {rank: place[1] for rank, place in self._places.items()}
                pods = {rank: place[2] for rank, place in self._places.items()}
                compared = self._comparison.findings(hosts, pods, time.time())
                document = document.model_copy(update={"standstill": stuck, **compared})
        if self._paused_at is not None and self._rated_by is not None and self._rating is not None:
            metrics = {**document.metrics, self._rated_by: self._rating[1]}
            paused = {"paused_at_step": self._paused_at, "metrics": metrics}
            document = document.model_copy(update=paused)
        if document.state is RunState.SUCCEEDED or error is None:
            return document
        return document.model_copy(update={"storage_error": error, "storage_error_since": since})

    def write(self) -> None:
        """Write the progress document now."""
        # One at a time: a slower thread would replace a final document with an older one.
        with self._writing:
            progress_document.write(self._document, self.document())

    def _keep_writing(self) -> None:
        count = 0
        while not self._closed.wait(0.25):
            count += 1
            try:
                if count % 4 == 0:
                    self._update_lost_nodes()
                self.write()
            except Exception:  # a failed call of Ray must not end the updates of the document
                log.exception("the progress document could not be written")

    def _update_lost_nodes(self) -> None:
        places = {place[0]: place[1] for place in self._places.values()}
        if not places:
            return
        for dead in nodes.dead_nodes() & places.keys():
            self._lost.setdefault(dead, places[dead])


def trial_coordinator(trial: ContractTrial) -> str:
    """Name of the coordinator's actor of a trial of a sweep; the former leg's may still end."""
    return f"trial-{trial.number:04d}-{trial.leg:02d}-coordinator"


def start_coordinator(contract: RunContract, *arguments: Any) -> Any:
    """Start the coordinator as an actor on the driver's node; returns its handle."""
    name = trial_coordinator(contract.trial) if contract.trial else None
    here = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(Coordinator)
        .options(name=name, num_cpus=0, max_concurrency=16, label_selector={"ray.io/node-id": here})
        .remote(contract, *arguments)
    )
