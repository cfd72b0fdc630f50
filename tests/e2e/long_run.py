"""A run that several outages or losses happen to, one after the other: each is measured by itself.

A run of its own for each would cost as much time again for starting and ending.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .kube import CommandError, wait_for
from .report import Row, gaps_in_numbers, seconds_without_training, steps_lost
from .runs import CHECKPOINT_SECONDS, STEP_SECONDS, Run
from .scenario import AT_THE_END_OF_A_STEP, PATIENCE, weights

SECONDS_PER_STEP = 2.0
"""While it waits for outages: its 240 steps last longer than they do."""
BEFORE_S = 10.0
"""Seconds before an outage that show how long a step takes without it."""
BETWEEN_S = 8.0
"""Seconds of training between two losses: time for a checkpoint, so that each loss has its own."""


def since_checkpoint(seconds_per_step: float) -> int:
    """Steps that a loss may cost which goes back to the last checkpoint: an interval, and another
    one while its checkpoint is uploaded."""
    return int(2 * CHECKPOINT_SECONDS / seconds_per_step) + 1


class LongRun:
    """The run, and a row for each outage so far."""

    def __init__(self, run: Run, seconds_per_step: float = SECONDS_PER_STEP) -> None:
        self.run = run
        self.rows: list[Row] = []
        self._seconds_per_step = seconds_per_step

    @property
    def since_checkpoint(self) -> int:
        """See the function."""
        return since_checkpoint(self._seconds_per_step)

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

    def between_steps(self) -> None:
        """Return in the middle of a step: a rank that is killed then has ended the former one.

        It waits there for most of the time. Just after a step is noted it is not at its end yet,
        and a loss then costs more: see docs/training.md.
        """
        self.run.train_on(1, instead=self._instead, every=0.02)
        time.sleep(self._seconds_per_step / 2)

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

    def loses(
        self,
        what: str,
        reason: str,
        act: Callable[[], object],
        *,
        target: float,
        lost_at_most: int = 0,
    ) -> dict[str, Any]:
        """Something is taken from it, and it trains again in the same attempt.

        Args:
            what: Names the row of the table.
            reason: The class under which the status has to count it, once.
            act: Takes it away.
            target: The design's bound for the seconds without training; `Scenario.went_on` says
                when missing it fails the test.
            lost_at_most: How many steps may be done twice.

        Returns:
            The loss in `status.disruptions.history`.
        """
        self.train_on(int(BETWEEN_S / self._seconds_per_step))
        attempt, known, said = self.run.status()["attempt"], len(self._losses()), self.run.events()
        note = f"at step {self.run.steps()[-1].number}"
        began = time.time()
        act()

        def counted() -> list[dict[str, Any]] | None:
            self.run.fail_if_over("Failed")
            new = self._losses()[known:]
            return new if new and all(loss.get("action") for loss in new) else None

        new = wait_for(
            f"{self.run.name} trains again", counted, PATIENCE * target, self._instead, every=1
        )
        self.train_on(2)
        row = self.measure(what, began, note, target)
        told = [event for event in self.run.events() if event not in said]
        if row.lost and any(AT_THE_END_OF_A_STEP in event for event in told):
            assert row.lost <= self.since_checkpoint, told
            assert not any(AT_THE_END_OF_A_STEP in former.note for former in self.rows), told
            self.rows[-1] = replace(row, note=f"{note}, {AT_THE_END_OF_A_STEP}")
        else:
            assert row.lost <= lost_at_most, told
        assert [loss["reason"] for loss in new] == [reason]
        assert self.run.status()["attempt"] == attempt
        assert row.seconds <= PATIENCE * target
        return new[0]

    def suspended_and_resumed(self, what: str, target: float) -> None:
        """Its pods are given back, and it trains on in another attempt without doing a step twice.

        Args:
            what: Names the row of the table; its seconds are from the end of `suspend`.
            target: See `loses`.
        """
        asked, at = time.time(), self.run.steps()[-1].number
        self.run.patch(suspend=True)
        self.run.wait_for_condition("Suspended")
        self.run.wait_until_freed()
        freed = time.time() - asked
        assert self.run.status()["phase"] == "Suspended"

        resumed = time.time()
        self.run.patch(suspend=False)
        self.train_on(2, timeout=PATIENCE * target)
        steps = self.run.steps()
        pause = next(step.time for step in steps if step.time > resumed) - resumed
        lost = steps_lost([step for step in steps if step.time > asked - BEFORE_S])
        note = f"at step {at}, freed every pod after {freed:.0f} s"
        self.rows.append(Row(what, pause, target, lost, note=note))
        assert lost == 0

    def _losses(self) -> list[dict[str, Any]]:
        return self.run.status().get("disruptions", {}).get("history", [])

    def ends_like(
        self, reference: Callable[[], str], table: list[Row], attempts: int = 1
    ) -> dict[str, Any]:
        """It succeeds in that attempt, with the reference's weights; fills the table.

        Returns:
            The final status.
        """
        self.run.journals.set_pace(STEP_SECONDS)
        status = self.run.succeed()
        steps = self.run.steps()
        equal = weights(status) == reference()
        restarts = status.get("restarts", 0)
        table += [replace(row, weights_equal=equal, restarts=restarts) for row in self.rows]
        assert gaps_in_numbers(steps) == [], "steps were skipped"
        assert equal, f"{weights(status)} instead of {reference()}"
        assert restarts == 0, "an outage used up an application's retry"
        assert status["attempt"] == attempts, status["attempts"]
        return status

    def _instead(self) -> str:
        try:
            return self.run.sentence()
        except CommandError as error:
            return str(error)
