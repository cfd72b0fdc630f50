"""How an attempt ends, what its end changes, and what follows for the run.

It ends by the first of these that applies: the driver's final progress, a deleted RayJob, an
exhausted budget, the RayJob's status, pods that end by themselves repeatedly, and a driver that was
never submitted.

Crash safety comes from the order. An end is first written to the status, then the RayJob is
deleted, then the next attempt waits until nothing of the former is left.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from trainingrun_protocol.exit_codes import LEASE_LOST_EXIT_CODE, SUSPEND_EXIT_CODE
from trainingrun_protocol.failure_rules import FailureFacts, first_match
from trainingrun_protocol.progress import Failure, Progress, RunState

from ...api.reasons import ConditionReason, EventReason
from ...api.status import Attempt, LossReason
from .. import pod_status
from ..bookkeeping import OF_ONE_ATTEMPT, Bookkeeping, CountedDisruption
from ..context import ENDED_JOB, ReconcileContext, job_status
from ..diagnosis import stuck
from ..findings import AttemptEnd, Blocker, Findings, RunFailure, StatusDraft
from ..losses import avoided_nodes, capacity, out_of_memory
from ..losses.counting import PRECEDENCE, ended_by_itself
from ..losses.history import History, may_end
from ..losses.rule_counts import FOUND_LATER, entry_of, met_at_the_end, rule_counts
from ..losses.signs import driver_exit_code
from ..model import Delete, Object, RequestSuspend, RunEvent
from ..texts import ATTEMPT_MESSAGE, seconds_since, short, written
from . import budgets, retry_policy

INFRASTRUCTURE_REASONS = frozenset(
    {
        "SubmissionFailed",
        "PreRunningDeadlineExceeded",
        "JobDeploymentStatusTransitionGracePeriodExceeded",
        "JobStatusCheckTimeoutExceeded",
    }
)
"""KubeRay's reasons that say nothing about the training code: it did not reach the cluster."""

MOST_CRASHES = 3
"""Pods in the same place that end by themselves without a new step in between, after which the
attempt is given up."""

LONGEST_LAST_SAVE_S = 540.0
"""How long a driver that answers may save after KubeRay gave up on its RayJob. KubeRay frees the
pods 600 s after that, as `ttlSecondsAfterFinished` is rendered: the end is written before."""

_LOGS = ", last available logs"
"""Ends what Ray itself says of a driver that failed (`dashboard/modules/job/job_supervisor.py`)."""

_OF_CODE = (LossReason.APPLICATION_ERROR, LossReason.OUT_OF_MEMORY)


def ended(
    context: ReconcileContext, draft: StatusDraft, charged: frozenset[str], attempt: Attempt
) -> Findings:
    """How the attempt ended; no end: it continues, or its driver's final progress is awaited."""
    progress = context.progress(attempt.number)
    # Token 0 is of a driver that ended before it held the lease: done already, or no storage.
    if (
        progress is not None
        and progress.state.final
        and (
            progress.fencing_token == 0 or progress.fencing_token >= draft.bookkeeping.fencing_token
        )
    ):
        return Findings(end=_by_final_progress(context, draft, progress))
    if context.deleted(attempt.number):
        message = f"RayJob {attempt.ray_job} was deleted by someone else"
        return Findings(end=AttemptEnd("Lost", LossReason.INFRASTRUCTURE_ERROR, message))
    job = context.job(attempt.number)
    done = job is not None and job_status(job) == "SUCCEEDED"  # whatever was lost besides
    run_failure = None if done else retry_policy.exhausted(draft, context.run.spec, charged)
    if run_failure:
        out_of_budget = _out_of_budget(context, draft, run_failure)
        return Findings(end=out_of_budget, run_failure=run_failure)
    if job is None:
        return Findings()  # unknown at present: that is not a loss
    findings = _by_ray_job(context, draft, attempt, job)
    if findings.end or done:
        return findings
    crash_loop = _by_crash_loop(context, draft, attempt)
    if crash_loop:
        return findings._replace(end=crash_loop)
    hung_since = stuck.hung_since(context, draft, attempt, job)
    changes = dict(findings.bookkeeping)
    if hung_since != draft.bookkeeping.hung_since:
        changes["hung_since"] = hung_since
    why = stuck.never_submitted(context, hung_since)
    end = AttemptEnd("Lost", LossReason.INFRASTRUCTURE_ERROR, why) if why else None
    return findings._replace(end=end, bookkeeping=changes)


