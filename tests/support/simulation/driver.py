"""The runtime's driver in the head pod: it takes the lease, trains, and writes its document."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainingrun_protocol.progress import Progress, RecordKind, RunState

from ..builders import unix
from .machines import Pod

JOINING_S = 5.0
"""From the last worker's start until the first step."""

STEPS_PER_S = 1.0
RESIZE_S = 60.0
"""The default of `workers.resizeSeconds`."""
CHECKPOINT_STEPS = 20
LOST_S = 120.0
"""How long a node is said to be lost while fewer workers train than did."""


@dataclass(eq=False)
class Bucket:
    """What outlives every driver."""

    fencing_token: int = 0
    """The newest lease."""
    step: int = 0
    """The newest committed checkpoint."""
    committed_at: float = 0.0
    done: bool = False
    """A training has done all of its steps."""


@dataclass(eq=False)
class Driver:
    """One driver: from a submission until its head pod dies or it ends."""

    attempt: int
    head: Pod
    bucket: Bucket
    total: int
    count: int
    """Worker pods."""
    per_pod: int
    """Workers in each of them."""
    minimum: int | None = None
    """Worker pods with which it goes on; None: with all."""
    sizes: dict[int, float] = field(default_factory=dict)
    """Seconds of training with so many worker pods."""
    grouped_at: float = 0.0
    """When its worker group began."""
    fencing_token: int = 0
    state: RunState = RunState.STARTING
    step: float = 0.0
    resumed: int | None = None
    ready_at: float | None = None
    step_time: float | None = None
    group: list[Pod] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    failure: dict[str, str] | None = None
    exit_code: int | None = None
    mute: bool = False
    """It writes no document."""
    hung: bool = False
    """It does nothing at all."""
    asked: float | None = None
    """When it was asked to suspend."""
    storage_since: float | None = None
    """Since when its bucket does not answer."""
    anonymous: bool = False
    """Its records name no pods."""
    waiting: dict[str, Pod] = field(default_factory=dict)
    """Pods beside its group, by name."""
    lost_nodes: dict[str, float] = field(default_factory=dict)
    """Nodes that had a worker and of which Ray gets no heartbeat, with the time."""
    gone: list[str] = field(default_factory=list)
    """Names of those that have ended so."""
    killed: "tuple[dict[str, Any], Pod] | None" = None
    """The record of a process that the kernel has ended, of which the pod has not told yet."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.exit_code is not None

    @property
    def trains(self) -> bool:
        """Whether it does steps."""
        return self.state is RunState.TRAINING and not self.hung and not self.over

    def go_on(self, now: float, passed: float, workers: Sequence[Pod]) -> None:
        """Time passes; `workers` are those of its attempt that can be reached."""
        if self.over or self.hung:
            return
        if self.fencing_token == 0:
            self.bucket.fencing_token += 1
            self.fencing_token = self.bucket.fencing_token
        if self.fencing_token < self.bucket.fencing_token:
            self.fail(now, 3, None)
            return
        if self.asked is not None and now - self.asked >= 2:
            self._commit(now)
            self.state, self.exit_code = RunState.SUSPENDED, 75
            return
        joined = [pod for pod in workers if pod.head_uid == self.head.uid and pod.alive]
        self._tell_of_memory(joined)
        self._see_who_waits(joined)
        self._see_lost_nodes(now, joined)
        if self.state is RunState.TRAINING:
            self._train(now, passed, joined)
        else:
            self._gather(now, joined)

    def _train(self, now: float, passed: float, joined: list[Pod]) -> None:
        lost = [pod for pod in self.group if pod not in joined]
        terminating = [pod for pod in self.group if pod in joined and pod.terminating]
        if not lost and not terminating:
            before = self.step
            self.step = min(self.step + passed * STEPS_PER_S, self.total)
            size = len(self.group)
            self.sizes[size] = self.sizes.get(size, 0.0) + (self.step - before) / STEPS_PER_S
            self.step_time = now
            if self.storage_since is None and self.step - self.bucket.step >= CHECKPOINT_STEPS:
                self._commit(now)
            if self.step >= self.total and self.storage_since is None:
                self._commit(now)
                self.bucket.done = True
                self.state, self.exit_code = RunState.SUCCEEDED, 0
            elif self._can_grow(now, joined):
                self._commit(now)
                self.regroup()
            return
        if terminating and not lost and self.storage_since is None:
            self._commit(now)
        for pod in terminating:
            self.record(now, RecordKind.PREEMPTED, pod)
        for pod in lost:
            self.record(now, RecordKind.WORKER_LOST, pod)
        self.regroup()

    def regroup(self) -> None:
        """Its worker group has ended, and another one begins."""
        self.state, self.ready_at = RunState.RECOVERING, None

    def _gather(self, now: float, joined: list[Pod]) -> None:
        ready = [pod for pod in joined if not pod.terminating]
        if len(ready) < (self.minimum or self.count):
            self.ready_at = None
            return
        if self.ready_at is None:
            self.ready_at = now + JOINING_S
        if now < self.ready_at or self.storage_since is not None:
            return
        self.group, self.grouped_at = ready[: self.count], now
        self.state = RunState.TRAINING
        self.step = float(self.bucket.step)
        if self.resumed is None:
            self.resumed = self.bucket.step
        self.record(now, RecordKind.RESTORED, None)

    def _can_grow(self, now: float, joined: list[Pod]) -> bool:
        ready = sum(not pod.terminating for pod in joined)
        return (
            len(self.group) < min(ready, self.count)
            and now - self.grouped_at >= RESIZE_S
            and self.storage_since is None
        )

    def _commit(self, now: float) -> None:
        self.bucket.step = max(self.bucket.step, math.floor(self.step))
        self.bucket.committed_at = now

    def record(self, now: float, kind: RecordKind, pod: Pod | None) -> None:
        """Something happened inside the attempt."""
        named = pod is not None and not self.anonymous
        self.records.append(
            {
                "number": max((one["number"] for one in self.records), default=0) + 1,
                "kind": kind,
                "time": unix(now),
                "message": f"{kind.value}",
                "step": math.floor(self.step),
                "pod": pod.name if named and pod else None,
                "node": pod.node.name if named and pod and pod.node else None,
                "group_time": unix(self.grouped_at),
            }
        )

    def _rows(self) -> list[dict[str, Any]]:
        here = self.group if self.state is RunState.TRAINING and not self.anonymous else []
        return [{"rank": rank, "pod": pod.name} for rank, pod in enumerate(here)]

    def _see_who_waits(self, joined: list[Pod]) -> None:
        here = self.state is RunState.TRAINING
        self.gone += [name for name, pod in self.waiting.items() if pod not in joined]
        waiting = (pod for pod in joined if here and pod not in self.group and not pod.terminating)
        self.waiting = {pod.name: pod for pod in waiting}

    def _see_lost_nodes(self, now: float, joined: list[Pod]) -> None:
        for pod in self.group:
            if pod.node and (not pod.node.powered or pod.ray_ended_at is not None):
                self.lost_nodes.setdefault(pod.node.name, now)
        for pod in joined:
            if pod.node:
                self.lost_nodes.pop(pod.node.name, None)

    def _lost(self, now: float) -> list[str]:
        fewer = len(self.group) < self.count
        lost = self.lost_nodes.items()
        return sorted(name for name, since in lost if not fewer or now - since < LOST_S)

    def _tell_of_memory(self, joined: list[Pod]) -> None:
        """The rank that joins in the pod says why the one before it was lost."""
        if self.killed is None:
            return
        lost, pod = self.killed
        if pod in joined:
            number = max(one["number"] for one in self.records) + 1
            found = {"kind": RecordKind.OUT_OF_MEMORY, "pod": pod.name, "number": number}
            self.records = [one for one in self.records if one is not lost]
            self.records.append({**lost, **found, "group_time": unix(self.grouped_at)})
        self.killed = None

    def fail(self, now: float, code: int, failure: dict[str, str] | None) -> None:
        """It ends by itself; without a failure it leaves no document."""
        self.exit_code = code
        if failure is not None:
            self.state, self.failure = RunState.FAILED, failure

    def document(self, now: float) -> Progress | None:
        """What it serves; None: nothing yet."""
        if self.mute or (self.fencing_token == 0 and not self.over):
            return None
        step, committed = math.floor(self.step), self.bucket.step
        checkpoint = {
            "uri": f"s3://c/{committed}",
            "step": committed,
            "time": unix(self.bucket.committed_at),
        }
        return Progress.model_validate(
            {
                "attempt": self.attempt,
                "fencingToken": self.fencing_token,
                "state": self.state,
                "time": unix(now),
                "resumed_from_step": self.resumed,
                "step": step,
                "step_time": None if self.step_time is None else unix(self.step_time),
                "total_steps": self.total,
                "world_size": len(self.group) * self.per_pod,
                "ranks": self._rows(),
                "metrics": {"loss": 0.5},
                "checkpoint": checkpoint if committed else None,
                "records": self.records[-100:],
                "seconds": {"productive": float(step)},
                "sizes": [
                    {"workers": pods * self.per_pod, "seconds": seconds}
                    for pods, seconds in self.sizes.items()
                ],
                "lost_nodes": self._lost(now),
                "spare_pods": [*self.gone[-32:], *self.waiting],
                "storage_error": (
                    None if self.storage_since is None else "The bucket does not answer"
                ),
                "storage_error_since": (
                    None if self.storage_since is None else unix(self.storage_since)
                ),
                "failure": self.failure,
                "result": (
                    {"metrics": {"accuracy": 0.9}} if self.state is RunState.SUCCEEDED else None
                ),
            }
        )
