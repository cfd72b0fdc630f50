"""One observation of one run -> what to do, what to write, when to reconcile again. Pure.

Each policy has a file of its own. It returns what it finds (`Findings`), and only here is that
added to the plan: a policy reads the status and the bookkeeping with what those before it changed.
"""

from collections.abc import Iterator
from datetime import datetime

from trainingrun_protocol.progress import RunState

from ..api.status import Attempt, LossReason
from ..api.v1alpha1 import KIND
from ..rendering.platforms import RenderSettings
from .attempts import budgets, ending, keeping, lifetime, scaling, starting
from .context import ReconcileContext, UnconfirmedAbsence
from .diagnosis import blockers, failing_actions, stuck
from .findings import AttemptEnd, Findings, PlanBuilder, StatusDraft
from .losses import avoided_nodes, capacity, evidence, history, node_loss
from .losses.signs import control_sign
from .model import Object, Observed, Plan, ReconcileSettings
from .status import conditions, cost, goodput, notifications, progress_status, workers
from .texts import parsed, seconds_since

LONGEST_S = 60.0
"""For what lasts, however long it has lasted."""
SHARE_OF_AGE = 0.1
"""What lasts for long is reconciled less often: after 100 s every 10 s."""


def plan(
    observed: Observed, render: RenderSettings, settings: ReconcileSettings, now: datetime
) -> Plan:
    """Decide what follows from one observation of a run.

    The same observation gives the same plan, and nothing in the status changes with the clock
    alone but what a deadline or a wait that has passed brings about.
    """
    try:
        return _plan(ReconcileContext(observed, render, settings, now))
    except UnconfirmedAbsence:
        return Plan((), observed.run.status, confirm=True)


def _plan(context: ReconcileContext) -> Plan:
    observed = context.observed
    builder = PlanBuilder(StatusDraft.of(observed.run.status))
    if observed.run.metadata.deletion_timestamp:
        _while_deleted(context, builder)
        return builder.plan()
    if builder.draft.status.has_ended:
        builder.add(notifications.record(context, builder.draft))
        _after_the_end(context, builder)
        _report_failing(context, builder)
        builder.add(
            conditions.of_ended_run(context.run, context.now, builder.draft.status, builder.blocker)
        )
        return builder.plan()
    if observed.defaults_unread is not None:
        # Its spec lacks what they have, and perhaps exceeds their limits: nothing is known of it.
        return failing_actions.without_defaults(
            observed.run, context.now, observed.defaults_unread, lifetime.DEFAULTS_S
        )
    builder.add(lifetime.accept(context, builder.draft))
    builder.add(starting.adopt(context, builder.draft))
    if builder.draft.status.running_attempt:
        _during_an_attempt(context, builder)
    else:
        _between_attempts(context, builder)
    _report_failing(context, builder)
    if builder.run_failure:
        builder.add(lifetime.fail(context, builder.draft, builder.run_failure))
        builder.add(history.close(builder.draft, f"the run failed: {builder.run_failure.message}"))
    builder.add(budgets.record_charges(builder.draft, builder.charged))
    builder.add(budgets.rule_uses(context, builder.draft))
    builder.add(avoided_nodes.report(builder.draft))
    builder.add(cost.record(context, builder.draft))
    builder.add(cost.check_budget(context, builder.draft))
    builder.add(
        conditions.of_run(
            context,
            builder.draft,
            builder.blocker,
            builder.refused,
            builder.run_failure,
        )
    )
    builder.add(notifications.record(context, builder.draft))
    return builder.plan()


