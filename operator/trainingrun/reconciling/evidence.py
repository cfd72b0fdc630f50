"""What was lost, counted once.

Two witnesses tell of one loss: the pod (deleted, evicted, killed, out of memory) and the runtime
(its records). Whoever comes first is counted; the other is recognized by the pod and only sharpens
the reason: a worker that merely "died" becomes a preemption, a lost node or out of memory, and the
count moves along. The rules:

- preemptions: a worker pod that leaves after a notice, or is evicted;
- nodeLosses: a node, once for all pods on it, the head included;
- headLosses: a head pod that vanishes or ends while its node lives on;
- workerFailures: a worker that dies without notice, by pod or, if no pod shows it, by record;
- outOfMemory: a container over its limit, head or worker; once for all that end together;
- what dies with a lost head is not counted again: it carries no loss of its own.
"""

from ..api.contract import Record, RecordKind
from ..api.status import LossReason
from . import failures, pods, silence
from .draft import Draft
from .losses import Losses, in_words
from .model import Manifest
from .moments import from_unix
from .node_signs import control_sign
from .progress import trains
from .scene import Scene


def take_in(scene: Scene, draft: Draft, attempt: int) -> None:
    """Count what the attempt's pods and the runtime's records newly show."""
    if scene.deleted(attempt):
        return  # its pods go with it, and are no losses of their own
    if scene.unknown("Pod"):
        return  # a pod that is missing here may be there; the records are still there later
    losses = Losses(draft, scene.now)
    if scene.taken_back(attempt):
        _taken_back(scene, draft, losses, attempt)
    else:
        _mind_the_head(scene, draft, losses, attempt)
        for pod in scene.index(attempt).unwell:
            _look_at(scene, draft, losses, attempt, pod)
        _read_records(scene, draft, losses, attempt)
        _forget(scene, draft, losses, attempt)
    losses.write()


def lose_nodes(scene: Scene, draft: Draft, attempt: int, lost: dict[str, str]) -> None:
    """Count each node once, whatever was on it; `lost` says by which signs."""
    losses = Losses(draft, scene.now)
    for node, signs in lost.items():
        _lose_node(scene, losses, attempt, node, f"Node {node} is lost: {signs}")
    losses.write()


def explain_by_the_head(scene: Scene, draft: Draft, workers: list[Manifest]) -> None:
    """Remember workers that go with a lost head."""
    losses = Losses(draft, scene.now)
    for pod in workers:
        losses.explain(pods.uid(pod), pods.name(pod), LossReason.HEAD_LOST)
    losses.write()


def explain_as_rescheduled(scene: Scene, draft: Draft, waiting: list[Manifest]) -> None:
    """Remember pods that never ran and are made anew, so that they find a node."""
    losses = Losses(draft, scene.now)
    for pod in waiting:
        losses.explain(pods.uid(pod), pods.name(pod), LossReason.NODE_LOST)
    losses.write()


def reopen_nodes(scene: Scene, draft: Draft, nodes: list[str]) -> None:
    """Nodes that came back are counted anew if they are lost once more."""
    losses = Losses(draft, scene.now)
    for node in nodes:
        losses.reopen_node(node)
    losses.write()


def _lose_node(scene: Scene, losses: Losses, attempt: int, node: str, message: str) -> None:
    if f"node:{node}" not in losses:
        sight = scene.observed.nodes.get(node)
        losses.lose_node(node, (sight and sight.hostname) or node)
    losses.charge(f"node:{node}", LossReason.NODE_LOST, scene.now, message)
    for pod in scene.index(attempt).by_node.get(node, ()):
        losses.adopt_record(pods.uid(pod), pods.name(pod))
        losses.explain(pods.uid(pod), pods.name(pod), LossReason.NODE_LOST)


def _mind_the_head(scene: Scene, draft: Draft, losses: Losses, attempt: int) -> None:
    head = scene.head(attempt)
    known = draft.ledger.head
    if head is None and known is None:
        return  # KubeRay makes the head first; before that nothing can have been lost
    here = {pods.uid(pod) for pod in scene.index(attempt).heads}
    if known is not None and known not in here and known not in losses:
        losses.charge(known, LossReason.HEAD_LOST, scene.now, "The head pod is gone")
    if head is not None and not pods.leaving(head):
        draft.note(head=pods.uid(head))


def _taken_back(scene: Scene, draft: Draft, losses: Losses, attempt: int) -> None:
    """A queue takes everything back: one preemption, however many pods it costs."""
    left = scene.pods(attempt)
    if draft.ledger.head is not None and left:
        message = "The queue took the capacity back"
        losses.charge(f"queue:{draft.ledger.head}", LossReason.PREEMPTED, scene.now, message)
    for pod in left:
        losses.explain(pods.uid(pod), pods.name(pod), LossReason.PREEMPTED)
    draft.note(head=None)
    # The driver tells of its workers' notices: the same preemption again.
    word = scene.word(attempt)
    if word is not None and word.epoch >= max(draft.ledger.epoch, 1):
        heard = draft.ledger.records if word.epoch == draft.ledger.epoch else 0
        newest = max((record.number for record in word.records), default=0)
        draft.note(epoch=word.epoch, records=max(heard, newest))


