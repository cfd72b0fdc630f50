"""status.disruptions.history: each loss once, where it happened, what it cost and what was done.

An entry is made, corrected and taken out together with the count of its loss, in one write of the
status. What it cost is known once the training has continued: then goodput tells the seconds, and
the driver's records tell the steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from trainingrun_protocol.progress import Progress, Record, RecordKind, RunState

from ...api.pods_spec import MOST_PREEMPTIONS
from ...api.status import MOST_LOSSES, Goodput, Loss, LossReason
from ...rendering import platforms, scheduling
from ...rendering.scheduling import INSTANCE_TYPE, ZONE
from .. import pod_status
from ..bookkeeping import Interruption, SpotLoss
from ..context import ReconcileContext
from ..findings import Findings, StatusDraft
from ..texts import from_unix, parsed, seconds_since, short

MOST_PODS = 8
"""Pods that an entry names."""
SIGNS = 300
"""Characters of an entry's `signs` and `action`."""
GOES_ON_S = 60.0
"""What is gone for so many seconds while steps are done, and no record of the driver names, has
stopped nothing."""
ONE_LOSS_S = 300.0
"""Losses on one spot node within so many seconds are one: not all of its pods are seen to go at
once. Later it is another node, which on some clouds has the same name."""
_COST = ("step", "lost_steps", "lost_seconds", "action")


