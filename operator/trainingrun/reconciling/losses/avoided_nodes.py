"""Nodes that pods exclude although they are well: by a rule, a bad GPU, or a slow rank.

They are excluded for hours and not until their kubelet is healthy, as it is all the time. Where
pods find no node for long they are taken back: a bad node may still be the only one.
"""

from datetime import timedelta
from typing import Any

from ...api.reasons import EventReason
from ...api.status import MOST_EXCLUDED_NODES, ExcludedNode
from .. import pod_status
from ..bookkeeping import AvoidedNode, Bookkeeping
from ..context import ReconcileContext
from ..findings import Findings, StatusDraft
from ..model import Delete, Object, RunEvent
from ..texts import parsed, seconds_since, short, written

AVOIDED_S = 6 * 3600.0
"""How long a node is excluded."""

PATIENCE_S = 600.0
"""How long pods may find no node because of that. New nodes of a cloud take minutes."""

REASON = 300
"""Characters of a reason."""


def avoid(
    context: ReconcileContext,
    bookkeeping: Bookkeeping,
    reasons: dict[str, tuple[str, bool]],
) -> tuple[dict[str, Any], tuple[RunEvent, ...]]:
    """Changes of the bookkeeping, and events, for these nodes.

    Args:
        context: This reconcile.
        bookkeeping: Until now.
        reasons: Of each node why, and whether its pods are replaced.
    """
    if not reasons:
        return {}, ()
    now, nodes = written(context.now), context.observed.nodes
    new = {
        name: AvoidedNode(
            time=now,
            reason=short(reason, REASON),
            hostname=known.hostname if (known := nodes.get(name)) and known.hostname else name,
            move=move,
        )
        for name, (reason, move) in reasons.items()
    }
    events = tuple(
        RunEvent("Warning", EventReason.NODE_EXCLUDED, f"Node {name} is excluded: {node.reason}")
        for name, node in new.items()
        if name not in bookkeeping.avoided
    )
    every = {**bookkeeping.avoided, **new}
    newest = sorted(every, key=lambda name: every[name].time)[-MOST_EXCLUDED_NODES:]
    return {"avoided": {name: every[name] for name in newest}}, events


def hostnames(bookkeeping: Bookkeeping) -> set[str]:
    """The hostnames that pods exclude for this."""
    return {node.hostname for node in bookkeeping.avoided.values()}


def lift(context: ReconcileContext, draft: StatusDraft, attempt: int | None = None) -> Findings:
    """Take nodes back after hours, or once pods have found no node for long."""
    avoided = draft.bookkeeping.avoided
    if not avoided:
        return Findings()
    waiting = [] if attempt is None else context.index(attempt).unwell
    pressed = any(_waits_for_long(context, pod) for pod in waiting)
    kept = {
        name: node
        for name, node in avoided.items()
        if not pressed and seconds_since(node.time, context.now) < AVOIDED_S
    }
    return Findings(bookkeeping={"avoided": kept} if len(kept) < len(avoided) else {})


def _waits_for_long(context: ReconcileContext, pod: Object) -> bool:
    if not pod_status.unschedulable(pod) or pod_status.terminating(pod):
        return False
    created = pod_status.created(pod)
    return created is not None and context.now - created >= timedelta(seconds=PATIENCE_S)


def replace_pods(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """Force-delete the worker pods that were on such a node when its rank failed.

    Their worker group has ended by then, and the driver waits for that before it starts the next
    one. Where it trains again already nothing is ended, and the node is left with the next loss.
    With a grace period they would count as preempted; the loss itself is counted.
    """
    moved = {name: parsed(a.time) for name, a in draft.bookkeeping.avoided.items() if a.move}
    if (
        not moved
        or context.unknown("Pod")
        or context.suspended_by_queue(attempt)
        or not context.driver_answers(attempt)  # it may train: an operator that has just begun
        or context.trains(attempt)
    ):
        return Findings()
    index = context.index(attempt)
    left = [
        pod
        for name, time in moved.items()
        for pod in index.by_node.get(name, ())
        if not pod_status.is_head(pod)
        and not pod_status.terminating(pod)
        and not pod_status.ended(pod)
        and (created := pod_status.created(pod)) is not None
        and created <= time
    ]
    return Findings(actions=tuple(Delete(pod_status.pod_ref(pod), grace_s=0) for pod in left))


def report(draft: StatusDraft) -> Findings:
    """status.excludedNodes."""
    avoided = draft.bookkeeping.avoided
    if not avoided and draft.status.excluded_nodes is None:
        return Findings()
    nodes = [
        ExcludedNode(node=name, since=node.time, reason=node.reason)
        for name, node in sorted(avoided.items())
    ]
    return Findings(status={"excluded_nodes": nodes or None})
