"""What a policy finds. A policy returns it; `planning.plan` adds it to the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..api.reasons import ConditionReason
from ..api.status import LossReason
from .model import Action, RunEvent


class Blocker(NamedTuple):
    """What keeps the run from continuing: condition Stalled or Accepted=False."""

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
    run_failure: RunFailure | None = None
    """Set where no further attempt can help."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What one policy adds to the plan."""

    end: AttemptEnd | None = None
    """How the current attempt ended; None: it continues."""
    blocker: Blocker | None = None
    """What keeps the run from continuing."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the status to change."""
    bookkeeping: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the bookkeeping to change."""
    actions: tuple[Action, ...] = ()
    """Actions, carried out in this order."""
    events: tuple[RunEvent, ...] = ()
    """Events, emitted in this order."""
    charged: frozenset[Literal["application", "infrastructure"]] = frozenset()
    """The budgets that a counted loss charges."""
    requeue_within_s: float | None = None
    """Seconds until the next reconcile at the latest; None: no bound."""
