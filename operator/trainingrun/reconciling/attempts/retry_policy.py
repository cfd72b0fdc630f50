"""When a run has failed, and how long its next attempt waits: budgets, progress and backoff."""

import re
from datetime import timedelta

from trainingrun_protocol.contract import MAX_GROUPS_WITHOUT_CHECKPOINT
from trainingrun_protocol.failure_rules import ContractBackoff
from trainingrun_protocol.progress import Failure

from ...api.failures_spec import Backoff, Failures
from ...api.reasons import ConditionReason
from ...api.status import Attempt, Budget, LossReason
from ...api.v1alpha1 import RunSpec
from ..bookkeeping import Bookkeeping
from ..findings import RunFailure, StatusDraft
from ..losses import out_of_memory
from . import budgets as counts

_VARIES = re.compile(r"\b0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\btmp\w+|\d+")
"""What differs between two texts of the same error: ranks, addresses, times, names of folders."""

_LOSSES = frozenset((LossReason.PREEMPTED, LossReason.WORKER_LOST, LossReason.HANG))
"""What a rule of the driver's ends an attempt for."""

STORAGE_WAIT_S = (60.0, 600.0)
"""First and longest wait after an attempt that had no storage, in seconds: a bucket or credentials
are put right by a person, and attempts meanwhile would use up maxAttemptsWithoutProgress."""


def budgets(reason: LossReason | None) -> frozenset[Budget]:
    """The budgets that an attempt's end for this reason charged."""
    return frozenset((reason.budget,) if reason is not None else ())


def exhausted(draft: StatusDraft, spec: RunSpec, charged: frozenset[str]) -> RunFailure | None:
    """Whether a budget is used up, or a rule ends the run.

    Only budgets that were charged are checked: one that a user lowers ends no healthy attempt. Of a
    sweep each trial has them, and its driver ends a trial that has used its own: here the run ends
    once all of them together could have used no more.
    """
    failures, trials = spec.failures, spec.trials
    each = f" for each of {trials} trials" if trials is not None else ""
    by_rule = _by_rule(draft, failures, charged)
    if by_rule is not None:
        return by_rule
    own = errors = counts.used(draft, "application")
    if trials is not None:
        # Of the sweep as a whole; of its trials' memory `own` lacks what is forgiven already.
        forgiven = draft.bookkeeping.forgiven.get(out_of_memory.FORGIVEN, 0)
        errors -= max(draft.status.disruptions.out_of_memory - forgiven, 0)
    if "application" in charged and errors > failures.max_restarts:
        return RunFailure(
            ConditionReason.RESTARTS_EXHAUSTED,
            f"The training failed by itself {_times(errors)} and failures.maxRestarts is "
            f"{failures.max_restarts}",
        )
    most = _most_for_memory(failures)
    if "application" in charged and trials is not None and own > most * trials:
        return RunFailure(
            ConditionReason.RESTARTS_EXHAUSTED,
            f"The training failed by itself {_times(own)}, {own - errors} of them for want of "
            f"memory, and each of {trials} trials may do so {_times(most)}",
        )
    losses = counts.used(draft, "infrastructure")
    if "infrastructure" in charged and 0 <= _most(failures.max_preemptions, trials) < losses:
        return RunFailure(
            ConditionReason.PREEMPTIONS_EXHAUSTED,
            f"Infrastructure was lost {_times(losses)} and failures.maxPreemptions is "
            f"{failures.max_preemptions}{each}; -1 survives as many as there are",
        )
    hangs = counts.used(draft, "hang")
    if "hang" in charged and 0 <= _most(failures.max_hangs, trials) < hangs:
        latest = draft.status.hang
        where = f", at last with {latest.message}" if latest is not None else ""
        return RunFailure(
            ConditionReason.HANGS_EXHAUSTED,
            f"The training hung {_times(hangs)} and failures.maxHangs is {failures.max_hangs}"
            f"{each}{where}; `trainingrun stacks` prints the stack of each rank",
        )
    return None


def _most(budget: int, trials: int | None) -> int:
    """How often a budget may be used: by each trial once more, after which that trial has failed.

    Args:
        budget: of the run, or of each trial; negative: it has no end.
        trials: of the sweep; None: there is no sweep.
    """
    return budget if trials is None or budget < 0 else (budget + 1) * trials


def _most_for_memory(failures: Failures) -> int:
    """How often a trial may run out of memory, after which it has failed.

    Its driver sees that a worker is lost, and not why its pod has ended. So it counts this against
    maxPreemptions, and as a group without a checkpoint.
    """
    losses = max(failures.max_restarts, failures.max_preemptions) + 1
    return max(losses, MAX_GROUPS_WITHOUT_CHECKPOINT)


