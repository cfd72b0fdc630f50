"""A plan while it is being made: `planning.plan` adds what the policies find."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from ..api.reasons import EventReason
from ..api.status import RunStatus
from .bookkeeping import Bookkeeping
from .findings import Findings, RunFailure
from .model import Action, Plan, RunEvent
from .texts import short

MOST_EVENTS = 20
"""Events of one reconcile; the others are counted in one more."""


@dataclass(slots=True)
class PlanBuilder:
    """The next status, the bookkeeping in it, and what is to be done."""

    status: RunStatus
    bookkeeping: Bookkeeping
    actions: list[Action] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    requeue_after_s: float | None = None
    run_failure: RunFailure | None = None
    """Why the whole run has failed, where this reconcile found so."""
    charged: set[Literal["application", "infrastructure"]] = field(default_factory=set)
    """The budgets that this reconcile charged: only those are judged."""

    @classmethod
    def of(cls, status: RunStatus) -> "PlanBuilder":
        """From the status that was last written."""
        return cls(status, Bookkeeping.read(status.seen))

    def update_status(self, **changes: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)

    def update_bookkeeping(self, **changes: Any) -> None:
        """Change fields of the bookkeeping."""
        self.bookkeeping = self.bookkeeping.model_copy(update=changes)

    def add(self, found: Findings) -> None:
        """Add what a policy found."""
        if found.status:
            self.update_status(**found.status)
        if found.bookkeeping:
            self.update_bookkeeping(**found.bookkeeping)
        self.add_action(*found.actions)
        for event in found.events:
            self.add_event(event.type, event.reason, event.message)
        self.charged |= found.charged
        if found.requeue_within_s is not None:
            self.requeue_within(found.requeue_within_s)

    def add_action(self, *actions: Action) -> None:
        """Add actions, carried out in this order."""
        self.actions.extend(actions)

    def add_event(
        self, type_: Literal["Normal", "Warning"], reason: EventReason, message: str
    ) -> None:
        """Add an event."""
        self.events.append(RunEvent(type_, reason, short(message)))

    def requeue_within(self, seconds: float) -> None:
        """Reconcile again after so many seconds at the latest."""
        seconds = max(seconds, 0.0)
        if self.requeue_after_s is None or seconds < self.requeue_after_s:
            self.requeue_after_s = seconds

    def plan(self) -> Plan:
        """What was decided."""
        return Plan(
            tuple(self.actions),
            self.status.model_copy(update={"seen": self.bookkeeping.write()}),
            tuple(_bounded(self.events)),
            self.requeue_after_s,
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
