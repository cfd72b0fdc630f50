"""What the webhooks of spec.notify are to be told next, and what they have been told.

What has happened to a run follows from its status: the losses in its history, the latest hang, what
it has cost, its end. `status.seen.notified` says of each, for each webhook, whether it still waits
to be sent. A webhook gets one notice after the other: the next one once the status says that the
former was delivered. So a restart repeats at most the one that was under way, under the same id.

A loss is told late: by a later sign it may be of another class, or a part of another loss.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from trainingrun_protocol.plain_text import money_text
from trainingrun_protocol.wire import encodable_data

from ...api.notify_spec import NotificationEvent, Receiver
from ...api.reasons import EventReason
from ...api.status import ConditionType, LossReason
from ...api.v1alpha1 import API_VERSION, PLURAL
from ..bookkeeping import Told
from ..context import ReconcileContext
from ..findings import Findings, StatusDraft
from ..model import Delivery, Notice, ReconcileSettings, RunEvent
from ..texts import seconds_since, written
from .cost import NEARLY

SETTLE_S = 30.0
"""Until a loss is told, while the run goes on."""
GIVE_UP_S = 86400.0
"""A notice that has waited for so long is not tried again."""
TRIES_TOLD = 3
"""Tries that fail before an event says so: what passes within seconds is not worth one."""


class Happening(NamedTuple):
    """What has happened to a run."""

    id: str
    """No other one of this run has it, nor had it before."""
    event: NotificationEvent | None
    """None: nobody is told."""
    reason: str
    message: str
    time: str | None = None
    """None: not known but by when it was first seen."""
    attempt: int | None = None
    step: int | None = None
    settles: bool = False
    """Whether it is told only after `SETTLE_S`."""


def record(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """Record what was delivered and what newly waits, and choose what each webhook gets next."""
    receivers = context.run.spec.notify
    if not receivers and not draft.bookkeeping.notified:
        return Findings()
    happened = list(_happened(context, draft))
    before = {one.id for one in _happened(context, StatusDraft.of(context.run.status))}
    notified: dict[str, Told] = {}
    events: list[RunEvent] = []
    notices: list[Notice] = []
    waits_s: list[float] = []
    for receiver in receivers:
        webhook = _name(receiver)
        former = draft.bookkeeping.notified.get(webhook)
        refusal = _refusal(context.settings, receiver)
        known, delivery = former or Told(), context.observed.deliveries.get(webhook)
        if delivery is not None and not refusal:
            known, said = _after(context, receiver, known, delivery)
            events += said
        told = _told(context, receiver, known, happened, before if former is None else set())
        if refusal:
            told = Told(ids=dict.fromkeys(told.ids, ""), problem=refusal)
            if former is None or former.problem != refusal:
                events.append(RunEvent("Warning", EventReason.NOTIFICATION_FAILED, refusal))
        notified[webhook] = told
        waiting = sorted((one for one in happened if told.ids[one.id]), key=_since(told))
        ready = [one for one in waiting if _settles_s(context, draft, told, one) <= 0]
        if ready:
            notices.append(_notice(context, draft, receiver, ready[0], told.ids[ready[0].id]))
        waits_s += [_settles_s(context, draft, told, one) for one in waiting if one not in ready]
    return Findings(
        bookkeeping={"notified": notified},
        events=tuple(events),
        notices=tuple(notices),
        requeue_within_s=min(waits_s, default=None),
    )


def waits(draft: StatusDraft) -> bool:
    """Whether a notice waits to be sent."""
    return any(any(told.ids.values()) for told in draft.bookkeeping.notified.values())


def _happened(context: ReconcileContext, draft: StatusDraft) -> Iterator[Happening]:
    """In the order in which it is told, where several things were seen at once."""
    status, hang, former_hang = draft.status, draft.status.hang, ""
    for loss in status.disruptions.history:
        event: NotificationEvent | None = None
        if loss.reason is LossReason.HANG:
            # The loss that follows the latest hang is the same event; of earlier ones, which an
            # operator that was away has not seen, the history alone tells.
            same = hang is not None and former_hang < hang.time <= loss.time
            event, former_hang = None if same else "Hang", loss.time
        elif loss.reason.budget == "infrastructure":
            event = "Preempted"
        of = [", ".join(loss.pods), *([f"on node {loss.node}"] if loss.node else ())]
        what = " ".join(filter(None, of))
        yield Happening(
            f"loss-{loss.number}",
            event,
            loss.reason.value,
            f"{what}: {loss.signs}" if what else loss.signs,
            loss.time,
            loss.attempt,
            loss.step,
            settles=True,
        )
    if hang is not None:
        yield Happening(f"hang-{hang.time}", "Hang", "Hang", hang.message, hang.time)
    yield from _of_budget(context, draft)
    if status.completion_time is not None:
        # Only by a condition that says so: of a later version's status one may be unreadable.
        true = {one.type: one for one in status.conditions if one.status == "True"}
        if failed := true.get(ConditionType.FAILED):
            end = Happening("failed", "Failed", failed.reason, failed.message)
        elif succeeded := true.get(ConditionType.SUCCEEDED):
            end = Happening("succeeded", "Succeeded", succeeded.reason, succeeded.message)
        else:
            return
        yield end._replace(time=status.completion_time)


def _of_budget(context: ReconcileContext, draft: StatusDraft) -> Iterator[Happening]:
    budget, spent = context.run.spec.budget, draft.bookkeeping.meter.spent
    if budget is None or spent < NEARLY * budget.amount:
        return
    reason = "BudgetSpent" if spent >= budget.amount else "BudgetNearlySpent"
    currency = context.settings.currency
    yield Happening(
        f"{reason}-{budget.amount}",
        "BudgetWarning",
        reason,
        f"The run has cost {money_text(spent)} {currency} of its budget of "
        f"{money_text(budget.amount)} {currency}",
    )


def _refusal(settings: ReconcileSettings, receiver: Receiver) -> str:
    """Why the operator's settings let nothing be sent to a receiver; "": they do."""
    if not settings.notification_hosts:
        return (
            "spec.notify is without effect, since this operator sends no notifications; have its "
            "administrators set notifications.allowedHosts of its chart"
        )
    secret, names = receiver.webhook.secret_ref.name, settings.notification_secret_names
    if secret in names:
        return ""
    return (
        f"spec.notify names Secret {secret}, which this operator may not read; keep the address in "
        f"Secret {' or '.join(names)}, or have its administrators add the name to "
        "notifications.secretNames of its chart"
    )


