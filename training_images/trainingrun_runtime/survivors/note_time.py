"""How long the notes of the steps' ends may take: see `last_step` and `kept_steps`."""

import time

SHARE = 0.003
"""Of the training's time that the notes may take; beyond it a step is not noted. A note of a small
model takes 0.1 ms between steps of 100 ms, where caches are cold."""
ADVANCE_S = 0.02
"""Seconds that they may take before that."""
TOO_LONG = "notes of each step would take more than 0.3 % of the time"


class NoteTime:
    """The CPU time that this thread's notes have taken, beside the time that its steps took."""

    def __init__(self) -> None:
        self._noting = self._training = self._began = 0.0

    def step_done(self, step_s: float) -> None:
        """A step took so many seconds; what follows is its note."""
        self._training += step_s
        self._began = time.thread_time()

    @property
    def used_up(self) -> bool:
        """Whether this step is not to be noted."""
        return self._noting > SHARE * self._training + ADVANCE_S

    def noted(self) -> None:
        """The step's end is noted. What a step that is left out has taken does not count."""
        self._noting += time.thread_time() - self._began