def _by_final_progress(
    context: ReconcileContext, draft: StatusDraft, progress: Progress
) -> AttemptEnd:
    if progress.state is RunState.SUCCEEDED:
        return AttemptEnd("Succeeded", None, "The training is done")
    if progress.state is RunState.SUSPENDED and draft.bookkeeping.given_up and not context.suspends:
        return AttemptEnd(
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            f"KubeRay gave up on the RayJob; its driver ended on request, at step {progress.step}",
        )
    if progress.state is RunState.SUSPENDED:
        return AttemptEnd(
            "Suspended", LossReason.SUSPENDED, f"Suspended after step {progress.step}"
        )
    failure = progress.failure or Failure(kind="Application", message="no reason was given")
    return _by_failure(draft, failure)


def _by_failure(draft: StatusDraft, failure: Failure) -> AttemptEnd:
    reason = _as_counted(draft, failure)
    outcome: Literal["Failed", "Lost"] = "Failed" if reason in _OF_CODE else "Lost"
    lines = tuple(failure.last_lines)
    facts = failure.facts or FailureFacts()
    return AttemptEnd(outcome, reason, failure.message, failure.rank, lines, facts, failure.node)


def _as_counted(draft: StatusDraft, failure: Failure) -> LossReason:
    """The reason of an attempt that ended with this failure of the runtime: of a lost worker the
    class that its pod or node has shown, of which the driver sees nothing.
    """
    reason, since = retry_policy.reason_of(failure), draft.bookkeeping.interruption
    if reason is not LossReason.WORKER_LOST or since is None:
        return reason
    same: list[LossReason] = [reason]
    for known in draft.bookkeeping.counted.values():
        if known.collateral or known.reason not in FOUND_LATER or (known.number or 0) < since.first:
            continue
        entry = entry_of(draft, known)
        node = entry.node if entry is not None else None
        if node is None or failure.node in (None, node):
            same.append(known.reason)
    return max(same, key=PRECEDENCE.__getitem__)


def _by_ray_job(
    context: ReconcileContext, draft: StatusDraft, attempt: Attempt, job: Object
) -> Findings:
    status: dict[str, Any] = job.get("status") or {}
    deployment, result = status.get("jobDeploymentStatus"), status.get("jobStatus")
    # After that Ray's message has the driver's last lines, in which secrets may be.
    message = str(status.get("message") or "").partition(_LOGS)[0].strip()
    if deployment == "ValidationFailed":
        refused = f"KubeRay refuses RayJob {attempt.ray_job}: {message}"
        run_failure = RunFailure(ConditionReason.REJECTED, refused)
        return Findings(end=AttemptEnd("Failed", None, refused), run_failure=run_failure)
    if result not in ENDED_JOB and deployment != "Failed":
        return Findings(bookkeeping={"end_seen": None} if draft.bookkeeping.end_seen else {})
    end_seen = draft.bookkeeping.end_seen or written(context.now)
    changes = {"end_seen": end_seen}
    reason = str(status.get("reason") or "")
    # KubeRay's status is one sign that the driver is lost, and the driver's answer is one against
    # it. KubeRay deletes its RayCluster some minutes later; a checkpoint before that loses no step.
    if reason in INFRASTRUCTURE_REASONS and context.driver_has_answered(attempt.number):
        given_up_at = changes["given_up"] = draft.bookkeeping.given_up or written(context.now)
        saves = context.store_may_answer(attempt.number)
        within_s = LONGEST_LAST_SAVE_S if saves else context.settings.suspend_deadline_s
        if seconds_since(given_up_at, context.now) < within_s:
            return Findings(bookkeeping=changes, actions=(RequestSuspend(attempt.number),))
    if not _final_progress_is_in(context, attempt, end_seen):
        return Findings(bookkeeping=changes)
    if result == "SUCCEEDED":
        end = AttemptEnd("Succeeded", None, "The training is done; its final progress was not read")
    else:
        end = _unexplained(context, draft, attempt, reason, message)
    return Findings(end=end, bookkeeping=changes)


def awaits_final_progress(context: ReconcileContext, draft: StatusDraft, number: int) -> bool:
    """Whether the RayJob has ended and only the driver's last document is awaited: for
    `final_progress_s` at most. One that KubeRay gave up on still trains.
    """
    known = draft.bookkeeping
    return known.end_seen is not None and known.given_up is None and context.job(number) is not None


def given_up(bookkeeping: Bookkeeping, attempt: Attempt) -> Blocker | None:
    """What the status says while a driver has to end because KubeRay gave up on it."""
    if bookkeeping.given_up is None:
        return None
    return Blocker(
        ConditionReason.KUBERAY_GAVE_UP,
        f"KubeRay gave up on RayJob {attempt.ray_job}, though its driver answers: the operator "
        "requests a checkpoint, and the next attempt continues from there; check whether KubeRay's "
        "operator can reach port 8265 of the head pod",
    )


