"""Which actions do not work: what fails, since when and why.

The controller carries a plan out after its status is written, and says in the next observation what
did not work. Such actions stay in the plan; when each is tried again is the controller's concern.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from ...api.reasons import ConditionReason, EventReason
from ...api.status import ConditionType
from ...api.v1alpha1 import TrainingRun
from ..context import ReconcileContext
from ..findings import Blocker, Findings, StatusDraft
from ..model import Action, FailingAction, Plan, RunEvent, key_of
from ..status import conditions
from ..texts import short, written
from . import blockers

TRANSIENT_S = 10.0
"""An action without an answer that is about the object is reported after so long."""

_DOING = {
    "create": "Creating",
    "delete": "Deleting",
    "change": "Changing",
    "scale": "Scaling",
}
_BLOCKERS = (ConditionType.WAITING, ConditionType.STALLED)
_REPORTED = (
    ConditionReason.REJECTED,
    ConditionReason.QUOTA_EXCEEDED,
    ConditionReason.ACTION_FAILS,
)


def report(context: ReconcileContext, draft: StatusDraft, actions: Sequence[Action]) -> Findings:
    """What of the plan's actions has failed so far; nothing where none has."""
    planned = {key_of(action) for action in actions}
    known = [one for one in context.observed.failing if one.key in planned]
    failing = [one for one in known if one.refused or _lasts(one, context.now)]
    if not failing:
        # An edit has it tried anew: what was said of it goes on until it works or is said again.
        goes_on = bool(known) or not context.observed.acted
        kept = (_as_before(context, actions) if goes_on else None) or Findings()
        if known:
            return kept._replace(requeue_within_s=TRANSIENT_S)
        if goes_on or draft.bookkeeping.failing_since is None:
            return kept
        return Findings(bookkeeping={"failing_since": None})
    since = draft.bookkeeping.failing_since or written(min(one.since for one in failing))
    blocker = _sentence(failing, since)
    # A spec of which nothing can be made is not accepted. A quota says nothing about the spec.
    begins = context.run.status.running_attempt is None and failing[0].verb == "create"
    is_refused = begins and blocker.reason is ConditionReason.REJECTED
    return Findings(
        blocker=None if is_refused else blocker,
        refused=blocker if is_refused else None,
        bookkeeping={"failing_since": since},
        requeue_within_s=context.settings.kuberay_retry_s,
    )


def after_error(run: TrainingRun, now: datetime, error: str) -> Plan:
    """The plan where planning has raised this error: nothing is done, and the status says so."""
    return _nothing_done(
        run,
        now,
        ConditionReason.INTERNAL_ERROR,
        f"The operator fails at this run and does nothing about it: {short(error, 500)}; what runs "
        "continues; please report this, with the operator's log",
    )


def without_defaults(run: TrainingRun, now: datetime, error: str, retry_s: float) -> Plan:
    """The plan where a run has not begun and its defaults cannot be read: it waits for them."""
    plan = _nothing_done(
        run,
        now,
        ConditionReason.DEFAULTS_UNREADABLE,
        "The operator cannot read TrainingDefaults and ClusterTrainingDefaults: "
        f"{short(error, 500)}; the run begins once it can read both, and where it never could, "
        "within a minute",
    )
    return replace(plan, requeue_after_s=retry_s)


def without_status(run: TrainingRun, now: datetime, error: str) -> Plan:
    """The plan where the API server refuses the next status with this message: the former one,
    which says so. Its event is for where that is refused, too.
    """
    message = (
        f"The API server refuses the run's status, so that nothing is done: {short(error, 500)}; "
        "what runs continues"
    )
    plan = _nothing_done(run, now, ConditionReason.STATUS_REFUSED, message)
    return replace(plan, events=(RunEvent("Warning", EventReason.STATUS_REFUSED, message),))


def _nothing_done(run: TrainingRun, now: datetime, reason: ConditionReason, message: str) -> Plan:
    changes = conditions.of_ended_run(run, now, run.status, Blocker(reason, message)).status
    return Plan((), run.status.model_copy(update=dict(changes)))


def _lasts(one: FailingAction, now: datetime) -> bool:
    return (now - one.since).total_seconds() >= TRANSIENT_S


def _sentence(failing: Iterable[FailingAction], since: str) -> Blocker:
    first, *others = sorted(failing, key=lambda one: (not one.refused, one.since))
    what, message = f"the {first.kind} {first.name}", short(first.message, 500)
    more = f"; {len(others)} more actions fail" if others else ""
    if not first.refused:
        text = f"{_DOING[first.verb]} {what} has not worked since {since}: {message}{more}"
        return Blocker(ConditionReason.ACTION_FAILS, text)
    quota = blockers.of_quota(what, message)
    if quota is not None:
        return quota._replace(message=f"{quota.message} (since {since}){more}")
    object_ = what if first.verb == "create" else f"to {first.verb} {what}"
    text = f"The API server refuses {object_} since {since}: {message}{more}"
    return Blocker(ConditionReason.REJECTED, text)


def _as_before(context: ReconcileContext, actions: Sequence[Action]) -> Findings | None:
    """What the status says of actions that this process has not tried yet stays."""
    if not actions:
        return None
    for former in context.run.status.conditions:
        if former.reason not in _REPORTED:
            continue
        kept = Blocker(ConditionReason(former.reason), former.message)
        if (former.type, former.status) == (ConditionType.ACCEPTED, "False"):
            return Findings(refused=kept)
        if former.status == "True" and former.type in _BLOCKERS:
            return Findings(blocker=kept)
    return None
