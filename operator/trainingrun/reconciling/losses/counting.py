"""The losses that were counted, while a reconcile adds to them.

A loss has a key (a pod's UID, a node, a record), a reason and one place in status.disruptions. A
reason of higher precedence replaces it; what another loss explains carries no count of its own.
"""

from collections import Counter
from collections.abc import Sequence, Set
from datetime import datetime, timedelta
from typing import Any

from ...api.reasons import EventReason
from ...api.status import Budget, LossReason
from ..bookkeeping import Bookkeeping, CountedDisruption
from ..context import ReconcileContext
from ..findings import Draft, Findings
from ..model import RunEvent
from ..texts import parsed, written
from . import out_of_memory
from .history import History

SAME_LOSS_S = 60.0
"""A record that names no pod and a pod that ended belong together within so many seconds."""

MEMORY_S = 600.0
"""How long a pod that is gone is remembered while the driver's documents are read: no record about
it is written later than that."""

MOST_COUNTED = 100
"""Losses remembered of what is gone, the newest: as many as the records of one document, which may
name it. What is still there is remembered besides, or it would be counted once more."""

MOST_LOST_NODES = 100
"""Lost nodes remembered, the newest: pods exclude so many at most."""

COUNTERS = {
    LossReason.PREEMPTED: "preemptions",
    LossReason.EVICTED: "preemptions",
    LossReason.NODE_LOST: "node_losses",
    LossReason.HEAD_LOST: "head_losses",
    LossReason.WORKER_LOST: "worker_failures",
    LossReason.INFRASTRUCTURE_ERROR: "worker_failures",
    LossReason.HANG: "hangs",
    LossReason.OUT_OF_MEMORY: "out_of_memory",
}
"""The field of status.disruptions that counts it."""

PRECEDENCE = {
    LossReason.WORKER_LOST: 0,
    LossReason.INFRASTRUCTURE_ERROR: 0,
    LossReason.PREEMPTED: 1,
    LossReason.EVICTED: 1,
    LossReason.HEAD_LOST: 1,
    LossReason.HANG: 2,
    LossReason.NODE_LOST: 2,
    LossReason.OUT_OF_MEMORY: 3,
}
"""Of two reasons for one loss, the one of higher precedence is kept."""