def _final_progress_is_in(context: ReconcileContext, attempt: Attempt, end_seen: str) -> bool:
    """Whether nothing more can be read from the driver, whose RayJob has ended."""
    head = context.head(attempt.number)
    if head is not None and not pod_status.running(head):
        return True
    if head is None and context.is_absent_for_certain("Pod"):
        return True
    waited = seconds_since(end_seen, context.now)
    age = context.observed.progress_age_s
    # A document fetched well after the end is the final one, whatever its state.
    read_after = (
        context.progress(attempt.number) is not None and age is not None and age + 1 < waited
    )
    return read_after or waited >= context.settings.final_progress_s


def _unexplained(
    context: ReconcileContext, draft: StatusDraft, attempt: Attempt, reason: str, reported: str
) -> AttemptEnd:
    """The RayJob failed, and the driver's document does not say that it has ended."""
    told = context.progress(attempt.number)
    if told is not None and told.fencing_token >= draft.bookkeeping.fencing_token:
        # It was about to end, and its head was lost while it wrote the page of the run.
        if told.result is not None:
            return AttemptEnd("Succeeded", None, "The training is done")
        if told.failure is not None:
            return _by_failure(draft, told.failure)
    message = reported or f"RayJob {attempt.ray_job} failed"
    code = driver_exit_code(context.job(attempt.number))
    if code == SUSPEND_EXIT_CODE or (context.suspends and draft.bookkeeping.suspend_asked):
        return AttemptEnd(
            "Suspended", LossReason.SUSPENDED, "Suspended; the final progress was not read"
        )
    facts = FailureFacts(
        reasons=[reason] if reason else [], exit_codes=[code] if code is not None else []
    )
    if code == LEASE_LOST_EXIT_CODE or reason in INFRASTRUCTURE_REASONS:
        return AttemptEnd("Lost", LossReason.INFRASTRUCTURE_ERROR, message, facts=facts)
    if not may_end(context, draft, attempt.number):  # it has trained since the last loss
        return AttemptEnd("Failed", LossReason.APPLICATION_ERROR, message, facts=facts)
    causes = [known.reason for known in draft.bookkeeping.counted.values()]
    if without_memory := out_of_memory.end(draft):
        return without_memory
    if LossReason.NODE_LOST in causes or LossReason.HEAD_LOST in causes:
        lost = LossReason.NODE_LOST if LossReason.NODE_LOST in causes else LossReason.HEAD_LOST
        return AttemptEnd("Lost", lost, message, facts=facts)
    return AttemptEnd("Failed", LossReason.APPLICATION_ERROR, message, facts=facts)


class _Crashes(NamedTuple):
    """Pods in one place that ended by themselves since the last new step."""

    where: str
    """`head` or `workers`."""
    number: int
    most: int
    """So many end the attempt."""
    message: str
    """How the last one's container ended."""

    def describe(self, attempt: Attempt) -> str:
        """The same as a phrase."""
        step = attempt.last_step or attempt.resumed_from_step
        since = "before the training began" if step is None else f"by themselves since step {step}"
        last = self.message or "no message"
        return f"{self.number} pods of spec.{self.where} ended {since}, the last one with {last}"


def _crashes(context: ReconcileContext, draft: StatusDraft) -> Iterator[_Crashes]:
    pods, counted = context.wanted_pods(draft) - 1, draft.bookkeeping
    for where, reason, gone, most in (
        ("head", LossReason.HEAD_LOST, counted.crashed_heads, MOST_CRASHES),
        ("workers", LossReason.WORKER_LOST, counted.crashed_workers, MOST_CRASHES * pods),
    ):
        crashed = [one for one in counted.counted.values() if ended_by_itself(one, reason)]
        message = crashed[-1].termination_message if crashed else ""
        yield _Crashes(where, len(crashed) + gone, most, message)


def _by_crash_loop(
    context: ReconcileContext, draft: StatusDraft, attempt: Attempt
) -> AttemptEnd | None:
    """Pods that end by themselves repeatedly: KubeRay would replace them for ever."""
    for crashes in _crashes(context, draft):
        if crashes.number >= crashes.most:
            message = (
                f"{crashes.describe(attempt)}; correct spec.image or "
                f"spec.{crashes.where}.podTemplate if that is the cause"
            )
            return AttemptEnd("Lost", LossReason.INFRASTRUCTURE_ERROR, message)
    return None


