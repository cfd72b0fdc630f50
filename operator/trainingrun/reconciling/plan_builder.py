"""A plan while it is being made: `planning.plan` adds what the policies find."""

from collections import Counter
from dataclasses import dataclass, field, replace

from ..api.reasons import EventReason
from ..api.status import Budget, RunStatus
from .findings import AttemptEnd, Blocker, Draft, Findings, RunFailure
from .model import Action, Plan, RunEvent
from .texts import short

MOST_EVENTS = 20
"""Events of one reconcile; the others are counted in one more."""


@dataclass(slots=True)
class PlanBuilder:
    """The next status, and what was found so far."""

    draft: Draft
    actions: list[Action] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    charged: frozenset[Budget] = frozenset()
    """The budgets that this reconcile charged: only those are checked."""
    requeue_after_s: float | None = None
    # Of each of these, the first that is found stays; but an action that fails comes first.
    end: AttemptEnd | None = None
    run_failure: RunFailure | None = None
    blocker: Blocker | None = None
    refused: Blocker | None = None

    @classmethod
    def of(cls, status: RunStatus) -> "PlanBuilder":
        """From the status that was last written."""
        return cls(Draft.of(status))

    def add(self, found: Findings) -> None:
        """Add what a policy found."""
        self.draft = self.draft.changed(found)
        self.actions += found.actions
        for event in found.events:
            self.events.append(replace(event, message=short(event.message)))
        self.charged |= found.charged
        if found.requeue_within_s is not None:
            self.requeue_within(found.requeue_within_s)
        self.end = self.end or found.end
        self.run_failure = self.run_failure or found.run_failure
        self.blocker = self.blocker or found.blocker
        self.refused = self.refused or found.refused

    def requeue_within(self, seconds: float) -> None:
        """Reconcile again after so many seconds at the latest."""
        seconds = max(seconds, 0.0)
        if self.requeue_after_s is None or seconds < self.requeue_after_s:
            self.requeue_after_s = seconds

    def plan(self) -> Plan:
        """What was decided."""
        return Plan(
            tuple(self.actions),
            self.draft.status.model_copy(update={"seen": self.draft.bookkeeping.write()}),
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