def _by_rule(draft: StatusDraft, failures: Failures, charged: frozenset[str]) -> RunFailure | None:
    for number, rule in enumerate(failures.contract_rules, 1):
        if rule.key not in charged:
            continue
        if rule.then == "Fail":
            return RunFailure(
                ConditionReason.FAILED_BY_RULE,
                f"Rule {number} of failures.rules ends the run with such a failure",
            )
        times = counts.used(draft, rule.key)
        if rule.max_restarts is not None and times > rule.max_restarts:
            return RunFailure(
                ConditionReason.RULE_EXHAUSTED,
                f"Rule {number} of failures.rules was met {_times(times)} and its maxRestarts is "
                f"{rule.max_restarts}",
            )
    return None


def would_repeat(failure: Failure, ended: Attempt, before: Attempt | None) -> RunFailure | None:
    """Whether another attempt would end as this one."""
    if ended.reason is not LossReason.APPLICATION_ERROR:
        return None
    if failure.retry == "Never":
        message = "Another attempt would only repeat the training, which is done"
        return RunFailure(ConditionReason.NON_RETRIABLE_ERROR, message)
    if (
        failure.retry == "UnlessRepeated"
        and ended.rule is None  # else a user has said what follows
        and before is not None
        and before.reason is ended.reason
        and not (_stepped(ended) or _stepped(before))
        and same_error(ended.message, before.message)
    ):
        message = "The same error ended two attempts in a row before their first step"
        return RunFailure(ConditionReason.NON_RETRIABLE_ERROR, message)
    return None


def same_error(one: str, other: str) -> bool:
    """Whether the messages of two attempts are of the same error."""
    return _VARIES.sub("", one) == _VARIES.sub("", other)


def _stepped(attempt: Attempt) -> bool:
    return (attempt.last_step or 0) > (attempt.resumed_from_step or 0)


def without_progress(
    ended: Attempt, bookkeeping: Bookkeeping, failures: Failures
) -> RunFailure | None:
    """Whether too many attempts in a row ended without a newer checkpoint."""
    if bookkeeping.attempts_without_progress < failures.max_attempts_without_progress:
        return None
    limit = f"failures.maxAttemptsWithoutProgress is {failures.max_attempts_without_progress}"
    # Where more checkpoints would not help, the attempt's own message says what does.
    if ended.reason is LossReason.STORAGE_ERROR:
        what, advice = "had no storage and", ""
    elif ended.resumed_from_step is None:
        what, advice = "ended untrained and", ""
    else:
        what = "ended without a newer checkpoint and"
        advice = (
            "; make checkpoints more often (checkpoints.everySeconds) or find out why the attempts "
            "end"
        )
    attempts = _attempts(bookkeeping.attempts_without_progress)
    return RunFailure(ConditionReason.NO_PROGRESS, f"{attempts} {what} {limit}{advice}")


def reason_of(failure: Failure) -> LossReason:
    """The reason of an attempt that ended with this failure of the runtime."""
    if failure.loss is not None and failure.loss in _LOSSES:
        return LossReason(failure.loss)
    match failure.kind:
        case "Application":
            return LossReason.APPLICATION_ERROR
        case "Storage":
            return LossReason.STORAGE_ERROR
        case "Infrastructure":
            return LossReason.INFRASTRUCTURE_ERROR


def backoff(
    reason: LossReason | None,
    attempts_without_progress: int,
    settings: Backoff,
    of_rule: ContractBackoff | None = None,
) -> timedelta:
    """The wait after an attempt that ended for this reason, on a cluster and in a local run.

    `attempts_without_progress` counts the attempts in a row that ended without a newer checkpoint:
    a run that makes progress is retried soon. An application failure always waits; the first loss
    of infrastructure does not, since waiting does not bring the machine back. A rule's own wait,
    `of_rule`, comes before all of that.
    """
    if reason is None or reason.budget == "none":
        return timedelta(0)
    if of_rule is not None:
        return timedelta(seconds=of_rule.seconds(attempts_without_progress))
    application = reason.budget == "application"
    waits = max(attempts_without_progress, 1) if application else attempts_without_progress - 1
    seconds = 0.0
    if waits > 0:
        # Capped before the power is taken: 10.0 ** 1000 overflows.
        factor = settings.factor ** min(waits - 1, 64)
        seconds = min(settings.initial_seconds * factor, settings.max_seconds)
    if reason is LossReason.STORAGE_ERROR:
        first_s, longest_s = STORAGE_WAIT_S
        doublings = min(max(attempts_without_progress - 1, 0), 10)
        seconds = max(seconds, min(first_s * 2**doublings, longest_s))
    return timedelta(seconds=seconds)


def _attempts(number: int) -> str:
    return "The attempt" if number == 1 else f"{number} attempts in a row"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
