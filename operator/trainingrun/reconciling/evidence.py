"""What was lost, counted once.

Two witnesses tell of one loss: the pod (deleted, evicted, killed, out of memory) and the runtime
(its records). Whoever comes first is counted; the other is recognized by the pod and only sharpens
the reason: a worker that merely "died" becomes a preemption, a lost node or out of memory, and the
count moves along. The rules:

- preemptions: a worker pod that leaves after a notice, or is evicted;
- nodeLosses: a node, once for all pods on it, the head included;
- headLosses: a head pod that vanishes or ends while its node lives on;
- workerFailures: a worker that dies without notice, by pod or, if no pod shows it, by record;
- outOfMemory: a container over its limit, head or worker;
- what dies with a lost head is not counted again: it carries no loss of its own.
"""

from datetime import datetime

from ..api.contract import Record, RecordKind
from ..api.status import Disruptions, LossReason
from . import failures, pods
from .draft import Draft
from .ledger import Charge
from .model import Manifest
from .moments import from_unix, parsed, written
from .scene import Scene

SAME_LOSS_S = 60.0
"""A record that names no pod and a pod that ended belong together within so many seconds."""

MEMORY_S = 600.0
"""How long a pod that is gone is remembered: no record about it comes later than that."""

COUNTERS = {
    LossReason.PREEMPTED: "preemptions",
    LossReason.EVICTED: "preemptions",
    LossReason.NODE_LOST: "node_losses",
    LossReason.HEAD_LOST: "head_losses",
    LossReason.WORKER_LOST: "worker_failures",
    LossReason.INFRASTRUCTURE_ERROR: "worker_failures",
    LossReason.OUT_OF_MEMORY: "out_of_memory",
}
"""The field of status.disruptions that counts it."""

SHARPNESS = {
    LossReason.WORKER_LOST: 0,
    LossReason.INFRASTRUCTURE_ERROR: 0,
    LossReason.PREEMPTED: 1,
    LossReason.EVICTED: 1,
    LossReason.HEAD_LOST: 1,
    LossReason.NODE_LOST: 2,
    LossReason.OUT_OF_MEMORY: 3,
}
"""Of two reasons for one loss, the sharper one is kept."""


def take_in(scene: Scene, draft: Draft, attempt: int) -> None:
    """Count what the attempt's pods and the runtime's records newly show."""
    if scene.taken_back(attempt):
        _taken_back(scene, draft, attempt)
        return
    _mind_the_head(scene, draft, attempt)
    for pod in scene.pods(attempt):
        _look_at(scene, draft, attempt, pod)
    _read_records(scene, draft, attempt)
    _forget(scene, draft, attempt)


def charge(
    draft: Draft,
    key: str,
    reason: LossReason,
    now: datetime,
    message: str,
    pod: str | None = None,
    words: str = "",
) -> None:
    """Count a loss, unless it is counted; a sharper reason takes the count over."""
    known = draft.ledger.charges.get(key)
    if known and (known.collateral or SHARPNESS[reason] <= SHARPNESS[known.reason]):
        return
    if known:
        _add(draft, known.reason, -1)
    _add(draft, reason, 1)
    time = known.time if known else written(now)
    entry = Charge(reason=reason, time=time, pod=pod or (known and known.pod), words=words)
    _put(draft, key, entry)
    draft.tell("Warning", reason.value, message)


def explain(draft: Draft, pod: Manifest, reason: LossReason, now: datetime) -> None:
    """Remember a pod whose end another loss explains; if it was counted, it no longer is."""
    key = pods.uid(pod)
    known = draft.ledger.charges.get(key)
    if known and known.collateral:
        return
    if known:
        _add(draft, known.reason, -1)
    time = known.time if known else written(now)
    _put(draft, key, Charge(reason=reason, time=time, pod=pods.name(pod), collateral=True))


