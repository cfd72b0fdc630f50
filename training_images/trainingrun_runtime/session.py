"""The session: what a training loop needs so that losing machines costs it next to nothing.

session = Session(model=model, optimizer=optimizer)
for step in session.steps(600):
    loss = ...
    session.report(loss=loss.item())
session.finish(accuracy=0.97)
"""

import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from . import snapshot
from .agreement import Agreement
from .board import LEAVE, NOTHING, SAVE, SUSPEND
from .failures import Preempted, Suspended
from .ledger import StepReport
from .notice import Notice, leave_at
from .progress_document import printable_metrics
from .reporter import Reporter
from .seam import nodes, training
from .snapshot import Stateful
from .worker import Worker, this_worker

log = logging.getLogger(__name__)

COMMIT_PATIENCE_S = 30.0
"""How long a rank waits for the commit of an uploaded checkpoint before it leaves without."""


class Session:
    """Restores what it is given, counts the steps, and makes checkpoints when they are due.

    Args:
        objects: everything to be restored, by name: whatever has `state_dict` and
            `load_state_dict`. A model wrapped for data parallelism is saved without its wrapper.

    Raises:
        RuntimeError: not on a worker of a TrainingRun.
        ValueError: the checkpoint holds no state of one of the objects.
    """

    def __init__(self, **objects: Stateful) -> None:
        self._worker: Worker = this_worker()
        self._objects = objects
        self._agreement = Agreement()
        self._metrics: dict[str, Any] = {}
        self._upload: _Upload | None = None
        self._saved_at = time.monotonic()
        self._save_seconds = 0.0
        self.step = self._restore()
        """Steps done; a loop goes on from here."""
        self._saved_step = self.step if self._worker.restored is not None else -1
        self._worker.take_over()
        self._reporter = Reporter(self._worker.board) if self._worker.rank == 0 else None

    def _restore(self) -> int:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return 0
        with checkpoint.as_directory() as folder:
            return snapshot.restore(Path(folder), self._objects, self._worker.rank)

    def report(self, **metrics: float) -> None:
        """Metrics of this step; rank 0's are shown, and kept with the next checkpoint."""
        self._metrics = printable_metrics(metrics)

    def finish(self, **metrics: Any) -> None:
        """Final metrics, on top of the last reported ones; rank 0's become the run's result."""
        if self._worker.rank == 0:
            ray.get(self._worker.board.finished.remote(printable_metrics(metrics)))

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps still to be done, from the restored one to `total` - 1.

        After each step the session looks whether a checkpoint is due, and makes one at the end.

        Raises:
            Preempted, Suspended: a checkpoint was made and this worker group ends; let it through.
        """
        begun = time.time()
        productive = stalled = 0.0
        while self.step < total:
            started = time.monotonic()
            yield self.step
            self.step += 1
            productive += time.monotonic() - started
            if self._reporter is not None:
                self._reporter.tell(
                    StepReport(
                        group=self._worker.group,
                        step=self.step,
                        total=total,
                        begun=begun,
                        done=time.time(),
                        productive=productive,
                        checkpoint=stalled,
                        metrics=self._metrics,
                    )
                )
            started = time.monotonic()
            self._after_step()
            stalled += time.monotonic() - started
        self._agreement.forget()
        if self._saved_step != self.step:
            self._save(wait=True)
        elif self._upload is not None:
            self._upload.wait()
        if self._reporter is not None:
            self._reporter.close()

    def _after_step(self) -> None:
        order, busy = self._agreement.exchange(self._wish(), self._uploading())
        if order in (LEAVE, SUSPEND):
            self._leave(order)
        elif order == SAVE and not busy:
            self._save(wait=False)

    def _wish(self) -> int:
        """What this rank wants done after this step."""
        wish = self._reporter.order if self._reporter is not None else NOTHING
        notice = self._worker.notice or _ray_notice()
        if notice is not None and time.time() >= leave_at(notice, self._save_seconds):
            wish = max(wish, LEAVE)
        due = time.monotonic() - self._saved_at >= self._worker.every_seconds
        # One clock decides: ranks whose clocks differ would ask twice.
        return max(wish, SAVE) if due and self._worker.rank == 0 else wish

    def _uploading(self) -> bool:
        return self._upload is not None and not self._upload.done

    def _save(self, *, wait: bool) -> None:
        """Make a checkpoint of this step; every rank calls it after the same step.

        Training stands still only while the state is copied; files are written and uploaded in the
        background, unless `wait` is set.
        """
        started = time.monotonic()
        if self._upload is not None:
            self._upload.wait()
        files = snapshot.take(self._objects, self._worker.rank, self.step)
        self._upload = _Upload(files)
        ray.train.report(
            {**self._metrics, "step": self.step},
            checkpoint=Checkpoint.from_directory(self._upload.folder),
            checkpoint_dir_name=f"step-{self.step:010d}-{self._worker.group}",
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=self._upload,
            delete_local_checkpoint_after_upload=False,
        )
        self._saved_step, self._saved_at = self.step, time.monotonic()
        self._agreement.forget()
        if wait:
            self._upload.wait()
        self._save_seconds = max(self._upload.seconds, time.monotonic() - started)

    def _leave(self, order: int) -> None:
        """Make a checkpoint, wait until it counts, and end this worker group."""
        self._agreement.forget()
        if self._saved_step != self.step:
            self._save(wait=True)
        elif self._upload is not None:
            self._upload.wait()
        self._wait_for_commit()
        self._agreement.wait_for_all()  # rank 0 alone asks the board
        notice = self._worker.notice
        if notice is not None:
            # Ray must know first that this node goes away: otherwise it puts the next worker group
            # on the pod that is about to end.
            nodes.drain_own_node("the pod is being deleted", notice.deadline)
            self._worker.saved()
        self._agreement.wait_for_all()
        if order == SUSPEND:
            raise Suspended(f"suspended after step {self.step}")
        raise Preempted(f"a pod is being taken away; saved after step {self.step}")

    def _wait_for_commit(self) -> None:
        if self._worker.rank != 0:
            return
        deadline = time.monotonic() + COMMIT_PATIENCE_S
        while time.monotonic() < deadline:
            _, step = ray.get(self._worker.board.commits.remote())
            if step >= self.step or self._committed_before(step):
                return
            time.sleep(0.05)
        log.warning("the checkpoint of step %d was not committed in time", self.step)

    def _committed_before(self, step: int) -> bool:
        """Whether this step's checkpoint is the one that was restored."""
        restored = self._worker.restored
        return step < 0 and restored is not None and restored.step == self.step


def _ray_notice() -> Notice | None:
    deadline = training.preemption_deadline()
    return Notice(deadline=deadline, waits=False) if deadline is not None else None


class _Upload:
    """Writes one checkpoint's files and uploads them, in Ray's upload thread."""

    def __init__(self, files: dict[str, Any]) -> None:
        self._files = files
        self._temporary = tempfile.TemporaryDirectory(prefix="checkpoint-")
        self.folder = self._temporary.name
        self.done = False
        self.seconds = 0.0
        self._finished = threading.Event()

    def __call__(self, checkpoint: Checkpoint, name: str) -> Checkpoint:
        started = time.monotonic()
        try:
            snapshot.write(self._files, Path(self.folder))
            context = training.train_context()
            uploaded = context.storage_context.persist_current_checkpoint(checkpoint, name)
        finally:
            self._files = {}
            self._temporary.cleanup()
            self.seconds = time.monotonic() - started
            self.done = True
            self._finished.set()
        return uploaded

    def wait(self) -> None:
        self._finished.wait()
