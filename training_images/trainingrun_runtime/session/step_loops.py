"""The loops over steps that a training function has begun, ended and left; pure."""

from collections.abc import Sequence


class Loops:
    """The loops of one epoch, or of a training that counts none.

    A loop is named by its end, the number of steps done when it is over.

    Args:
        left: ends of the loops that had been left before their end when the checkpoint was made.
    """

    def __init__(self, left: Sequence[int] = ()) -> None:
        self.number = 0
        """Of the latest loop, from 1."""
        self.in_step = False
        """Whether a step was handed out and is not done yet."""
        self.inside = False
        """Whether the training function is in a loop's body."""
        self._restored = set(left)
        self._left: set[int] = set(left)
        self._reached: set[int] = set()
        self._current: int | None = None

    @property
    def left(self) -> tuple[int, ...]:
        """Ends of the loops that were left before it."""
        return tuple(sorted(self._left))

    def already_reached(self, end: int) -> bool:
        """Whether this end, and no other, was reached: the code counts each loop from 0."""
        return self._reached == {end}

    def was_left(self, end: int) -> bool:
        """Whether the checkpoint was made after this loop was left: it is not begun again.

        What comes after it follows; a second loop to the same end goes on with the steps.
        """
        if end not in self._restored:
            return False
        self._restored.remove(end)
        return True

    def begin(self, end: int) -> int:
        """A loop begins; its number."""
        self.number += 1
        self._current, self.inside = end, True
        self._left.discard(end)
        return self.number

    def leave(self) -> None:
        """The loop under way was left in the middle of a step."""
        if self._current is not None:
            self._left.add(self._current)

    def end(self) -> int | None:
        """The loop under way is over; its end, None where there is none."""
        over, self._current, self.inside = self._current, None, False
        return over

    def reached(self, end: int) -> None:
        """All steps of a loop were done."""
        self._reached.add(end)