def crashing(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> Blocker | None:
    """What the status says while pods end by themselves repeatedly."""
    if context.trains(attempt.number):
        return None
    for crashes in _crashes(context, draft):
        if crashes.number > 1:
            message = f"{crashes.describe(attempt)}; after {crashes.most} the attempt ends"
            return Blocker(ConditionReason.PODS_CRASH, message)
    return None


def _ended_by_rule(context: ReconcileContext, draft: StatusDraft) -> CountedDisruption | None:
    """The loss for which a rule ends the run, now; None: none does."""
    rules = context.run.spec.failures.contract_rules
    ends = {rule.key for rule in rules if rule.then == "Fail"}
    known = draft.bookkeeping.counted.values()
    return next((one for one in known if one.rule in ends and not one.collateral), None)


def _out_of_budget(
    context: ReconcileContext, draft: StatusDraft, run_failure: RunFailure
) -> AttemptEnd:
    by_rule = _ended_by_rule(context, draft)
    if run_failure.reason is ConditionReason.FAILED_BY_RULE and by_rule is not None:
        entry = entry_of(draft, by_rule)
        return AttemptEnd(
            "Failed" if by_rule.reason in _OF_CODE else "Lost",
            by_rule.reason,
            entry.signs if entry is not None else run_failure.message,
            facts=by_rule.facts or FailureFacts(),
        )
    causes = [known.reason for known in draft.bookkeeping.counted.values()]
    history = draft.status.disruptions.history
    if run_failure.reason in (ConditionReason.FAILED_BY_RULE, ConditionReason.RULE_EXHAUSTED):
        cause = causes[-1] if causes else LossReason.INFRASTRUCTURE_ERROR
        outcome: Literal["Failed", "Lost"] = "Failed" if cause in _OF_CODE else "Lost"
        return AttemptEnd(outcome, cause, history[-1].signs if history else run_failure.message)
    if run_failure.reason is ConditionReason.RESTARTS_EXHAUSTED:
        # While an attempt runs, only pods without memory charge this budget.
        return out_of_memory.end(draft) or AttemptEnd(
            "Failed", LossReason.OUT_OF_MEMORY, run_failure.message
        )
    return AttemptEnd("Lost", causes[-1] if causes else None, run_failure.message)


def record(context: ReconcileContext, draft: StatusDraft, end: AttemptEnd) -> Findings:
    """Write how the running attempt ended, count it, and forget what concerns it alone."""
    *earlier, attempt = draft.status.attempts
    progress = context.progress(attempt.number)
    reason = out_of_memory.reason_of_end(end.reason, draft.bookkeeping, progress, context.now)
    rules = context.run.spec.failures.contract_rules
    failed = reason is not None and end.outcome in ("Failed", "Lost")
    rule = first_match(rules, reason.value, end.facts) if reason is not None and failed else None
    closed = attempt.model_copy(
        update={
            "outcome": end.outcome,
            "reason": reason,
            "message": short(end.message, ATTEMPT_MESSAGE),
            "end_time": written(context.now),
            "failed_rank": end.failed_rank,
            "last_lines": list(end.last_lines) or None,
            "rule": rules.index(rule) + 1 if rule is not None else None,
        }
    )
    disruptions, changes = draft.status.disruptions, dict(OF_ONE_ATTEMPT)
    history, uncounted = History(context, draft), False
    by_rule = _ended_by_rule(context, draft)  # for a loss that may be older than the last step
    lost_before = by_rule is not None or may_end(context, draft, attempt.number)
    if reason is LossReason.APPLICATION_ERROR:
        errors, uncounted = disruptions.application_errors + 1, True
        disruptions = disruptions.model_copy(update={"application_errors": errors})
    elif reason is LossReason.HANG and not lost_before:
        hangs, uncounted = disruptions.hangs + 1, True
        disruptions = disruptions.model_copy(update={"hangs": hangs})
    elif reason is LossReason.STORAGE_ERROR or (end.outcome == "Lost" and not lost_before):
        changes["other_losses"], uncounted = draft.bookkeeping.other_losses + 1, True
    if uncounted and reason is not None:
        history.add(reason, written(context.now), end.message)
        disruptions = disruptions.model_copy(update=history.status())
        changes |= history.bookkeeping()
    pays = rule is not None and rule.has_own_budget
    charged: set[str] = set() if pays else set(retry_policy.budgets(reason))
    met, paid = Counter[str](), Counter[str]()
    if failed and reason is not None:
        met = met_at_the_end(context, draft, reason, end.facts)
    charged |= met.keys()
    if rule is not None:
        charged.add(rule.key)
    if rule is not None and reason is not None and uncounted:
        met[rule.key] += 1
        paid = Counter({reason.budget: 1} if pays else {})
    changes |= rule_counts(draft.bookkeeping, rules, met, paid, written(context.now))
    bad: dict[str, tuple[str, bool]] = {}
    if failed and end.node is not None:
        if end.facts.bad_node:
            bad[end.node] = (end.facts.bad_node, False)
        elif rule is not None and rule.then == "RestartOnOtherNode":
            bad[end.node] = (f"by rule {rules.index(rule) + 1}, as {end.message}", False)
    avoided, excluded = avoided_nodes.avoid(context, draft.bookkeeping, bad)
    changes |= avoided
    after = draft.changed(Findings(status={"disruptions": disruptions}, bookkeeping=changes))
    if end.outcome == "Suspended":
        # A suspended attempt is not one without progress.
        changes["attempts_without_progress"] = max(
            draft.bookkeeping.attempts_without_progress - 1, 0
        )
    message = f"Attempt {attempt.number}: {end.message}"
    events = {
        "Failed": (RunEvent("Warning", EventReason.ATTEMPT_FAILED, message),),
        "Lost": (RunEvent("Warning", EventReason.ATTEMPT_LOST, message),),
    }
    failures = budgets.used(after, "application")
    return Findings(
        status={
            "attempts": [*earlier, closed],
            "disruptions": disruptions,
            "restarts": min(failures, context.run.spec.failures.max_restarts),
        },
        bookkeeping=changes,
        events=(*events.get(end.outcome, ()), *excluded),
        charged=frozenset(charged),
        requeue_within_s=0,
    )


def retry(context: ReconcileContext, draft: StatusDraft, charged: frozenset[str]) -> Findings:
    """After an attempt's end: why none follows or, of a failed or lost one, when the next one may
    begin.
    """
    ended, failures = draft.status.attempts[-1], context.run.spec.failures
    if ended.outcome not in ("Failed", "Lost"):
        # What was charged now is charged to no later attempt.
        return Findings(run_failure=retry_policy.exhausted(draft, context.run.spec, charged))
    progress = context.progress(ended.number)
    failure = progress.failure if progress is not None else None
    before = draft.status.attempts[-2] if len(draft.status.attempts) > 1 else None
    rules = failures.contract_rules
    rule = rules[ended.rule - 1] if ended.rule is not None else None
    run_failure = (
        (retry_policy.would_repeat(failure, ended, before) if failure is not None else None)
        or retry_policy.exhausted(draft, context.run.spec, charged)
        or retry_policy.without_progress(ended, draft.bookkeeping, failures)
    )
    if run_failure:
        return Findings(run_failure=run_failure)
    wait = retry_policy.backoff(
        ended.reason,
        draft.bookkeeping.attempts_without_progress,
        failures.backoff,
        rule.backoff if rule is not None else None,
    )
    moved = Findings()
    if rule is not None and rule.then == "RestartOnDemand":
        why = capacity.by_rule(rules.index(rule) + 1, ended.message)
        moved = capacity.to_on_demand(context, draft, why)
    if wait > timedelta(0):
        next_time = {"next_attempt_time": written(context.now + wait)}
        return moved._replace(status={**moved.status, **next_time})
    return moved


def nothing_left(context: ReconcileContext) -> bool:
    """Whether every object of every attempt is known to be gone."""
    left = context.own_jobs or context.clusters_left or context.pods_left
    return not left and context.can_be_empty


def delete_ray_jobs(context: ReconcileContext) -> Findings:
    """Delete the RayJobs of ended attempts; owner references collect their pods."""
    jobs = [job for _, job in sorted(context.own_jobs.items()) if not pod_status.terminating(job)]
    return Findings(
        actions=tuple(Delete(context.job_ref(job)) for job in jobs),
        requeue_within_s=None if nothing_left(context) else context.settings.poll_s,
    )


def delete_earlier_ray_jobs(context: ReconcileContext, attempt: int) -> Findings:
    """Delete RayJobs of attempts that ended before the one that runs began.

    There is one only where a former leader was stopped for long between its last check that it
    leads and the request by which it creates one. Its driver does not get the run's lease, which a
    later attempt has.
    """
    late = [
        job
        for number, job in sorted(context.own_jobs.items())
        if number < attempt and not pod_status.terminating(job)
    ]
    return Findings(actions=tuple(Delete(context.job_ref(job)) for job in late))
