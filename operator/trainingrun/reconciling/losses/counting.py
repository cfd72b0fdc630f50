"""The losses that were counted, while a reconcile adds to them.

A loss has a key (a pod's UID, a node, a record), a reason and one place in status.disruptions. A
reason of higher precedence replaces it; what another loss explains carries no count of its own.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from datetime import datetime, timedelta
from typing import Any

from trainingrun_protocol.failure_rules import FailureFacts, first_match

from ...api.reasons import EventReason
from ...api.status import LossReason
from .. import pod_status
from ..bookkeeping import Bookkeeping, CountedDisruption
from ..context import ReconcileContext, is_of_a_pod, trains
from ..findings import Findings, StatusDraft
from ..model import Object, RunEvent
from ..pod_index import summary_of
from ..texts import from_unix, parsed, seconds_since, written
from . import avoided_nodes, capacity, out_of_memory
from .history import History
from .rule_counts import FOUND_LATER, entry_of, may_be_spared, met, paid, rule_counts
from .signs import HEALTHY_S, control_sign, well_since

SAME_LOSS_S = 60.0
"""A record that names no pod and a pod that ended belong together within so many seconds."""

NODE_SEEN_S = 300.0
"""A worker that was lost so many seconds before its node is seen to be lost was lost with it."""

TOLD_S = 15.0
"""A pod's end and, mostly, the driver's record of it are known so many seconds after the loss."""

MEMORY_S = 600.0
"""How long a pod that is gone is remembered while the driver's documents are read: no record about
it is written later than that."""

MOST_COUNTED = 100
"""Losses remembered of what is gone, the newest: as many as the records of one document, which may
name it. What is still there is remembered besides, or it would be counted once more."""

MOST_LOST_PLACES = 100
"""Lost workers of which the times are remembered, the newest: a pod that was forged before them is
none of the attempt's."""

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

    def __init__(self, context: ReconcileContext, draft: StatusDraft):
        """From what was counted so far."""
        self._context, self._draft = context, draft
        self._status, self._bookkeeping = draft
        self._now, self._written = context.now, written(context.now)
        self._history = History(context, draft)
        self._rules = context.run.spec.failures.contract_rules
        self.events: list[RunEvent] = []
        """Events of what was found, in order."""
        self.changes: dict[str, Any] = {}
        """Fields of the bookkeeping to change, other than the losses themselves."""
        self._lost_nodes: dict[str, str] = {}
        self._avoided: dict[str, tuple[str, bool]] = {}
        self._on_demand: str | None = None
        self._counted = dict(draft.bookkeeping.counted)
        self._failures_before = out_of_memory.failures(self._counted.values())
        self._met_before = met(self._counted.values())
        self._paid_before = paid(self._counted.values())
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

    def counted_around(self, when: datetime, pods: Iterable[Object]) -> bool:
        """Whether a pod's or node's loss was counted within a minute of `when`, or that of one of
        these pods, which ended then and was seen later.
        """
        ended = {
            pod_status.ended_at(pod)
            for pod in pods
            if (known := self._counted.get(pod_status.uid(pod))) and not known.spare
        }
        return any(
            abs((parsed(time) - when).total_seconds()) <= SAME_LOSS_S
            for time in (ended | self._pod_times) - {""}
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
        facts: FailureFacts | None = None,
        recorded: bool = False,
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
            created_at: When the pod was created.
            facts: What failures.rules ask for.
            recorded: Whether the driver has told of it, and no pod or node has.
        """
        known = self._counted.get(key)
        if known and (known.collateral or known.forgiven):
            return
        if known and known.recorded and not recorded:
            known = known.model_copy(update={"recorded": False})
            self._put(key, known)
        facts = _all_of(known.facts if known else None, facts)
        if known and PRECEDENCE[reason] <= PRECEDENCE[known.reason]:
            changed: dict[str, Any] = {}
            if facts != known.facts:
                changed = self._ruled(known.reason, facts, node, message)
            if created_at is not None and known.created_at is None:
                changed["created_at"] = created_at
            if changed:
                self._put(key, known.model_copy(update=changed))
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
                recorded=recorded and (known is None or known.recorded),
                **self._ruled(reason, facts, node, message),
            ),
        )
        self.events.append(RunEvent("Warning", EventReason(reason.value), message))

    def explain(self, pod: Object, reason: LossReason, by: str | None = None) -> None:
        """Remember a pod whose end another loss explains; if it was counted just now, it no longer
        is.

        Args:
            pod: The pod.
            reason: Of the other loss.
            by: Key of the other loss, where it takes over what is known of the cost.
        """
        key = pod_status.uid(pod)
        known = self._counted.get(key)
        if known and (known.collateral or known.forgiven):
            return
        if known and not by and not self._is_new(known) and not self._is_recent(known):
            return  # it was lost before: its pod only stayed, as where a kubelet hangs
        if known and by and not self._is_new(known):
            self.outlive(key, self._now - timedelta(seconds=NODE_SEEN_S))
            known = self._counted.get(key)
        if known:
            self._count(known.reason, -1)
            other = self._counted.get(by or "")
            self._history.remove(known.number, explained_by=other.number if other else None)
        time = known.time if known else self._written
        self._put(
            key,
            CountedDisruption(
                reason=reason,
                time=time,
                pod=pod_status.name(pod),
                created_at=pod_status.creation_text(pod) or None,
                collateral=True,
            ),
        )

    def lose_spare(
        self, key: str, pods: Sequence[Object], reason: LossReason, message: str
    ) -> None:
        """Remember the loss of pods in which no rank was: it costs nothing, and is not counted."""
        if key in self._counted:
            return
        for one, pod in ((key, pods[0]), *((pod_status.uid(pod), pod) for pod in pods)):
            name = pod_status.name(pod)
            known = CountedDisruption(
                reason=reason,
                time=self._written,
                pod=name,
                created_at=pod_status.creation_text(pod) or None,
                collateral=True,
                spare=True,
            )
            if one not in self._counted:
                self._put(one, known)
        self.events.append(
            RunEvent("Normal", EventReason.STANDBY_LOST, f"{message}; no rank was there")
        )

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
                self._move(former, key)
                return

    def outlive(self, key: str, until: datetime) -> None:
        """The pod of that key was there until then: what was lost in it before was a process.

        That loss gets a key of its own, which no later sign of the pod is about.
        """
        known = self._counted.get(key)
        if known is None or not known.recorded:
            return
        if parsed(known.time) >= until and not known.forgiven:
            return
        self._move(key, f"{key}/{known.time}", pod=None, recorded=False)

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

    def settle(self) -> None:
        """Let rules end the run for those losses of which enough is known.

        Other rules may be corrected, as the counts are. The end of a run is not: a spot node that
        vanishes is a lost worker for most of a minute, and what its pod shows may be known before
        what the rank has printed. Until then the run goes on.
        """
        for key, known in list(self._counted.items()):
            if not known.undecided or known.collateral:
                continue
            entry, facts = entry_of(self._draft, known), known.facts or FailureFacts()
            node, signs = (entry.node, entry.signs) if entry is not None else (None, "")
            rule = first_match(self._rules, known.reason.value, facts)
            if rule is None or rule.then != "Fail":  # the rules have changed
                changes = self._ruled(known.reason, known.facts, node, signs)
            elif self._may_be_spared(key, known, facts, node):
                continue
            else:
                changes = {"rule": rule.key}
            self._put(key, known.model_copy(update={"undecided": False, **changes}))

    def _may_be_spared(
        self, key: str, known: CountedDisruption, facts: FailureFacts, node: str | None
    ) -> bool:
        """Whether no rule may end the run for a loss after all."""
        lost_s = seconds_since(known.time, self._now)
        # Of a pod in which a rank trains again, see `outlive`, all has been told.
        outlived = key.endswith(f"/{known.time}")
        more = not outlived and lost_s < (TOLD_S if self._is_told(known) else HEALTHY_S)
        lost = known.reason is LossReason.WORKER_LOST and not outlived
        classes = [known.reason]
        if lost and not self._class_is_certain(known, node, lost_s):
            classes += FOUND_LATER
        return may_be_spared(self._rules, classes, facts, more=more)

    def _is_told(self, known: CountedDisruption) -> bool:
        """Whether the driver has told of a loss, or is not to be waited for."""
        number = self._draft.status.attempts[-1].number
        progress = self._context.progress(number)
        if known.recorded or known.pod is None or known.reason is LossReason.HEAD_LOST:
            return True
        if not self._context.driver_has_answered(number):
            return True
        records = progress.records if progress is not None else ()
        return any(one.pod == known.pod and one.kind.is_disruption for one in records)

    def _class_is_certain(self, known: CountedDisruption, node: str | None, lost_s: float) -> bool:
        """Whether a worker that was lost without notice will prove to be nothing else."""
        if lost_s < TOLD_S or self._is_new(known):
            return False
        if lost_s >= NODE_SEEN_S:
            return True
        state = self._context.node(node)
        if state is not None:
            return well_since(self._context, state, lost_s)
        return lost_s >= HEALTHY_S and not self._context.unknown("Node")

    def leave_node(self, node: str, reason: str) -> None:
        """Exclude a node that is well, from the next pods on."""
        self._avoided[node] = (reason, False)

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
        self._forget_explained()
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

    def _forget_explained(self) -> None:
        """Forget the pods that live on though another loss explains their end: a node was back
        before its pods were deleted, or a queue let the RayJob go on before KubeRay acted. What
        happens to such a pod later is a loss of its own.

        Once steps are done for a while, what the driver records of the former loss has been read.
        """
        context, number = self._context, self._draft.status.attempts[-1].number
        progress, job = context.live_progress(number), context.job(number)
        if progress is None or not trains(progress) or job is None:
            return
        # KubeRay ends what it has begun to suspend, also where the queue lets it go on meanwhile.
        if (job.get("status") or {}).get("jobDeploymentStatus") in ("Suspending", "Suspended"):
            return
        trained = min(from_unix(progress.step_time or 0.0), self._now)
        pods = context.index(number).by_uid
        for key, known in list(self._counted.items()):
            pod = pods.get(key)
            if not known.collateral or known.spare or pod is None:
                continue
            if seconds_since(known.time, trained) >= SAME_LOSS_S and self._lives_on(pod, number):
                del self._counted[key]
                self._changed = True

    def _lives_on(self, pod: Object, attempt: int) -> bool:
        """Whether neither the pod nor its node shows any sign of a loss."""
        node = self._context.node(pod_status.node_name(pod))
        return (
            node is not None
            and control_sign(self._context, node) is None
            and not self._context.is_lost_by_ray(attempt, node)
            and summary_of(pod).well
            and (pod_status.condition(pod, "Ready") or {}).get("status") != "False"
        )

    @property
    def head(self) -> str | None:
        """UID of the attempt's head pod, as it is known now."""
        return self.changes.get("head", self._bookkeeping.head)

    def findings(self) -> Findings:
        """What was counted and found."""
        failed = out_of_memory.failures(self._counted.values()) - self._failures_before
        self._counts["out_of_memory"] += failed
        rules = met(self._counted.values())
        rules.subtract(self._met_before)
        free = paid(self._counted.values())
        free.subtract(self._paid_before)
        free[out_of_memory.FORGIVEN] = free["application"]  # rules pay for no other one here
        crashed_heads, crashed_workers = 0, 0
        places = list(self._bookkeeping.lost_places)
        for key in sorted(self._dropped):
            known = self._counted.pop(key)
            if known.created_at and is_of_a_pod(key):
                places.append((known.created_at, known.time))
            crashed_heads += ended_by_itself(known, LossReason.HEAD_LOST)
            crashed_workers += ended_by_itself(known, LossReason.WORKER_LOST)
        changes = dict(self.changes)
        if self._changed or self._dropped:
            changes |= {
                "counted": self._counted,
                "crashed_heads": self._bookkeeping.crashed_heads + crashed_heads,
                "crashed_workers": self._bookkeeping.crashed_workers + crashed_workers,
                "lost_places": sorted(places, key=lambda place: place[1])[-MOST_LOST_PLACES:],
            }
        if self._lost_nodes:
            changes |= self._nodes()
        changes |= self._history.bookkeeping()
        avoided, excluded = avoided_nodes.avoid(self._context, self._bookkeeping, self._avoided)
        changes |= avoided
        changes |= rule_counts(self._bookkeeping, self._rules, rules, free, self._written)
        moved = Findings()
        if self._on_demand is not None:
            moved = capacity.to_on_demand(self._context, self._draft, self._on_demand)
        return Findings(
            status={**self._disruptions(), **moved.status},
            bookkeeping={**changes, **moved.bookkeeping},
            events=(*self.events, *excluded, *moved.events),
            charged=self._charged(failed, free)
            | {key for key, count in rules.items() if count > 0},
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

    def _charged(self, memory: int, free: Counter[str]) -> frozenset[str]:
        hangs = self._counts["hangs"]
        new = {
            "application": memory,
            "hang": hangs,
            "infrastructure": sum(self._counts.values()) - memory - hangs,
        }
        return frozenset(name for name, count in new.items() if count > max(free[name], 0))

    def _ruled(
        self, reason: LossReason, facts: FailureFacts | None, node: str | None, message: str
    ) -> dict[str, Any]:
        """Fields of a counted loss: what is known of it, and which rule it meets. One that ends the
        run is left to `settle`.
        """
        if facts is not None and facts.bad_node and node:
            self._avoided[node] = (facts.bad_node, True)
        if not self._rules:
            return {"facts": facts} if facts is not None and facts.bad_node else {}
        rule = first_match(self._rules, reason.value, facts or FailureFacts())
        if rule is not None and rule.then == "RestartOnOtherNode" and node:
            number = self._rules.index(rule) + 1
            self._avoided.setdefault(node, (f"by rule {number}, as {message}", True))
        if rule is not None and rule.then == "RestartOnDemand":
            self._on_demand = capacity.by_rule(self._rules.index(rule) + 1, message)
        ends = rule is not None and rule.then == "Fail"
        # Of a worker in a sweep: its trial's driver ends that trial by the same rule.
        undecided = ends and (
            self._context.run.spec.sweep is None or reason is LossReason.HEAD_LOST
        )
        return {
            "facts": facts,
            "rule": rule.key if rule and not ends else None,
            "rule_pays": rule is not None and rule.has_own_budget,
            "undecided": undecided,
        }

    def _is_new(self, known: CountedDisruption | None) -> bool:
        """Whether a loss, however old it is, is seen only now: nodes are looked at after it."""
        number = (known.number if known is not None else None) or 0
        return number > self._context.written.losses

    def _is_recent(self, known: CountedDisruption) -> bool:
        return abs((parsed(known.time) - self._now).total_seconds()) <= SAME_LOSS_S

    def _count(self, reason: LossReason, number: int) -> None:
        if reason is not LossReason.OUT_OF_MEMORY:  # counted by failure, at the end
            self._counts[COUNTERS[reason]] += number

    def _move(self, former: str, key: str, **changes: Any) -> None:
        """Give a loss another key, so that later signs of its pod are not about it."""
        known = self._counted.pop(former)
        self._records.pop(former, None)
        if known.pod is not None and self._by_pod.get(known.pod) == former:
            del self._by_pod[known.pod]
        self._put(key, known.model_copy(update=changes))

    def _put(self, key: str, entry: CountedDisruption) -> None:
        self._counted[key] = entry
        self._index(key, entry)
        self._changed = True

    def _index(self, key: str, entry: CountedDisruption) -> None:
        if entry.pod is not None:
            self._by_pod.setdefault(entry.pod, key)
        if key.startswith("record:"):
            self._records[key] = entry
        elif not entry.spare:
            self._pod_times.add(entry.time)


def _all_of(one: FailureFacts | None, other: FailureFacts | None) -> FailureFacts | None:
    return one.with_more(other) if one is not None and other is not None else one or other


def ended_by_itself(known: CountedDisruption, reason: LossReason) -> bool:
    """Whether a head or worker was seen to end by itself, for that reason.

    Only those that were seen to end count: one that is deleted with notice leaves no message.
    Memory bounds itself by failures.maxRestarts, unless a rule pays for it.
    """
    alike = known.reason is reason or (known.rule_pays and known.reason is LossReason.OUT_OF_MEMORY)
    return bool(known.termination_message) and not known.collateral and alike


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