def lose_node(scene: Scene, draft: Draft, attempt: int, node: str, message: str) -> None:
    """Count a node once, whatever was on it."""
    charge(draft, f"node:{node}", LossReason.NODE_LOST, scene.now, message)
    for pod in scene.pods(attempt):
        if pods.node_name(pod) == node:
            _adopt_record(draft, pod, scene.now)
            explain(draft, pod, LossReason.NODE_LOST, scene.now)
    nodes = {**draft.ledger.lost_nodes}
    nodes.setdefault(node, written(scene.now))
    draft.note(lost_nodes=nodes)


def _mind_the_head(scene: Scene, draft: Draft, attempt: int) -> None:
    head = scene.head(attempt)
    known = draft.ledger.head
    if head is None and known is None:
        return  # KubeRay makes the head first; before that nothing can have been lost
    gone = known is not None and known not in {pods.uid(pod) for pod in scene.pods(attempt)}
    if gone and known is not None and known not in draft.ledger.charges:
        charge(draft, known, LossReason.HEAD_LOST, scene.now, "The head pod is gone")
    if head is not None and not pods.leaving(head):
        draft.note(head=pods.uid(head))


def _taken_back(scene: Scene, draft: Draft, attempt: int) -> None:
    """A queue takes everything back: one preemption, however many pods it costs."""
    left = scene.pods(attempt)
    if draft.ledger.head is not None and left:
        message = "The queue took the capacity back"
        charge(draft, f"queue:{draft.ledger.head}", LossReason.PREEMPTED, scene.now, message)
    for pod in left:
        explain(draft, pod, LossReason.PREEMPTED, scene.now)
    draft.note(head=None)


def _look_at(scene: Scene, draft: Draft, attempt: int, pod: Manifest) -> None:
    node = pods.node_name(pod)
    sight = scene.observed.nodes.get(node) if node else None
    reason = failures.why_pod_ended(pod, sight)
    if reason is None:
        return
    uid = pods.uid(pod)
    if reason is LossReason.NODE_LOST and node:
        lose_node(scene, draft, attempt, node, f"Node {node} was lost with pod {pods.name(pod)}")
        return
    if pods.is_head(pod) and reason is not LossReason.OUT_OF_MEMORY:
        reason = LossReason.HEAD_LOST
    elif reason in (LossReason.WORKER_LOST, LossReason.PREEMPTED) and _headless(
        scene, draft, attempt, pod
    ):
        # KubeRay and we clear such workers away; they died of the head's loss.
        explain(draft, pod, LossReason.HEAD_LOST, scene.now)
        return
    _adopt_record(draft, pod, scene.now)
    words = pods.last_words(pod)
    message = f"Pod {pods.name(pod)} ended: {_in_words(reason)}" + (f" ({words})" if words else "")
    charge(draft, uid, reason, scene.now, message, pods.name(pod), words)


def _headless(scene: Scene, draft: Draft, attempt: int, worker: Manifest) -> bool:
    """Whether the worker's head was lost before the worker itself left."""
    if pods.uid(worker) in draft.ledger.charges or draft.ledger.head is None:
        return False
    head = scene.head(attempt)
    if head is None or pods.ended(head) or pods.leaving(head):
        return True
    born, head_born = pods.created(worker), pods.created(head)
    return born is not None and head_born is not None and born < head_born


def _read_records(scene: Scene, draft: Draft, attempt: int) -> None:
    word = scene.word(attempt)
    # A driver without a lease (epoch 0) holds nothing that could be lost, and an older driver's
    # document that is read late has nothing new to tell.
    if word is None or word.epoch < max(draft.ledger.epoch, 1):
        return
    heard = draft.ledger.records if word.epoch == draft.ledger.epoch else 0
    for record in sorted(word.records, key=lambda record: record.number):
        if record.number > heard:
            _read(scene, draft, attempt, word.epoch, record)
            heard = record.number
    draft.note(epoch=word.epoch, records=heard)


