"""Which rules of `failures.rules` failures have met, how often, and what those rules pay for."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from trainingrun_protocol.failure_rules import ContractRule, FailureFacts, first_match

from ...api.status import Loss, LossReason
from ..bookkeeping import Bookkeeping, CountedDisruption, RuleCount
from ..context import ReconcileContext
from ..findings import StatusDraft
from . import out_of_memory
from .signs import control_sign

FOUND_LATER = (
    LossReason.PREEMPTED,
    LossReason.EVICTED,
    LossReason.NODE_LOST,
    LossReason.OUT_OF_MEMORY,
)
"""What a worker that was lost without notice may prove to be, once its pod and node have told."""


def may_be_spared(
    rules: Sequence[ContractRule], classes: Iterable[LossReason], facts: FailureFacts, *, more: bool
) -> bool:
    """Whether no rule may end the run for a failure after all.

    Args:
        rules: Those of the run.
        classes: What the failure may prove to be.
        facts: What is known of it.
        more: Whether more of that may follow.
    """
    return any(not _ends(rules, reason.value, facts, more=more) for reason in classes)


def _ends(rules: Sequence[ContractRule], loss: str, facts: FailureFacts, *, more: bool) -> bool:
    for rule in rules:
        when, ends = rule.when, rule.then == "Fail"
        if first_match([rule], loss, facts) is not None:
            return ends
        asks = when.reasons or when.exit_codes or when.log_pattern is not None
        if more and asks and not ends and (not when.classes or loss in when.classes):
            return False
    return False


def entry_of(draft: StatusDraft, known: CountedDisruption) -> Loss | None:
    """Its entry in the history; None: the history has it no more, or not yet."""
    history = draft.status.disruptions.history
    return next((loss for loss in history if loss.number == known.number), None)


def met_at_the_end(
    context: ReconcileContext, draft: StatusDraft, reason: LossReason, told: FailureFacts
) -> Counter[str]:
    """How many losses have met each rule that ends the run, by its key, of those that are undecided
    when their attempt ends: nothing more is told of them. But a worker whose node shows the sign of
    a loss is not known to have been lost alone.

    Args:
        context: The reconcile in which it ends.
        draft: Until then.
        reason: Why it ends. A loss of that class is the same failure.
        told: What is known of that.
    """
    rules, counts = context.run.spec.failures.contract_rules, Counter[str]()
    for known in draft.bookkeeping.counted.values():
        if not known.undecided or known.collateral:
            continue
        facts = known.facts or FailureFacts()
        if known.reason is reason:
            facts = facts.with_more(told)
        rule = first_match(rules, known.reason.value, facts)
        entry = entry_of(draft, known)
        node = context.node(entry.node) if entry is not None else None
        of_node = context.unknown("Node") or (node is not None and control_sign(context, node))
        if known.reason is LossReason.WORKER_LOST and of_node:
            continue
        if rule is not None and rule.then == "Fail":
            counts[rule.key] += 1
    return counts


def met(counted: Iterable[CountedDisruption]) -> Counter[str]:
    """How many failures met each rule, by its key: pods without memory are one together."""
    counts: Counter[str] = Counter()
    memory: dict[str, list[CountedDisruption]] = {}
    for known in counted:
        if known.rule is None or known.collateral:
            continue
        if known.reason is LossReason.OUT_OF_MEMORY:
            memory.setdefault(known.rule, []).append(known)
        else:
            counts[known.rule] += 1
    for key, pods in memory.items():
        counts[key] += out_of_memory.failures(pods)
    return counts


def paid(counted: Iterable[CountedDisruption]) -> Counter[str]:
    """How many failures of each budget rules pay for."""
    every = [known for known in counted if not known.collateral]
    unpaid = [known for known in every if not known.rule_pays]
    memory = out_of_memory.failures(every) - out_of_memory.failures(unpaid)
    counts = Counter({"application": memory} if memory else {})
    for known in every:
        if known.rule_pays and known.reason is not LossReason.OUT_OF_MEMORY:
            counts[known.reason.budget] += 1
    return counts


def rule_counts(
    bookkeeping: Bookkeeping,
    rules: Sequence[ContractRule],
    new: Counter[str],
    free: Counter[str],
    time: str,
) -> dict[str, Any]:
    """Changes of the bookkeeping for failures that met rules.

    Args:
        bookkeeping: Until now.
        rules: Those of the run; of others nothing is kept.
        new: Failures that met each rule, by its key.
        free: Failures for which a rule pays, by their budget.
        time: For a rule that was met.
    """
    if not any(new.values()) and not any(free.values()):
        return {}
    counts, keys = dict(bookkeeping.rule_counts), {rule.key for rule in rules}
    for key, number in new.items():
        known = counts.get(key, RuleCount())
        counts[key] = RuleCount(
            matches=max(known.matches + number, 0), time=time if number > 0 else known.time
        )
    forgiven = dict(bookkeeping.forgiven)
    for name, number in free.items():
        forgiven[name] = max(forgiven.get(name, 0) + number, 0)
    return {
        "rule_counts": {key: count for key, count in counts.items() if key in keys},
        "forgiven": {
            name: number
            for name, number in forgiven.items()
            if number and (name in keys or not name.startswith("rule:"))
        },
    }