def _during_an_attempt(context: ReconcileContext, builder: PlanBuilder) -> None:
    """An attempt runs: record what it reports and loses, end it, or respond to its losses."""
    attempt = builder.draft.status.attempts[-1]
    number = attempt.number
    builder.add(starting.remember_cluster(context, builder.draft, number))
    builder.add(ending.delete_earlier_ray_jobs(context, number))
    # An attempt that was adopted after a crash has ended the suspended time too.
    builder.add(lifetime.end_suspension(context, builder.draft))
    builder.add(lifetime.record_queue_wait(context, builder.draft, number))
    builder.add(goodput.record_seconds(context, builder.draft, number))
    builder.add(progress_status.record_progress(context, builder.draft, attempt))
    builder.add(workers.record(context, builder.draft, number))
    builder.add(budgets.refill(context, builder.draft))
    attempt = builder.draft.status.attempts[-1]
    builder.add(evidence.record_losses(context, builder.draft, number))
    builder.add(node_loss.lift_exclusion(context, builder.draft, number))
    builder.add(avoided_nodes.lift(context, builder.draft, number))
    lost = node_loss.lost_nodes(context, number)
    signs = {name: node.signs for name, node in lost.items()}
    builder.add(evidence.record_lost_nodes(context, builder.draft, number, signs))
    builder.add(history.record_costs(context, builder.draft, number))
    builder.add(capacity.choose(context, builder.draft, number))
    builder.add(ending.ended(context, builder.draft, builder.charged, attempt))
    # An attempt whose driver has ended already ends by what the driver says.
    ends = builder.end or ending.awaits_final_progress(context, builder.draft, number)
    if not ends:
        builder.add(lifetime.deadline(context, builder.draft))
    if not ends and not builder.end:
        builder.add(lifetime.request_suspension(context, builder.draft, attempt))
    if builder.end:
        _end_attempt(context, builder, builder.end)
        return
    # The exclusion first: a replacement on the dead node, which stays Ready for most of a minute,
    # would wait without end.
    builder.add(node_loss.exclude_nodes(context, builder.draft, number))
    builder.add(capacity.place_workers(context, builder.draft, number))
    builder.add(starting.keep_support_objects(context))
    builder.add(node_loss.replace_pods(context, lost))
    builder.add(node_loss.replace_pods_without_ray(context, number))
    builder.add(node_loss.replace_pods_with_hung_process(context, number))
    builder.add(avoided_nodes.replace_pods(context, builder.draft, number))
    builder.add(node_loss.replace_workers_of_lost_head(context, builder.draft, number))
    builder.add(scaling.scale(context, builder.draft, attempt))
    after_s = requeue_after_s(context, builder.draft, attempt)
    builder.add(Findings(requeue_within_s=after_s))
    # Training goes on, so that what keeps pods from it stops nothing.
    fewer = context.trains_with_fewer(builder.draft, number)
    no_standby = context.trains_without_standby(builder.draft, number)
    blocker = (
        blockers.of_access(context)
        or blockers.of_kuberay(context)
        or ending.crashing(context, builder.draft, attempt)
        or blockers.of_manager(context, attempt)
        or blockers.of_queue(context, attempt)
        or (None if fewer or no_standby else blockers.of_pods(context, attempt))
        or blockers.of_storage(context.live_progress(number))
        or blockers.of_ranks(context.live_progress(number))
        or stuck.silent_driver(context, attempt)
        or stuck.unready_pods(context, attempt)
        or ending.given_up(builder.draft.bookkeeping, attempt)
    )
    builder.add(Findings(blocker=blocker))
    if not builder.blocker:
        builder.add(stuck.of_attempt(context, builder.draft, attempt))
    if fewer and not builder.blocker:
        builder.add(Findings(blocker=blockers.of_fewer_workers(context, builder.draft, attempt)))
    if no_standby and not builder.blocker:
        builder.add(Findings(blocker=blockers.of_missing_standby(context, builder.draft, attempt)))
    builder.add(Findings(blocker=capacity.explanation(context, builder.draft)))


def _end_attempt(context: ReconcileContext, builder: PlanBuilder, end: AttemptEnd) -> None:
    """The running attempt has ended: write it, and whether the run succeeds, fails or retries."""
    # Only written now; the next reconcile acts on it, once it cannot be forgotten any more.
    builder.actions.clear()
    builder.add(ending.record(context, builder.draft, end))
    builder.add(workers.none_left(builder.draft))
    builder.add(progress_status.no_trial_runs(builder.draft))
    if end.outcome == "Succeeded":
        number = builder.draft.status.attempts[-1].number
        builder.add(lifetime.succeed(context, builder.draft, number))
        builder.add(history.close(builder.draft, "the training was done already"))
    elif not builder.run_failure:
        builder.add(ending.retry(context, builder.draft, builder.charged))


def _between_attempts(context: ReconcileContext, builder: PlanBuilder) -> None:
    """No attempt runs: fail, keep or clean up what is left, stay suspended, wait, or begin the next
    attempt.
    """
    builder.add(lifetime.record_queue_wait(context, builder.draft, None))
    builder.add(lifetime.deadline(context, builder.draft))
    if builder.run_failure:
        return
    if kept := keeping.keep_pods(context, builder.draft):
        builder.add(kept)
        return
    if not ending.nothing_left(context):
        _clean_up(context, builder)
        return
    misplaced = blockers.of_namespace(context)
    if misplaced:
        builder.add(Findings(refused=misplaced))
    elif context.suspends:
        builder.add(lifetime.begin_suspension(context, builder.draft))
    elif not context.observed.invalid and not context.unknown(KIND):
        builder.add(lifetime.end_suspension(context, builder.draft))
        _begin_attempt(context, builder)
    builder.add(Findings(blocker=blockers.of_access(context)))


