"""How often a run is lost, over all its attempts and drivers; pure.

Each driver writes it into its lease, where the next one finds it. A new driver follows a new
attempt, and also a new head within one.
"""

from typing import Any

from pydantic import ValidationError

from trainingrun_protocol.wire import Count, Duration, Wire


class LossHistory(Wire):
    """The losses that cost steps, and the time in which they happened."""

    losses: Count = 0
    """Losses of any kind after which steps were done again. A preemption with notice is none: it
    makes a checkpoint first. Nor is a crash whose last step another rank has saved."""
    trained: Duration = 0
    """Seconds of training, in steps that counted or not and in stalls."""
    unsaved: bool = False
    """Whether steps were done that no committed checkpoint holds."""

    @classmethod
    def of_next_driver(cls, written: Any) -> "LossHistory":
        """From the lease of the former driver, which has ended or is lost.

        One that cannot be read counts as none.
        """
        try:
            former = cls.model_validate(written or {})
        except ValidationError:
            return cls()
        return cls(losses=former.losses + former.unsaved, trained=former.trained)

    def seconds_between_losses(self, assumed: float, trained: float = 0.0) -> float:
        """Mean seconds of training between two losses.

        Args:
            assumed: What it is taken for before the first loss, until the run has trained longer.
            trained: Seconds of training that came after this history.
        """
        sofar = self.trained + trained
        return sofar / self.losses if self.losses else max(sofar, assumed)
