"""What a rank requests of the others, and what all ranks do once they agree."""

import math
import time

import ray

from ..coordinator.checkpoints import Command
from ..coordinator.standstill import At
from ..known_errors.failure_causes import OwnPodPreempted, Preempted, Resized, Suspended
from ..ray_internals import nodes, training
from ..worker.preemption_notice import PreemptionNotice, checkpoint_at
from ..worker.step_consensus import PLACES, Place, StepValues
from .saving import Saving
from .session_context import SessionContext


class Requests:
    """Checkpoints, and the end of the training or of this worker group.

    Args:
        context: of the session.
        saving: makes the checkpoints.
    """

    def __init__(self, context: SessionContext, saving: Saving) -> None:
        self._context, self._saving = context, saving
        self._of_ray = training.PreemptionDeadline()
        self._stop_asked = False
        self._exit: Preempted | Resized | Suspended | None = None

    def stop(self) -> None:
        """Request the end of the training."""
        self._stop_asked = True

    def raise_exit(self) -> None:
        """Raise what ended this worker group, if the training function did not let it through."""
        if self._exit is not None:
            raise self._exit

    def after_step(self, state: int) -> StepValues:
        """Contribute this rank's requests after a step; the result is that of the former step.

        Args:
            state: of `StepValues`.
        """
        mine = self._numbers(stop=self._stop_asked)._replace(state=state)
        agreed = self._context.consensus.exchange(Place.STEP, mine)
        self._context.progress.note_stop(agreed)
        return agreed

    def agree(self, place: Place) -> StepValues:
        """Wait for all ranks at a place between the steps."""
        worker, progress = self._context.worker, self._context.progress
        consensus = self._context.consensus
        with worker.waiting(At.SESSION, PLACES[place], progress.step):
            progress.note_stop(consensus.agreed())
        # At the begin of a loop, nothing was done since the end before it.
        due_s = math.inf if place is Place.BEGIN else self._saving.due_s(at_loop_end=True)
        # A request in a loop's last step is agreed on already: see `ProgressState.note_stop`.
        stop = self._stop_asked and place in (Place.BEGIN, Place.EPOCH)
        with worker.waiting(At.SESSION, PLACES[place], progress.step):
            agreed = consensus.agree(place, self._numbers(stop, due_s, place))
        if agreed.stop and progress.stop_at is None:
            progress.stop_at = progress.step
        return agreed

    def save(self) -> None:
        """All ranks requested a checkpoint here."""
        agreed = self.agree(Place.SAVE)
        if agreed.busy or agreed.hold:
            self._saving.late = True  # training does not wait for the store
        else:
            self._saving.save(wait=False)

    def wait_for_trials(self) -> None:
        """Before a step: if this is a trial of a sweep that waits for others here, save and end.

        What is reported after the last step, such as an evaluation, is known by now.

        Raises:
            Suspended: this worker group ends, and the trial with it.
        """
        trial, step = self._context.worker.trial, self._context.progress.step
        if trial is None or trial.until_step is None or step < trial.until_step:
            return
        if self._context.worker.rank == 0:
            rating = self._context.progress.rating.get(trial.metric)
            ray.get(self._context.worker.coordinator.paused.remote(step, rating))
        self._checkpoint_and_exit(Command.SUSPEND)

    def execute(self, agreed: StepValues) -> None:
        """Do what the ranks agreed on.

        Raises:
            Preempted, Resized, Suspended: this worker group ends.
        """
        if agreed.command == Command.RESIZE and not self._context.can_grow():
            return  # it is asked for again after the next step
        if agreed.command >= Command.RESIZE:
            if not (self._saving.unsaved and self._held()):
                self._checkpoint_and_exit(agreed.command)
        elif agreed.command == Command.CHECKPOINT and not agreed.busy and self._saving.unsaved:
            self.save()

    def _held(self) -> bool:
        """Whether the checkpoint is made after a later step; all ranks ask.

        Also where a pod ends before that: without those gradients the run would go on from there
        with other weights, and from an earlier checkpoint it does the steps again.
        """
        return self.agree(Place.SAVE).hold

    def _numbers(
        self,
        stop: bool = False,
        due_s: float | None = None,
        place: Place = Place.STEP,
    ) -> StepValues:
        requested = self._command(self._saving.due_s() if due_s is None else due_s)
        hold = place is Place.SAVE and self._context.gradients.hold_checkpoints()
        busy, step = self._saving.uploading, self._context.progress.step
        # Also where no step was done: the first one of the next loop is left out by it.
        no_time = self._context.noted_steps.no_time
        return StepValues(requested, busy, stop, step, hold, no_time)

    def _command(self, due_s: float) -> Command:
        """The command that this rank requests now."""
        reporter = self._context.reporter
        command = reporter.command if reporter is not None else Command.NONE
        if command == Command.RESIZE and not self._context.can_grow():
            command = Command.NONE  # of two requests the smaller one, for a checkpoint, is lost
        notice = self._notice()
        if notice is not None and time.time() >= checkpoint_at(notice, self._saving.slowest_s()):
            command = max(command, Command.CHECKPOINT_AND_EXIT)
        # One clock decides: ranks with different clocks would request it twice.
        due = self._saving.is_due(due_s) if self._context.worker.rank == 0 else self._saving.late
        return max(command, Command.CHECKPOINT) if due else command

    def _notice(self) -> PreemptionNotice | None:
        """This pod's own, or Ray's of a node of the worker group."""
        own, deadline = self._context.worker.notice, self._of_ray.read()
        if own is not None or deadline is None:
            return own
        return PreemptionNotice(deadline=deadline, pre_stop=False)

    def _checkpoint_and_exit(self, command: int) -> None:
        """Make a checkpoint, wait for its commit, and end this worker group.

        A group whose checkpoint was abandoned goes on in place of a larger one, which would begin
        at an older checkpoint.
        """
        worker, progress = self._context.worker, self._context.progress
        consensus = self._context.consensus
        progress.note_stop(consensus.agreed())
        consensus.reset()
        if self._saving.unsaved:
            self._saving.save(wait=True)
        else:
            self._saving.wait_for_upload()
        committed = self._saving.wait_for_commit()
        if command == Command.RESIZE and not committed:
            return
        notice = worker.notice
        if notice is not None:
            # Before the exit: otherwise Ray places the next worker group on the pod that is about
            # to end.
            nodes.drain_own_node("the pod is being deleted", notice.deadline)
            worker.confirm_saved()
        consensus.barrier()
        step = progress.step
        if command == Command.SUSPEND:
            lost = "" if committed else "; its checkpoint could not be committed"
            self._exit = Suspended(f"suspended after step {step}{lost}")
        elif command == Command.RESIZE:
            self._exit = Resized(f"saved after step {step}, for more workers")
        else:
            saved = "saved" if committed else "no checkpoint could be committed"
            preempted = Preempted if notice is None else OwnPodPreempted
            self._exit = preempted(f"a pod is preempted; {saved} after step {step}")
        raise self._exit
