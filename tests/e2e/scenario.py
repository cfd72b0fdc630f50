"""A run that is disturbed, what it must still end with, and the row that it adds to the table."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .cluster import TRAINING_IMAGE, image_id
from .diagnosing import remember
from .report import Row, gaps_in_numbers, steps_lost
from .runs import CHECKPOINT_SECONDS, STEP_SECONDS, Run, specification

PATIENCE = float(os.environ.get("E2E_PATIENCE", "10"))
"""By how much a timing may miss its target before that is an error. More on a busy machine."""
TO_FIRST_STEP = 33
"""Seconds: the design's bound from the apply, or from the end of `suspend`."""
WELL_UNDER_WAY = 80
"""Steps after which there is a checkpoint, and enough of the run left."""
AT_THE_END_OF_A_STEP = "another rank has not finished step"
"""Part of the reason for which a step that was done on the other ranks is done again."""
SINCE_CHECKPOINT = int(2 * CHECKPOINT_SECONDS / STEP_SECONDS)
"""Steps that a crash may cost: one interval, and another one while its checkpoint is uploaded."""


ONE_WORKER_PER_NODE = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "nodeTaintsPolicy": "Honor",
    "labelSelector": {"matchLabels": {"trainingrun.dev/role": "worker"}},
}
"""One is left to save the last step; on the nodes that are left they share one."""


@dataclass
class Scenario:
    """A run that is disturbed, and what is measured of it."""

    run: Run
    spec: dict[str, Any]
    rows: list[Row]
    reference: Callable[[], str]
    """SHA-256 of the undisturbed run's final weights."""
    notes: list[str] = field(default_factory=list)

    def start_and_reach(self, step: int) -> None:
        """Apply the run and wait for a step."""
        self.run.start(self.spec)
        self.run.wait_for_step(step)

    def disturb(self, act: Callable[..., object], *arguments: Any) -> float:
        """Do it; the Unix time just before."""
        self.notes.append(f"at step {self.run.steps()[-1].number}")
        now = time.time()
        act(*arguments)
        return now

    def went_on(self, seconds: float, what: str, target: float | None, lost_at_most: int) -> None:
        """The run has succeeded, skipped no step, used no restart and has the reference's weights.

        Args:
            seconds: How long it did not train.
            what: Names the row of the table.
            target: The design's bound for the seconds. The table shows by how much it is missed;
                only PATIENCE times as much fails the test: a hang does, a busy machine does not.
            lost_at_most: How many steps may have been done twice. In one scenario of a session it
                may be the steps since the checkpoint, where an event of the run says that the rank
                died between its exchange of gradients and the end of its step: docs/training.md.
        """
        status = self.run.status()
        steps = self.run.steps()
        lost = steps_lost(steps)
        equal = weights(status) == self.reference()
        restarts = status.get("restarts", 0)
        lost_at_most = self.may_lose(lost, lost_at_most)
        note = ", ".join([*self.notes, f"attempts {status.get('attempt')}"])
        self.rows.append(Row(what, seconds, target, lost, equal, restarts, note))
        assert gaps_in_numbers(steps) == [], "steps were skipped"
        assert equal, f"{weights(status)} instead of {self.reference()}"
        assert restarts == 0, "an infrastructure loss used up an application's retry"
        assert lost <= lost_at_most
        assert target is None or seconds <= PATIENCE * target

    def may_lose(self, lost: int, at_most: int = 0) -> int:
        """How many steps may have been done twice, as for `went_on`."""
        known = any(AT_THE_END_OF_A_STEP in row.note for row in self.rows)
        told = any(AT_THE_END_OF_A_STEP in event for event in self.run.events())
        if lost <= at_most or known or not told:
            return at_most
        self.notes.append(AT_THE_END_OF_A_STEP)
        return SINCE_CHECKPOINT


def weights(status: dict[str, Any]) -> str:
    """SHA-256 of the final weights."""
    return status["result"]["metrics"]["weights_sha256"]


def reference_key() -> dict[str, Any]:
    """What decides which weights a run ends with."""
    return {
        "image": image_id(TRAINING_IMAGE),
        "training": specification()["training"],
    }


def keep_reference(status: dict[str, Any]) -> None:
    """Remember the undisturbed run's weights."""
    remember("undisturbed", {"key": reference_key(), "weights": weights(status)})
