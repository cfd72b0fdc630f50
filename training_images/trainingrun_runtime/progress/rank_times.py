"""What a rank measures of its steps."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RankTimes:
    """Means of the last minute."""

    step_s: float | None
    """Seconds of a step; None: not known yet."""
    wait_s: float | None
    """Seconds of a step in which it waits for gradients of other ranks; None: not known."""
    data_share: float | None
    """Share of the time in steps in which it waits for data, since the group began; None: not
    measured."""
    data_s: float | None = None
    """Seconds of a step in which it waits for data; None: not measured, or not known yet."""

    @property
    def own_s(self) -> float | None:
        """Seconds of a step in which it does not wait for other ranks."""
        if self.step_s is None or self.wait_s is None:
            return None
        return max(self.step_s - self.wait_s, 0.0)

    @property
    def wait_share(self) -> float | None:
        """Share of a step in which it waits for gradients of other ranks."""
        if not self.step_s or self.wait_s is None:
            return None
        return min(self.wait_s / self.step_s, 1.0)
