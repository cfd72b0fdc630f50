"""What a policy reads and what it finds, and the plan that `planning` makes of it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from trainingrun_protocol.failure_rules import FailureFacts

from ..api.reasons import ConditionReason, EventReason
from ..api.status import LossReason, RunStatus
from .bookkeeping import Bookkeeping
from .model import Action, Notice, Plan, RunEvent
from .texts import short

MOST_EVENTS = 20
"""Events of one reconcile; the others are counted in one more."""

NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


class StatusDraft(NamedTuple):
    """The run's next status so far: the last one, with what the policies have changed."""

    status: RunStatus
    """Its `seen` is the last one's."""
    bookkeeping: Bookkeeping
    """What its `seen` will be."""

    @classmethod
    def of(cls, status: RunStatus) -> "StatusDraft":
        """From the status that was last written."""
        return cls(status, Bookkeeping.read(status.seen))

    def changed(self, findings: "Findings") -> "StatusDraft":
        """With what a policy changes."""
        return StatusDraft(
            self.status.model_copy(update=dict(findings.status))
            if findings.status
            else self.status,
            self.bookkeeping.model_copy(update=dict(findings.bookkeeping))
            if findings.bookkeeping
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
    failed_rank: int | None = None
    """The rank that failed first; None: it is not known, or it was none."""
    last_lines: tuple[str, ...] = ()
    """What that rank has printed last."""
    facts: FailureFacts = FailureFacts()
    """What failures.rules ask for."""
    node: str | None = None
    """Node of the rank that failed first."""


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
    charged: frozenset[str] = frozenset()
    """The budgets that a counted loss charges, and the keys of the rules that it meets."""
    notices: tuple[Notice, ...] | None = None
    """What webhooks are to be told next; None: this policy does not say."""
    requeue_within_s: float | None = None
    """Seconds until the next reconcile at the latest; None: no bound."""


@dataclass(slots=True)
class PlanBuilder:
    """The next status, and what was found so far."""

    draft: StatusDraft
    actions: list[Action] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    charged: frozenset[str] = frozenset()
    """The budgets that this reconcile charged and the rules that it met: only those are checked."""
    requeue_after_s: float | None = None
    notices: tuple[Notice, ...] | None = None
    # Of each of these, the first that is found stays; but an action that fails comes first.
    end: AttemptEnd | None = None
    run_failure: RunFailure | None = None
    blocker: Blocker | None = None
    refused: Blocker | None = None

    def add(self, findings: Findings) -> None:
        """Add what a policy found."""
        self.draft = self.draft.changed(findings)
        self.actions += findings.actions
        for event in findings.events:
            self.events.append(replace(event, message=short(event.message)))
        self.charged |= findings.charged
        self.notices = self.notices if findings.notices is None else findings.notices
        if findings.requeue_within_s is not None:
            within_s = max(findings.requeue_within_s, 0.0)
            known_s = self.requeue_after_s
            self.requeue_after_s = within_s if known_s is None else min(known_s, within_s)
        self.end = self.end or findings.end
        self.run_failure = self.run_failure or findings.run_failure
        self.blocker = self.blocker or findings.blocker
        self.refused = self.refused or findings.refused

    def plan(self) -> Plan:
        """What was decided."""
        return Plan(
            tuple(self.actions),
            self.draft.status.model_copy(update={"seen": self.draft.bookkeeping.write()}),
            tuple(_bounded(self.events)),
            self.requeue_after_s,
            self.notices,
        )


def _bounded(events: list[RunEvent]) -> list[RunEvent]:
    """All events, or the newest and a count of the others."""
    if len(events) <= MOST_EVENTS:
        return events
    others = Counter(event.reason for event in events[:-MOST_EVENTS])
    counted = ", ".join(f"{number} {reason.value}" for reason, number in sorted(others.items()))
    return [
        RunEvent("Warning", EventReason.MANY_EVENTS, f"At the same time there were: {counted}"),
        *events[-MOST_EVENTS:],
    ]
