"""What a policy finds. A policy returns it; `planning.plan` adds it to the plan."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..api.reasons import ConditionReason
from ..api.status import Budget, LossReason
from .model import Action, RunEvent

NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


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
