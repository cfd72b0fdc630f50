"""What a policy reads and what it finds, which `planning.plan` adds to the plan."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..api.reasons import ConditionReason
from ..api.status import Budget, LossReason, RunStatus
from .bookkeeping import Bookkeeping
from .model import Action, RunEvent

NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


class Draft(NamedTuple):
    """The run's next status so far: the last one, with what the policies have changed."""

    status: RunStatus
    """Its `seen` is the last one's."""
    bookkeeping: Bookkeeping
    """What its `seen` will be."""

    @classmethod
    def of(cls, status: RunStatus) -> "Draft":
        """From the status that was last written."""
        return cls(status, Bookkeeping.read(status.seen))

    def changed(self, found: "Findings") -> "Draft":
        """With what a policy changes."""
        return Draft(
            self.status.model_copy(update=dict(found.status)) if found.status else self.status,
            self.bookkeeping.model_copy(update=dict(found.bookkeeping))
            if found.bookkeeping
            else self.bookkeeping,
        )


class Blocker(NamedTuple):
    """What is in the run's way, and what to do about it."""

    reason: ConditionReason
    message: str


class RunFailure(NamedTuple):
    """Why the whole run has failed: condition Failed."""

    reason: ConditionReason
    message: str


class AttemptEnd(NamedTuple):
    """How an attempt ended."""

    outcome: Literal["Succeeded", "Failed", "Lost", "Suspended"]
    reason: LossReason | None
    message: str


class Findings(NamedTuple):
    """What one policy adds to the plan."""

    end: AttemptEnd | None = None
    """How the running attempt ended; None: it continues."""
    run_failure: RunFailure | None = None
    """Why the whole run has failed; None: it continues."""
    blocker: Blocker | None = None
    """What is in the run's way: condition Waiting where it may pass, Stalled where not."""
    refused: Blocker | None = None
    """Why the spec cannot be used: condition Accepted=False."""
    status: Mapping[str, Any] = NO_CHANGES
    """Fields of the status to change."""
    bookkeeping: Mapping[str, Any] = NO_CHANGES
    """Fields of the bookkeeping to change."""
    actions: tuple[Action, ...] = ()
    """Actions, carried out in this order."""
    events: tuple[RunEvent, ...] = ()
    """Events, emitted in this order."""
    charged: frozenset[Budget] = frozenset()
    """The budgets that a counted loss charges."""
    requeue_within_s: float | None = None
    """Seconds until the next reconcile at the latest; None: no bound."""
