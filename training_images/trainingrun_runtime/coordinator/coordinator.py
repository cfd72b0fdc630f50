"""The coordinator: an actor that workers, Ray's controller and the driver call.

It accounts for the time, writes the progress document, queues uploads for the driver's committer,
and answers each report of rank 0 with a command. Each of these has a class of its own; here is who
calls what. Ray runs the calls in several threads.
"""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainingrun_protocol.contract import RunContract
from trainingrun_protocol.progress import (
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RecordKind,
    RunState,
)

from ..progress.accelerator_use import AcceleratorUse
from ..progress.memory_use import MemoryUse
from ..progress.rank_times import RankTimes
from ..progress.time_accounting import StepReport, TimeAccounting
from ..ray_internals import nodes
from ..store.loss_history import LossHistory
from ..store.manifest import Manifest
from ..store.metric_values import printable_metrics, shown_metrics
from ..store.metrics_rows import Batch, Origin, Row
from ..store.uploaded_checkpoint import LateMetrics, UploadedCheckpoint
from .command import Command
from .document_writer import DocumentWriter
from .inbox import Inbox
from .rank_places import RankPlace, RankPlaces
from .standstill import Stand
from .store_troubles import StoreTroubles
from .trial_rating import TrialRating
from .upload_queue import UploadQueue
from .worker_group import Survivors, WorkerGroup


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
        self._command = Command.NONE
        self._commits = 0
        self._uploads = UploadQueue()
        self._refused: dict[str, str] = {}  # URI of a manifest -> what is wrong with its files
        self._validating: dict[str, tuple[int, int]] = {}  # path -> (step, worker group)
        self._search = 0  # for a checkpoint to begin from; each worker group makes one or more
        self._folders: dict[str, str] = {}  # by Ray node, where its ranks find common files
        self._inbox = Inbox()
        self._store = StoreTroubles()
        self._places = RankPlaces()
        self._group = WorkerGroup()
        self._saved_alone: tuple[int, tuple[int, ...]] | None = None  # (step, ranks)
        self._not_saved_alone: str | None = None  # why the ranks that were left did not
        self._final_metrics: dict[str, Any] = {}
        self._needed = contract.needed_metrics
        self._last_report = b""
        self._rating = TrialRating(contract.trial.metric if contract.trial else None)
        if checkpoint is not None:
            self._accounting.committed(checkpoint)
        self._lock = threading.Lock()
        self._writer = DocumentWriter(document, self.document, self._look_for_lost_nodes)

    def close(self) -> None:
        """Update the document no more."""
        self._writer.close()

    # A worker group: how it begins, and what its ranks tell.

    def joined(self, rank: int, ray_node: str, node: str, pod: str) -> None:
        """A worker started: its Ray node, Kubernetes node and pod."""
        self._places.joined(rank, RankPlace(ray_node, node, pod))

    def refuse(self, uri: str, reason: str) -> None:
        """A worker: the checkpoint of the manifest at `uri` is damaged; the first reason counts."""
        with self._lock:
            self._refused.setdefault(uri, reason)

    def refused(self) -> dict[str, str]:
        """The checkpoints that the worker group that begins has found not to be intact, and why."""
        with self._lock:
            return dict(self._refused)

    def search_begins(self) -> tuple[int, dict[str, str]]:
        """Rank 0: a checkpoint is chosen; the number of this search, and what `refused` returns."""
        with self._lock:
            self._search, self._folders = self._search + 1, {}
            return self._search, dict(self._refused)

    def restore_folder(self, search: int, ray_node: str, folder: str) -> str:
        """A worker: the folder of the rank that downloads what all ranks of this pod restore.

        It is the first one that asks.

        Args:
            search: number of the search; processes of a former worker group share nothing.
            ray_node: of the pod.
            folder: the worker's own.
        """
        with self._lock:
            return self._folders.setdefault(ray_node, folder) if search == self._search else folder

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
            now = time.time()
            for message in skipped:
                self._accounting.skipped(now, message)
            if self._command is Command.CHECKPOINT_AND_EXIT:
                self._command = Command.NONE
            self._store.forget_ranks()
            self._uploads.begin(resumed_step)
            self._refused = {}
            self._rating.begin()
            step, ranks = self._saved_alone or (None, ())
            not_saved = self._not_saved_alone
            self._saved_alone = self._not_saved_alone = None
            number = self._accounting.group_started(
                now,
                world_size,
                resumed_step,
                restored_from,
                saved_by=ranks if step == resumed_step else (),
                not_saved=not_saved,
            )
            self._group = WorkerGroup(number, world_size, now, resumed_step)
            self._inbox.begin(number, origin)
            return number

    def resumed_step(self) -> int:
        """Step of the checkpoint that the worker group began from; 0: from scratch."""
        with self._lock:
            return self._group.resumed_step

    def session_began(self, group: int) -> None:
        """Rank 0: the training code has a session, whose reports are the ones that count."""
        with self._lock:
            if group == self._group.number:
                self._group.has_session = True
                self._accounting.session_began()

    def reports_nothing(self, group: int, sentence: str) -> None:
        """Rank 0: its function runs for a while without a session; what to do, in a sentence."""
        with self._lock:
            if group == self._group.number and not self._group.reports:
                self._group.silence = sentence
                self._accounting.runs_unmeasured()

    def stepped(self, report: StepReport) -> Command:
        """Rank 0: steps were done; returns the command that applies now."""
        with self._lock:
            self._group.has_session = True
            self._accounting.stepped(report)
            return self._command

    def reported(self, step: int, metrics: dict[str, Any]) -> None:
        """Ray's controller: a `ray.train.report`, the only report of code without a session."""
        with self._lock:
            group = self._group
            if group.has_session:
                return  # its own reports are earlier and have the duration of the steps
            self._rating.rate_by(step, metrics)
            now = time.time()
            own = printable_metrics(metrics, self._needed)
            self._inbox.add(group.number, [Row(step, now, own)])
            group.has_reported = True
            self._accounting.reported(now, step, own)

    def keep_last_report(self, pickled: bytes) -> None:
        """Ray's controller: the last `ray.train.report` of this driver, not converted."""
        self._last_report = pickled

    def last_report(self) -> bytes:
        """The driver: what `keep_last_report` was given; empty: nothing."""
        return self._last_report

    def last_step(self) -> int:
        """Steps done."""
        return self._accounting.step

    def add_rows(self, group: int, rows: list[Row]) -> None:
        """Rank 0: what it has reported, for the run's table."""
        with self._lock:
            self._inbox.add(group, rows)

    def rows(self, seen: int) -> list[Batch]:
        """The driver: the reports after the batch with this number."""
        with self._lock:
            return self._inbox.take(seen)

    def rank_times(self, rank: int, group: int, times: RankTimes) -> None:
        """A worker: what its steps take, and for what it waits."""
        with self._lock:
            if group != self._group.number:
                return
            self._group.comparison.times(rank, times, time.time())
            if times.data_share is not None:
                self._accounting.waited_for_data(rank, group, times.data_share)

    def rank_memory(self, rank: int, group: int, use: MemoryUse) -> None:
        """A worker: how full its memory is."""
        with self._lock:
            if group == self._group.number:
                self._group.comparison.memory(rank, use)

    def rank_accelerators(self, rank: int, group: int, use: AcceleratorUse) -> None:
        """A worker: how busy its accelerators are."""
        with self._lock:
            if group == self._group.number:
                self._group.comparison.accelerators(rank, use)

    def stands(self, rank: int, group: int, stand: Stand | None, stood_s: float) -> None:
        """A worker: where it has been for so many seconds; None: it moves again."""
        with self._lock:
            if group == self._group.number:
                # The clocks of the nodes may differ.
                since = time.time() - stood_s
                self._group.stands(rank, replace(stand, since=since) if stand else None)

    def rated(self, step: int, value: Any) -> None:
        """Rank 0: the metric by which trials of a sweep are compared."""
        self._rating.rated(step, value)

    def rating(self) -> tuple[int, Any] | None:
        """That metric as it was last reported, and its step; None: it was not yet."""
        return self._rating.latest

    def paused(self, step: int, value: Any) -> None:
        """Rank 0: this trial of a sweep ends here, and waits for others; its metric."""
        self._rating.paused(step, value)

    # What is lost, and what the other ranks save then.

    def can_save_alone(self, rank: int, group: int, actor: Any) -> None:
        """A worker that notes its steps: it can be called, also while it waits for a lost rank.

        Args:
            rank: its own.
            group: its worker group.
            actor: its handle.
        """
        with self._lock:
            if group == self._group.number:
                self._group.actors[rank] = actor

    def cannot_save_alone(self, group: int, reason: str) -> None:
        """Rank 0: no step's end is noted; why, in a sentence without its period."""
        with self._lock:
            if group == self._group.number:
                self._group.without_notes = reason

    def survivors(self) -> Survivors:
        """Ray's controller: the ranks that can be asked for the last step."""
        with self._lock:
            group = self._group
            return Survivors(dict(group.actors), self._uploads.saved_step, group.without_notes)

    def saved_alone(self, upload: UploadedCheckpoint, ranks: tuple[int, ...]) -> None:
        """Ray's controller: these ranks have saved the last step after another one was lost."""
        with self._lock:
            self._saved_alone = (upload.step, ranks)
            metrics = {**self._accounting.metrics_of(upload.step), **upload.metrics}
            # What rank 0 had not sent when it was lost.
            self._inbox.complete(self._group.number, upload.rows, upload.step)
        self.uploaded(replace(upload, metrics=metrics, rows=()))

    def not_saved_alone(self, reason: str) -> None:
        """Ray's controller: why they have not; a sentence without its period."""
        with self._lock:
            self._not_saved_alone = reason

    def disrupted(self, kind: RecordKind, message: str, ranks: tuple[int, ...]) -> None:
        """Ray's controller: a worker group ended before training was done."""
        place = self._places.of_first(ranks)
        node, pod = (place.node, place.pod) if place else (None, None)
        with self._lock:
            self._store.forget_ranks()
            self._accounting.disrupted(time.time(), kind, message, node=node, pod=pod)

    def interrupted(self) -> None:
        """Ray's controller: a worker group ended because of the store; no worker was lost."""
        with self._lock:
            self._accounting.interrupted(time.time())

    def loss_history(self) -> LossHistory:
        """The losses of the run until now."""
        with self._lock:
            return self._accounting.history()

    # Checkpoints, from their upload to their manifest.

    def uploaded(self, upload: UploadedCheckpoint) -> None:
        """Ray's controller: all ranks have uploaded their part of a checkpoint."""
        with self._lock:
            group = self._group.number
            if upload.validated:
                self._validating[upload.path] = (upload.step, group)
        self._uploads.add(replace(upload, group=group))

    def measured(self, step: int, metrics: dict[str, Any]) -> None:
        """Rank 0: metrics of the last step, whose checkpoint was made before."""
        self._uploads.add_metrics(step, metrics)

    def validated(self, path: str, scores: dict[str, Any]) -> None:
        """A task of Ray: a validation has ended; its scores, none: it has failed.

        Args:
            path: Folder of the checkpoint, as Ray names it.
            scores: As JSON can carry them.
        """
        with self._lock:
            known = self._validating.pop(path, None)
            if known is None or not scores:
                return
            step, group = known
            if group == self._group.number:
                self._inbox.add(group, [Row(step, time.time(), scores)])
        self._uploads.add_scores(LateMetrics(step, scores, path))

    def validating(self) -> list[str]:
        """The driver: folders of checkpoints that a validation still reads."""
        with self._lock:
            return list(self._validating)

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
            self._store.report(source, error, time.time())

    # The driver, and how it ends.

    def request(self, command: Command) -> None:
        """The driver: have the workers execute a command."""
        with self._lock:
            self._command = max(self._command, command)

    def overruled(self, sentences: list[str]) -> None:
        """The driver: settings of the script that are not used, a sentence for each."""
        with self._lock:
            for sentence in sentences:
                self._accounting.overruled(time.time(), sentence)

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

    def finished(self, metrics: dict[str, Any]) -> None:
        """Rank 0: the training's final metrics."""
        with self._lock:
            self._final_metrics = {**self._final_metrics, **metrics}

    def complete(self, result: ProgressResult, step: int) -> ProgressResult:
        """The result with the last reported metrics, and the training's final ones on top.

        Args:
            result: with the metrics of the newest checkpoint, if there is one.
            step: of that checkpoint; 0: there is none. A script may report later ones without one.
        """
        with self._lock:
            last = self._accounting.step
            reported = self._accounting.metrics_of(last) if last > step else {}
            metrics = {**(reported or result.metrics), **self._final_metrics}
        return result.model_copy(update={"metrics": printable_metrics(metrics, self._needed)})

    def succeeded(self, result: ProgressResult) -> None:
        """Training is done, and the result is in the bucket."""
        with self._lock:
            self._accounting.succeeded(time.time(), result)
        self.write()

    # The progress document.

    def document(self) -> Progress:
        """The current progress."""
        with self._lock:
            now = time.time()
            document = self._accounting.document(now, self._places.lost_nodes)
            shown = shown_metrics(document.metrics, self._needed)
            update: dict[str, Any] = {"metrics": shown}
            if (result := document.result) is not None:
                few = shown_metrics(result.metrics, self._needed)
                update["result"] = result.model_copy(update={"metrics": few})
            if document.state in (RunState.STARTING, RunState.TRAINING):
                update |= self._group.findings(self._places.nodes(), self._places.pods(), now)
            update |= self._rating.fields(shown)
            waits = self._store.oldest
            if waits is not None and document.state is not RunState.SUCCEEDED:
                update |= dict(zip(("storage_error", "storage_error_since"), waits, strict=True))
        return document.model_copy(update=update)

    def write(self) -> None:
        """Write the progress document now."""
        self._writer.write()

    def _look_for_lost_nodes(self) -> None:
        if self._places.ray_nodes:
            self._places.died(nodes.dead_nodes())
