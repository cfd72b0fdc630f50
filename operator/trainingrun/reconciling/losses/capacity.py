"""Which nodes new worker pods go to: spot nodes or, for a while, on-demand ones.

The choice and its reason are in status.capacity before anything is done about it. It follows from
the losses in the history, and from how long a pod has found no node. KubeRay makes new pods from
the worker group of the live RayCluster, so that is what is patched. A pod that has a node is never
ended for it.
"""

from datetime import datetime, timedelta
from typing import Any

from ... import rendering
from ...api.pods_spec import Fallback
from ...api.reasons import ConditionReason, EventReason
from ...api.status import (
    MOST_AVOIDED,
    MOST_WORKER_NODES,
    AvoidedNodes,
    CapacityStatus,
    WorkerNode,
    WorkerNodes,
)
from ...rendering import Placement, platforms, scheduling
from ...rendering.scheduling import INSTANCE_TYPE, ZONE
from .. import pod_status
from ..bookkeeping import SpotLoss
from ..context import RAY_API, ReconcileContext
from ..findings import Blocker, Findings, StatusDraft
from ..model import Delete, EventType, Object, PlaceWorkers, RunEvent
from ..texts import parsed, seconds_since, short, written
from . import history

AVOIDED_AFTER, AVOIDED_WITHIN_S = 2, 3600.0
"""So many spot nodes of one zone or instance type, lost within so many seconds, and new workers
avoid it."""

AVOIDED_S = 1800.0
"""For so many seconds after the last of them."""

FORGIVEN_AFTER_S = 60.0
"""And no longer than a worker has found no node for so many seconds: there may be no others."""

MOST_NAMED = 5
"""Nodes in one message."""

MOST_OF_WHY = 300
"""Characters of what a rule was met by."""

_NODES = {"OnDemand": "on-demand nodes", "Spot": "spot nodes", "Any": "any nodes, spot preferred"}

PATIENCE_S, PREFERRED_PATIENCE_S = 600, 60
"""Seconds for which a worker pod waits for a node by default; the second with PreferSpot, where a
spot node that is being made is taken all the same: going on early costs little."""


def choose(context: ReconcileContext, draft: StatusDraft, attempt: int | None = None) -> Findings:
    """Record which nodes the workers are on, and decide which ones the next workers go to.

    Args:
        context: What was observed.
        draft: With the losses that this reconcile has counted.
        attempt: The attempt that runs. Default: none does.
    """
    if not scheduling.can_change(context.run):
        return Findings()
    known = _known(context, draft)
    waits_since = _waits_since(context, draft, attempt)
    if _stays(context, attempt):
        choice, within_s = known, None
        avoided, forgiven, until_s = known.avoided, False, None
    else:
        choice, within_s = _next(context, draft, known, waits_since)
        avoided, forgiven, until_s = _avoided(context, draft, choice, waits_since)
    workers = _workers(context, known, attempt)
    choice = choice.model_copy(
        update={
            "avoided": avoided,
            "spot": sum(worker.capacity == "Spot" for worker in workers),
            "on_demand": sum(worker.capacity == "OnDemand" for worker in workers),
            "workers": sorted(workers, key=lambda worker: (worker.since, worker.pod))[
                -MOST_WORKER_NODES:
            ],
        }
    )
    changes = _changed(context, draft, known, choice)
    bookkeeping = {**changes.bookkeeping, "workers_wait_since": waits_since}
    if forgiven:
        bookkeeping["avoided_losses_since"] = written(context.now)
    waits = [each_s for each_s in (within_s, until_s) if each_s is not None]
    return changes._replace(bookkeeping=bookkeeping, requeue_within_s=min(waits) if waits else None)


def to_on_demand(context: ReconcileContext, draft: StatusDraft, why: str) -> Findings:
    """Have new workers go to on-demand nodes from now on, for a reason that the caller knows; in
    this attempt and the next ones. Nothing where they do already.

    `capacity.fallback.returnAfterSeconds` ends it, or its default where there is no `fallback`.

    Args:
        context: What was observed.
        draft: The status so far.
        why: A clause, see `by_rule`.
    """
    if not scheduling.can_change(context.run):
        return Findings()
    known = _known(context, draft)
    if known.type == "OnDemand":
        return Findings()
    return _changed(
        context, draft, known, _elsewhere(context, known, ("OnDemand", known.product), why)
    )


