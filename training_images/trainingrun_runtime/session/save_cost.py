"""How much training time a checkpoint costs; pure."""

from collections import deque

_REMEMBERED = 3
"""Checkpoints of which the mean counts: the first one of a process takes longer than others."""


class SaveCost:
    """The mean cost of the last checkpoints: the stall, and the slower steps during the upload.

    A step counts as slower by what it takes longer than the mean step since the former upload, so
    steps of uneven length add noise; a cost is never less than its stall.
    """

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self._stall = 0.0
        self._alone_s, self._alone = 0.0, 0
        self._beside_s, self._beside = 0.0, 0

    @property
    def seconds(self) -> float | None:
        """Seconds that a checkpoint costs; None: none was made yet."""
        return sum(self._costs) / len(self._costs) if self._costs else None

    def saved(self, stall: float) -> None:
        """A checkpoint begins to be uploaded; training stood still for `stall` seconds."""
        self._settle()
        self._alone_s, self._alone = 0.0, 0
        self._costs.append(stall)
        self._stall = stall

    def stepped(self, seconds: float, uploading: bool) -> None:
        """A step was done, while a checkpoint was uploaded or while none was."""
        if uploading:
            self._beside_s, self._beside = self._beside_s + seconds, self._beside + 1
            return
        self._alone_s, self._alone = self._alone_s + seconds, self._alone + 1
        if self._alone >= self._beside:  # enough of them for a mean
            self._settle()

    def _settle(self) -> None:
        if self._costs and self._beside and self._alone:
            slower = self._beside_s - self._beside * self._alone_s / self._alone
            self._costs[-1] = self._stall + max(slower, 0.0)
        self._beside_s, self._beside = 0.0, 0