class History:
    """The entries, while a reconcile changes them. Of a thousand losses at once few are kept, so
    that entries are made at the end.
    """

    def __init__(self, context: ReconcileContext, draft: StatusDraft):
        """From what was written."""
        self._context, self._draft = context, draft
        self._entries: dict[int, Loss | dict[str, Any]] = {
            loss.number: loss for loss in draft.status.disruptions.history
        }
        # The bookkeeping may be lost, and the entries not.
        self._losses = max(draft.bookkeeping.losses, *self._entries, 0)
        self._spot_losses = dict(draft.bookkeeping.spot_losses)
        self._changed = False

    def add(
        self,
        reason: LossReason,
        time: str,
        signs: str,
        *,
        pods: Sequence[str] = (),
        node: str | None = None,
    ) -> int:
        """A loss; returns the number of its entry."""
        self._losses += 1
        self._entries[self._losses] = {
            "reason": reason,
            "time": time,
            "signs": signs,
            "pods": pods,
            "node": node,
        }
        self._changed = True
        return self._losses

    def correct(
        self,
        number: int | None,
        *,
        reason: LossReason | None = None,
        signs: str | None = None,
        pods: Sequence[str] = (),
        node: str | None = None,
    ) -> None:
        """More is known of a loss; an entry that is no longer kept is left alone."""
        entry = self._entries.get(number or 0)
        if entry is None or number is None:
            return
        known = {"reason": reason, "signs": signs, "pods": pods, "node": node}
        changes: dict[str, Any] = {name: value for name, value in known.items() if value}
        if isinstance(entry, dict):
            entry |= changes
            return
        changed = entry.model_copy(update=self._fields(changes))
        if changed != entry:
            self._entries[number] = changed
            self._changed = True

    def remove(self, number: int | None, explained_by: int | None = None) -> None:
        """Another loss explains it, whose entry takes over what is known of its cost."""
        removed = self._entries.pop(number or 0, None)
        of_spot_node = self._spot_losses.pop(number or 0, None)
        self._changed |= (removed or of_spot_node) is not None
        other = self._entries.get(explained_by or 0)
        if explained_by is None or not isinstance(removed, Loss) or not removed.action:
            return
        cost = {name: getattr(removed, name) for name in _COST}
        if isinstance(other, dict):
            self._entries[explained_by] = {**cost, **other}
        elif other is not None and not other.action:
            self._entries[explained_by] = other.model_copy(update=cost)

    def status(self) -> dict[str, Any]:
        """Fields of status.disruptions to change."""
        if not self._changed:
            return {}
        kept = list(self._entries.items())[-MOST_LOSSES:]
        return {"history": [self._loss(number, entry) for number, entry in kept]}

    def bookkeeping(self) -> dict[str, Any]:
        """Fields of the bookkeeping to change."""
        changes: dict[str, Any] = {}
        if self._changed:
            changes = {"losses": self._losses, "spot_losses": self._older_spot_losses()}
        first = next(
            (
                number
                for number, entry in self._entries.items()
                if isinstance(entry, dict) and "action" not in entry
            ),
            None,
        )
        if first is not None and self._draft.bookkeeping.interruption is None:
            written = self._context.written
            changes["interruption"] = Interruption(
                first=first,
                fencing_token=written.fencing_token,
                record=written.records,
                step=written.last_step,
                lost_seconds=lost_seconds(self._context.run.status.goodput),
            )
        return changes

    def _older_spot_losses(self) -> dict[int, SpotLoss]:
        """Those that were kept, and those of the entries that are not kept from now on."""
        found = dict(self._spot_losses)
        if scheduling.can_change(self._context.run):
            dropped = list(self._entries.items())[:-MOST_LOSSES]
            found |= _of_spot_nodes(self._loss(number, entry) for number, entry in dropped)
        return dict(list(_each_node_once(found).items())[-MOST_PREEMPTIONS:])

    def _loss(self, number: int, entry: Loss | dict[str, Any]) -> Loss:
        if isinstance(entry, Loss):
            return entry
        # Of what was written: this reconcile may have read of steps after the loss.
        step = self._context.written.last_step
        attempt = self._draft.status.attempt
        return Loss(number=number, attempt=attempt, **{"step": step, **self._fields(entry)})

    def _fields(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Of an entry, with what is known of the node."""
        fields = dict(known)
        if "signs" in known:
            fields["signs"] = short(known["signs"], SIGNS)
        if "pods" in known:
            fields["pods"] = list(known["pods"][:MOST_PODS])
        node = self._context.observed.nodes.get(known.get("node") or "")
        if node is not None and node.labels:
            platform = self._context.render.platform
            fields["zone"] = node.labels.get(ZONE)
            fields["instance_type"] = node.labels.get(INSTANCE_TYPE)
            fields["capacity"] = platforms.capacity_of(platform, node.labels)
        if known.get("pods") and scheduling.can_change(self._context.run):
            fields |= self._of_workers(known["pods"], fields)
        return fields

    def _of_workers(self, pods: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
        """What the status says of the nodes that lost workers were on: of a node that is gone, an
        operator that was restarted knows no more.
        """
        capacity = self._draft.status.capacity
        lost = [worker for worker in (capacity.workers if capacity else ()) if worker.pod in pods]
        if not lost:
            return {}
        first = min(lost, key=lambda worker: worker.since)
        return {
            "since": first.since,
            "node": known.get("node") or first.node,
            "capacity": known.get("capacity") or first.capacity,
        }


def spot_losses(draft: StatusDraft) -> list[SpotLoss]:
    """The losses of spot nodes, each node once for all of its pods, oldest first.

    Those of the history, and those whose entries it no longer has: nodes with many pods fill it
    soon. An entry may be corrected or taken out as long as it is there, so that no second account
    is kept of it.
    """
    history = _of_spot_nodes(draft.status.disruptions.history)
    return list(_each_node_once({**draft.bookkeeping.spot_losses, **history}).values())


def _of_spot_nodes(losses: Iterable[Loss]) -> dict[int, SpotLoss]:
    """Those of them that are losses of spot nodes, by the entry's number."""
    return {
        loss.number: SpotLoss(
            time=loss.time, node=loss.node, zone=loss.zone, instance_type=loss.instance_type
        )
        for loss in losses
        if loss.capacity == "Spot" and loss.reason in (LossReason.PREEMPTED, LossReason.NODE_LOST)
    }


def _each_node_once(losses: Mapping[int, SpotLoss]) -> dict[int, SpotLoss]:
    kept: dict[int, SpotLoss] = {}
    newest: dict[str | None, SpotLoss] = {}
    for number, loss in sorted(losses.items()):
        former = newest.get(loss.node)
        if former is None or seconds_since(former.time, parsed(loss.time)) > ONE_LOSS_S:
            kept[number] = newest[loss.node] = loss
    return kept


class _Recovery(NamedTuple):
    """What the driver has recorded from a loss, or several, until a step was done."""

    losses: list[Record]
    """Without any, a new driver has begun or a store did not answer."""
    restored: Record | None
    """How training continued; None: it has not yet."""
    step: int
    """The last one before it."""
    lost_steps: int

    def names(self, loss: Loss) -> bool:
        """Whether one of its records is of that loss."""
        return any(
            record.pod in loss.pods if record.pod else bool(loss.node) and record.node == loss.node
            for record in self.losses
        )

    def cost(self, *, pays: bool, seconds: float | None) -> dict[str, Any]:
        """Fields of the entry of a loss that it followed; of several one pays."""
        if self.restored is None or self.restored.step is None:  # of a sweep, with steps each
            return {"lost_steps": None, "lost_seconds": None}
        if not pays:
            return {"lost_steps": 0, "lost_seconds": None if seconds is None else 0}
        return {"step": self.step, "lost_steps": self.lost_steps, "lost_seconds": seconds}


def record_costs(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """What each loss has cost, once the training has done a step after it: by the recovery that
    followed it, and by no later one.
    """
    since, progress = draft.bookkeeping.interruption, context.progress(attempt)
    if since is None or progress is None or progress.step_time is None:
        return Findings()
    chains = _chains(progress, since)
    restored = [chain[-1] for chain in chains if chain[-1].kind is RecordKind.RESTORED]
    if chains and restored[-1:] == chains[-1][-1:] and not _stepped_since(progress, restored[-1]):
        return Findings()
    recoveries = [
        _recovery(chain, since.step if chain is chains[0] else 0)
        for chain in chains
        if not _only_grows(progress, chain)
    ]
    losses = _open(draft, since)
    followed: dict[int, list[Loss]] = {}
    for loss in losses:
        index = _followed_by(context, loss, recoveries, since, progress)
        if index is not None:
            followed.setdefault(index, []).append(loss)
    spent = lost_seconds(draft.status.goodput)
    # Of several restarts only the sum is known.
    measured = len(restored) == 1 and since.step
    seconds = round(max(spent - since.lost_seconds, 0.0), 1) if measured else None
    costs: dict[int, dict[str, Any]] = {}
    for index, together in followed.items():
        recovery = recoveries[index]
        if recovery.restored is None:
            continue
        payer = next(filter(recovery.names, together), together[0])
        went_on = _went_on_with(context, draft, progress, recovery.restored)
        action = f"{went_on}, in attempt {attempt}"
        for loss in together:
            cost = recovery.cost(pays=loss is payer, seconds=seconds)
            costs[loss.number] = {**cost, "action": action}
    if not costs and _has_stopped_nothing(context, progress, since, losses):
        action = f"training went on without a restart, in attempt {attempt}"
        cost = {"lost_steps": 0, "lost_seconds": 0, "action": action}
        costs = {loss.number: cost for loss in losses}
    left = [loss.number for loss in losses if loss.number not in costs]
    if left and not costs:
        return Findings()
    following = None
    if left:
        following = Interruption(
            first=left[0],
            fencing_token=progress.fencing_token,
            record=max(record.number for record in restored),
            step=progress.step,
            lost_seconds=spent,
        )
    return _with_costs(draft, costs, following)


def _chains(progress: Progress, since: Interruption) -> list[list[Record]]:
    """The losses and restores that the driver has recorded since, divided where a step was done."""
    chains: list[list[Record]] = []
    restored: Record | None = None
    # By time: that memory was full is recorded once training has continued.
    for record in sorted(progress.records, key=lambda record: (record.time, record.number)):
        known = (progress.fencing_token, record.number) <= (since.fencing_token, since.record)
        if known or not (record.kind.is_loss or record.kind is RecordKind.RESTORED):
            continue
        before = restored.step if restored is not None else None
        if not chains or (before is not None and (record.step or 0) > before):
            chains.append([])
            restored = None
        chains[-1].append(record)
        restored = record if record.kind is RecordKind.RESTORED else restored
    return chains


def _recovery(chain: Sequence[Record], step: int) -> _Recovery:
    """From the records of one, and the last step that the operator had read before it."""
    losses = [record for record in chain if record.kind.is_loss]
    restored = chain[-1] if chain[-1].kind is RecordKind.RESTORED else None
    begins = at = max(step, chain[0].step or 0)
    again = 0
    for record in chain:
        if record.step is None:
            continue
        if record.kind is RecordKind.RESTORED:
            again, at = again + max(at - record.step, 0), record.step
        else:
            at = max(at, record.step)
    return _Recovery(losses, restored, begins, again)


def _only_grows(progress: Progress, chain: Sequence[Record]) -> bool:
    """Whether a worker group began for its size alone, so that no loss came before it."""
    grew = {resize.time for resize in progress.resizes if resize.to_workers > resize.from_workers}
    return all(record.kind is RecordKind.RESTORED and record.time in grew for record in chain)


def _stepped_since(progress: Progress, restored: Record) -> bool:
    trains = progress.state in (RunState.TRAINING, RunState.SUCCEEDED)
    return trains and from_unix(progress.step_time or 0.0) >= from_unix(restored.time)


def _followed_by(
    context: ReconcileContext,
    loss: Loss,
    recoveries: Sequence[_Recovery],
    since: Interruption,
    progress: Progress,
) -> int | None:
    """Which recovery followed a loss: one that names it or, where none does, the next one in time.
    None: none did yet.
    """
    named = [number for number, recovery in enumerate(recoveries) if recovery.names(loss)]
    if not named and _may_train(context, loss, progress.attempt):
        return None
    for number in named or range(len(recoveries)):
        restored = recoveries[number].restored
        if restored is None or from_unix(restored.time) >= parsed(loss.time):
            return number
    if named:
        return named[-1]
    # A driver that is there now has begun after the head was lost, however late that was seen.
    newer = progress.fencing_token != since.fencing_token
    of_former = loss.number == since.first or loss.reason is LossReason.HEAD_LOST
    return 0 if recoveries and newer and of_former else None


def _may_train(context: ReconcileContext, loss: Loss, attempt: int) -> bool:
    """Whether a pod that was seen to be lost may still be there, such as one that was evicted."""
    if loss.reason is LossReason.HEAD_LOST:
        return False
    if context.unknown("Pod"):
        return bool(loss.pods)
    pods = (context.index(attempt).by_name.get(name) for name in loss.pods)
    return any(
        pod is not None and not pod_status.ended(pod) and pod_status.creation_text(pod) <= loss.time
        for pod in pods
    )


def _has_stopped_nothing(
    context: ReconcileContext, progress: Progress, since: Interruption, losses: Sequence[Loss]
) -> bool:
    """Whether the same driver has trained on without what was lost: a pod that waited to join, or
    one whose restart a record of another pod has explained.
    """
    if progress.state is not RunState.TRAINING or progress.fencing_token != since.fencing_token:
        return False
    if any(record.kind.is_loss and record.number > since.record for record in progress.records):
        return False
    ended = from_unix(progress.step_time or 0.0) - timedelta(seconds=GOES_ON_S)
    return all(
        bool(loss.pods or loss.node)
        and parsed(loss.time) <= ended
        and not _may_train(context, loss, progress.attempt)
        for loss in losses
    )


def _went_on_with(
    context: ReconcileContext, draft: StatusDraft, progress: Progress, restored: Record
) -> str:
    """How training continued, and with how many workers where that is fewer than all."""
    size, wanted = progress.world_size, context.wanted_workers(draft)
    for resize in reversed(progress.resizes):
        if resize.time <= restored.time:
            size = resize.to_workers
            break
        size = resize.from_workers
    if context.is_elastic and 0 < size < wanted:
        return f"went on with {size} of {wanted} workers: {restored.message}"
    return restored.message


def may_end(context: ReconcileContext, draft: StatusDraft, attempt: int) -> bool:
    """Whether an attempt may end of a loss that is counted: of one that was seen only now, or after
    which it is not known to have trained.
    """
    since, progress = draft.bookkeeping.interruption, context.progress(attempt)
    trained = from_unix((progress.step_time if progress else None) or 0.0)
    known = context.written.losses
    new = [loss for loss in draft.status.disruptions.history if loss.number > known]
    stopped = (
        loss
        for loss in (_open(draft, since) if since is not None else ())
        if seconds_since(loss.time, trained) < GOES_ON_S
    )
    return any(loss.attempt == attempt for loss in (*new, *stopped))


def close(draft: StatusDraft, action: str) -> Findings:
    """The run ends, and what the last losses have cost stays unknown."""
    since = draft.bookkeeping.interruption
    if since is None:
        return Findings()
    known = {loss.number: {"action": action} for loss in _open(draft, since)}
    return _with_costs(draft, known, None)


def lost_seconds(goodput: Goodput | None) -> float:
    """Seconds that losses have cost until now."""
    return goodput.lost_seconds.lost_work + goodput.lost_seconds.recovery if goodput else 0.0


def _open(draft: StatusDraft, since: Interruption) -> list[Loss]:
    """The losses whose cost is not known yet."""
    history = draft.status.disruptions.history
    return [loss for loss in history if loss.number >= since.first and not loss.action]


def _with_costs(
    draft: StatusDraft, costs: Mapping[int, Mapping[str, Any]], left: Interruption | None
) -> Findings:
    """With what is known now of some losses, by their number; None: no other one is left."""
    entries = [
        loss.model_copy(
            update={**cost, "action": short(cost["action"], SIGNS)}
            if (cost := costs.get(loss.number))
            else {}
        )
        for loss in draft.status.disruptions.history
    ]
    disruptions = draft.status.disruptions.model_copy(update={"history": entries})
    return Findings(status={"disruptions": disruptions}, bookkeeping={"interruption": left})
