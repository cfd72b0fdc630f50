"""When to reconcile a running attempt again if nothing happens before.

Whatever happens to its objects, and each new progress document, reconciles the run at once. Only
what time alone brings about needs another reconcile: a deadline, a silence that lasts too long. A
thousand attempts that train would else be reconciled 500 times a second for nothing. An event that
was lost is made up for by the operator's resync (`OperatorSettings.resync_s`).
"""

from collections.abc import Iterator

from trainingrun_protocol.progress import RunState

from ...api.status import Attempt
from ..context import ReconcileContext
from ..findings import Draft
from ..losses.node_health import control_sign
from ..model import Object
from ..timestamps import parsed, seconds_since

LONGEST_S = 60.0
"""For what lasts, however long it has lasted."""
SHARE_OF_AGE = 0.1
"""What lasts for long is reconciled less often: after 100 s every 10 s."""


def after_s(context: ReconcileContext, draft: Draft, attempt: Attempt) -> float | None:
    """Seconds until the attempt is reconciled again; None: when something happens."""
    often = context.settings.poll_s
    ages = _ages(context, draft, attempt)
    # Of what is unknown no event tells that it changed.
    otherwise = LONGEST_S if context.observed.stale else None
    return min((max(often, min(LONGEST_S, age * SHARE_OF_AGE)) for age in ages), default=otherwise)


def _ages(context: ReconcileContext, draft: Draft, attempt: Attempt) -> Iterator[float]:
    """For how many seconds each thing lasts that may soon be decided on; none: nothing is."""
    progress, index = context.live_progress(attempt.number), context.index(attempt.number)
    if (
        context.run.spec.suspend
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
