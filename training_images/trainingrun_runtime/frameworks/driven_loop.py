"""A session's loop that is driven from outside: by the hooks of a framework that has its own."""

from collections.abc import Callable, Generator

from ..session.session import Session

ENDLESS = 2**31
"""Epochs of a training that names no number of them."""


class DrivenLoop:
    """Epochs and steps of a session, each of which begins when a hook says so.

    Args:
        session: whose steps they are.
        epochs: how many the training has.
        steps: tells how many steps the epoch has that begins now.
    """

    def __init__(self, session: Session, epochs: int, steps: Callable[[], int]) -> None:
        self._session, self._epochs, self._length = session, epochs, steps
        self._epoch = 0
        self._steps = self._run()
        # What follows a step's gradients takes a framework long, so a rank is often lost in it.
        session.noted_steps.driven = True

    def begin_step(self, epoch: int) -> None:
        """The former step is over, and the next one begins.

        Between them the session makes the checkpoint that is due, or that a notice asks for.

        Args:
            epoch: of the step that begins, from 0.

        Raises:
            Preempted, Suspended: a checkpoint was made and this worker group ends; let it through.
        """
        self._epoch = epoch
        next(self._steps)

    def end(self) -> None:
        """The last step is over; the session saves it when the training function returns."""
        self._steps.close()

    def _run(self) -> Generator[None, None, None]:
        for epoch in self._session.epochs(self._epochs):
            for _ in self._session.steps(self._length()):
                yield
                if self._epoch != epoch:  # the framework has left the former epoch early
                    break
