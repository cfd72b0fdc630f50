"""Which rule of failures.rules a failure meets that the driver sees.

A pattern is tried by RE2 (pyarrow's): its time grows with the text alone, whatever the pattern is.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainingrun_protocol.failure_rules import ContractRule, FailureFacts, first_match

from ..error_text import first_line
from ..known_errors.failure_causes import ClassifiedFailure, FailureCause

log = logging.getLogger(__name__)

LONGEST_LINE = 2000
"""Characters of a line in which a pattern is looked for."""

CLASSES = {
    FailureCause.PREEMPTED: "Preempted",
    FailureCause.WORKER_LOST: "WorkerLost",
    FailureCause.HANG: "Hang",
    FailureCause.STORAGE: "StorageError",
    FailureCause.APPLICATION: "ApplicationError",
    FailureCause.INFRASTRUCTURE: "InfrastructureError",
}
"""What the operator calls them."""

_OF_A_LOST_WORKER = ("WorkerLost", "NodeLost", "OutOfMemory", "Evicted", "Preempted")
"""What the operator may call a worker that is lost without notice, once pod and node have told."""


@dataclass(frozen=True)
class Verdict:
    """Which rule a failure meets."""

    rule: ContractRule | None = None
    """None: it meets none."""
    facts: FailureFacts = field(default_factory=FailureFacts)
    """What is known of the failure."""
    certain: bool = True
    """Whether a rule that ends the run does so whatever pod and node tell of the failure later."""

    @property
    def ends_the_run(self) -> bool:
        """Whether no worker group may follow."""
        return self.rule is not None and self.rule.then == "Fail"

    @property
    def moves(self) -> bool:
        """Whether the next worker group leaves the node."""
        by_rule = self.rule is not None and self.rule.then == "RestartOnOtherNode"
        return by_rule or self.facts.bad_node is not None


def have_patterns(rules: Sequence[ContractRule]) -> bool:
    """Whether any rule asks for what was printed."""
    return any(rule.when.log_pattern is not None for rule in rules)


def judge(
    rules: Sequence[ContractRule], failure: ClassifiedFailure, lines: Sequence[str]
) -> Verdict:
    """Which rule a failure of a worker group meets; `lines`: what its first rank printed last."""
    facts = FailureFacts(
        reasons=list(failure.kinds),
        exit_codes=list(failure.exit_codes),
        matched=matched(rules, failure.message, lines),
        bad_node=failure.bad_node,
    )
    rule = first_match(rules, CLASSES.get(failure.cause, ""), facts)
    lost = failure.cause is FailureCause.WORKER_LOST and rule is not None and rule.then == "Fail"
    return Verdict(rule, facts, certain=not lost or _ends_anyway(rules, facts))


def _ends_anyway(rules: Sequence[ContractRule], facts: FailureFacts) -> bool:
    """Whether a rule ends the run for a lost worker whatever class it gets, and whatever words and
    exit codes its pod has for it. A spot node that vanishes is no more than a lost worker here, and
    the operator does not take back the end of a run.
    """
    for loss in _OF_A_LOST_WORKER:
        rule = first_match(rules, loss, facts)
        if rule is None or rule.then != "Fail":
            return False
        earlier = [one.when for one in rules[: rules.index(rule)] if one.then != "Fail"]
        if any(when.reasons or when.exit_codes for when in earlier):
            return False
    return True


def matched(rules: Sequence[ContractRule], message: str, lines: Sequence[str]) -> list[str]:
    """The rules' patterns that are found in a failure's message or in a line."""
    patterns = dict.fromkeys(rule.when.log_pattern for rule in rules)
    texts = [text[:LONGEST_LINE] for text in (message, *lines)]
    return [pattern for pattern in patterns if pattern is not None and _found(pattern, texts)]


def _found(pattern: str, texts: Sequence[str]) -> bool:
    import pyarrow as pa  # takes a moment, for which no start waits
    import pyarrow.compute as pc

    try:
        return bool(pc.any(pc.match_substring_regex(pa.array(texts, pa.string()), pattern)).as_py())
    except (pa.ArrowException, UnicodeError) as error:
        log.warning("failures.rules: %r finds nothing: %s", pattern, first_line(error))
        return False