def _read(scene: Scene, draft: Draft, attempt: int, epoch: int, record: Record) -> None:
    if record.kind in (RecordKind.RESTORED, RecordKind.CHECKPOINT_SKIPPED):
        kind = "Normal" if record.kind is RecordKind.RESTORED else "Warning"
        draft.tell(kind, record.kind.value, record.message)  # type: ignore[arg-type]
        return
    if record.kind not in (RecordKind.PREEMPTED, RecordKind.WORKER_LOST):
        return
    reason = LossReason(record.kind.value)
    uid = _uid_of(scene, draft, attempt, record.pod)
    if record.pod is None and _pod_told_already(draft, from_unix(record.time)):
        return
    if record.node and f"node:{record.node}" in draft.ledger.charges:
        return
    key = uid or f"record:{epoch}/{record.number}"
    message = record.message or _in_words(reason)
    charge(draft, key, reason, from_unix(record.time), message, record.pod)


def _uid_of(scene: Scene, draft: Draft, attempt: int, name: str | None) -> str | None:
    """The key of a pod that a record names: it may be here still, or be counted and gone."""
    if name is None:
        return None
    here = (pods.uid(pod) for pod in scene.pods(attempt) if pods.name(pod) == name)
    counted = (key for key, known in draft.ledger.charges.items() if known.pod == name)
    return next(here, None) or next(counted, None)


def _pod_told_already(draft: Draft, when: datetime) -> bool:
    return any(
        not key.startswith("record:")
        and abs((parsed(known.time) - when).total_seconds()) <= SAME_LOSS_S
        for key, known in draft.ledger.charges.items()
    )


def _adopt_record(draft: Draft, pod: Manifest, now: datetime) -> None:
    """Let the pod take over the count of a record that came first and is about it.

    That is one with its name, or one without a name that came shortly before.
    """
    uid, name = pods.uid(pod), pods.name(pod)
    if uid in draft.ledger.charges:
        return
    for key, known in draft.ledger.charges.items():
        recent = abs((parsed(known.time) - now).total_seconds()) <= SAME_LOSS_S
        if key.startswith("record:") and (known.pod == name or (known.pod is None and recent)):
            charges = {**draft.ledger.charges, uid: known.model_copy(update={"pod": name})}
            del charges[key]
            draft.note(charges=charges)
            return


def _forget(scene: Scene, draft: Draft, attempt: int) -> None:
    """Keep the ledger small: pods that are long gone can be witnessed no more."""
    here = scene.pods(attempt)
    alive = {pods.uid(pod) for pod in here} | {f"node:{pods.node_name(pod)}" for pod in here}
    kept = {
        key: known
        for key, known in draft.ledger.charges.items()
        if key in alive
        or key == draft.ledger.head
        or (scene.now - parsed(known.time)).total_seconds() < MEMORY_S
    }
    if kept != draft.ledger.charges:
        draft.note(charges=kept)


def _add(draft: Draft, reason: LossReason, number: int) -> None:
    counter = COUNTERS[reason]
    counts: Disruptions = draft.status.disruptions
    draft.set(
        disruptions=counts.model_copy(update={counter: max(getattr(counts, counter) + number, 0)})
    )


def _put(draft: Draft, key: str, entry: Charge) -> None:
    draft.note(charges={**draft.ledger.charges, key: entry})


def _in_words(reason: LossReason) -> str:
    return {
        LossReason.PREEMPTED: "it was asked to leave",
        LossReason.EVICTED: "it was evicted from its node",
        LossReason.NODE_LOST: "its node was lost",
        LossReason.HEAD_LOST: "the head was lost",
        LossReason.WORKER_LOST: "it died without notice",
        LossReason.INFRASTRUCTURE_ERROR: "its node refused it",
        LossReason.OUT_OF_MEMORY: "it used more memory than its limit; raise resources.memory",
    }[reason]
