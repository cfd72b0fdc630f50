"""How a session makes its checkpoints, and when one is due."""

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

import ray
import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from ..checkpoints import snapshot, state_comparison
from ..checkpoints.encoding import NotSavable
from ..checkpoints.kept_gradients import KeptGradients
from ..checkpoints.sharded_state import Encoded
from ..checkpoints.snapshot import Position
from ..checkpoints.staging import Staging
from ..checkpoints.state_comparison import Comparison
from ..checkpoints.stateful_objects import without_scheduler
from ..checkpoints.upload import CheckpointUpload
from .checkpoint_interval import CheckpointInterval
from .session_context import SessionContext
from .unsaved_buffers import UnsavedBuffers

log = logging.getLogger(__name__)


class Saving:
    """Makes a session's checkpoints.

    Args:
        context: of the session.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context, worker, progress = context, context.worker, context.progress
        self.interval = CheckpointInterval(worker.checkpoints, worker.history)
        """When checkpoints are due, and what they cost."""
        self.late = False
        """Whether one is made as soon as the former one is uploaded."""
        self.saved: Position | None = progress.position if worker.restored is not None else None
        """Of the last checkpoint of this run."""
        self._saved_at = time.monotonic()
        self._save_seconds = 0.0
        self._upload: CheckpointUpload | None = None
        self._staging = Staging()
        self._tried = self._warned = False
        self._kept_gradients = KeptGradients(context.objects.optimizers(), context.gradients)
        self._unsaved_buffers = UnsavedBuffers(context.objects.objects)

    @property
    def unsaved(self) -> bool:
        """Whether no checkpoint holds this position."""
        return self.saved != self._context.progress.position

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
        return rule(self.slowest_s(), self._context.progress.trained)

    def is_due(self, due_s: float) -> bool:
        """Whether a checkpoint is due, so many seconds after the last one."""
        return self.late or (time.monotonic() - self._saved_at >= due_s and self.unsaved)

    def try_out(self) -> None:
        """A step is done. After the first: refuse what cannot be saved; note each step's end.

        And make the memory that the first checkpoint will be copied into. An optimizer has no state
        before that step, and uses gradients of a former one in a later one.
        """
        self._kept_gradients.require_none()
        if self._tried:
            return
        context, states = self._context, self._context.objects.states()
        worker, consensus, noted_steps = context.worker, context.consensus, context.noted_steps
        snapshot.try_out(states)
        for name in without_scheduler(context.objects.objects):
            worker.advise(
                f"{name} has a learning rate scheduler that the session does not save, so after a "
                "loss it counts from 0 again, unless the code makes it by session.step; pass it: "
                "Session(…, scheduler=…)"
            )
        if buffers := self._unsaved_buffers.changed():
            more = f" and {len(buffers) - 1} more" if len(buffers) > 1 else ""
            worker.advise(
                f"training changes {buffers[0]}{more}, registered with persistent=False, so no "
                "checkpoint has it and it begins anew after a loss; register it with "
                "persistent=True, unless it is computed anew from what a checkpoint has"
            )
        comparison = self._compare(states)
        if apart := context.objects.unwrapped(comparison.own):
            worker.advise(
                f"{' and '.join(apart)} is not the same on every rank; where the ranks train one "
                "model, wrap it with prepare_model of ray.train.torch, and give the session what "
                "that returns"
            )
        noted_steps.begin(
            context.objects.objects,
            worker.rank,
            context.gradients,
            context.objects.replicated,
            comparison.own,
            lambda: [of for (of,) in consensus.gather([state_comparison.layout(states)])],
        )
        if noted_steps.noting:
            worker.can_save_alone()
        elif worker.rank == 0:
            worker.cannot_save_alone(noted_steps.reason)
        if self._upload is None:
            snapshot.place(
                states, comparison, Position(), worker.rank, worker.world_size, self._staging
            )
            self._staging.make_memory()
        self._kept_gradients.watch()
        self._tried = True

    def save(self, *, wait: bool) -> None:
        """Make a checkpoint of this step; every rank calls it after the same step.

        Training stands still while the state is copied; files are uploaded in the background,
        unless `wait` is set.
        """
        if self._upload is not None:
            self._upload.wait()
            self._save_seconds = self._upload.seconds_so_far
        self._upload = self._begin()
        if wait:
            self._upload.wait()

    def _begin(self) -> CheckpointUpload:
        """Copy the state and begin to upload it."""
        began = time.monotonic()
        context = self._context
        worker, progress = context.worker, context.progress
        progress.note_stop(context.consensus.agreed())
        context.consensus.reset()
        position, files = progress.position, self._copied()
        metrics = context.metrics_after(position.step)
        self._warn_of_unsaved(progress.metrics.keys() - metrics.keys())
        # The run's table has what was reported before the checkpoint is committed.
        upload = CheckpointUpload(
            position.step,
            files,
            worker.bucket,
            worker.rank,
            worker.storage_retry,
            context.reports.flush,
        )
        # It waits for the other ranks. One may be lost then, for which this one saves the step: not
        # while it has a reference to the state, which would be an alias.
        ray.train.report(
            {**progress.rating, **metrics},
            checkpoint=Checkpoint.from_directory(upload.folder),
            checkpoint_dir_name=f"step-{position.step:010d}",
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=upload,
            delete_local_checkpoint_after_upload=False,
        )
        self.saved, self._saved_at = position, time.monotonic()
        self.late = False
        self.interval.cost.saved(self._saved_at - began)
        self._kept_gradients.watch()
        return upload

    def _warn_of_unsaved(self, left_out: Collection[str]) -> None:
        """Say once that checkpoints are compared by what was reported for none of them."""
        step = self._context.progress.metrics_step
        without = self.saved is None or self.saved.step != step
        if left_out and without and not self._warned and self._context.worker.rank == 0:
            log.warning(
                "%s was reported after step %d, of which there is no checkpoint that it could "
                "rate; call session.save() where it is reported",
                ", ".join(sorted(left_out)),
                step,
            )
            self._warned = True

    def _copied(self) -> dict[str, Any]:
        """This rank's files of a checkpoint of this step, copied."""
        context = self._context
        worker, states = context.worker, context.objects.states()
        context.noted_steps.add_readers(states)
        comparison = self._compare(states)
        context.noted_steps.exclude(comparison.own)
        return snapshot.take(
            states,
            comparison,
            context.progress.position,
            worker.rank,
            worker.world_size,
            self._staging,
        )

    def wait_for_upload(self) -> None:
        """Return once no checkpoint is being uploaded."""
        if self._upload is not None:
            self._upload.wait()

    def wait_for_commit(self) -> bool:
        """Whether the newest checkpoint of this group is committed and not abandoned.

        Until that is known it takes long while the store does not answer; a preemption does not
        wait for it. Every rank asks: waiting in a collective for another rank would exceed the
        timeout.
        """
        if self._upload is None:
            return True
        coordinator, wait_s = self._context.worker.coordinator, 0.05
        while (committed := ray.get(coordinator.is_committed.remote(self._upload.name))) is None:
            time.sleep(wait_s)
            wait_s = min(wait_s * 1.2, 1.0)
        return bool(committed)

    def _compare(self, states: Mapping[str, Encoded]) -> Comparison:
        context = self._context
        # Ranks that average their weights now and then have parameters of their own in between.
        buffers = context.objects.buffers(states)
        fingerprints = state_comparison.fingerprints(states, buffers)
        names = sorted(fingerprints)
        mine = [number for name in names for number in fingerprints[name]]
        comparison = state_comparison.compare(
            names, context.consensus.gather(mine), context.worker.rank, buffers
        )
        if comparison.own and context.worker.most_workers is not None:
            raise NotSavable(
                f"each rank has its own {', '.join(sorted(comparison.own))}, which no other number "
                "of ranks can go on with, and with workers.minimum this number changes; leave it "
                "out of the session, or leave workers.minimum out"
            )
        return comparison