def _look_at(scene: Scene, draft: Draft, losses: Losses, attempt: int, pod: Manifest) -> None:
    node = pods.node_name(pod)
    reason = failures.why_pod_ended(pod, scene.node(node))
    if reason is None:
        return
    uid, name = pods.uid(pod), pods.name(pod)
    if reason is LossReason.NODE_LOST and node:
        # A pod that is explained was there when its node was lost; the node may be back by now.
        if not losses.explained(uid):
            message = f"Node {node} was lost with pod {name}"
            _lose_node(scene, losses, attempt, node, message)
        return
    if pods.is_head(pod) and reason is not LossReason.OUT_OF_MEMORY:
        reason = LossReason.HEAD_LOST
    elif reason in (LossReason.WORKER_LOST, LossReason.PREEMPTED) and _headless(
        scene, draft, losses, attempt, pod
    ):
        # KubeRay and we clear such workers away; they died of the head's loss.
        losses.explain(uid, name, LossReason.HEAD_LOST)
        return
    losses.adopt_record(uid, name)
    words = pods.last_words(pod)
    message = f"Pod {name} ended: {in_words(reason)}" + (f" ({words})" if words else "")
    memory = reason is LossReason.OUT_OF_MEMORY
    losses.charge(
        uid,
        reason,
        scene.now,
        message,
        pod=name,
        words=words,
        ended=(pods.ray_ending(pod) or {}).get("finishedAt") if memory else None,
        born=pod["metadata"].get("creationTimestamp") if memory else None,
    )


def _headless(scene: Scene, draft: Draft, losses: Losses, attempt: int, worker: Manifest) -> bool:
    """Whether the worker's head was lost before the worker itself left."""
    if pods.uid(worker) in losses or draft.ledger.head is None:
        return False
    head = scene.head(attempt)
    if head is None or pods.ended(head) or pods.leaving(head):
        return True
    node = scene.node(pods.node_name(head))
    if node is not None and control_sign(scene, node):
        return True  # Kubernetes shows the pods of a dead node as running for minutes
    born, head_born = pods.created(worker), pods.created(head)
    return born is not None and head_born is not None and born < head_born


def _read_records(scene: Scene, draft: Draft, losses: Losses, attempt: int) -> None:
    word = scene.word(attempt)
    # A driver without a lease (epoch 0) holds nothing that could be lost, and an older driver's
    # document that is read late has nothing new to tell.
    if word is None or word.epoch < max(draft.ledger.epoch, 1):
        return
    heard = draft.ledger.records if word.epoch == draft.ledger.epoch else 0
    for record in sorted(word.records, key=lambda record: record.number):
        if record.number > heard:
            _read(scene, draft, losses, attempt, word.epoch, record)
            heard = record.number
    draft.note(epoch=word.epoch, records=heard)


def _read(
    scene: Scene, draft: Draft, losses: Losses, attempt: int, epoch: int, record: Record
) -> None:
    if record.kind in (RecordKind.RESTORED, RecordKind.CHECKPOINT_SKIPPED):
        kind = "Normal" if record.kind is RecordKind.RESTORED else "Warning"
        draft.tell(kind, record.kind.value, record.message)  # type: ignore[arg-type]
        return
    if record.kind not in (RecordKind.PREEMPTED, RecordKind.WORKER_LOST):
        return
    reason, when = LossReason(record.kind.value), from_unix(record.time)
    key = f"record:{epoch}/{record.number}"
    if record.pod is not None:
        pod = scene.index(attempt).by_name.get(record.pod)
        # The pod may be here still, or be counted and gone.
        key = (pods.uid(pod) if pod else None) or losses.key_of(record.pod) or key
    elif losses.told_around(when):
        return
    if record.node and f"node:{record.node}" in losses:
        return
    losses.charge(key, reason, when, record.message or in_words(reason), pod=record.pod)


def _forget(scene: Scene, draft: Draft, losses: Losses, attempt: int) -> None:
    """Keep the ledger small: pods that are long gone can be witnessed no more."""
    if not draft.ledger.charges:
        return
    index = scene.index(attempt)
    alive = {*index.by_uid, *(f"node:{node}" for node in index.by_node)}
    # What the attempt has not recovered from may still end it, and is then not counted again.
    recovered = trains(scene.live_word(attempt)) and silence.every_pod_runs(
        scene, draft, draft.status.attempts[-1]
    )
    losses.forget(alive | {draft.ledger.head or ""}, all_recent=not recovered)