class Losses:
    """The losses of one attempt, and what a reconcile adds to them."""

    def __init__(self, context: ReconcileContext, draft: Draft):
        """From what was counted so far."""
        self._status, self._bookkeeping = draft
        self._now, self._written = context.now, written(context.now)
        self._history = History(context, draft)
        self.events: list[RunEvent] = []
        """Events of what was found, in order."""
        self.changes: dict[str, Any] = {}
        """Fields of the bookkeeping to change, other than the losses themselves."""
        self._lost_nodes: dict[str, str] = {}
        self._counted = dict(draft.bookkeeping.counted)
        self._failures_before = out_of_memory.failures(self._counted.values())
        self._counts: Counter[str] = Counter()
        self._dropped: set[str] = set()
        self._changed = False
        self._by_pod: dict[str, str] = {}
        self._records: dict[str, CountedDisruption] = {}
        self._pod_times: set[str] = set()
        for key, known in self._counted.items():
            self._index(key, known)

    def __contains__(self, key: str) -> bool:
        """Whether it is known, counted or explained."""
        return key in self._counted

    def explained(self, key: str) -> bool:
        """Whether another loss explains it."""
        known = self._counted.get(key)
        return known is not None and known.collateral

    def key_of(self, pod: str) -> str | None:
        """The key under which a pod of this name is known."""
        return self._by_pod.get(pod)

    def counted_around(self, when: datetime) -> bool:
        """Whether a pod's or node's loss was counted within a minute of `when`."""
        return any(
            abs((parsed(time) - when).total_seconds()) <= SAME_LOSS_S for time in self._pod_times
        )

    def count_disruption(
        self,
        key: str,
        reason: LossReason,
        when: datetime,
        message: str,
        *,
        pod: str | None = None,
        pods: Sequence[str] = (),
        node: str | None = None,
        termination_message: str = "",
        ended: str | None = None,
        created_at: str | None = None,
    ) -> None:
        """Count a loss, unless it is counted; a reason of higher precedence replaces the former.

        Args:
            key: What was lost.
            reason: Why.
            when: When it was seen or recorded.
            message: For the event and the history.
            pod: Name of the pod, as in the runtime's records.
            pods: Names of all pods that were lost with it. Default: `pod`.
            node: On which it happened.
            termination_message: How its container ended.
            ended: When the container ended, where it ran out of memory.
            created_at: When the pod was created, where it ran out of memory.
        """
        known = self._counted.get(key)
        if known and (known.collateral or PRECEDENCE[reason] <= PRECEDENCE[known.reason]):
            return
        if known:
            self._count(known.reason, -1)
        self._count(reason, 1)
        time = known.time if known else self._written if when is self._now else written(when)
        pods = pods or ([pod] if pod else ())
        number = known.number if known else None
        if number is None:
            number = self._history.add(reason, time, message, pods=pods, node=node)
        else:
            self._history.correct(number, reason=reason, signs=message, pods=pods, node=node)
        self._put(
            key,
            CountedDisruption(
                reason=reason,
                time=time,
                pod=pod or (known and known.pod),
                termination_message=termination_message,
                ended=ended,
                created_at=created_at,
                number=number,
            ),
        )
        self.events.append(RunEvent("Warning", EventReason(reason.value), message))

    def explain(self, key: str, pod: str, reason: LossReason) -> None:
        """Remember a pod whose end another loss explains; if it was counted, it no longer is."""
        known = self._counted.get(key)
        if known and known.collateral:
            return
        if known:
            self._count(known.reason, -1)
            self._history.remove(known.number)
        time = known.time if known else self._written
        self._put(key, CountedDisruption(reason=reason, time=time, pod=pod, collateral=True))

    def rename(self, pod: str, when: datetime, key: str) -> None:
        """Give the loss of a worker a key of its own, where its pod lives on.

        Args:
            pod: Name of the pod.
            when: When it was recorded.
            key: The new one.
        """
        time = written(when)
        for former, known in self._counted.items():
            lost = known.reason is LossReason.WORKER_LOST and not known.collateral
            if lost and known.pod in (pod, None) and known.time == time:
                del self._counted[former]
                self._records.pop(former, None)
                if self._by_pod.get(pod) == former:
                    del self._by_pod[pod]
                self._put(key, known)
                return

    def adopt_record(self, uid: str, pod: str, node: str | None) -> None:
        """Let the pod take over the count of a record that came first and is about it.

        That is one with its name, or one without a name that came shortly before.
        """
        if uid in self._counted:
            return
        for key, known in self._records.items():
            # A pod outlives what ends a process in it, and its own loss may come much later.
            named = known.pod == pod and (
                known.reason not in (LossReason.HANG, LossReason.OUT_OF_MEMORY)
                or self._is_recent(known)
            )
            if named or (known.pod is None and self._is_recent(known)):
                del self._counted[key], self._records[key]
                self._put(uid, known.model_copy(update={"pod": pod}))
                self._history.correct(known.number, pods=[pod], node=node)
                return

    def lose_node(self, node: str, hostname: str) -> None:
        """Remember a node that was just lost, for pods to exclude."""
        self._lost_nodes[node] = hostname

    def reopen_node(self, node: str) -> None:
        """A node that came back is counted anew if it is lost once more."""
        known = self._counted.pop(f"node:{node}", None)
        if known:
            self._put(f"node:{node}/{known.time}", known)

    def forget(self, alive: Set[str], *, silent_s: float, all_recent: bool) -> None:
        """Drop what can be observed no more: what is long gone, and the oldest of too many.

        Args:
            alive: What may be observed still.
            silent_s: Seconds since the driver's document was read: the next one may have a record
                of each loss since.
            all_recent: Whether nothing counts as long gone.
        """
        if not self._counted:
            return
        oldest = written(self._now - timedelta(seconds=MEMORY_S + silent_s))
        gone = [
            key
            for key, known in self._counted.items()
            if known.time <= oldest and key not in alive and not all_recent
        ]
        kept = alive | set(gone)
        rest = [key for key in self._counted if key not in kept]
        if len(rest) > MOST_COUNTED:
            # Those of one time in their order: the first was recorded first.
            gone += sorted(rest, key=lambda key: self._counted[key].time)[:-MOST_COUNTED]
        self._dropped.update(gone)

    @property
    def head(self) -> str | None:
        """UID of the attempt's head pod, as it is known now."""
        return self.changes.get("head", self._bookkeeping.head)

    def findings(self) -> Findings:
        """What was counted and found."""
        failed = out_of_memory.failures(self._counted.values()) - self._failures_before
        self._counts["out_of_memory"] += failed
        crashed_heads, crashed_workers = 0, 0
        for key in self._dropped:
            known = self._counted.pop(key)
            crashed_heads += ended_by_itself(known, LossReason.HEAD_LOST)
            crashed_workers += ended_by_itself(known, LossReason.WORKER_LOST)
        changes = dict(self.changes)
        if self._changed or self._dropped:
            changes |= {
                "counted": self._counted,
                "crashed_heads": self._bookkeeping.crashed_heads + crashed_heads,
                "crashed_workers": self._bookkeeping.crashed_workers + crashed_workers,
            }
        if self._lost_nodes:
            changes |= self._nodes()
        changes |= self._history.bookkeeping()
        return Findings(
            status=self._disruptions(),
            bookkeeping=changes,
            events=tuple(self.events),
            charged=self._charged(failed),
        )

    def _nodes(self) -> dict[str, Any]:
        known = self._bookkeeping
        nodes = {**dict.fromkeys(self._lost_nodes, self._written), **known.lost_nodes}
        newest = sorted(nodes, key=lambda node: nodes[node])[-MOST_LOST_NODES:]
        names = {**self._lost_nodes, **known.hostnames}
        return {
            "lost_nodes": {node: nodes[node] for node in newest},
            "hostnames": {node: names[node] for node in newest if names.get(node, node) != node},
        }

    def _disruptions(self) -> dict[str, Any]:
        changes = {name: number for name, number in self._counts.items() if number}
        history = self._history.status()
        if not changes and not history:
            return {}
        counts = self._status.disruptions
        new = {name: max(getattr(counts, name) + number, 0) for name, number in changes.items()}
        return {"disruptions": counts.model_copy(update={**new, **history})}

    def _charged(self, memory: int) -> frozenset[Budget]:
        charged: set[Budget] = set()
        hangs = self._counts["hangs"]
        if memory > 0:
            charged.add("application")
        if hangs > 0:
            charged.add("hang")
        if sum(self._counts.values()) - memory - hangs > 0:
            charged.add("infrastructure")
        return frozenset(charged)

    def _is_recent(self, known: CountedDisruption) -> bool:
        return abs((parsed(known.time) - self._now).total_seconds()) <= SAME_LOSS_S

    def _count(self, reason: LossReason, number: int) -> None:
        if reason is not LossReason.OUT_OF_MEMORY:  # counted by failure, at the end
            self._counts[COUNTERS[reason]] += number

    def _put(self, key: str, entry: CountedDisruption) -> None:
        self._counted[key] = entry
        self._index(key, entry)
        self._changed = True

    def _index(self, key: str, entry: CountedDisruption) -> None:
        if entry.pod is not None:
            self._by_pod.setdefault(entry.pod, key)
        if key.startswith("record:"):
            self._records[key] = entry
        else:
            self._pod_times.add(entry.time)


def ended_by_itself(known: CountedDisruption, reason: LossReason) -> bool:
    """Whether a head or worker was seen to end by itself, for that reason.

    Only those that were seen to end count: one that is deleted with notice leaves no message.
    """
    return bool(known.termination_message) and not known.collateral and known.reason is reason


def after_new_step(bookkeeping: Bookkeeping) -> dict[str, Any]:
    """Changes once a step is done that was not done before: what ended by itself until then says
    nothing about the pods that are there now.
    """
    changes: dict[str, Any] = {}
    if bookkeeping.crashed_heads or bookkeeping.crashed_workers:
        changes |= {"crashed_heads": 0, "crashed_workers": 0}
    if any(known.termination_message for known in bookkeeping.counted.values()):
        changes["counted"] = {
            key: known.model_copy(update={"termination_message": ""})
            for key, known in bookkeeping.counted.items()
        }
    return changes
