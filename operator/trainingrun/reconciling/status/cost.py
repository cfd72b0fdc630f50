"""What a run has used: accelerator seconds by cause, and the money that prices make of them.

Each write of the meter says what the pods hold from then on. The next one counts it: when that
changes, when goodput has come further, and at the end. In between nothing is written.
"""

from datetime import datetime, timedelta
from functools import cache
from typing import Any

from trainingrun_protocol.plain_text import money_text

from ...api.reasons import ConditionReason, EventReason
from ...api.status import AcceleratorSeconds, Cost, LostSeconds
from ...api.v1alpha1 import TrainingRun
from ...rendering import defaults, platforms
from ..bookkeeping import Held, Meter
from ..context import ReconcileContext, job_ended_at
from ..findings import Blocker, Findings, StatusDraft
from ..model import NodeState, RunEvent
from ..texts import from_unix, parsed, seconds_since, written
from . import workers
from .goodput import tenths, total

HOUR_S = 3600.0
NEARLY = 0.9
"""Share of a budget at which there is a first warning; see alert TrainingRunBudgetNearlySpent."""


def record(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """Bring the meter and status.cost up to the last step, to a change of the pods, or to now.

    What is left after the end of the run is counted too, until it is gone.
    """
    if context.unknown("Pod", "Node"):
        return Findings()  # what is held goes on being counted, once it is known again
    meter, held = draft.bookkeeping.meter, _held(context, draft)
    has_ended = draft.status.has_ended
    changed = held != meter.held or (has_ended and not context.run.status.has_ended)
    budget, wait_s = context.run.spec.budget, None
    steps = (NEARLY * budget.amount, budget.amount) if budget is not None else ()
    following = next((step for step in steps if meter.spent < step), None)
    if following is not None:
        # Money is spent with the clock alone, which else writes nothing.
        now = counted_until(meter, context.now).spent
        changed = changed or now >= following
        if held.per_hour:
            # A second more, since whole ones are counted.
            wait_s = max((following - now) / held.per_hour * HOUR_S, 0.0) + 1.0
    if meter.time is None and not held.devices and not held.per_hour and not held.unpriced:
        return Findings()
    if not changed and draft.status.goodput == context.run.status.goodput:
        return Findings(requeue_within_s=wait_s)
    until = _held_until(context, draft) if changed else _last_step(context, draft)
    counted = counted_until(meter, until).model_copy(update={"held": held})
    return _in_status(context, draft, counted)._replace(requeue_within_s=wait_s)


def check_budget(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """What the status says of spec.budget, and the event when the run has just cost so much."""
    budget, meter = context.run.spec.budget, draft.bookkeeping.meter
    if budget is None or draft.status.has_ended:
        return Findings()
    spent, currency = meter.spent >= budget.amount, context.settings.currency
    if spent:
        message = (
            f"The run has cost {money_text(meter.spent)} {currency}, and {_budget_text(context)}"
        )
        event = RunEvent("Warning", EventReason.BUDGET_SPENT, message)
        events = () if context.budget_is_spent else (event,)
        if budget.action == "Suspend":
            return Findings(events=events, requeue_within_s=None if context.suspends else 0)
        message += "; the training continues, since spec.budget.action is Warn"
        return Findings(blocker=Blocker(ConditionReason.BUDGET_SPENT, message), events=events)
    if context.settings.prices and not meter.held.unpriced:
        return Findings()  # what had no price before is left out of the cost for good
    what = f"node {meter.held.unpriced}" if meter.held.unpriced else "all that the run has used"
    message = (
        f"The operator has no price for {what}, so that spec.budget does not count it; add labels "
        "of the node to prices.nodes of the operator's chart"
    )
    return Findings(blocker=Blocker(ConditionReason.BUDGET_UNKNOWN, message))


def how_to_continue(context: ReconcileContext) -> str:
    """What lets a run continue that is suspended, in a phrase."""
    if context.run.spec.suspend or not context.suspends:
        return "suspend: false continues"
    message = f"the run has cost its budget, and {_budget_text(context)}"
    budget, limit = context.run.spec.budget, defaults.largest_budget(context.run.status.defaults)
    if budget is None or limit is None or limit.amount > budget.amount:
        return f"{message}: a larger amount continues"
    # A limit that is raised now is that of runs which begin later.
    return (
        f"{message}: {limit.whose} allows this run at most {limit.amount:g}, and no larger amount "
        "is taken; delete the run, or begin another one"
    )


def _budget_text(context: ReconcileContext) -> str:
    budget = context.run.spec.budget
    amount = money_text(budget.amount) if budget else ""
    return f"spec.budget.amount is {amount} {context.settings.currency}"


def counted_until(meter: Meter, time: datetime) -> Meter:
    """With what is held counted up to a time; an earlier one than before changes nothing."""
    passed = 0.0 if meter.time is None else seconds_since(meter.time, time)
    if meter.time is not None and passed <= 0:
        return meter
    held, passed = meter.held, float(int(passed))  # as `written` counts
    used = held.devices * passed
    return meter.model_copy(
        update={
            "time": written(time),
            "device_seconds": meter.device_seconds + used,
            "waiting": meter.waiting + (used if held.waits else held.standby * passed),
            "spent": round(meter.spent + held.per_hour * passed / HOUR_S, 6),
            "saved": round(meter.saved + held.saves_per_hour * passed / HOUR_S, 6),
            "unpriced": meter.unpriced or (held.unpriced is not None and passed > 0),
            "uncompared": meter.uncompared or (held.uncompared and passed > 0),
        }
    )


def devices_per_worker(run: TrainingRun) -> int:
    """What a worker counts for: its accelerators, or itself."""
    accelerator = run.spec.workers.accelerator
    return accelerator.count if accelerator else 1


def _held_until(context: ReconcileContext, draft: StatusDraft) -> datetime:
    """Until when the pods that were held can have been there.

    An operator that was away finds them gone: KubeRay had freed them, or Kueue had taken them back.
    """
    if any(True for _ in context.held):
        return context.now
    times, job = [context.now], context.job(draft.status.attempt)
    if ended := job_ended_at(job):
        ttl_s = ((job or {}).get("spec") or {}).get("ttlSecondsAfterFinished") or 0
        times.append(min(ended, context.now) + timedelta(seconds=ttl_s))
    queued_since = draft.bookkeeping.queued_since
    if queued_since and context.written.queued_since is None:  # else they were seen after that
        times.append(parsed(queued_since))
    return min(times)


def _last_step(context: ReconcileContext, draft: StatusDraft) -> datetime:
    progress = context.progress(draft.status.attempt)
    if progress is None or progress.step_time is None:
        return context.now
    return min(from_unix(progress.step_time), context.now)


def _held(context: ReconcileContext, draft: StatusDraft) -> Held:
    prices, workers, pods = context.settings.prices, 0, 0
    per_hour = saved = 0.0
    unpriced, uncompared = set[str](), False
    gone = {name for name, node in context.observed.nodes.items() if not node.exists}

    @cache
    def priced(name: str | None, requests: Any) -> tuple[float, float | None] | None:
        return _price(context, context.node(name), requests)

    for pod in context.held:
        if pod.node in gone:
            continue
        pods, workers = pods + 1, workers + (not pod.head)
        if not prices:
            continue
        price = priced(pod.node, pod.requests or ())
        if price is None:
            unpriced.add(pod.node or "")
            continue
        per_hour += price[0]
        saved += price[1] or 0.0
        uncompared = uncompared or price[1] is None
    minimum = context.run.spec.minimum_worker_pods + 1
    needed = minimum if context.is_elastic else context.wanted_pods(draft)
    per_pod = context.workers_per_pod(draft) * devices_per_worker(context.run)
    more = max(workers - (context.wanted_pods(draft) - 1), 0)
    waits = draft.status.running_attempt is not None and pods < needed
    if waits and context.run.spec.sweep is not None:
        progress = context.live_progress(draft.status.attempt)
        # The other trials train on while one lacks pods.
        waits = progress is None or not progress.world_size
    return Held(
        devices=workers * per_pod,
        standby=min(more, context.run.spec.workers.standby) * per_pod,
        waits=waits,
        per_hour=round(per_hour, 6),
        saves_per_hour=round(saved, 6),
        unpriced=min(unpriced, default=None),
        uncompared=uncompared,
    )


def _price(
    context: ReconcileContext, node: NodeState | None, requests: tuple[tuple[str, float], ...]
) -> tuple[float, float | None] | None:
    """A pod's price for an hour and what it saves as a spot pod, None: not known. None: no price.

    A pod is charged the largest share that it takes of any resource of its node.
    """
    if node is None or not node.labels:
        return None
    row = next((row for row in context.settings.prices if row.applies_to(node.labels)), None)
    if row is None:
        return None
    shares = [
        amount / node.allocatable[resource]
        for resource, amount in requests
        if node.allocatable.get(resource)
    ]
    share = min(max(shares, default=1.0), 1.0)
    if row.on_demand_per_hour is not None:
        return row.per_hour * share, (row.on_demand_per_hour - row.per_hour) * share
    spot = platforms.capacity_of(context.render.platform, node.labels) == "Spot"
    return row.per_hour * share, None if spot else 0.0


def _in_status(context: ReconcileContext, draft: StatusDraft, meter: Meter) -> Findings:
    seconds, meter = _by_cause(context, draft, meter)
    whole = sum(seconds.model_dump().values())
    cost = Cost(
        unit="accelerator" if context.run.spec.workers.accelerator else "worker",
        total_seconds=round(whole, 1),
        seconds=seconds,
        **_money(context, meter, seconds, whole),
    )
    return Findings(status={"cost": cost}, bookkeeping={"meter": meter})


def _by_cause(
    context: ReconcileContext, draft: StatusDraft, meter: Meter
) -> tuple[AcceleratorSeconds, Meter]:
    # Of the ranks that train.
    spent, share = total(draft.bookkeeping), workers.share(draft.bookkeeping)
    devices = context.wanted_workers(draft) * devices_per_worker(context.run) * share
    training, saving = spent.productive * devices, spent.checkpoint * devices
    again = spent.lost_work * devices
    # Seconds are whole ones in the meter, and tenths of them in the driver's document.
    whole = max(meter.device_seconds, training + saving + again)
    waiting = min(meter.waiting, whole - training - saving - again)
    rest = whole - training - saving - again - waiting
    goodput = draft.status.goodput
    without = goodput.lost_seconds if goodput is not None else LostSeconds()
    if training + again > 0 and context.run.spec.sweep is not None:
        began = min(without.startup * devices, rest)  # each trial has a start of its own
        meter = meter.model_copy(update={"starting": round(began, 1)})
    elif training + again > 0 and meter.starting is None:
        # An operator that was away finds recoveries with the first step.
        began = max(rest - without.recovery * devices, 0.0)
        meter = meter.model_copy(update={"starting": round(began, 1)})
    starting = rest if meter.starting is None else min(meter.starting, rest)
    parts = tenths(training, saving, again + rest - starting, starting, waiting)
    names = ("training", "saving", "lost", "starting", "waiting")
    return AcceleratorSeconds(**dict(zip(names, parts, strict=True))), meter


def _money(
    context: ReconcileContext, meter: Meter, seconds: AcceleratorSeconds, whole: float
) -> dict[str, Any]:
    if not context.settings.prices:
        return {}
    money: dict[str, Any] = {
        "currency": context.settings.currency,
        "at_least": round(meter.spent, 4),
    }
    if not meter.unpriced:
        money["amount"] = round(meter.spent, 4)
        money["wasted"] = round(meter.spent * (1 - seconds.training / whole), 4) if whole else 0.0
    if not meter.unpriced and not meter.uncompared:
        money["saved_by_spot"] = round(meter.saved, 4)
    return money
