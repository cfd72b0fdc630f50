"""status.disruptions.history: each loss once, where it happened, what it cost and what was done.

An entry is made, corrected and taken out together with the count of its loss, in one write of the
status. What it cost is known once the training has continued: then goodput tells the seconds, and
the driver's records tell the steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainingrun_protocol.progress import Progress, RecordKind, RunState

from ...api.status import MOST_LOSSES, Goodput, Loss, LossReason
from ...rendering import platforms, scheduling
from ...rendering.scheduling import INSTANCE_TYPE, ZONE
from ..bookkeeping import Interruption
from ..context import ReconcileContext
from ..findings import Draft, Findings
from ..texts import from_unix, short

MOST_PODS = 8
"""Pods that an entry names."""
SIGNS = 300
"""Characters of an entry's `signs` and `action`."""
_LOST = frozenset(
    {
        RecordKind.PREEMPTED,
        RecordKind.WORKER_LOST,
        RecordKind.HANG,
        RecordKind.OUT_OF_MEMORY,
        RecordKind.APPLICATION_ERROR,
    }
)


class History:
    """The entries, while a reconcile changes them. Of a thousand losses at once few are kept, so
    that entries are made at the end.
    """

    def __init__(self, context: ReconcileContext, draft: Draft):
        """From what was written."""
        self._context, self._draft = context, draft
        self._entries: dict[int, Loss | dict[str, Any]] = {
            loss.number: loss for loss in draft.status.disruptions.history
        }
        # The bookkeeping may be lost, and the entries not.
        self._losses = max(draft.bookkeeping.losses, *self._entries, 0)
        self._first: int | None = None
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
        self._first, self._changed = self._first or self._losses, True
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

    def remove(self, number: int | None) -> None:
        """Another loss explains it."""
        self._changed |= self._entries.pop(number or 0, None) is not None

    def status(self) -> dict[str, Any]:
        """Fields of status.disruptions to change."""
        if not self._changed:
            return {}
        # Of what was written: this reconcile may have read of steps after the loss.
        step = self._context.written.last_step
        attempt = self._draft.status.attempt
        return {
            "history": [
                Loss(number=number, attempt=attempt, step=step, **self._fields(entry))
                if isinstance(entry, dict)
                else entry
                for number, entry in list(self._entries.items())[-MOST_LOSSES:]
            ]
        }

    def bookkeeping(self) -> dict[str, Any]:
        """Fields of the bookkeeping to change."""
        changes: dict[str, Any] = {"losses": self._losses} if self._changed else {}
        if self._first is not None and self._draft.bookkeeping.interruption is None:
            written = self._context.written
            changes["interruption"] = Interruption(
                first=self._first,
                fencing_token=written.fencing_token,
                record=written.records,
                step=written.last_step,
                lost_seconds=lost_seconds(self._context.run.status.goodput),
            )
        return changes

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


def settle(context: ReconcileContext, draft: Draft, attempt: int) -> Findings:
    """What the losses have cost, once the training has done a step after them."""
    open_losses, progress = draft.bookkeeping.interruption, context.progress(attempt)
    if open_losses is None or progress is None or progress.step_time is None:
        return Findings()
    since = (open_losses.fencing_token, open_losses.record)
    records = _records_since(progress, since)
    restored = [record for record in records if record.kind is RecordKind.RESTORED]
    if not restored or progress.state not in (RunState.TRAINING, RunState.SUCCEEDED):
        return Findings()
    if from_unix(progress.step_time) < from_unix(restored[-1].time):
        return Findings()
    again, step = 0, max(open_losses.step, _known_step(progress, records, since))
    at = step
    for record in records:
        if record.step is None:
            continue
        if record.kind is RecordKind.RESTORED:
            again, at = again + max(at - record.step, 0), record.step
        elif record.kind in _LOST:
            at = max(at, record.step)
    seconds = lost_seconds(draft.status.goodput) - open_losses.lost_seconds
    is_sweep = any(record.step is None for record in restored)  # whose trials have steps each
    return _settled(
        draft,
        step=None if is_sweep else step,
        lost_steps=None if is_sweep else again,
        lost_seconds=round(max(seconds, 0.0), 1) if open_losses.step and not is_sweep else None,
        action=f"{_went_on_with(context, draft, progress)}{restored[-1].message}, in attempt "
        f"{attempt}",
    )


def _went_on_with(context: ReconcileContext, draft: Draft, progress: Progress) -> str:
    """With how many workers, where that is fewer than all."""
    wanted = context.wanted_workers(draft)
    if not context.is_elastic or not 0 < progress.world_size < wanted:
        return ""
    return f"went on with {progress.world_size} of {wanted} workers: "


def close(draft: Draft, action: str) -> Findings:
    """The run ends, and what the last losses have cost stays unknown."""
    return _settled(draft, step=None, lost_steps=None, lost_seconds=None, action=action)


def lost_seconds(goodput: Goodput | None) -> float:
    """Seconds that losses have cost until now."""
    return goodput.lost_seconds.lost_work + goodput.lost_seconds.recovery if goodput else 0.0


def _records_since(progress: Progress, since: tuple[int, int]) -> list[Any]:
    found = (
        record for record in progress.records if (progress.fencing_token, record.number) > since
    )
    return sorted(found, key=lambda record: record.number)


def _known_step(progress: Progress, records: Iterable[Any], since: tuple[int, int]) -> int:
    """The step of the first loss, which the driver that survived it knows best."""
    if progress.fencing_token != since[0]:
        return 0
    first = next((record for record in records if record.step is not None), None)
    return int(first.step) if first is not None and first.kind in _LOST else 0


def _settled(
    draft: Draft,
    *,
    step: int | None,
    lost_steps: int | None,
    lost_seconds: float | None,
    action: str,
) -> Findings:
    open_losses = draft.bookkeeping.interruption
    if open_losses is None:
        return Findings()
    entries, first = [], True
    for entry in draft.status.disruptions.history:
        if entry.number < open_losses.first or entry.action:
            entries.append(entry)
            continue
        cost: dict[str, Any] = {"lost_steps": lost_steps, "lost_seconds": lost_seconds}
        if not first:
            cost = {name: None if value is None else 0 for name, value in cost.items()}
        elif step is not None:
            cost["step"] = step
        entries.append(entry.model_copy(update={**cost, "action": short(action, SIGNS)}))
        first = False
    disruptions = draft.status.disruptions.model_copy(update={"history": entries})
    return Findings(status={"disruptions": disruptions}, bookkeeping={"interruption": None})
