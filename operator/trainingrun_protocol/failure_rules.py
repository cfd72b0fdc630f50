"""spec.failures.rules: which rule a failure meets. Driver and operator ask the same function.

A rule's pattern is tried by the driver alone, which has what the ranks have printed; it reports
which patterns it has found. So no text of a user's is ever executed as a pattern by the operator.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from .wire import Count, LogLine, Name, Sentence, Wire, the_last

T = TypeVar("T")

LossClass = Literal[
    "Preempted",
    "NodeLost",
    "HeadLost",
    "WorkerLost",
    "Evicted",
    "OutOfMemory",
    "Hang",
    "ApplicationError",
    "InfrastructureError",
    "StorageError",
]
"""Classes of failures."""

Then = Literal["Restart", "RestartOnOtherNode", "RestartOnDemand", "Fail", "Ignore"]
"""What follows a failure."""

MOST_RULES = 16
"""Rules of a run."""
MOST_REASONS = 8
"""Reasons and exit codes of one failure that are read."""
LONGEST_PATTERN = 200
"""Characters of a pattern."""


class ContractBackoff(Wire):
    """A wait: initialSeconds * factor ** (failures in a row - 1)."""

    initial_seconds: int = 10
    """The first one."""
    factor: int = 2
    """By how much each further one is longer."""
    max_seconds: int = 600
    """The longest one."""

    def seconds(self, failures: int) -> float:
        """After so many failures in a row."""
        # Capped before the power is taken: 10.0 ** 1000 overflows.
        factor = float(self.factor) ** min(max(failures - 1, 0), 64)
        return min(self.initial_seconds * factor, float(self.max_seconds))


class ContractWhen(Wire):
    """What a failure has to be; each of them that is not empty has to hold."""

    classes: list[str] = Field(default_factory=list)
    """Its class is one of these."""
    reasons: list[str] = Field(default_factory=list)
    """One of its reasons is one of these."""
    exit_codes: list[int] = Field(default_factory=list)
    """One of its exit codes is one of these."""
    log_pattern: str | None = None
    """Found in its message or in a line that the rank has printed."""


class ContractRule(Wire):
    """What follows failures of one kind."""

    when: ContractWhen
    """Which ones."""
    then: str
    """`Then`; a word that only a newer operator knows is as Restart."""
    max_restarts: int | None = None
    """Restarts by this rule; none: the budget of the failure's class counts."""
    backoff: ContractBackoff | None = None
    """The wait before a restart; none: as without the rule."""

    @property
    def key(self) -> str:
        """Names the rule, whatever its place in the list and its numbers are."""
        text = json.dumps([self.when.to_dict(), self.then], sort_keys=True)
        return f"rule:{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def has_own_budget(self) -> bool:
        """Whether its failures use no budget of their class."""
        return self.then == "Ignore" or (self.then != "Fail" and self.max_restarts is not None)


class FailureFacts(Wire):
    """What is known of one failure beside its class."""

    reasons: Annotated[list[Name], the_last(MOST_REASONS)] = Field(default_factory=list)
    """How Kubernetes, KubeRay or Python name it: `OOMKilled`, `SubmissionFailed`, `ValueError`."""
    exit_codes: Annotated[list[Count], the_last(MOST_REASONS)] = Field(default_factory=list)
    """Of processes or containers that ended."""
    matched: Annotated[list[LogLine], the_last(MOST_RULES)] = Field(default_factory=list)
    """The rules' patterns that were found in it."""
    bad_node: Sentence | None = None
    """Why the node on which it happened is no good, in a phrase; none: nothing says so."""

    def with_more(self, other: "FailureFacts") -> "FailureFacts":
        """The same failure, of which another source knows more."""
        return FailureFacts(
            reasons=_joined(self.reasons, other.reasons),
            exit_codes=_joined(self.exit_codes, other.exit_codes),
            matched=_joined(self.matched, other.matched),
            bad_node=self.bad_node or other.bad_node,
        )


def _joined(ours: Iterable[T], theirs: Iterable[T]) -> list[T]:
    return list(dict.fromkeys((*ours, *theirs)))


def first_match(
    rules: Sequence[ContractRule], loss: str, facts: FailureFacts
) -> ContractRule | None:
    """The first rule that a failure of this class meets; None: none of them."""
    return next((rule for rule in rules if _meets(rule.when, loss, facts)), None)


def _meets(when: ContractWhen, loss: str, facts: FailureFacts) -> bool:
    wanted: list[bool] = []
    if when.classes:
        wanted.append(loss in when.classes)
    if when.reasons:
        wanted.append(not set(when.reasons).isdisjoint(facts.reasons))
    if when.exit_codes:
        wanted.append(not set(when.exit_codes).isdisjoint(facts.exit_codes))
    if when.log_pattern is not None:
        wanted.append(when.log_pattern in facts.matched)
    return bool(wanted) and all(wanted)
