"""What a session saves and restores, and when a checkpoint is due."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointUploadMode

from .checkpoints import snapshot, state_comparison
from .checkpoints.accumulated_gradients import AccumulatedGradients
from .checkpoints.checkpoint_interval import CheckpointInterval
from .checkpoints.checkpoint_upload import CheckpointUpload
from .checkpoints.restored_files import files_of
from .checkpoints.sharded_state import Encoded
from .checkpoints.snapshot import Position
from .checkpoints.staging import Staging
from .checkpoints.state_comparison import Comparison, Fingerprints
from .checkpoints.stateful_objects import Stateful, replicated, restorable
from .coordination.step_consensus import StepConsensus
from .course import Course
from .noted_steps import NotedSteps
from .reports.recorder import ReportRecorder
from .worker import Worker


class SavedObjects:
    """The objects of a session: what this rank saves of them, and how they are put back.

    Args:
        worker: this rank.
        objects: by name.

    Raises:
        NotRestorable: one of them cannot be restored.
    """

    def __init__(self, worker: Worker, objects: Mapping[str, Any]) -> None:
        self._worker = worker
        self.objects: dict[str, Stateful] = restorable(dict(objects))
        """With the models' wrappers removed."""
        self.replicated = {name for name, thing in objects.items() if replicated(thing)}
        """Names of the models whose buffers are taken from rank 0 before each forward pass."""

    def states(self) -> dict[str, Encoded]:
        """What this rank may have to save, not copied yet."""
        return snapshot.encoded(self.objects, self.objects.keys())

    def fingerprints(self, states: Mapping[str, Encoded]) -> dict[str, Fingerprints]:
        """Short digests of these states."""
        # Ranks that average their weights now and then have parameters of their own in between.
        return state_comparison.fingerprints(states, self.parameters())

    def parameters(self) -> dict[str, set[str]]:
        """Names of the parameters of the models in `replicated`, whose buffers are rank 0's."""
        return {
            name: {key for key, _ in thing.named_parameters(remove_duplicate=False)}
            for name, thing in self.objects.items()
            if name in self.replicated and isinstance(thing, torch.nn.Module)
        }

    def restore(self) -> Position:
        """Put everything back as the checkpoint has it, if there is one; how far training was."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return Position()
        worker = self._worker
        # After a report of the training function's own, it is another checkpoint.
        fetched = worker.fetched if checkpoint is worker.offered else None
        with files_of(checkpoint, fetched) as files:
            position = snapshot.restore(files, self.objects, worker.rank, worker.world_size)
        # Another run's `stop()` was its own: a run that begins there trains on.
        return position if worker.continues is not None else replace(position, stop_at=None)


class Saving:
    """Makes a session's checkpoints.

    Args:
        worker: this rank.
        objects: what is saved.
        consensus: of the ranks.
        course: how far the training is; it was just restored, or begins.
        noted_steps: those that this rank can save without the others.
        gradients: of the session's optimizers.
        reports: what this rank has reported.
    """

    def __init__(
        self,
        worker: Worker,
        objects: SavedObjects,
        consensus: StepConsensus,
        course: Course,
        noted_steps: NotedSteps,
        gradients: AccumulatedGradients,
        reports: ReportRecorder,
    ) -> None:
        self._worker, self._objects, self._course = worker, objects, course
        self._consensus, self._noted_steps, self._reports = consensus, noted_steps, reports
        self._gradients = gradients
        self.interval = CheckpointInterval(worker.checkpoints, worker.history)
        """When checkpoints are due, and what they cost."""
        self.late = False
        """Whether one is made as soon as the former one is uploaded."""
        self.saved: Position | None = course.position if worker.restored is not None else None
        """Of the last checkpoint of this run."""
        self._saved_at = time.monotonic()
        self._save_seconds = 0.0
        self._upload: CheckpointUpload | None = None
        self._staging = Staging()
        self._tried = False

    @property
    def unsaved(self) -> bool:
        """Whether no checkpoint holds this position."""
        return self.saved != self._course.position

    @property
    def uploading(self) -> bool:
        """Whether a checkpoint is being uploaded."""
        return self._upload is not None and not self._upload.done

    def slowest_s(self) -> float:
        """Seconds that the slowest of the last two checkpoints took, its upload included."""
        upload = self._upload
        return max(self._save_seconds, upload.seconds_so_far if upload is not None else 0.0)

    def due_s(self, *, at_loop_end: bool = False) -> float:
        """Seconds after the last checkpoint at which the next one is due."""
        rule = self.interval.at_loop_end_s if at_loop_end else self.interval.seconds
        return rule(self.slowest_s(), self._course.trained)

    def is_due(self, due_s: float) -> bool:
        """Whether a checkpoint is due, so many seconds after the last one."""
        return self.late or (time.monotonic() - self._saved_at >= due_s and self.unsaved)

    def try_out(self) -> None:
        """The first step is done: refuse what cannot be saved; note each step's end if possible.

        And make the memory that the first checkpoint will be copied into. An optimizer has no state
        before that step.
        """
        if self._tried:
            return
        states = self._objects.states()
        snapshot.try_out(states)
        comparison = self._compare(self._objects.fingerprints(states))
        self._noted_steps.begin(
            self._objects.objects,
            self._worker.rank,
            self._gradients,
            self._objects.replicated,
            lambda: comparison.own,
            lambda: [of for (of,) in self._consensus.gather([state_comparison.layout(states)])],
        )
        if self._noted_steps.noting:
            self._worker.can_save_alone()
        elif self._worker.rank == 0:
            self._worker.cannot_save_alone(self._noted_steps.reason)
        if self._upload is None:
            worker = self._worker
            snapshot.make_memory(states, comparison, worker.rank, worker.world_size, self._staging)
        self._tried = True

    def save(self, *, wait: bool) -> None:
        """Make a checkpoint of this step; every rank calls it after the same step.

        Training stands still while the state is copied; files are uploaded in the background,
        unless `wait` is set.
        """
        if self._upload is not None:
            self._upload.wait()
            self._save_seconds = self._upload.seconds_so_far
        began = time.monotonic()
        self._course.note_stop(self._consensus.settle())
        self._consensus.reset()
        worker, position, states = self._worker, self._course.position, self._objects.states()
        comparison = self._compare(self._objects.fingerprints(states))
        self._noted_steps.exclude(comparison.own)
        files = snapshot.take(
            states, comparison, position, worker.rank, worker.world_size, self._staging
        )
        # The run's table has what was reported before the checkpoint is committed.
        self._upload = CheckpointUpload(
            position.step,
            files,
            worker.bucket,
            worker.rank,
            worker.storage_retry,
            self._reports.flush,
        )
        ray.train.report(
            {**self._course.rating, **self._course.metrics},
            checkpoint=Checkpoint.from_directory(self._upload.folder),
            checkpoint_dir_name=f"step-{position.step:010d}",
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=self._upload,
            delete_local_checkpoint_after_upload=False,
        )
        self.saved, self._saved_at = position, time.monotonic()
        self.late = False
        self.interval.cost.saved(self._saved_at - began)
        if wait:
            self._upload.wait()

    def wait_for_upload(self) -> None:
        """Return once no checkpoint is being uploaded."""
        if self._upload is not None:
            self._upload.wait()

    def wait_for_commit(self) -> None:
        """Return once the newest checkpoint of this group is committed or abandoned.

        That takes long while the store does not answer; a preemption does not wait for it. Every
        rank asks: waiting in a collective for another rank would exceed the timeout.
        """
        if self._upload is None:
            return
        wait_s = 0.05
        while not ray.get(self._worker.coordinator.settled.remote(self._upload.name)):
            time.sleep(wait_s)
            wait_s = min(wait_s * 1.2, 1.0)

    def _compare(self, fingerprints: Mapping[str, Fingerprints]) -> Comparison:
        names = sorted(fingerprints)
        mine = [number for name in names for number in fingerprints[name][:3]]
        return state_comparison.compare(
            names, self._consensus.gather(mine), self._worker.rank, self._objects.parameters()
        )