def _begin_attempt(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Begin the next attempt, or report what prevents it."""
    prevented = starting.prevented(context, builder.draft)
    if prevented:
        builder.add(prevented)
        return
    findings = starting.keep_defaults(context, builder.draft)
    findings = findings or starting.find_restore_source(context, builder.draft)
    if findings:
        builder.add(findings)
        return
    builder.add(node_loss.lift_exclusion(context, builder.draft))
    builder.add(avoided_nodes.lift(context, builder.draft))
    builder.add(capacity.choose(context, builder.draft))
    builder.add(starting.begin(context, builder.draft))


def _after_the_end(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Delete what is left once it is no longer to be kept, and at last the run itself.

    This comes only after the end was written: deleting first and crashing would leave a run that
    begins a new attempt. It is repeated until everything is gone.
    """
    if kept := keeping.keep_pods(context, builder.draft):
        builder.add(kept)
        builder.add(cost.record(context, builder.draft))  # a budget may end that
        return
    _clean_up(context, builder)
    builder.add(cost.record(context, builder.draft))
    gone = ending.nothing_left(context) and not notifications.waits(builder.draft)
    builder.add(lifetime.delete_after_ttl(context, builder.draft, gone))


def _while_deleted(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Finalizers of others hold a deleted run: its pods are freed, and no attempt follows."""
    builder.add(Findings(notices=()))  # and nothing that waits is told any more
    if lifetime.left_to_the_garbage_collector(context):
        return
    if builder.draft.status.running_attempt:
        end = AttemptEnd("Suspended", LossReason.SUSPENDED, "The TrainingRun was deleted")
        builder.add(ending.record(context, builder.draft, end))
    _clean_up(context, builder)
    _report_failing(context, builder)
    if builder.draft.status.has_ended:
        builder.add(
            conditions.of_ended_run(context.run, context.now, builder.draft.status, builder.blocker)
        )
    else:
        builder.add(conditions.of_deleted_run(context, builder.draft, builder.blocker))


def _clean_up(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Delete what ended attempts have left, or report what keeps it."""
    builder.add(ending.delete_ray_jobs(context))
    builder.add(node_loss.free_stuck_pods(context))
    if not ending.nothing_left(context):
        builder.add(Findings(blocker=blockers.of_access(context)))
        if not builder.blocker:
            builder.add(stuck.of_leftovers(context, builder.draft))


def _report_failing(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Say which actions do not work, before whatever else keeps the run from continuing."""
    findings = failing_actions.report(context, builder.draft, builder.actions)
    builder.blocker = findings.blocker or builder.blocker
    builder.add(findings)


def requeue_after_s(
    context: ReconcileContext, draft: StatusDraft, attempt: Attempt
) -> float | None:
    """Seconds until the attempt is reconciled again; None: when something happens.

    Whatever happens to its objects, and each new progress document, reconciles the run at once.
    Only what time alone brings about needs another reconcile: a deadline, a silence that lasts too
    long. A thousand attempts that train would else be reconciled 500 times a second for nothing. An
    event that was lost is made up for by the operator's resync (`OperatorSettings.resync_s`).
    """
    often = context.settings.poll_s
    ages = _ages(context, draft, attempt)
    # Of what is unknown no event tells that it changed.
    otherwise = LONGEST_S if context.observed.stale else None
    return min((max(often, min(LONGEST_S, age * SHARE_OF_AGE)) for age in ages), default=otherwise)


def _ages(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> Iterator[float]:
    """For how many seconds each thing lasts that may soon be decided on; none: nothing is."""
    progress, index = context.live_progress(attempt.number), context.index(attempt.number)
    if (
        context.suspends
        or draft.bookkeeping.suspend_asked
        or draft.bookkeeping.end_seen
        or draft.bookkeeping.given_up
    ):
        yield 0.0  # each has a deadline of its own that is not far
    if progress is not None and progress.lost_nodes:
        yield 0.0  # the nodes' Leases are being read
    if any(control_sign(context, node) for node in context.observed.nodes.values()):
        yield 0.0
    for time in (
        draft.bookkeeping.hung_since,
        draft.bookkeeping.incomplete_since,
        *draft.bookkeeping.lost_nodes.values(),
    ):
        if time is not None:
            yield seconds_since(time, context.now)
    for known in draft.bookkeeping.counted.values():
        if known.undecided:
            yield seconds_since(known.time, context.now)
    if context.observed.progress_failing_s is not None:
        yield context.observed.progress_failing_s
    for pod in index.unwell:
        yield _age(context, pod)
    complete = len(index.all) >= context.wanted_pods(draft)
    if not complete or progress is None or progress.state is RunState.STARTING:
        # It starts, or waits for pods: how long is counted from the newest of them.
        youngest = min((_age(context, pod) for pod in index.all), default=None)
        yield seconds_since(attempt.start_time, context.now) if youngest is None else youngest


def _age(context: ReconcileContext, pod: Object) -> float:
    """Seconds since the pod was created or, where its deletion was requested, should be gone."""
    metadata = pod["metadata"]
    text = metadata.get("deletionTimestamp") or metadata.get("creationTimestamp")
    return max((context.now - parsed(text)).total_seconds(), 0.0) if text else 0.0