def by_rule(number: int, message: str) -> str:
    """The clause for a rule of failures.rules, and what has happened."""
    return short(f"by rule {number} of failures.rules, as {message}", MOST_OF_WHY)


def placement(context: ReconcileContext, draft: StatusDraft) -> Placement:
    """The nodes that new workers go to."""
    known = draft.status.capacity
    return _placement(known) if known else scheduling.first_placement(context.run)


def place_workers(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """Patch the live RayCluster where its new workers go to other nodes than they should, and
    replace pods that wait for a node of the former ones.
    """
    if not draft.bookkeeping.placements or context.unknown("RayCluster", "Pod"):
        return Findings()  # it is as it was rendered, or nothing is known of it
    wanted = placement(context, draft)
    first = scheduling.first_placement(context.run).label
    patches, placed = [], set[str]()
    for cluster in context.clusters(attempt):
        if pod_status.terminating(cluster):
            continue
        if (scheduling.placement_of_cluster(cluster) or first) == wanted.label:
            placed.add(pod_status.uid(cluster))
        else:
            template = rendering.worker_nodes(context.run, attempt, context.render, wanted, cluster)
            reference = pod_status.ref(cluster, RAY_API, "RayCluster")
            patches.append(PlaceWorkers(reference, template))
    # Only once the group is patched: before, KubeRay would make them as they were.
    outdated = [
        pod
        for pod in _waiting(context, attempt)
        if pod_status.controller_uid(pod, "RayCluster") in placed
        and (scheduling.placement_label(pod["metadata"]) or first) != wanted.label
    ]
    # One that has got a node meanwhile has changed, and is not deleted.
    deletions = (
        Delete(pod_status.pod_ref(pod), unchanged_since=pod["metadata"].get("resourceVersion"))
        for pod in outdated
    )
    return Findings(actions=(*patches, *deletions))


def explanation(context: ReconcileContext, draft: StatusDraft) -> Blocker | None:
    """Why new workers go to on-demand nodes alone, though the spec asks for spot; None: they do
    not.
    """
    known = draft.status.capacity
    if known is None or known.type != "OnDemand":
        return None
    if context.run.spec.workers.capacity.type == "OnDemand":
        return None
    message = f"{known.message} (since {known.since})"
    if known.return_time:
        message += f"; from {known.return_time} on they go to {_NODES['Spot']} again"
    return Blocker(ConditionReason.CAPACITY_FALLBACK, message)


def _stays(context: ReconcileContext, attempt: int | None) -> bool:
    """Whether a new worker has to be on the node that others are on, whichever that is."""
    if attempt is None or context.run.spec.workers.placement != "StrictPack":
        return False
    return any(True for _ in context.index(attempt).workers_on_nodes)


def _known(context: ReconcileContext, draft: StatusDraft) -> CapacityStatus:
    first = scheduling.first_placement(context.run).capacity
    since = draft.status.start_time or written(context.now)
    return draft.status.capacity or CapacityStatus(type=first, since=since)


def _placement(choice: CapacityStatus) -> Placement:
    avoided = tuple((group.label, group.value) for group in choice.avoided)
    return Placement(choice.type, avoided, choice.product)


def _changed(
    context: ReconcileContext, draft: StatusDraft, known: CapacityStatus, choice: CapacityStatus
) -> Findings:
    if choice == draft.status.capacity:
        return Findings()
    if _placement(choice) == _placement(known):
        return Findings(status={"capacity": choice})
    bookkeeping: dict[str, Any] = {"placements": draft.bookkeeping.placements + 1}
    events = []
    if (choice.type, choice.product) != (known.type, known.product):
        nodes = _named(context, _NODES[choice.type], choice.product)
        falls_back = choice.type == "OnDemand" != known.type
        kind: EventType = "Warning" if falls_back else "Normal"
        text = choice.message or f"New workers go to {nodes} again"
        events.append(RunEvent(kind, EventReason.CAPACITY_CHANGED, text))
        if not choice.message:
            bookkeeping["spot_losses_since"] = choice.since
    former = {(group.label, group.value) for group in known.avoided}
    events += [
        RunEvent(
            "Normal",
            EventReason.CAPACITY_CHANGED,
            f"New workers go to no spot node with {group.label}={group.value} until {group.until}: "
            f"{group.losses} of them were lost",
        )
        for group in choice.avoided
        if (group.label, group.value) not in former
    ]
    return Findings(status={"capacity": choice}, bookkeeping=bookkeeping, events=tuple(events))


def _next(
    context: ReconcileContext, draft: StatusDraft, known: CapacityStatus, waits_since: str | None
) -> tuple[CapacityStatus, float | None]:
    """The choice from now on, and after how many seconds it may be another one."""
    capacity, now, rule = context.run.spec.workers.capacity, context.now, _rule(context)
    within_s: float | None = None
    first = scheduling.first_placement(context.run).capacity
    if (known.type, known.product) != (first, None):
        lost = _spot_losses(draft, known.since)
        newest = max((known.since, *(loss.time for loss in lost if parsed(loss.time) <= now)))
        ends = parsed(newest) + timedelta(seconds=rule.return_after_seconds)
        if ends <= now:
            return CapacityStatus(type=first, since=written(now)), None
        known = known.model_copy(update={"return_time": written(ends)})
        within_s = (ends - now).total_seconds()
    if (
        known.type != "OnDemand"
        and capacity.fallback is not None
        and (why := _too_many(draft, capacity.fallback, now))
    ):
        return _elsewhere(context, known, ("OnDemand", known.product), why), None
    following = _following(context, known)
    if following is None or waits_since is None:
        return known, within_s
    default_s = PREFERRED_PATIENCE_S if capacity.type == "PreferSpot" else PATIENCE_S
    patience_s = rule.after_pending_seconds or default_s
    waited_s = seconds_since(max(waits_since, known.since), now)
    if waited_s < patience_s:
        left_s = patience_s - waited_s
        return known, left_s if within_s is None else min(left_s, within_s)
    nodes = _named(context, {**_NODES, "Any": "nodes"}[known.type], known.product)
    why = f"a worker pod has found no {nodes.replace('nodes', 'node', 1)} for {patience_s} s"
    return _elsewhere(context, known, following, why), None


def _rule(context: ReconcileContext) -> Fallback:
    """How long is waited."""
    return context.run.spec.workers.capacity.fallback or Fallback()


def _following(
    context: ReconcileContext, known: CapacityStatus
) -> tuple[WorkerNodes, str | None] | None:
    """What follows where no node is found: the next product, then the next capacity with the first
    product, at last the first product again. None: nothing else is allowed.
    """
    workers = context.run.spec.workers
    products = workers.accelerator.choices if workers.accelerator else []
    at = products.index(known.product) if known.product in products else 0
    if at + 1 < len(products):
        return known.type, products[at + 1]
    if known.type == "Spot" and workers.capacity.type == "PreferSpot":
        return "Any", None
    if known.type == "Spot" and workers.capacity.fallback is not None:
        return "OnDemand", None
    return (known.type, None) if at else None


def _named(context: ReconcileContext, nodes: str, product: str | None) -> str:
    """The nodes in a phrase, with their product where the spec names several."""
    accelerator = context.run.spec.workers.accelerator
    products = accelerator.choices if accelerator else []
    return f"{nodes} with {product or products[0]}" if len(products) > 1 else nodes


def _too_many(draft: StatusDraft, rule: Fallback, now: datetime) -> str | None:
    """The clause that so many spot nodes were lost; None: not too many."""
    since = draft.bookkeeping.spot_losses_since or ""
    lost = _spot_losses(draft, since)
    recent = [loss for loss in lost if seconds_since(loss.time, now) <= rule.within_seconds]
    if len(recent) < rule.after_preemptions:
        return None
    named = list(dict.fromkeys(loss.node for loss in recent if loss.node))[-MOST_NAMED:]
    which = f" ({', '.join(named)})" if named else ""
    return f"{len(recent)} spot nodes were lost within {rule.within_seconds} s{which}"


def _elsewhere(
    context: ReconcileContext,
    known: CapacityStatus,
    where: tuple[WorkerNodes, str | None],
    why: str,
) -> CapacityStatus:
    now, rule = context.now, _rule(context)
    kind, product = where
    if where == (scheduling.first_placement(context.run).capacity, None):
        return CapacityStatus(type=kind, since=written(now))
    ends = now + timedelta(seconds=rule.return_after_seconds)
    return known.model_copy(
        update={
            "type": kind,
            "product": product,
            "since": written(now),
            "message": f"New workers go to {_named(context, _NODES[kind], product)}: {why}",
            "return_time": written(ends),
        }
    )


def _avoided(
    context: ReconcileContext, draft: StatusDraft, choice: CapacityStatus, waits_since: str | None
) -> tuple[list[AvoidedNodes], bool, float | None]:
    """Which spot nodes are avoided from now on, whether others are no longer for the sake of a
    worker that waits, and after how many seconds that may change.
    """
    if context.run.spec.workers.capacity.fallback is None or choice.type != "Spot":
        return [], False, None
    now, lost = context.now, dict[tuple[str, str], list[str]]()
    since = draft.bookkeeping.avoided_losses_since or ""
    selected = _product_label(context)
    for loss in _spot_losses(draft, since):
        for label, value in ((ZONE, loss.zone), (INSTANCE_TYPE, loss.instance_type)):
            if value is not None and label != selected and parsed(loss.time) <= now:
                lost.setdefault((label, value), []).append(loss.time)
    avoided = []
    for (label, value), times in sorted(lost.items()):
        newest = parsed(max(times))
        count = sum((newest - parsed(time)).total_seconds() <= AVOIDED_WITHIN_S for time in times)
        until = newest + timedelta(seconds=AVOIDED_S)
        if count >= AVOIDED_AFTER and until > now:
            avoided.append(
                AvoidedNodes(label=label, value=value, losses=count, until=written(until))
            )
    avoided = sorted(avoided, key=lambda group: group.until)[-MOST_AVOIDED:]
    if not avoided:
        return [], False, None
    ends_s = -max(seconds_since(group.until, now) for group in avoided)
    if waits_since is None:
        return avoided, False, ends_s
    began = parsed(avoided[-1].until) - timedelta(seconds=AVOIDED_S)
    left_s = FORGIVEN_AFTER_S - (now - max(began, parsed(waits_since))).total_seconds()
    if left_s <= 0:
        return [], True, None
    return avoided, False, min(ends_s, left_s)


def _product_label(context: ReconcileContext) -> str | None:
    """The node label by which the spec selects a product; None: it selects none."""
    accelerator = context.run.spec.workers.accelerator
    if accelerator is None or not accelerator.choices:
        return None
    return platforms.load(context.render.platform).accelerators[accelerator.kind].product_label


def _spot_losses(draft: StatusDraft, since: str) -> list[SpotLoss]:
    """The losses of spot nodes after a time."""
    return [loss for loss in history.spot_losses(draft) if loss.time > since]


def _waits_since(context: ReconcileContext, draft: StatusDraft, attempt: int | None) -> str | None:
    """Since when some worker has had no node, as it is to be written; None: each has one.

    A pod that is made anew meanwhile has waited before.
    """
    known = draft.bookkeeping.workers_wait_since
    if attempt is None or context.suspended_by_queue(attempt):
        return None
    if context.unknown("Pod"):
        return known
    waiting = [_unschedulable_since(pod) for pod in _waiting(context, attempt)]
    if waiting:
        return min(filter(None, (known, *waiting)), default=None)
    placed = sum(1 for _ in context.index(attempt).workers_on_nodes)
    return None if placed >= context.all_pods(draft) - 1 else known


def _waiting(context: ReconcileContext, attempt: int) -> list[Object]:
    """The worker pods for which the scheduler finds no node."""
    return [
        pod
        for pod in context.index(attempt).unwell
        if pod_status.unschedulable(pod)
        and not pod_status.is_head(pod)
        and not pod_status.terminating(pod)
        and pod_status.node_name(pod) is None
    ]


def _unschedulable_since(pod: Object) -> str:
    since = pod_status.unschedulable_since(pod)
    return written(since) if since else pod_status.creation_text(pod)


def _workers(
    context: ReconcileContext, known: CapacityStatus, attempt: int | None
) -> list[WorkerNode]:
    if attempt is None:
        return []
    if context.unknown("Pod"):
        return known.workers
    former = {worker.pod: worker for worker in known.workers}
    capacities: dict[str, Any] = {}
    workers = []
    for pod, node, since in context.index(attempt).workers_on_nodes:
        if node not in capacities:
            state = context.node(node)
            capacities[node] = (
                platforms.capacity_of(context.render.platform, state.labels)
                if state is not None and state.labels
                else None
            )
        if capacities[node] is not None:
            workers.append(WorkerNode(pod=pod, node=node, capacity=capacities[node], since=since))
        elif pod in former:
            workers.append(former[pod])
    return workers
