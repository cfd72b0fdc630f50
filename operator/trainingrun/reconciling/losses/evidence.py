"""What was lost, counted once.

Two sources show one loss: the pod (deleted, evicted, killed, out of memory) and the runtime
(its records). The first to show it is counted; the other is recognized by the pod and only refines
the reason: a worker that merely "died" becomes a preemption, a lost node or out of memory, and the
count moves along. The rules:

- preemptions: a worker pod that is deleted after a notice, or evicted;
- nodeLosses: a node, once for all pods on it, the head included;
- headLosses: a head pod that vanishes or ends while its node lives on;
- workerFailures: a worker that dies without notice, by pod or, if no pod shows it, by record; an
  error of Ray's controller, by record;
- hangs: a worker group that stood still, by record; its pods live on;
- outOfMemory: a container over its limit, head or worker; once for all that end together;
- what dies with a lost head is not counted again: it carries no loss of its own;
- a standby pod in which no rank is, by the driver that answers, is no loss: nothing stops.
"""

from collections.abc import Iterable, Mapping, Sequence

from trainingrun_protocol.progress import Progress, Record, RecordKind, RunState

from ...api.reasons import EventReason
from ...api.status import Attempt, LossReason
from .. import pod_status
from ..bookkeeping import Bookkeeping
from ..context import ReconcileContext, job_ended_at
from ..findings import Findings, StatusDraft
from ..model import EventType, Object, RunEvent
from ..texts import from_unix, short, written
from . import signs
from .counting import Losses
from .signs import control_sign, describe

WHY = 300
"""Characters of what a kubelet says of an eviction."""

_OF_A_PROCESS = (RecordKind.HANG, RecordKind.OUT_OF_MEMORY)
"""What ends a process in a pod that lives on."""
_EVENTS: dict[RecordKind, tuple[EventType, EventReason]] = {
    RecordKind.RESTORED: ("Normal", EventReason.RESTORED),
    RecordKind.CHECKPOINT_SKIPPED: ("Warning", EventReason.CHECKPOINT_SKIPPED),
    RecordKind.SETTING_OVERRULED: ("Warning", EventReason.SETTING_OVERRULED),
}
"""Records that lose nothing, and their events."""