def _told(
    context: ReconcileContext,
    receiver: Receiver,
    known: Told,
    happened: list[Happening],
    before: set[str],
) -> Told:
    """With what has happened since; what is no longer in the status is forgotten, for no number or
    time of it comes again. A hang that still waits is told as the loss that followed it.
    """
    now, former = written(context.now), dict(known.ids)
    for name in former.keys() - {one.id for one in happened}:
        kind, _, time = name.partition("-")
        losses = (one for one in happened if one.settles and one.reason == LossReason.HANG)
        loss = next((one for one in losses if kind == "hang" and (one.time or "") >= time), None)
        if loss is not None and former.get(loss.id) == "":
            former[loss.id] = former[name]
    ids = dict[str, str]()
    for one in happened:
        since = "" if one.id in before else former.get(one.id, now)
        ids[one.id] = since if one.event in receiver.events else ""
    return Told(ids=ids, problem=known.problem)


def _after(
    context: ReconcileContext, receiver: Receiver, told: Told, delivery: Delivery
) -> tuple[Told, list[RunEvent]]:
    """With how the last notice has fared, and the events about it."""
    uid, _, name = delivery.id.partition("/")
    since = told.ids.get(name)
    if not since or uid != context.run.metadata.uid:
        return told, []  # it was recorded already, or is of a former run of this name
    done = told.model_copy(update={"ids": {**told.ids, name: ""}, "problem": ""})
    if delivery.outcome == "delivered":
        return done, []
    source = receiver.webhook.secret_ref
    message = f"The webhook in key {source.key} of Secret {source.name} was not told of {name}: "
    message += delivery.problem
    if delivery.outcome == "refused" or seconds_since(since, context.now) >= GIVE_UP_S:
        message += "; it is not sent again"
        return done, [RunEvent("Warning", EventReason.NOTIFICATION_FAILED, message)]
    if delivery.tries < TRIES_TOLD or delivery.problem == told.problem:
        return told, []
    message += f"; it is sent again for {round(GIVE_UP_S / 3600)} hours"
    event = RunEvent("Warning", EventReason.NOTIFICATION_FAILED, message)
    return told.model_copy(update={"problem": delivery.problem}), [event]


def _settles_s(context: ReconcileContext, draft: StatusDraft, told: Told, one: Happening) -> float:
    """Seconds until it may be told; after the end of the run nothing more is learned about it."""
    if not one.settles or draft.status.has_ended:
        return 0.0
    return SETTLE_S - seconds_since(told.ids[one.id], context.now)


def _notice(
    context: ReconcileContext, draft: StatusDraft, receiver: Receiver, one: Happening, since: str
) -> Notice:
    metadata, status, source = context.run.metadata, draft.status, receiver.webhook.secret_ref
    attempt = status.attempt if one.attempt is None else one.attempt
    step = one.step if one.step is not None or status.progress is None else status.progress.step
    fields = {"unit", "total_seconds", "currency", "amount", "at_least"}
    cost = status.cost and status.cost.model_dump(
        mode="json", by_alias=True, exclude_none=True, include=fields
    )
    data = {
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
        "phase": status.phase,
        "reason": one.reason,
        "message": one.message,
        "attempt": attempt,
        "step": step,
        "cost": cost,
    }
    identifier = f"{metadata.uid}/{one.id}"
    event = {
        "specversion": "1.0",
        "id": identifier,
        "source": f"/apis/{API_VERSION}/namespaces/{metadata.namespace}/{PLURAL}/{metadata.name}",
        "type": f"dev.trainingrun.run.{str(one.event).lower()}",
        "subject": metadata.name,
        "time": one.time or since,
        "datacontenttype": "application/json",
        "data": {name: value for name, value in data.items() if value is not None},
    }
    slack = receiver.format == "Slack"
    return Notice(
        _name(receiver),
        source.name,
        source.key,
        identifier,
        "application/json" if slack else "application/cloudevents+json",
        encodable_data({"text": _slack_text(one, data)} if slack else event),
    )


def _slack_text(one: Happening, data: dict[str, Any]) -> str:
    where = f"TrainingRun {data['namespace']}/{data['name']}"
    what = one.event if one.event == one.reason else f"{one.event} ({one.reason})"
    known = [f"attempt {data['attempt']}"]
    if data["step"] is not None:
        known.append(f"step {data['step']}")
    if data["cost"] and "amount" in data["cost"]:
        known.append(f"{money_text(data['cost']['amount'])} {data['cost']['currency']}")
    text = f"{where}: {what}: {one.message} [{', '.join(known)}]"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _name(receiver: Receiver) -> str:
    source = receiver.webhook.secret_ref
    return f"{source.name}/{source.key}"


def _since(told: Told) -> Any:
    return lambda one: told.ids[one.id]
