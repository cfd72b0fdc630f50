"""How far the training of a session is, while it goes on."""

from typing import Any

from .checkpoints.snapshot import Position
from .coordination.step_consensus import StepValues
from .step_loops import Loops


class Course:
    """What the parts of a session share: steps, loops, metrics, and the time spent so far.

    Args:
        began_at: the restored position.
    """

    def __init__(self, began_at: Position) -> None:
        self.step = began_at.step
        """Steps done; a loop goes on from here."""
        self.epoch = began_at.epoch
        """Epochs done, or the number of the one under way."""
        self.epoch_began = began_at.epoch_began
        """Steps done when the epoch under way began."""
        self.stop_at = began_at.stop_at
        """Steps after which the ranks agreed to end; None: at the loop's own end."""
        self.loops = Loops(began_at.left)
        """Those of the epoch under way."""
        self.metrics: dict[str, Any] = {}
        """This rank's, as reported last."""
        self.rating: dict[str, Any] = {}
        """In a trial of a sweep: the metric by which it is compared, as reported last."""
        self.productive = 0.0
        """Seconds in steps."""
        self.stalled = 0.0
        """Seconds between steps in which checkpoints were made and the ranks agreed."""

    @property
    def stopped(self) -> bool:
        """Whether the ranks agreed to end: loops do no more steps."""
        return self.stop_at is not None and self.step >= self.stop_at

    @property
    def trained(self) -> float:
        """Seconds for which this worker group has trained."""
        return self.productive + self.stalled

    @property
    def position(self) -> Position:
        """What a checkpoint says of it."""
        return Position(self.step, self.epoch, self.epoch_began, self.stop_at, self.loops.left)

    def note_stop(self, agreed: StepValues) -> None:
        """Stop one step after the one of the request: by then every rank has the result.

        Also where the result is available sooner, so that an interruption changes nothing.
        """
        if agreed.stop and self.stop_at is None:
            self.stop_at = agreed.step + 1
