"""The totals of loops, and the loops that would do fewer steps than their code means.

A total counts from the first step of the run or of the epoch, or from the run's first epoch, so
that a resumed run goes on within it. Code that counts each loop anew would silently do too little:
it is told the call that it means.
"""

import operator
from dataclasses import dataclass
from typing import Any

_OWN_EPOCHS = "give each loop epochs of its own in one loop over session.epochs()"


@dataclass(frozen=True)
class StepLoop:
    """A loop over steps, as it was called for."""

    method: str
    """The session's, by which it was."""
    total: int
    """Steps from the first one that counts until its end."""
    began: int
    """Steps of the run done before the first one that counts."""
    in_epoch: bool
    """Whether that is the first one of an epoch, else of the run."""
    loader: Any = None
    """Whose batches its steps take; None: unknown."""
    whole: bool = False
    """Whether the total was left out: it is that of all batches of the loader."""
    extendable: bool = True
    """Whether the code can give another total."""

    @property
    def call(self) -> str:
        """What the code calls, up to the total."""
        if not self.extendable:
            return f"{self.method}(session, loader"
        return f"session.{self.method}({'loader, ' if self.loader is not None else ''}"

    @property
    def end(self) -> int:
        """Steps of the run done when it is over."""
        return self.began + self.total


class LoopTotals:
    """The loops and epochs that came before, in this process."""

    def __init__(self) -> None:
        self._loops: list[StepLoop] = []  # the latest one of each loader
        self._reached: set[int] = set()  # totals of epochs
        self._trained: set[int] = set()  # those of them that this process trained for

    def begin(self, loop: StepLoop, step: int, *, stopped: bool, again: bool) -> None:
        """A loop over steps begins.

        Args:
            loop: the one.
            step: steps of the run that are done.
            stopped: whether the training was: that its loops do no more steps is meant.
            again: whether its end, and no other, was reached before.

        Raises:
            ValueError: it would do no step, or it is to take all batches of its loader and another
                loop has taken the place of some.
        """
        if loop.whole and not stopped:
            self._require_first(loop, step)
        if again:
            raise ValueError(_reached_before(loop, step))
        if loop.total:
            self._loops = [*(one for one in self._loops if one.loader is not loop.loader), loop]

    def end_epoch(self, step: int) -> None:
        """An epoch is over after so many steps of the run.

        Its loops have no part in the next epoch, but in what follows after the epochs.
        """
        if self._loops:
            self._loops = [StepLoop("steps", step, 0, in_epoch=True)]

    def require_more_epochs(self, total: int, epoch: int, *, stopped: bool) -> None:
        """Make sure that the code does not count the epochs of each call from 0.

        As with the steps of loops, the same total again is no mistake where another one was reached
        before, such as of `min(round * 5, 10)`.

        Args:
            total: epochs, from the run's first one.
            epoch: epochs that are done.
            stopped: see `begin`.

        Raises:
            ValueError: it does.
        """
        larger = any(total < other for other in self._trained)
        if not total or stopped or not (larger or self._reached == self._trained == {total}):
            return
        raise ValueError(
            f"session.epochs({total}) was reached before and would do no epoch, because it counts "
            f"from the run's first one; call session.epochs({epoch + total}) for {total} more"
        )

    def reach_epochs(self, total: int, *, trained: bool) -> None:
        """A total of epochs was reached.

        Args:
            total: epochs, from the run's first one.
            trained: by epochs of this process; else the interrupted run had reached it.
        """
        self._reached.add(total)
        if trained:
            self._trained.add(total)

    def _require_first(self, loop: StepLoop, step: int) -> None:
        """Make sure that a loop over all batches of a loader gets them all.

        A loop over the same loader may be before it, which has then taken some of these batches.

        Raises:
            ValueError: another one was before it.
        """
        before = [
            former
            for former in self._loops
            if former.end > loop.began
            and (former.loader is not loop.loader or (former.in_epoch and not loop.in_epoch))
        ]
        if not before:
            return
        call, total, done = loop.call, loop.total, step - loop.began
        of, how = "epoch" if loop.in_epoch else "run", _OWN_EPOCHS
        # The steps of a loop before the epochs count in the first of these alone.
        if loop.extendable and (not loop.in_epoch or all(former.in_epoch for former in before)):
            how = f"call {call}{done} + {total}), the steps of both, or {how}"
        raise ValueError(
            f"{call.removesuffix(', ')}) counts the {total} steps of its loader from the {of}'s "
            f"first one, and a loop before it has done {done} of the {of}'s steps; {how}"
        )


def whole_number(total: Any, of: str) -> int:
    """The length of a loop; a float that is one counts, as of a quotient.

    Args:
        total: as the training function has it.
        of: what it is a number of, which is the name of the session's method.

    Raises:
        ValueError: it is none.
    """
    try:
        whole = isinstance(total, float) and total.is_integer()
        return int(total) if whole else operator.index(total)
    except TypeError:
        raise ValueError(
            f"session.{of}({total}) is no whole number of {of}; round it, or where the length is "
            f"not known write session.{of}(2**31) and call session.stop()"
        ) from None


def _reached_before(loop: StepLoop, step: int) -> str:
    """What a loop is told that would do no step."""
    call = loop.call
    if not loop.extendable:
        return (
            f"{call}) was reached before and would do no step, because it counts from the epoch's "
            f"first one; {_OWN_EPOCHS}"
        )
    first, more = f"{call}{loop.total})", f"{call}{step - loop.began + loop.total})"
    if loop.whole:  # a loader whose epoch is that of the session has no batch left in it
        first, more = f"session.{loop.method}(loader)", f"{first} and then {more}"
    since, instead = "the epoch's first one", ""
    if not loop.in_epoch:
        since = "the first one"
        instead = ", or loop over session.epochs(), in which each epoch counts anew"
    return (
        f"{first} was reached before and would do no step, because it counts from {since}; "
        f"call {more} for {loop.total} more{instead}"
    )
