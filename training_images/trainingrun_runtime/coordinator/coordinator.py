"""The coordinator: an actor that workers, Ray's controller and the driver call.

Ray runs the calls in several threads. Each part has its own state and lock, and calls no other part
while it holds it; what concerns several parts is here.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray

from trainingrun_protocol.contract import (
    RANK_PODS_FILE,
    WORKER_RESOURCE,
    ContractTrial,
    RunContract,
)
from trainingrun_protocol.failure_rules import FailureFacts
from trainingrun_protocol.progress import (
    Failure,
    Hang,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RecordKind,
    RunState,
)

from ..progress import document as progress_document
from ..progress.rank_measures import AcceleratorUse, MemoryUse, Quiet
from ..progress.time_accounting import StepReport, TimeAccounting
from ..ray_internals import nodes
from ..store.lease import LossHistory, LostDriver
from ..store.manifest import Manifest
from ..store.reported_metrics import Origin, Row, printable_metrics
from .checkpoints import Checkpoints, Command, UploadedCheckpoint
from .hangs import Hangs
from .inbox import Inbox
from .ranks import Ranks, RestoreSearch, Survivors
from .run_progress import RunProgress, StoreErrors, TrialRating
from .scripts import Orders, Scripts, Told
from .standby import Preparation, Standby
from .start_times import StartTimes

log = logging.getLogger(__name__)

_WRITE_EVERY_S = 0.25
"""Seconds between two writes of the progress document."""
_LOOK_EVERY = 4
"""Writes between two looks at the cluster, for what nobody tells."""
LONGEST_END_S = 300.0
"""Seconds after which a driver that has failed counts as ended: a script may catch the exception of
`fit()`, and wait."""

P = ParamSpec("P")
Part = TypeVar("Part")
R = TypeVar("R")


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


def _of(
    part: Callable[["Coordinator"], Part], method: Callable[Concatenate[Part, P], R]
) -> Callable[Concatenate["Coordinator", P], R]:
    """A method of a part as one of the actor."""

    def call(self: "Coordinator", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(part(self), *args, **kwargs)

    update_wrapper(call, method)  # Ray reads its signature
    return call


class Coordinator:
    """Shared state of one driver. Its methods are called from other processes.

    Args:
        contract: the operator's settings of this attempt.
        fencing_token: of the driver's lease.
        started: Unix time at which the driver started.
        document: where the progress document is written.
        checkpoint: the newest intact checkpoint, if there is one.
        history: losses of the run's earlier drivers.
        lost: the driver before this one, if it was lost.
    """

    def __init__(
        self,
        contract: RunContract,
        fencing_token: int,
        started: float,
        document: Path,
        checkpoint: LastCheckpoint | None,
        history: LossHistory | None = None,
        lost: LostDriver | None = None,
    ) -> None:
        accounting = TimeAccounting(contract.attempt, fencing_token, started, history, lost)
        if checkpoint is not None:
            accounting.committed(checkpoint)
        self._progress = RunProgress(contract, accounting)
        last_step = lost.step_time if lost is not None else None
        self._starts = StartTimes(contract.attempt, fencing_token, last_step)
        others_wait = bool(contract.standby) or contract.elastic
        self._ranks, self._restore = Ranks(others_wait=others_wait), RestoreSearch()
        self._standby = Standby() if contract.standby else None
        self._checkpoints, self._rows = Checkpoints(), Inbox()
        self._store, self._scripts = StoreErrors(), Scripts()
        self._hangs = Hangs(contract.hang)
        self._rating = TrialRating(contract.trial.metric if contract.trial else None)
        self._needed = contract.needed_metrics
        self._head_ends = False
        self._last_report = b""
        self._report_uri: str | None = None
        self._failure: tuple[Failure, float] | None = None  # and when it was told, monotonic
        self._most_workers: int | None = None
        self._path, self._writing = document, threading.Lock()
        # The trials of a sweep share the folder.
        self._pods = None if contract.trial else document.with_name(RANK_PODS_FILE)
        self._pods_written: dict[int, str] = {}
        self._closed = threading.Event()
        clock = partial(self._hangs.keep_time, self._closed)
        for name, work in (("progress", self._keep_writing), ("hang clock", clock)):
            threading.Thread(target=work, name=name, daemon=True).start()

    rank_times = _of(lambda self: self._ranks, Ranks.rank_times)
    place_of = _of(lambda self: self._ranks, Ranks.of_first)
    members = _of(lambda self: self._ranks, Ranks.members)
    script_runs = _of(lambda self: self._ranks, Ranks.script_runs)
    returned = _of(lambda self: self._ranks, Ranks.returned)
    not_returned = _of(lambda self: self._ranks, Ranks.not_returned)
    rank_location = _of(lambda self: self._ranks, Ranks.rank_location)
    can_save_alone = _of(lambda self: self._ranks, Ranks.can_save_alone)
    cannot_save_alone = _of(lambda self: self._ranks, Ranks.cannot_save_alone)

    refuse = _of(lambda self: self._restore, RestoreSearch.refuse)
    refused = _of(lambda self: self._restore, RestoreSearch.refused)
    search_begins = _of(lambda self: self._restore, RestoreSearch.search_begins)
    restore_folder = _of(lambda self: self._restore, RestoreSearch.restore_folder)

    request = _of(lambda self: self._checkpoints, Checkpoints.request)
    stay = _of(lambda self: self._checkpoints, Checkpoints.withdraw)
    uploaded = _of(lambda self: self._checkpoints, Checkpoints.uploaded)
    measured = _of(lambda self: self._checkpoints, Checkpoints.measured)
    in_use = _of(lambda self: self._checkpoints, Checkpoints.in_use)
    next_upload = _of(lambda self: self._checkpoints, Checkpoints.next_upload)
    abandoned = _of(lambda self: self._checkpoints, Checkpoints.abandoned)
    attached = _of(lambda self: self._checkpoints, Checkpoints.attached)
    commits = _of(lambda self: self._checkpoints, Checkpoints.commits)
    is_committed = _of(lambda self: self._checkpoints, Checkpoints.is_committed)
    newest_is_committed = _of(lambda self: self._checkpoints, Checkpoints.newest_is_committed)

    newest_group = _of(lambda self: self._progress, RunProgress.newest_group)
    resumed_step = _of(lambda self: self._progress, RunProgress.resumed_step)
    session_began = _of(lambda self: self._progress, RunProgress.session_began)
    reports_nothing = _of(lambda self: self._progress, RunProgress.reports_nothing)
    advise = _of(lambda self: self._progress, RunProgress.advise)
    not_saved_alone = _of(lambda self: self._progress, RunProgress.not_saved_alone)
    loss_history = _of(lambda self: self._progress, RunProgress.loss_history)
    losses = _of(lambda self: self._progress, RunProgress.losses)
    overruled = _of(lambda self: self._progress, RunProgress.overruled)
    finished = _of(lambda self: self._progress, RunProgress.finished)
    complete = _of(lambda self: self._progress, RunProgress.complete)

    silence = _of(lambda self: self._hangs, Hangs.silence)
    allow_pause = _of(lambda self: self._hangs, Hangs.allow_pause)
    hung = _of(lambda self: self._hangs, Hangs.hung)
    stuck = _of(lambda self: self._hangs, Hangs.stuck)

    driver_times = _of(lambda self: self._starts, StartTimes.driver_times)
    group_asked = _of(lambda self: self._starts, StartTimes.group_asked)
    group_times = _of(lambda self: self._starts, StartTimes.group_times)
    start_times = _of(lambda self: self._starts, StartTimes.rank_times)
    start_traces = _of(lambda self: self._starts, StartTimes.changed_after)

    meet = _of(lambda self: self._scripts, Scripts.meet)

    add_rows = _of(lambda self: self._rows, Inbox.add_rows)
    rows = _of(lambda self: self._rows, Inbox.rows)
    storage = _of(lambda self: self._store, StoreErrors.storage)
    rated = _of(lambda self: self._rating, TrialRating.rated)
    rating = _of(lambda self: self._rating, TrialRating.rating)
    paused = _of(lambda self: self._rating, TrialRating.paused)

    # What concerns several parts.

    def next_group(self) -> int:
        """A worker, before it imports the user's code: number of its group."""
        group = self._progress.next_group()
        self._hangs.joins(group)
        return group

    def uploads_waiting(self) -> int:
        """Rank 0, before it restores: uploads of the former group that are not committed yet."""
        waiting = self._checkpoints.uploads_waiting()
        if waiting:
            self._hangs.sign()  # the driver works, and no rank does
        return waiting

    def joined(self, rank: int, *told: Any) -> None:
        """A worker started; see `Ranks.joined`."""
        found = self._ranks.joined(rank, *told)
        if found is not None:
            self._progress.ran_out_of_memory(*found)

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
        group = self._progress.group_started(world_size, resumed_step, skipped, restored_from)
        self._ranks.begin(group, world_size)
        self._starts.group_began(group, world_size, resumed_step)
        if self._standby is not None:
            self._standby.begin(self._ranks.ray_nodes(), time.monotonic())
        self._checkpoints.begin(group, resumed_step)
        self._rows.begin(group, origin)
        self._restore.end()
        self._store.forget_ranks()
        self._rating.begin()
        self._hangs.begin(group, resumed_step)
        self._most_workers = None
        return group

    def stepped(self, report: StepReport) -> Command:
        """Rank 0: steps were done; returns the command that applies now."""
        self._progress.stepped(report)
        self._hangs.stepped(report)
        return self._checkpoints.command

    def reported(self, step: int, metrics: dict[str, Any]) -> None:
        """Ray's controller: a `ray.train.report`, which counts for code without a session."""
        self._hangs.sign()
        own = printable_metrics(metrics, self._needed)
        group = self._progress.reported(step, own)
        if group is not None:
            self._starts.group_times({"reported": time.time()})
            self._rating.rate_by(step, metrics)
            self._rows.add_rows(group, [Row(step, time.time(), own)])

    def script_told(self, group: int, rank: int, told: Told) -> Orders:
        """A rank tells, once a second, what the script that it has started does; its orders."""
        if told.left_s is not None:
            self._checkpoints.request(Command.CHECKPOINT_AND_EXIT)
        command = self._checkpoints.command
        orders, finished = self._scripts.told(group, rank, told, command, time.monotonic())
        if finished is not None:
            step = self._progress.resumed_step() + finished.finished
            self.reported(step, {})
            self._checkpoints.uploaded(
                UploadedCheckpoint(
                    finished.path, step, finished.world_size, {}, ranks=finished.ranks
                )
            )
        return orders

    def keep_last_report(self, pickled: bytes) -> None:
        """Ray's controller: the last `ray.train.report` of this driver, not converted."""
        self._last_report = pickled

    def last_report(self) -> bytes:
        """The driver: what `keep_last_report` was given; empty: nothing."""
        return self._last_report

    def rank_use(
        self,
        rank: int,
        group: int,
        memory: MemoryUse,
        accelerators: AcceleratorUse | None,
        quiet: Quiet | None = None,
    ) -> None:
        """A worker: how full its memory is, how busy its accelerators are, and for how long it has
        done nothing.
        """
        self._ranks.rank_use(rank, group, memory, accelerators)
        if quiet is not None:
            self._hangs.quiet(group, quiet)

    def grow(self, workers: int, possible: int) -> bool:
        """Ray's controller: more workers can be had; whether it is to end their group right now.

        A session makes a checkpoint and ends the group by itself. Code without one has no place
        for that: its group is ended just after one of its own checkpoints, of which none may come.
        """
        if not self._progress.worth_growing(workers, possible):
            return False
        if self._progress.has_session:
            self._checkpoints.request(Command.RESIZE)
            return False
        if not self._checkpoints.just_committed():
            return False
        self.interrupted()
        return True

    def limit_workers(self, most: int | None) -> None:
        """Ray's controller: most workers of the next worker group; None: as many as there are."""
        self._most_workers = most

    def most_workers(self) -> int | None:
        """Ray's controller: what `limit_workers` was given for the worker group that begins."""
        return self._most_workers

    def prepare_standby(self, preparation: Preparation) -> None:
        """Rank 0: what is to be run on nodes that wait."""
        if self._standby is not None:
            self._standby.prepare(preparation)

    def hang_of_group(self) -> Hang | None:
        """Ray's controller: the hang for which the worker group was ended; None: it was not."""
        return self._hangs.hang_of(self._progress.newest_group())

    def interrupted(self) -> None:
        """Ray's controller: a worker group ended because of the store; no worker was lost."""
        self._group_ended()
        self._progress.interrupted()

    def disrupted(
        self,
        kind: RecordKind,
        message: str,
        ranks: tuple[int, ...],
        facts: FailureFacts | None = None,
    ) -> None:
        """Ray's controller: a worker group ended before training was done."""
        self._group_ended()
        self._store.forget_ranks()
        if kind is RecordKind.WORKER_LOST:
            self._ranks.ended(ranks)
        self._progress.disrupted(kind, message, self._ranks.of_first(ranks), facts)

    def _group_ended(self) -> None:
        known = self._progress.has_session  # else reports tell when, and not steps
        last_step = self._progress.loss_history().step_time if known else None
        self._starts.group_ended(time.time(), last_step)
        self.group_shut_down()

    def group_shut_down(self) -> None:
        """Ray's controller: it ends the worker group, whose training may also be done."""
        self._hangs.group_ended()
        self._ranks.forget_processes()

    def survivors(self) -> Survivors:
        """Ray's controller: the ranks that can be asked for the last step."""
        return self._ranks.survivors(self._checkpoints.saved_step)

    def saved_alone(self, upload: UploadedCheckpoint, ranks: tuple[int, ...]) -> None:
        """Ray's controller: these ranks have saved the last step after another one was lost."""
        self._starts.saved(time.time())
        metrics = {**self._progress.saved_alone(upload.step, ranks), **upload.metrics}
        self._rows.complete(upload.rows, upload.step)  # what rank 0 had not sent
        self._checkpoints.uploaded(replace(upload, metrics=metrics, rows=()))

    def validated(self, path: str, scores: dict[str, Any]) -> None:
        """A task of Ray: a validation has ended; its scores, none: it has failed.

        Args:
            path: Folder of the checkpoint, as Ray names it.
            scores: As JSON can carry them.
        """
        known = self._checkpoints.validated(path, scores)
        if known is not None:
            step, group = known
            self._rows.add_rows(group, [Row(step, time.time(), scores)])

    def save_and_exit(self, commits: int) -> bool:
        """The driver, again and again: the head's pod ends, so have the ranks save and leave.

        A worker group that begins forgets what the former one was asked. Only one with a session is
        asked too: scripts of torchrun that have nothing to save would be ended once more, by each
        further group.

        Args:
            commits: how many there were when the pod's notice came.

        Returns:
            Whether one was made since that holds the last step. Code without a session reports
            steps that it does not save, so of it any commit counts.
        """
        has_session = self._progress.has_session
        if self._checkpoints.commits() > commits:
            unsaved = has_session and self._progress.loss_history().unsaved
            if not unsaved:
                return True
        if has_session or not self._head_ends:
            self._checkpoints.request(Command.CHECKPOINT_AND_EXIT)
        self._head_ends = True
        return False

    def committed(self, upload: UploadedCheckpoint, manifest: Manifest, uri: str) -> None:
        """The driver: an upload has a manifest now."""
        self._progress.committed(manifest, uri)
        self._checkpoints.committed(upload)

    # How the driver ends, and the progress document.

    def concluding(
        self, failure: Failure | None = None, result: ProgressResult | None = None
    ) -> None:
        """The driver is about to end so: its document says how, and not yet that it has ended."""
        self._hangs.group_ended()
        self._progress.concluding(failure, result)
        if failure is not None and self._failure is None:
            self._failure = failure, time.monotonic()
        self.write()

    def page_written(self, uri: str) -> None:
        """The driver: the page of the run is in the bucket."""
        self._report_uri = uri

    def failed(self, failure: Failure) -> None:
        """The driver ends the attempt; the first reason is kept."""
        self._hangs.group_ended()
        self._progress.failed(failure)
        self.write()

    def suspended(self) -> None:
        """The driver ends because of a suspend request."""
        self._hangs.group_ended()
        self._progress.suspended()
        self.write()

    def succeeded(self, result: ProgressResult) -> None:
        """Training is done, and the result is in the bucket."""
        self._hangs.group_ended()
        self._progress.succeeded(result)
        self.write()

    def document(self) -> Progress:
        """The current progress."""
        document = self._progress.document(self._ranks.lost_nodes)
        training = document.state in (RunState.STARTING, RunState.TRAINING)
        update = self._ranks.findings(document.time, training)
        update["warnings"] = [*document.warnings, *update.get("warnings", ())]
        update |= self._rating.fields(document.metrics) | self._hangs.fields()
        update["report_uri"] = self._report_uri
        if self._standby is not None:
            update["spare_pods"] = self._standby.pods(training=document.state is RunState.TRAINING)
        if document.state is not RunState.SUCCEEDED:
            update |= self._store.fields()
        return document.model_copy(update=update)

    def write(self) -> None:
        """Write the progress document now."""
        # One at a time: a slower thread would replace a final document with an older one.
        with self._writing:
            progress_document.write(self._path, self.document())

    def _write_pods(self) -> None:
        """Write in which pod each rank is, for who wants to look into it."""
        found = self._ranks.pods()
        if self._pods is not None and found != self._pods_written:
            part = self._pods.with_suffix(".part")
            part.write_text(json.dumps(found))
            part.replace(self._pods)
            self._pods_written = found

    def _look_at_standby(self) -> None:
        if self._standby is None or not self._progress.trains:
            return
        usable = nodes.usable_with(WORKER_RESOURCE)
        for ray_node, node in self._standby.look(usable, self._ranks.ray_nodes(), time.monotonic()):
            self._ranks.waits(ray_node, node)

    def close(self) -> None:
        """Write the document no more by itself."""
        self._closed.set()

    def _keep_writing(self) -> None:
        count = 0
        while not self._closed.wait(_WRITE_EVERY_S):
            count += 1
            try:
                if self._store.fields():
                    self._hangs.sign()  # what waits for the store goes on once it answers
                if count % _LOOK_EVERY == 0 and self._ranks.have_joined:
                    self._write_pods()
                    self._look_at_standby()
                    self._ranks.died(nodes.dead_nodes())
                    if (slow := self._ranks.slow_node(time.time())) is not None:
                        self._progress.node_is_slow(*slow)
                if self._failure and time.monotonic() - self._failure[1] >= LONGEST_END_S:
                    self._progress.failed(self._failure[0])
                self.write()
            except Exception:  # a failed call of Ray must not end the updates of the document
                log.exception("the progress document could not be written")
