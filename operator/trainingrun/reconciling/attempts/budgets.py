"""What has used each budget and each rule of spec.failures, and when they are full again.

Nothing is counted here: what was counted is in status.disruptions and in the bookkeeping, written
together with the loss or the attempt's end that it is about. A budget's own number is that, less
what is forgiven: failures for which a rule pays, and all of those before the last refill.
"""

from typing import Any

from ...api.failures_spec import Failures
from ...api.reasons import EventReason
from ...api.status import RuleUse
from ..bookkeeping import Charged
from ..context import ReconcileContext
from ..findings import Findings, StatusDraft
from ..losses import out_of_memory
from ..model import RunEvent
from ..status import goodput

_FIELDS = {
    "application": "failures.maxRestarts",
    "infrastructure": "failures.maxPreemptions",
    "hang": "failures.maxHangs",
}
"""By the budget's name, what bounds it."""


def used(draft: StatusDraft, name: str) -> int:
    """How many failures count against a budget, or a rule by its key, now."""
    lost, bookkeeping = draft.status.disruptions, draft.bookkeeping
    match name:
        case "application":
            count = lost.application_errors + lost.out_of_memory
        case "infrastructure":
            count = lost.preemptions + lost.node_losses + lost.head_losses + lost.worker_failures
            count += bookkeeping.other_losses
        case "hang":
            count = lost.hangs
        case _:
            count = bookkeeping.rule_counts[name].matches if name in bookkeeping.rule_counts else 0
    return max(count - bookkeeping.forgiven.get(name, 0), 0)


def record_charges(draft: StatusDraft, charged: frozenset[str]) -> Findings:
    """Remember where the run was when these budgets and rules were used: progress begins there."""
    names = [name for name in sorted(charged) if name != "none" and used(draft, name)]
    if not names:
        return Findings()
    steps = (attempt.last_step or 0 for attempt in draft.status.attempts)
    at = Charged(
        step=max(draft.bookkeeping.best_step, 0, *steps),
        productive=round(goodput.total(draft.bookkeeping).productive, 3),
    )
    return Findings(
        bookkeeping={"charged_at": {**draft.bookkeeping.charged_at, **dict.fromkeys(names, at)}}
    )


def refill(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """Fill the budgets and rules after which the run has made progress for long enough.

    Only what a checkpoint keeps is progress, as a step can be done again and again; the steps of
    the run that this one begins from are none.
    """
    failures, bookkeeping = context.run.spec.failures, draft.bookkeeping
    trained = goodput.total(bookkeeping).productive
    restored, why = draft.status.restored_from, {}
    theirs = (restored.step if restored is not None else None) or 0
    for name, at in bookkeeping.charged_at.items():
        since = at.model_copy(update={"step": max(at.step, theirs)})
        if reason := progress_since(failures, since, bookkeeping.best_step, trained):
            why[name] = reason
    if not why:
        return Findings()
    full = {name: bookkeeping.forgiven.get(name, 0) + used(draft, name) for name in why}
    if "application" in why and (memory := draft.status.disruptions.out_of_memory):
        full[out_of_memory.FORGIVEN] = memory
    counted = {
        key: known.model_copy(update={"forgiven": True}) if known.charges in full else known
        for key, known in bookkeeping.counted.items()
    }
    left = {name: at for name, at in bookkeeping.charged_at.items() if name not in why}
    status: dict[str, Any] = {"restarts": 0} if "application" in why else {}
    events = tuple(
        RunEvent("Normal", EventReason.BUDGET_REFILLED, f"{_FIELDS[name]} is full again: {reason}")
        for name, reason in sorted(why.items())
        if name in _FIELDS
    )
    return Findings(
        status=status,
        bookkeeping={
            "forgiven": {**bookkeeping.forgiven, **full},
            "charged_at": left,
            "counted": counted,
        },
        events=events,
    )


def progress_since(failures: Failures, at: Charged, newest: int, productive: float) -> str | None:
    """The progress that is enough to fill a budget again, in a phrase; None: it is not.

    Args:
        failures: The run's.
        at: Where the run was when the budget was used last.
        newest: Step of its newest checkpoint now.
        productive: Its seconds in steps that counted, until now.
    """
    steps, seconds = failures.refill_after_steps, failures.refill_after_seconds
    if newest <= at.step:
        return None
    if steps is not None and newest - at.step >= steps:
        return f"{newest - at.step} new steps are in a checkpoint since the last failure"
    trained = productive - at.productive
    if seconds is not None and trained >= seconds:
        return f"{int(trained)} s of training since the last failure"
    return None


def rule_uses(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """status.failureRules, by the rules that the run has now."""
    rules = context.run.spec.failures.contract_rules
    if not rules and draft.status.failure_rules is None:
        return Findings()
    counts = draft.bookkeeping.rule_counts
    uses = [
        RuleUse(
            rule=number,
            then=rule.then,
            matches=counts[rule.key].matches if rule.key in counts else 0,
            used=used(draft, rule.key) if rule.max_restarts is not None else 0,
            last_time=counts[rule.key].time if rule.key in counts else None,
        )
        for number, rule in enumerate(rules, 1)
    ]
    return Findings(status={"failure_rules": uses or None})
