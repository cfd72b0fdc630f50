"""What a rank requests of the others, and what all ranks do once they agree."""

import math
import time

import ray

from .checkpoints.accumulated_gradients import AccumulatedGradients
from .coordination.command import Command
from .coordination.preemption_notice import PreemptionNotice, checkpoint_at, hold_until
from .coordination.standstill import Spot
from .coordination.step_consensus import Hold, Place, StepConsensus, StepValues, describe
from .course import Course
from .failure_causes import OwnPodPreempted, Preempted, Suspended
from .progress.step_reporter import StepReporter
from .ray_internals import nodes, training
from .saving import Saving
from .worker import Worker


class Requests:
    """Checkpoints, and the end of the training or of this worker group.

    Args:
        worker: this rank.
        consensus: of the ranks.
        course: how far the training is.
        saving: makes the checkpoints.
        gradients: which a checkpoint does not hold.
        reporter: on rank 0, has the coordinator's command.
    """

    def __init__(
        self,
        worker: Worker,
        consensus: StepConsensus,
        course: Course,
        saving: Saving,
        gradients: AccumulatedGradients,
        reporter: StepReporter | None,
    ) -> None:
        self._worker, self._consensus, self._course = worker, consensus, course
        self._saving, self._gradients, self._reporter = saving, gradients, reporter
        self._of_ray = training.PreemptionDeadline()
        self._stop_asked = False
        self._exit: Preempted | Suspended | None = None

    def stop(self) -> None:
        """Request the end of the training."""
        self._stop_asked = True

    def raise_exit(self) -> None:
        """Raise what ended this worker group, if the training function did not let it through."""
        if self._exit is not None:
            raise self._exit

    def after_step(self) -> StepValues:
        """Contribute this rank's requests after a step; the result is that of the former step."""
        agreed = self._consensus.exchange(Place.STEP, self._numbers(stop=self._stop_asked))
        self._course.note_stop(agreed)
        return agreed

    def agree(self, place: Place) -> StepValues:
        """Wait for all ranks at a place between the steps."""
        with self._worker.waiting(Spot.SESSION, describe(place), self._course.step):
            self._course.note_stop(self._consensus.settle())
        # At the begin of a loop, nothing was done since the end before it.
        due_s = math.inf if place is Place.BEGIN else self._saving.due_s(at_loop_end=True)
        # A request in a loop's last step is agreed on already: see `Course.note_stop`.
        stop = self._stop_asked and place in (Place.BEGIN, Place.EPOCH)
        with self._worker.waiting(Spot.SESSION, describe(place), self._course.step):
            mine = self._numbers(stop, due_s, place)
            agreed = self._consensus.agree(place, mine)
        if agreed.stop and self._course.stop_at is None:
            self._course.stop_at = self._course.step
        return agreed

    def save(self) -> None:
        """All ranks requested a checkpoint here."""
        agreed = self.agree(Place.SAVE)
        if agreed.busy or agreed.hold == Hold.GRADIENTS:
            self._saving.late = True  # training does not wait for the store
        else:
            self._saving.save(wait=False)

    def wait_for_trials(self) -> None:
        """Before a step: if this is a trial of a sweep that waits for others here, save and end.

        What is reported after the last step, such as an evaluation, is known by now.

        Raises:
            Suspended: this worker group ends, and the trial with it.
        """
        trial, step = self._worker.trial, self._course.step
        if trial is None or trial.until_step is None or step < trial.until_step:
            return
        if self._worker.rank == 0:
            rating = self._course.rating.get(trial.metric)
            ray.get(self._worker.coordinator.paused.remote(step, rating))
        self._checkpoint_and_exit(Command.SUSPEND)

    def execute(self, agreed: StepValues) -> None:
        """Do what the ranks agreed on.

        Raises:
            Preempted, Suspended: this worker group ends.
        """
        if agreed.command >= Command.CHECKPOINT_AND_EXIT:
            if not (self._saving.unsaved and self._held()):
                self._checkpoint_and_exit(agreed.command)
        elif agreed.command == Command.CHECKPOINT and not agreed.busy and self._saving.unsaved:
            self.save()

    def _held(self) -> bool:
        """Whether the checkpoint is made after a later step; all ranks ask."""
        return self.agree(Place.SAVE).hold == Hold.GRADIENTS

    def _numbers(
        self,
        stop: bool = False,
        due_s: float | None = None,
        place: Place = Place.STEP,
    ) -> StepValues:
        requested = self._command(self._saving.due_s() if due_s is None else due_s)
        hold = self._hold() if place is Place.SAVE else Hold.NO
        busy, step = self._saving.uploading, self._course.step
        return StepValues(requested, busy, stop, step, hold)

    def _hold(self) -> Hold:
        """Whether this rank wants a checkpoint to be made after a later step."""
        notice = self._notice()
        if notice is not None and time.time() >= hold_until(notice, self._saving.slowest_s()):
            return Hold.NO_TIME
        return Hold.GRADIENTS if self._gradients.hold_checkpoints() else Hold.NO

    def _command(self, due_s: float) -> Command:
        """The command that this rank requests now."""
        command = self._reporter.command if self._reporter is not None else Command.NONE
        notice = self._notice()
        if notice is not None and time.time() >= checkpoint_at(notice, self._saving.slowest_s()):
            command = max(command, Command.CHECKPOINT_AND_EXIT)
        # One clock decides: ranks with different clocks would request it twice.
        due = self._saving.is_due(due_s) if self._worker.rank == 0 else self._saving.late
        return max(command, Command.CHECKPOINT) if due else command

    def _notice(self) -> PreemptionNotice | None:
        """This pod's own, or Ray's of a node of the worker group."""
        own, deadline = self._worker.notice, self._of_ray.read()
        if own is not None or deadline is None:
            return own
        return PreemptionNotice(deadline=deadline, pre_stop=False)

    def _checkpoint_and_exit(self, command: int) -> None:
        """Make a checkpoint, wait for its commit, and end this worker group."""
        self._course.note_stop(self._consensus.settle())
        self._consensus.reset()
        if self._saving.unsaved:
            self._saving.save(wait=True)
        else:
            self._saving.wait_for_upload()
        self._saving.wait_for_commit()
        notice = self._worker.notice
        if notice is not None:
            # Before the exit: otherwise Ray places the next worker group on the pod that is about
            # to end.
            nodes.drain_own_node("the pod is being deleted", notice.deadline)
            self._worker.confirm_saved()
        self._consensus.barrier()
        step = self._course.step
        if command == Command.SUSPEND:
            self._exit = Suspended(f"suspended after step {step}")
        else:
            preempted = Preempted if notice is None else OwnPodPreempted
            self._exit = preempted(f"a pod is preempted; saved after step {step}")
        raise self._exit
