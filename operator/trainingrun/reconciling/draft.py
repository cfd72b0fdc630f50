"""A plan while it is being made: the policies write here, one after the other."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from ..api.status import RunStatus
from .failures import Over
from .ledger import Ledger
from .model import Action, Plan, RunEvent
from .texts import short

MOST_EVENTS = 20
"""Events of one reconcile; what is beyond that is told in one more."""


@dataclass(slots=True)
class Draft:
    """The next status, the ledger in it, and what is to be done."""

    status: RunStatus
    ledger: Ledger
    actions: list[Action] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    look_again_s: float | None = None
    over: Over | None = None
    """Why the whole run has failed, where this look found so."""
    charged: set[Literal["application", "infrastructure"]] = field(default_factory=set)
    """The budgets that this reconcile charged: only those are judged."""

    @classmethod
    def of(cls, status: RunStatus) -> "Draft":
        """From the status that was last written."""
        return cls(status, Ledger.read(status.seen))

    def set(self, **changes: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)

    def note(self, **changes: Any) -> None:
        """Change fields of the ledger."""
        self.ledger = self.ledger.model_copy(update=changes)

    def do(self, *actions: Action) -> None:
        """Add actions, carried out in this order."""
        self.actions.extend(actions)

    def tell(self, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Add an event."""
        self.events.append(RunEvent(type_, reason, short(message)))

    def look_within(self, seconds: float) -> None:
        """Look again after so many seconds at the latest."""
        seconds = max(seconds, 0.0)
        if self.look_again_s is None or seconds < self.look_again_s:
            self.look_again_s = seconds

    def plan(self) -> Plan:
        """What was decided."""
        return Plan(
            tuple(self.actions),
            self.status.model_copy(update={"seen": self.ledger.write()}),
            tuple(_bounded(self.events)),
            self.look_again_s,
        )


def _bounded(events: list[RunEvent]) -> list[RunEvent]:
    """All events, or the newest with a word about the others: what comes last sums up the rest."""
    if len(events) <= MOST_EVENTS:
        return events
    others = Counter(event.reason for event in events[:-MOST_EVENTS])
    told = ", ".join(f"{number} {reason}" for reason, number in sorted(others.items()))
    return [
        RunEvent("Warning", "ManyEvents", f"At the same time there were: {told}"),
        *events[-MOST_EVENTS:],
    ]
