"""The session: checkpoints, restore and preemption for a training loop.

session = Session(model=model, optimizer=optimizer, loader=loader)
for epoch in session.epochs(10):
    for batch in session.batches(loader):
        loss = ...
        session.report(loss=loss.item())
    session.report(accuracy=evaluate(model))
session.finish(accuracy=0.97)

After the function has returned, the session saves the final state: a run is done once the
checkpoint of its last step is.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeVar

import ray
import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from .checkpoints import snapshot
from .checkpoints.checkpoint_interval import CheckpointInterval
from .checkpoints.checkpoint_upload import CheckpointUpload
from .checkpoints.restored_files import files_of
from .checkpoints.snapshot import Comparison, Fingerprints, Position
from .checkpoints.stateful_objects import Stateful, replicated, restorable
from .coordination.command import Command
from .coordination.preemption_notice import PreemptionNotice, checkpoint_at
from .coordination.step_consensus import Place, StepConsensus, StepValues
from .data.drawn_batches import DrawnBatches
from .data.resumable_loader import ResumableDataLoader
from .failure_causes import OwnPodPreempted, Preempted, Suspended
from .noted_steps import NotedSteps
from .progress.document import printable_metrics
from .progress.step_reporter import DataWaitReporter, StepReporter
from .progress.time_accounting import StepReport
from .random_numbers import StepRandom
from .ray_internals import nodes, training
from .step_loops import Loops
from .worker import Worker, this_worker

log = logging.getLogger(__name__)

T = TypeVar("T")


class Session:
    """Restores what it is given, counts the steps, and makes checkpoints when they are due.

    Args:
        seed: every step then draws its random numbers (PyTorch's, NumPy's and Python's) from the
            seed, the step and the rank. When a rank dies without notice, the other ranks of a
            replicated training can then save the last finished step, and no step is lost.
        objects: everything to be restored, by name: whatever has `state_dict` and
            `load_state_dict`, and generators of random numbers. A model wrapped for data
            parallelism is saved without its wrapper. What differs from rank to rank, such as
            torchdata's StatefulDataLoader, is saved for each of them; then the number of workers
            may not change. Of a model made of DTensors (FSDP2, tensor parallelism) and its
            optimizer each rank saves its parts; the number of workers and the mesh may change.

    Raises:
        RuntimeError: not on a worker of a TrainingRun, or it has a session already.
        NotRestorable, NotSavable: one of the objects cannot be saved whole, or not restored.
        ValueError: the checkpoint holds no state of one of the objects.
    """

    def __init__(self, *, seed: Any = None, **objects: Any) -> None:
        if seed is not None and not isinstance(seed, Integral):  # an object of that name
            objects["seed"], seed = seed, None
        self._worker: Worker = this_worker()
        self._objects: dict[str, Stateful] = restorable(objects)
        self._replicated = {name for name, thing in objects.items() if replicated(thing)}
        self._worker.register(self)
        self._consensus = StepConsensus(self._worker.timeout_s)
        self._metrics: dict[str, Any] = {}
        self._final_metrics: dict[str, Any] = {}
        self._upload: CheckpointUpload | None = None
        self._saved_at = time.monotonic()
        self._interval = CheckpointInterval(self._worker.checkpoints, self._worker.history)
        self._save_seconds = 0.0
        self._random = StepRandom(seed, self._worker.rank)
        seeded = [f"seed={seed}"] if self._random.seeded else []
        self._consensus.compare_names([*objects, *seeded])
        snapshot.try_out(self._states())  # what cannot be saved is refused now
        position = self._restore()
        self.step = position.step
        """Steps done; a loop goes on from here."""
        self.epoch = position.epoch
        """Epochs done, or the number of the one under way; see `epochs`."""
        self._epoch_began, self._stop_at = position.epoch_began, position.stop_at
        restored = self._worker.restored
        if restored is None or snapshot.rank_file(self._worker.rank) not in restored.files:
            self._draw_anew("between steps")
        self.noted_steps = NotedSteps(
            seeded=self._random.seeded, world_size=self._worker.world_size
        )
        """The state after the last step, for a rank that is lost."""
        self._saved = position if self._worker.restored is not None else None
        self._fingerprints = snapshot.fingerprints(self._states()) if self._saved else {}
        self._loops = Loops(position.left)
        self._data = DrawnBatches(self._objects)
        self._epochs: int | None = None
        self._total: int | None = None
        self._save_after: str | None = None
        self._save_late = self._stop_asked = self._tried = False
        self._begun = self._step_began = self._productive = self._stalled = 0.0
        self._exit: Preempted | Suspended | None = None
        worker = self._worker
        self._reporter = StepReporter(worker.coordinator) if worker.rank == 0 else None
        self._wait_reporter = DataWaitReporter(worker.coordinator, worker.rank, worker.group)

    @property
    def stopped(self) -> bool:
        """Whether the ranks agreed to end: loops do no more steps."""
        return self._stop_at is not None and self.step >= self._stop_at

    def report(self, **metrics: float) -> None:
        """Metrics of this step; rank 0's are shown, and kept with the step's checkpoint.

        Between two loops, as after an evaluation, they are of the last step: its checkpoint gets
        them too where it was made before, without another upload.
        """
        self._metrics = printable_metrics(metrics)
        self._add_to_checkpoint(self._metrics)

    def finish(self, **metrics: Any) -> None:
        """Final metrics, on top of the last reported ones; rank 0's become the run's result.

        The last checkpoint has them as well.
        """
        self._final_metrics = {**self._final_metrics, **printable_metrics(metrics)}

    def save(self) -> None:
        """Make a checkpoint; every rank calls it at the same place.

        In a loop over `steps()` it is made at the end of the step, else within `epochs()` at the
        end of the epoch, so that a resumed run does no half of either again; outside both at once.
        Files are uploaded in the background; while a former checkpoint still is, the new one is
        made once that is done.
        """
        if self._loops.inside:
            self._save_after = "step"
        elif self._epochs is not None:
            self._save_after = "epoch"
        else:
            self._leave_loop()
            self._save_now()

    def stop(self) -> None:
        """End the training, as early stopping does; one rank is enough, all of them end alike.

        Called in a loop, it ends after the next step; called between loops, the next one does no
        step. Later loops do none.
        """
        self._stop_asked = True

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs still to be done, from the restored one to `total` - 1.

        Within an epoch `steps(n)` counts from the epoch's first step. A resumed run goes on in the
        epoch that was under way; what comes after its steps, such as an evaluation, is done again.
        """
        self._raise_exit()
        self._epochs = total
        try:
            while self.epoch < total and not self.stopped:
                yield self.epoch
                self._leave_loop()
                self.epoch += 1
                self._epoch_began = self.step
                self._loops = Loops()
                if self._save_after is not None:
                    self._save_after = None
                    self._save_now()
                self._pause(Place.EPOCH)
        finally:
            self._epochs = None

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps still to be done, from the restored one to `total` - 1.

        After each step the session checks whether a checkpoint is due. A step in which the loop is
        left (`break`) counts as done. All ranks leave it at the same step, or call `stop()`.

        Args:
            total: steps since the run's first one; within `epochs()`, since the epoch's first one.

        Raises:
            Preempted, Suspended: a checkpoint was made and this worker group ends; let it through.
            ValueError: the same total was reached before: it is not counted from the first step.
        """
        self._raise_exit()
        self._leave_loop()
        end = self._epoch_began + total if self._epochs is not None else total
        if self._loops.already_reached(end):
            raise ValueError(
                f"session.steps({total}) was reached before and would do no step, because it "
                f"counts from the first one; call session.steps({self.step + total}) for {total} "
                "more, or loop over session.epochs(), in which each epoch counts anew"
            )
        self._total = self._whole(total)
        self._begun = self._begun or time.time()
        if self._loops.was_left(end):
            return
        number = self._loops.begin(end)
        self._agree(Place.BEGIN)
        try:
            while self.step < end and not self.stopped:
                self._loops.in_step, self._step_began = True, time.monotonic()
                self._draw_anew("step")
                self._data.step_begins()
                yield self.step
                if self._loops.number != number:
                    raise RuntimeError(
                        "a loop over session.steps() goes on after another one has begun; let one "
                        "end before the next begins"
                    )
                self._step_done()
        except GeneratorExit:  # `break`, or an exception in the loop's body
            if self._loops.number == number:
                self._loops.inside = False
            raise
        self._leave_loop()

    def batches(self, loader: Iterable[T], total: int | None = None) -> Iterator[T]:
        """The batches of a loader, in each step one: as `steps()`, with what is to be trained on.

        Args:
            loader: one of the session's objects: a `ResumableDataLoader`, or one that has a state.
            total: see `steps()`; the loader begins anew after its last batch. None: all batches of
                the loader; a `ResumableDataLoader` then has the epochs of `epochs()`.

        Raises:
            ValueError: the session does not restore the loader, or it has no batch.
        """
        if total is None:
            if self._epochs is not None and isinstance(loader, ResumableDataLoader):
                loader.set_epoch(self.epoch)
            total = len(loader)  # type: ignore[arg-type]
        batches = self._data.repeated(loader)
        for _ in self.steps(total):
            yield next(batches)

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time until each is there counts as waiting for data.

        For loops over `steps()` that draw their own batches; `batches()` measures it by itself.
        """
        return self._data.timed(items)

    def conclude(self) -> None:
        """The training function has returned: save the final state, if no checkpoint holds it.

        Raises:
            Preempted, Suspended: the function did not let it through.
        """
        self._raise_exit()
        self._leave_loop()
        states = self._states()
        changed = self._position() != self._saved or self._save_after is not None
        changed |= snapshot.fingerprints(states) != self._fingerprints
        final = {**self._metrics, **self._final_metrics}
        if self._agree(Place.DONE, changed=changed).changed:
            self._metrics = final
            self._save(wait=True)
        else:
            if self._final_metrics:
                self._add_to_checkpoint(final)
            if self._upload is not None:
                self._upload.wait()
        self._wait_for_commit()
        if self._reporter is not None:
            self._reporter.close()
            ray.get(self._worker.coordinator.finished.remote(final))

    def _add_to_checkpoint(self, metrics: dict[str, Any]) -> None:
        """Rank 0: add metrics to the checkpoint of the last step, if there is one."""
        saved = self._saved.step if self._saved is not None else None
        if self._reporter is not None and saved == self.step and not self._loops.in_step:
            self._reporter.measured(self.step, metrics)

    def _raise_exit(self) -> None:
        if self._exit is not None:
            raise self._exit

    def _restore(self) -> Position:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return Position()
        worker = self._worker
        with files_of(checkpoint) as files:
            position = snapshot.restore(files, self._objects, worker.rank, worker.world_size)
        # Another run's `stop()` was its own: a run that begins there trains on.
        return position if worker.restored is not None else replace(position, stop_at=None)

    def _position(self) -> Position:
        left = self._loops.left
        return Position(self.step, self.epoch, self._epoch_began, self._stop_at, left)

    def _states(self) -> dict[str, Any]:
        """What this rank may have to save, not copied yet."""
        mine = set(self._objects)
        if self._worker.rank != 0:
            mine -= self._replicated
        return snapshot.encoded(self._objects, mine)

    def _whole(self, total: int) -> int:
        """Steps of the whole run, as far as it is known."""
        if self._epochs is None:
            return total
        return self._epoch_began + (self._epochs - self.epoch) * total

    def _leave_loop(self) -> None:
        """The loop under way ends here, also where it was left in the middle of a step."""
        if self._loops.in_step:
            self._loops.leave()
            self._step_done()
        end = self._loops.end()
        if end is None:
            return
        if self.step >= end:
            self._loops.reached(end)
        self._pause(Place.END)

    def _step_done(self) -> None:
        self._loops.in_step = False
        self._data.step_done()
        self.step += 1
        step_s = time.monotonic() - self._step_began
        self._productive += step_s
        self._interval.cost.stepped(step_s, self._uploading())
        self._wait_reporter.report(self._data.waited(self._productive))
        if self._reporter is not None:
            self._reporter.report(
                StepReport(
                    group=self._worker.group,
                    step=self.step,
                    total=self._total,
                    begun=self._begun,
                    done=time.time(),
                    productive=self._productive,
                    checkpoint=self._stalled,
                    metrics=self._metrics,
                    interval=every_s if math.isfinite(every_s := self._due_s()) else None,
                )
            )
        started = time.monotonic()
        if not self._tried:
            states = self._states()
            snapshot.try_out(states)
            self._begin_noting(states)
            self._tried = True
        agreed = self._consensus.exchange(Place.STEP, self._numbers(stop=self._stop_asked))
        self._record_stop(agreed)
        # Before a checkpoint, which takes longer and may be cut off.
        self.noted_steps.note(self._position(), self._metrics, self._consensus.under_way(), step_s)
        save = self._interval.is_due_after(self.step)
        if self._save_after == "step":
            self._save_after, save = None, True
        if save:
            self._save_now()  # after the exchange, so that `stop()` in the same step is saved too
        self._execute(agreed)
        self._stalled += time.monotonic() - started

    def _begin_noting(self, states: Mapping[str, Any]) -> None:
        """Note each step's end from now on, where one rank can save it for all."""
        self.noted_steps.begin(
            self._objects,
            self._worker.rank,
            lambda: self._compare(snapshot.fingerprints(states)).own,
        )
        if self.noted_steps.noting:
            self._worker.can_save_alone()

    def _draw_anew(self, where: str) -> None:
        self._random.begin(where, self.step, self.epoch)

    def _pause(self, place: Place) -> None:
        """Between two loops or epochs: what follows may take long, or have another total."""
        started = time.monotonic()
        self._draw_anew("between steps")
        agreed = self._agree(place)
        if self._stop_at is not None:
            self._stop_at = min(self._stop_at, self.step)
        self._execute(agreed)
        self._stalled += time.monotonic() - started

    def _execute(self, agreed: StepValues) -> None:
        if agreed.command >= Command.CHECKPOINT_AND_EXIT:
            self._checkpoint_and_exit(agreed.command)
        elif (
            agreed.command == Command.CHECKPOINT
            and not agreed.busy
            and self._saved != self._position()
        ):
            self._save(wait=False)

    def _agree(self, place: Place, *, changed: bool = False) -> StepValues:
        """Wait for all ranks at a place between the steps."""
        self._record_stop(self._consensus.settle())
        # At the begin of a loop, nothing was done since the end before it.
        due_s = math.inf if place is Place.BEGIN else self._due_s(at_loop_end=True)
        # A request in a loop's last step is agreed on already: see `_record_stop`.
        stop = self._stop_asked and place in (Place.BEGIN, Place.EPOCH)
        agreed = self._consensus.agree(place, self._numbers(stop, changed, due_s))
        if agreed.stop and self._stop_at is None:
            self._stop_at = self.step
        return agreed

    def _numbers(
        self, stop: bool = False, changed: bool = False, due_s: float | None = None
    ) -> StepValues:
        requested = self._requested_command(self._due_s() if due_s is None else due_s)
        return StepValues(requested, self._uploading(), stop, changed, self.step)

    def _record_stop(self, agreed: StepValues) -> None:
        """Stop one step after the one of the request: by then every rank has the result.

        Also where the result is available sooner, so that an interruption changes nothing.
        """
        if agreed.stop and self._stop_at is None:
            self._stop_at = agreed.step + 1

    def _requested_command(self, due_s: float) -> Command:
        """The command that this rank requests now."""
        command = self._reporter.command if self._reporter is not None else Command.NONE
        notice = self._worker.notice or _notice_of_ray()
        if notice is not None and time.time() >= checkpoint_at(notice, self._slowest_save()):
            command = max(command, Command.CHECKPOINT_AND_EXIT)
        due = time.monotonic() - self._saved_at >= due_s and self._saved != self._position()
        due |= self._save_late
        # One clock decides: ranks with different clocks would request it twice.
        return max(command, Command.CHECKPOINT) if due and self._worker.rank == 0 else command

    def _due_s(self, *, at_loop_end: bool = False) -> float:
        """Seconds after the last checkpoint at which the next one is due."""
        interval, trained = self._interval, self._productive + self._stalled
        rule = interval.at_loop_end_s if at_loop_end else interval.seconds
        return rule(self._slowest_save(), trained)

    def _slowest_save(self) -> float:
        """Seconds that the slowest of the last two checkpoints took, its upload included."""
        upload = self._upload
        return max(self._save_seconds, upload.seconds_so_far if upload is not None else 0.0)

    def _uploading(self) -> bool:
        return self._upload is not None and not self._upload.done

    def _save_now(self) -> None:
        """All ranks requested a checkpoint here."""
        if self._agree(Place.SAVE).busy:
            self._save_late = True  # training does not wait for the store
        else:
            self._save(wait=False)

    def _save(self, *, wait: bool) -> None:
        """Make a checkpoint of this step; every rank calls it after the same step.

        Training stops only while the state is copied; files are written and uploaded in the
        background, unless `wait` is set.
        """
        if self._upload is not None:
            self._upload.wait()
            self._save_seconds = self._upload.seconds_so_far
        began = time.monotonic()
        self._record_stop(self._consensus.settle())
        self._consensus.reset()
        worker, position, states = self._worker, self._position(), self._states()
        self._fingerprints = snapshot.fingerprints(states)
        comparison = self._compare(self._fingerprints)
        self.noted_steps.exclude(comparison.own)
        files = snapshot.take(states, comparison, position, worker.rank, worker.world_size)
        self._upload = CheckpointUpload(files, worker.storage_retry)
        ray.train.report(
            {**self._metrics, "step": self.step},
            checkpoint=Checkpoint.from_directory(self._upload.folder),
            checkpoint_dir_name=f"step-{self.step:010d}",
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=self._upload,
            delete_local_checkpoint_after_upload=False,
        )
        self._saved, self._saved_at, self._save_late = position, time.monotonic(), False
        self._interval.cost.saved(self._saved_at - began)
        if wait:
            self._upload.wait()

    def _compare(self, fingerprints: Mapping[str, Fingerprints]) -> Comparison:
        names = sorted(fingerprints.keys() - self._replicated)
        mine = [number for name in names for number in fingerprints[name][:3]]
        return snapshot.compare(names, self._consensus.gather(mine), self._worker.rank)

    def _checkpoint_and_exit(self, command: int) -> None:
        """Make a checkpoint, wait for its commit, and end this worker group."""
        self._record_stop(self._consensus.settle())
        self._consensus.reset()
        if self._saved != self._position():
            self._save(wait=True)
        elif self._upload is not None:
            self._upload.wait()
        self._wait_for_commit()
        notice = self._worker.notice
        if notice is not None:
            # Before the exit: otherwise Ray places the next worker group on the pod that is about
            # to end.
            nodes.drain_own_node("the pod is being deleted", notice.deadline)
            self._worker.confirm_saved()
        self._consensus.barrier()
        if command == Command.SUSPEND:
            self._exit = Suspended(f"suspended after step {self.step}")
        else:
            preempted = Preempted if notice is None else OwnPodPreempted
            self._exit = preempted(f"a pod is preempted; saved after step {self.step}")
        raise self._exit

    def _wait_for_commit(self) -> None:
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


def _notice_of_ray() -> PreemptionNotice | None:
    deadline = training.preemption_deadline()
    return PreemptionNotice(deadline=deadline, pre_stop=False) if deadline is not None else None
