"""A run that several outages happen to, one after the other: each is measured by itself.

A run of its own for each would cost as much time again for starting and ending.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .kube import CommandError, wait_for
from .report import Row, gaps_in_numbers, seconds_without_training, steps_lost
from .runs import STEP_SECONDS, Run
from .scenario import weights

SECONDS_PER_STEP = 2.0
"""While it waits for outages: its 240 steps last longer than they do."""
BEFORE_S = 10.0
"""Seconds before an outage that show how long a step takes without it."""


class LongRun:
    """The run, and a row for each outage so far."""

    def __init__(self, run: Run, seconds_per_step: float = SECONDS_PER_STEP) -> None:
        self.run = run
        self.rows: list[Row] = []
        self._seconds_per_step = seconds_per_step

    def start(self, spec: Mapping[str, Any]) -> None:
        """Apply it and wait until it trains and has a checkpoint."""
        self.apply(spec)
        self.wait_for_checkpoint()

    def apply(self, spec: Mapping[str, Any]) -> None:
        """Apply it, at its slow pace from the first step on."""
        self.run.start(spec)
        self.run.journals.set_pace(self._seconds_per_step)

    def wait_for_checkpoint(self) -> None:
        """Wait until it trains and has a checkpoint."""
        self.run.wait_for_step(1)
        wait_for(
            f"a checkpoint of {self.run.name}",
            lambda: self.run.status().get("checkpoint"),
            timeout=120,
            instead=self.run.sentence,
        )

    def train_on(self, steps: int = 5, timeout: float = 120) -> None:
        """Wait until so many further steps are done. It asks no API server."""
        self.run.train_on(steps, timeout, self._instead)

    def reports_again(self, timeout: float = 60) -> dict[str, Any]:
        """Wait until the operator has seen a step that is done from now on; the status."""
        now = self.run.steps()[-1].number

        def reported() -> dict[str, Any] | None:
            self.run.fail_if_over("Failed")
            status = self.run.status()
            return status if status.get("progress", {}).get("step", 0) > now else None

        return wait_for(
            f"step {now + 1} of {self.run.name} in its status", reported, timeout, self._instead
        )

    def no_longer_waits(self) -> None:
        """Wait until its status reports no problem."""
        wait_for(
            f"{self.run.name} is neither Waiting nor Stalled",
            lambda: not self.run.holds("Waiting") and not self.run.holds("Stalled"),
            timeout=60,
            instead=self.run.sentence,
        )

    @contextmanager
    def in_the_same_pods(self) -> Iterator[None]:
        """Around an outage: the run trains before and after it, in one attempt; no pod of it was
        replaced, and no container of one began anew.
        """
        before, attempt = self.run.incarnations(), self.run.status()["attempt"]
        self.train_on(2)
        yield
        self.train_on(2)
        status = self.run.status()
        assert status["attempt"] == attempt, status["attempts"]
        after = self.run.incarnations()
        assert after == before, (
            f"pods of the run were replaced, or containers began anew: {before}, now {after}"
        )

    def measure(self, what: str, since: float, note: str, target: float | None = None) -> Row:
        """Note what the outage since that Unix time has cost; training is back."""
        steps = [step for step in self.run.steps() if step.time > since - BEFORE_S]
        lost = steps_lost(steps)
        row = Row(what, seconds_without_training(steps, since), target, lost, note=note)
        self.rows.append(row)
        return row

    def ends_like(self, reference: Callable[[], str], table: list[Row]) -> None:
        """It succeeds in its first attempt, with the reference's weights; fills the table."""
        self.run.journals.set_pace(STEP_SECONDS)
        status = self.run.succeed()
        steps = self.run.steps()
        equal = weights(status) == reference()
        restarts = status.get("restarts", 0)
        table += [replace(row, weights_equal=equal, restarts=restarts) for row in self.rows]
        assert gaps_in_numbers(steps) == [], "steps were skipped"
        assert equal, f"{weights(status)} instead of {reference()}"
        assert restarts == 0, "an outage used up an application's retry"
        assert status["attempt"] == 1, status["attempts"]

    def _instead(self) -> str:
        try:
            return self.run.sentence()
        except CommandError as error:
            return str(error)
