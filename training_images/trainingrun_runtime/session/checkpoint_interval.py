"""When a checkpoint is due: `checkpoints.everySeconds` after the last one, at the end of a loop
earlier, and at each multiple of `checkpoints.everySteps`.
"""

import math
from collections import deque

from trainingrun_protocol.contract import ContractCheckpoints

from ..store.lease import LossHistory

LOOP_END_S = 10.0
"""Seconds after which a checkpoint is due at the end of a loop or an epoch, because what follows,
such as an evaluation, may take long."""
SHORTEST_S = 10.0
"""Shortest interval with `everySeconds: auto`, which is also the first one: what a checkpoint costs
is known once one was made."""
LONGEST_S = 3600.0
"""Longest interval with `everySeconds: auto`."""
_REMEMBERED = 3
"""Checkpoints of which the mean counts: the first one of a process takes longer than others."""


class CheckpointInterval:
    """When checkpoints are due, in one worker group.

    Args:
        settings: `spec.checkpoints`, as the contract has it.
        history: The losses of the run before this worker group.
    """

    def __init__(self, settings: ContractCheckpoints, history: LossHistory) -> None:
        self._settings, self._history = settings, history
        self.cost = SaveCost()
        """What the checkpoints of this group have cost so far."""

    def is_due_after(self, step: int) -> bool:
        """Whether this step is a multiple of `everySteps`."""
        every = self._settings.every_steps
        return every is not None and step % every == 0

    def seconds(self, save_seconds: float, trained: float) -> float:
        """Seconds after the last checkpoint at which one is due; infinity: none is due by time.

        Args:
            save_seconds: That a checkpoint takes, its upload included.
            trained: Seconds for which this worker group has trained.
        """
        assumed = self._settings.assumed_seconds_between_losses
        if assumed is None:
            every = self._settings.every_seconds
            return math.inf if every is None else every
        between = self._history.seconds_between_losses(assumed, trained)
        return automatic_s(self.cost.seconds, save_seconds, between)

    def at_loop_end_s(self, save_seconds: float, trained: float) -> float:
        """Seconds after the last checkpoint at which one is due at the end of a loop or an epoch.

        It is made for a tenth of the time at most. For the arguments see `seconds`.
        """
        return min(self.seconds(save_seconds, trained), max(LOOP_END_S, 10 * save_seconds))


def automatic_s(cost_s: float | None, save_s: float, between_losses_s: float) -> float:
    """The interval of `everySeconds: auto`: the one that loses the least time, sqrt(2 * C * M).

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of
    the ACM 17 (1974); J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", Future Generation Computer Systems 22 (2006), whose terms of a higher order
    matter only where losses are about as frequent as checkpoints.

    Args:
        cost_s: C, seconds of training that a checkpoint costs; None: no checkpoint was made yet.
        save_s: Seconds that a checkpoint takes, its upload included. Uploads take a tenth of the
            time at most.
        between_losses_s: M, mean seconds of training between two losses that cost steps.
    """
    best = math.sqrt(2 * cost_s * between_losses_s) if cost_s is not None else 0.0
    return min(max(best, SHORTEST_S, 10 * save_s), LONGEST_S)


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
        self._mean_of_steps()
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
            self._mean_of_steps()

    def _mean_of_steps(self) -> None:
        if self._costs and self._beside and self._alone:
            slower = self._beside_s - self._beside * self._alone_s / self._alone
            self._costs[-1] = self._stall + max(slower, 0.0)
        self._beside_s, self._beside = 0.0, 0