def record_losses(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """Count what the attempt's pods and the runtime's records newly show."""
    if context.deleted(attempt):
        return Findings()  # its pods go with it, and are no losses of their own
    losses = Losses(context, draft)
    if context.suspended_by_queue(attempt):
        _record_suspension_by_queue(context, draft, losses, attempt)
    elif not context.unknown("Pod"):  # one that is missing may exist; the records stay until later
        _record_head(context, losses, attempt)
        if draft.bookkeeping.counted:
            _outlive_losses(context, losses, attempt)
        for pod in context.index(attempt).unwell:
            _record_pod(context, losses, attempt, pod)
        _record_events(context, draft, losses, attempt)
        losses.settle()
        _forget(context, draft, losses, draft.status.attempts[-1])
    return losses.findings()


def record_lost_nodes(
    context: ReconcileContext, draft: StatusDraft, attempt: int, lost: Mapping[str, str]
) -> Findings:
    """Count each node once, whatever was on it; `lost` has the signs of each."""
    if not lost or context.suspended_by_queue(attempt):
        return Findings()  # the queue ends what is on it, and that is counted
    losses = Losses(context, draft)
    for node, why in lost.items():
        _lose_node(context, losses, attempt, node, f"Node {node} is lost: {why}")
    losses.settle()
    return losses.findings()


def explain(
    context: ReconcileContext, draft: StatusDraft, pods: Iterable[Object], reason: LossReason
) -> Findings:
    """Remember pods that end because of a loss that is counted elsewhere."""
    losses = Losses(context, draft)
    for pod in pods:
        losses.explain(pod, reason)
    return losses.findings()


def reopen_nodes(context: ReconcileContext, draft: StatusDraft, nodes: Iterable[str]) -> Findings:
    """Nodes that came back are counted anew if they are lost once more."""
    losses = Losses(context, draft)
    for node in nodes:
        losses.reopen_node(node)
    return losses.findings()


def _lose_node(
    context: ReconcileContext, losses: Losses, attempt: int, node: str, message: str
) -> None:
    pods = context.index(attempt).by_node.get(node, ())
    if f"node:{node}" not in losses:
        node_state = context.observed.nodes.get(node)
        losses.lose_node(node, (node_state and node_state.hostname) or node)
        if pods and _waited(context, losses, attempt, pods):
            losses.lose_spare(f"node:{node}", pods, LossReason.NODE_LOST, message)
    losses.count_disruption(
        f"node:{node}",
        LossReason.NODE_LOST,
        context.now,
        message,
        pods=[pod_status.name(pod) for pod in pods],
        node=node,
    )
    for pod in pods:
        losses.adopt_record(pod_status.uid(pod), pod_status.name(pod), node)
        losses.explain(pod, LossReason.NODE_LOST, by=f"node:{node}")


def _record_head(context: ReconcileContext, losses: Losses, attempt: int) -> None:
    head, known = context.head(attempt), losses.head
    if head is None and known is None:
        return  # KubeRay makes the head first; before that nothing can have been lost
    here = {pod_status.uid(pod) for pod in context.index(attempt).heads}
    # A head that told of its driver's end outlived it: KubeRay frees the pods of an ended RayJob,
    # and an operator that was away meanwhile finds neither them nor the driver's document.
    outlived = signs.driver_has_ended(context.job(attempt))
    if (
        known is not None
        and known not in here
        and known not in losses
        and not outlived
        and context.is_absent_for_certain("Pod")
    ):
        losses.count_disruption(known, LossReason.HEAD_LOST, context.now, "The head pod is gone")
    if head is not None and not pod_status.terminating(head):
        losses.changes["head"] = pod_status.uid(head)


def _record_suspension_by_queue(
    context: ReconcileContext, draft: StatusDraft, losses: Losses, attempt: int
) -> None:
    """A queue suspends the attempt: one preemption, however many pods it costs.

    Also where no pod can be seen, or none is left any more, as after an operator was away: once the
    queue has let the attempt continue, nothing shows why its former head is gone.
    """
    left, head = context.pods(attempt), losses.head
    if head is not None and (left or head not in losses or context.unknown("Pod")):
        message = "The queue took the capacity back"
        losses.count_disruption(f"queue:{head}", LossReason.PREEMPTED, context.now, message)
    for pod in left:
        losses.explain(pod, LossReason.PREEMPTED)
    losses.changes["head"] = None
    # The driver records its workers' notices: the same preemption again.
    progress = context.progress(attempt)
    if progress is not None and progress.fencing_token >= max(draft.bookkeeping.fencing_token, 1):
        newest = max((record.number for record in progress.records), default=0)
        newest = max(_last_recorded(draft.bookkeeping, progress), newest)
        losses.changes |= {"fencing_token": progress.fencing_token, "records": newest}


def _outlive_losses(context: ReconcileContext, losses: Losses, attempt: int) -> None:
    """Where a rank trains again, a process was lost before, and not the pod.

    Before the pods are looked at: one that ends later would be taken for that loss.
    """
    progress = context.progress(attempt)
    if progress is None or progress.state is not RunState.TRAINING:
        return
    restored = max(
        (one.time for one in progress.records if one.kind is RecordKind.RESTORED), default=None
    )
    if restored is None or (progress.step_time or 0.0) <= restored:
        return  # the rows may be those of the worker group before
    for row in progress.ranks:
        key = _key_of(context, losses, attempt, row.pod or "")
        if key is not None:
            losses.outlive(key, from_unix(restored))


def _key_of(context: ReconcileContext, losses: Losses, attempt: int, name: str) -> str | None:
    """The key of a pod's loss: the pod may be here still, or be counted and gone."""
    pod = context.index(attempt).by_name.get(name)
    return (pod_status.uid(pod) if pod else None) or losses.key_of(name)


def _record_pod(context: ReconcileContext, losses: Losses, attempt: int, pod: Object) -> None:
    node = pod_status.node_name(pod)
    reason = signs.why_pod_ended(pod, context.node(node))
    if reason is None:
        return
    if reason is LossReason.PREEMPTED and node is None:
        return  # it has done nothing yet, and is made anew, for other nodes
    if reason is LossReason.PREEMPTED and _outlived_driver(context, attempt, pod):
        return  # KubeRay frees the pods of an ended RayJob
    uid, name = pod_status.uid(pod), pod_status.name(pod)
    if name in context.removed_pods(attempt) and uid not in losses:
        losses.explain(pod, reason)  # KubeRay deletes it on request, before the training
        return
    if reason is LossReason.NODE_LOST and node:
        # A pod that is explained was there when its node was lost; the node may be back by now.
        if not losses.explained(uid):
            message = f"Node {node} was lost with pod {name}"
            _lose_node(context, losses, attempt, node, message)
        return
    if _waited(context, losses, attempt, [pod]):
        losses.lose_spare(uid, [pod], reason, f"Pod {name} ended: {describe(reason)}")
        return
    if pod_status.is_head(pod) and reason is not LossReason.OUT_OF_MEMORY:
        reason = LossReason.HEAD_LOST
    elif reason in (LossReason.WORKER_LOST, LossReason.PREEMPTED) and _headless(
        context, losses, attempt, pod
    ):
        # KubeRay and the operator delete such workers; they ended with the head.
        losses.explain(pod, LossReason.HEAD_LOST)
        return
    losses.adopt_record(uid, name, node)
    termination_message = pod_status.termination_message(pod)
    message = f"Pod {name} ended: {describe(reason, head=pod_status.is_head(pod))}"
    why = termination_message or short(pod_status.eviction_message(pod), WHY)
    if why:
        message += f" ({why})"
    memory = reason is LossReason.OUT_OF_MEMORY
    spared = pod_status.is_head(pod) and not memory  # it has no worker's place
    losses.count_disruption(
        uid,
        reason,
        context.now,
        message,
        pod=name,
        node=node,
        termination_message=termination_message,
        ended=(pod_status.ray_ending(pod) or {}).get("finishedAt") if memory else None,
        created_at=None if spared else pod_status.creation_text(pod) or None,
        facts=signs.facts(pod),
    )


def _outlived_driver(context: ReconcileContext, attempt: int, pod: Object) -> bool:
    """Whether the pod's deletion was requested once its driver had ended."""
    job, requested = context.job(attempt), pod_status.deletion_requested_at(pod)
    ended = job_ended_at(job) if signs.driver_has_ended(job) else None
    return ended is not None and requested is not None and requested > ended


def _waited(
    context: ReconcileContext, losses: Losses, attempt: int, pods: Sequence[Object]
) -> bool:
    """Whether no rank was in these pods, and no loss of one is counted."""
    spare = context.spare_pods(attempt)
    return bool(spare) and all(
        (name := pod_status.name(pod)) in spare
        and ((key := losses.key_of(name)) is None or losses.explained(key))
        for pod in pods
    )


def _headless(context: ReconcileContext, losses: Losses, attempt: int, worker: Object) -> bool:
    """Whether the worker's head was lost before the worker itself left."""
    if pod_status.uid(worker) in losses or losses.head is None:
        return False
    head = context.head(attempt)
    if head is None or pod_status.absent(head):
        return True
    node = context.node(pod_status.node_name(head))
    if node is not None and control_sign(context, node):
        return True  # Kubernetes shows the pods of a dead node as running for minutes
    failing_s = context.observed.progress_failing_s or 0.0
    if context.unknown("Node") and failing_s >= context.settings.head_silent_s:
        return True  # its node may be dead: what cannot be known is not held against the run
    return "" < pod_status.joined(worker) < pod_status.creation_text(head)


def _record_events(
    context: ReconcileContext, draft: StatusDraft, losses: Losses, attempt: int
) -> None:
    progress = context.progress(attempt)
    # A driver without a lease (token 0) holds nothing that could be lost, and an older driver's
    # document that is read late has nothing new.
    if progress is None or progress.fencing_token < max(draft.bookkeeping.fencing_token, 1):
        return
    recorded = _last_recorded(draft.bookkeeping, progress)
    resumed = progress.fencing_token > 1 or progress.restored_from is not None
    begins = 0 if resumed else progress.begins_until
    for record in sorted(progress.records, key=lambda record: record.number):
        if record.number > recorded:
            recorded = record.number
            if record.kind is not RecordKind.RESTORED or record.step or recorded > begins:
                _record_event(context, losses, attempt, progress, record)
    losses.changes |= {"fencing_token": progress.fencing_token, "records": recorded}


def _last_recorded(bookkeeping: Bookkeeping, progress: Progress) -> int:
    """Number of this driver's last record that was read; 0: none was."""
    return bookkeeping.records if progress.fencing_token == bookkeeping.fencing_token else 0


def _record_event(
    context: ReconcileContext, losses: Losses, attempt: int, progress: Progress, record: Record
) -> None:
    event = _EVENTS.get(record.kind)
    if event is not None:
        losses.events.append(RunEvent(*event, record.message))
        return
    if record.kind is RecordKind.NODE_SLOW and record.node is not None:
        losses.leave_node(record.node, record.message)
        return
    if not record.kind.is_disruption:
        return
    reason, when = LossReason(record.kind.value), from_unix(record.time)
    key = f"record:{progress.fencing_token}/{record.number}"
    pod, of_the_pod = context.index(attempt).by_name.get(record.pod or ""), True
    if record.kind in _OF_A_PROCESS and not pod_status.absent(pod):
        # Its pod lives on, and a process in it may end so once more.
        if record.kind is RecordKind.OUT_OF_MEMORY and record.pod is not None:
            losses.rename(record.pod, when, key)
    elif record.pod is not None:
        key = _key_of(context, losses, attempt, record.pod) or key
        if record.group_time is not None:
            losses.outlive(key, from_unix(record.group_time))
        if pod is not None and _outlived_by(pod, progress, record):
            key, of_the_pod = f"{key}/{written(when)}", False
    elif losses.counted_around(when, context.index(attempt).unwell):
        return
    if record.node and f"node:{record.node}" in losses:
        return
    message = record.message or describe(reason)
    began = record.group_time if record.kind is RecordKind.OUT_OF_MEMORY else None
    losses.count_disruption(
        key,
        reason,
        when,
        message,
        pod=record.pod if of_the_pod else None,
        pods=(record.pod,) if record.pod else (),
        node=record.node,
        created_at=written(from_unix(began)) if began is not None else None,
        facts=record.facts,
        recorded=of_the_pod,
    )


def _outlived_by(pod: Object, progress: Progress, record: Record) -> bool:
    """Whether a rank trained in the pod once more before it ended: a process was lost, and not the
    pod. An operator that was away reads of it only once the pod has ended too.
    """
    ended = pod_status.ended_at(pod)
    restored = [
        one.time
        for one in progress.records
        if one.kind is RecordKind.RESTORED and one.time > record.time
    ]
    if not ended or not restored or written(from_unix(min(restored))) >= ended:
        return False
    trains = progress.state is RunState.TRAINING and (progress.step_time or 0.0) > min(restored)
    return any(
        one.pod == record.pod and (one.group_time or 0.0) > record.time for one in progress.records
    ) or (trains and any(row.pod == record.pod for row in progress.ranks))


def _forget(
    context: ReconcileContext, draft: StatusDraft, losses: Losses, attempt: Attempt
) -> None:
    """Keep the bookkeeping small: pods that are long gone can be observed no more."""
    if not draft.bookkeeping.counted:
        return
    index = context.index(attempt.number)
    alive = {*index.by_uid, *(f"node:{node}" for node in index.by_node), losses.head or ""}
    # What the attempt has not recovered from may still end it, and is then not counted again.
    recovered = context.trains(attempt.number) and context.enough_pods_run(draft, attempt.number)
    silent_s = context.observed.progress_age_s or 0.0
    losses.forget(alive, silent_s=silent_s, all_recent=not recovered)
