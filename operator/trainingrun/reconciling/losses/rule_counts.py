"""How often failures have met the rules of `failures.rules`, and what those rules pay for."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from trainingrun_protocol.failure_rules import ContractRule

from ...api.status import LossReason
from ..bookkeeping import Bookkeeping, CountedDisruption, RuleCount
from . import out_of_memory


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
