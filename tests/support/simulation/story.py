"""A story: what happens to one run, step by step, and the operator's answer to each step.

A step is one whole number, so that stories are drawn fast and shrink well: 0 is a step in which
nothing happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from trainingrun.reconciling import Plan, plan
from trainingrun_protocol.progress import Progress

from ..builders import at
from . import invariants
from .faults import FAULTS, GROUPS, Fault
from .operator import Operator, View
from .world import World

QUIET = 120
"""Of 256 steps, so many are quiet."""

DEAFENING = frozenset(
    {"pods", "nodes", "memory", "stuck", "rayjobs", "silence", "staleness", "queue", "crd"}
)
"""Groups of faults that may keep a driver's last document from being read."""

PAUSES_S = (2, 2, 2, 5, 5, 10, 20, 40)

STEP_BITS = 24

FINISH_WITHIN_S = 4 * 3600.0
"""Simulated time in which a run ends once nothing is wrong any more."""

CONVERGES_WITHIN = 6
"""Reconciles at one time until nothing changes any more."""


@dataclass(eq=False)
class Story:
    """One run's life."""

    world: World = field(default_factory=World)
    spec: dict[str, Any] = field(default_factory=dict)
    groups: Collection[str] = tuple(GROUPS)
    plan: Callable[..., Plan] = plan
    trace: list[str] = field(default_factory=list)
    documents: list[Progress] = field(default_factory=list)
    steps: int = 0
    last_fault: float = 0.0
    last_trained: float = 0.0
    """When a step was done, or a RayJob's state changed."""
    awake_since: float = 0.0
    """Since when the operator has reconciled without dying."""
    away_until: float = 0.0
    """When the operator was there again."""
    views: deque[View] = field(default_factory=lambda: deque(maxlen=6))
    """What was so lately, where a standby may lag."""

    def __post_init__(self) -> None:
        world = self.world
        workers: dict[str, Any] = {"count": world.count * world.per_pod, "perPod": world.per_pod}
        if world.minimum is not None:
            workers["minimum"] = world.minimum * world.per_pod
        if world.standby:
            workers["standby"] = world.standby
        if world.spot:
            fallback = {"afterPreemptions": 1, "afterPendingSeconds": 30, "returnAfterSeconds": 300}
            workers["capacity"] = {"type": "Spot", "fallback": fallback}
        spec = {"workers": workers, **self.spec}
        self.operator = Operator(world, spec, self.plan)

    @property
    def status(self) -> dict[str, Any]:
        """The status that was last written."""
        return self.operator.status

    # One step

    def step(self, number: int) -> None:
        """Something happens or nothing, time passes, and the operator reconciles."""
        self.steps += 1
        found, choice = decoded(number)
        if found is not None and found.group in self.groups:
            self.happen(found, choice)
        crash = self._crash(number >> 19) if "crashes" in self.groups else None
        self.go_on(PAUSES_S[(number >> 16) & 7], crash)
        if self.steps % 4 == 0 and crash is None and not self.world.run_deleted:
            self.converge()

    def happen(self, found: Fault, choice: int) -> None:
        """One fault."""
        self.trace.append(f"{self.world.now:.0f} s: {found.happen.__name__} ({choice})")
        if found.group not in ("time", "restarts"):
            self.last_fault = self.world.now
        found.happen(self, choice)

    @staticmethod
    def _crash(number: int) -> int | None:
        """None: no crash; else the actions before it. -1: before the status is written."""
        number &= 31
        return (-1, 0, 1, 2, 3, 4, 9)[number - 1] if 1 <= number <= 7 else None

    def go_on(self, seconds: float, crash: int | None = None) -> None:
        """Time passes, and the operator polls and reconciles."""
        driver = self.world.driver
        trained = driver is not None and driver.trains
        states = self.world.states_of_jobs()
        if "failover" in self.groups:
            self.views.append(self.operator.view())
        self.world.pass_time(seconds)
        if trained or self.world.states_of_jobs() != states:
            # Perhaps to its end, in a time of hours: the operator sees it only now.
            self.last_trained = self.world.now
        if self.operator.down or self.world.run_deleted:
            return
        self.operator.poll()
        self.reconcile(crash)
        self.operator.events_arrive()

    def reconcile(self, crash: int | None = None) -> Plan:
        """One reconcile, and what must hold after it."""
        if crash is not None:
            self.trace.append(f"{self.world.now:.0f} s: crash after {crash} actions")
            self.awake_since = self.world.now
        before = invariants.Before.of(self)
        made = self.operator.reconcile(crash)
        driver = self.world.driver
        if driver is not None:
            if driver.trains:
                self.last_trained = self.world.now
            document = driver.document(self.world.now)
            if document is not None:
                self.documents = [*self.documents[-20:], document]
        invariants.hold(self, before, made)
        return made

    def wait(self, seconds: float) -> None:
        """A longer time, in which the operator reconciles now and then, if it is there."""
        pause, left = 2.0, seconds
        while left > 0:
            pause = min(pause * 1.7, left)
            left -= pause
            self.go_on(pause)

    def converge(self) -> None:
        """At one time a few reconciles come to rest: no status, no action that is new."""
        for _ in range(CONVERGES_WITHIN):
            before, writes = self.status, self.operator.writes
            made = self.reconcile()
            if self.world.run_deleted:
                return
            if self.status == before and self.operator.writes == writes:
                break
        else:
            raise AssertionError(f"no rest: {made.actions}")
        invariants.at_rest(self)
        assert made.requeue_after_s is None or made.requeue_after_s >= 0.5, (
            "reconciles without a pause"
        )

    @property
    def deafening(self) -> bool:
        """Whether a driver's last document may never be read: its exit code alone speaks then."""
        return bool(DEAFENING & set(self.groups))

    # What users and time do

    def change(self, **spec: Any) -> None:
        """The user edits the spec."""
        self.operator.spec = {**self.operator.spec, **spec}
        self.operator.generation += 1

    def stamp(self) -> str:
        """Now, as Kubernetes writes it."""
        return at(self.world.now)

    def repair_nodes(self) -> None:
        """Every node is there and well; pods that were on a dead one have ended or are gone."""
        world = self.world
        for node in world.nodes.values():
            pods = [pod for pod in world.pods if pod.node is node]
            if not node.powered:
                for pod in pods:
                    if pod.terminating:
                        world.remove_pod(pod)
                    elif pod.phase == "Running":
                        pod.end(world.now, 137)
            node.powered, node.kubelet, node.exists = True, True, True
            node.silent_since = None
            node.taints.clear()

    def heal(self) -> None:
        """Every fault is repaired."""
        world, operator = self.world, self.operator
        self.repair_nodes()
        for pod in world.pods:
            pod.hangs = False
            if pod.blocked:
                pod.blocked = None
        world.kuberay_away = world.finalizer_stays = world.invalid_jobs = False
        world.pod_quota = world.polls_fail = world.anonymous_records = False
        world.unable = world.hangs_in = world.storage_since = None
        if world.driver:
            world.driver.mute = world.driver.hung = False
            world.driver.storage_since = None
        world.foreign.clear()
        operator.stale.clear()
        operator.refuses = {}
        operator.kuberay, operator.deaf, operator.down = "ok", False, False
        operator.broken_spec = False
        self.change(suspend=False)
        self.last_fault = world.now
        for job in world.jobs.values():
            job["spec"]["suspend"] = False
        self.trace.append(f"{world.now:.0f} s: everything is well again")

    def finish_soon(self) -> None:
        """A few steps are left."""
        self.world.total_steps = self.world.bucket.step + 30
        if self.world.driver:
            self.world.total_steps = max(self.world.total_steps, round(self.world.driver.step) + 10)
            self.world.driver.total = self.world.total_steps

    def end(self) -> None:
        """Heal everything: the run must end, well or with a reason, within bounded time.

        Of a deleted run nothing but the object may be left.
        """
        if self.world.run_deleted:
            return
        self.heal()
        self.finish_soon()
        until = self.world.now + FINISH_WITHIN_S
        while not ((self.over or self.operator.deleted) and self.world.empty):
            made = self.reconcile()
            assert self.world.now < until, (
                f"does not end: {self.status.get('phase')}, {self.world.left()}"
            )
            self.go_on(min(max(made.requeue_after_s or 30.0, 2.0), 60.0))
            if self.world.run_deleted:
                return

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return "completionTime" in self.status

    def __repr__(self) -> str:
        return "\n".join(
            [f"groups {sorted(self.groups)}; spec {self.operator.spec}", *self.trace[-60:]]
        )


def decoded(number: int) -> tuple[Fault | None, int]:
    """What happens in a step, and the number by which it chooses."""
    index, choice = number & 255, (number >> 8) & 255
    found = FAULTS[(index - QUIET) % len(FAULTS)] if index >= QUIET else None
    return found, choice
