"""The controller: observe, plan, act, write the status, poll; and it dies in between."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from trainingrun.api.status import RunStatus
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.cluster.api_client import ClusterError, Rejected
from trainingrun.cluster.live_cluster import exclusion_patch, placement_patch, scale_patch
from trainingrun.cluster.parsing import parse
from trainingrun.controller.write_limits import ActionRetries
from trainingrun.reconciling import Observed, Plan, ReconcileSettings, plan
from trainingrun.reconciling.model import (
    Action,
    Apply,
    Delete,
    EnsureToken,
    ExcludeNodes,
    NodeState,
    PlaceWorkers,
    RequestSuspend,
    ScaleWorkers,
    key_of,
)
from trainingrun.reconciling.pod_status import controller_uid, named_head
from trainingrun.rendering import RenderSettings
from trainingrun_protocol.progress import Progress

from ..builders import T0, a_run
from ..json_patch import patched
from .machines import Pod
from .world import World, is_forged

RENDER, SETTINGS = RenderSettings(), ReconcileSettings()

FOREIGN = "example.org/someone-else"
"""The finalizer that holds a deleted run."""

Objects = dict[str, dict[str, Any]]
"""Manifests by UID."""


class View(NamedTuple):
    """What was so at a time: manifests by kind, and nodes by name."""

    time: float
    objects: dict[str, Objects]
    nodes: dict[str, NodeState]


@dataclass(eq=False)
class Polls:
    """What the poller of this process knows."""

    document: Progress | None = None
    fetched_at: float | None = None
    failing_since: float | None = None
    polled_since: float | None = None
    """When the head pod that is there now was polled first."""
    pod_uid: str = ""
    followed: bool = False


@dataclass(eq=False)
class Operator:
    """One operator, restarted now and then; the status is all that it keeps."""

    world: World
    spec: dict[str, Any]
    plan: Callable[..., Plan] = plan
    status: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    broken_spec: bool = False
    deleted: bool = False
    """The run was deleted, and a finalizer of someone else holds it."""
    polls: Polls = field(default_factory=Polls)
    stale: dict[str, tuple[str, Objects]] = field(default_factory=dict)
    """Kinds of which watches fail: the reason, and what was known last."""
    frozen_nodes: dict[str, NodeState] = field(default_factory=dict)
    refuses: dict[tuple[str, str], str] = field(default_factory=dict)
    """What the API server refuses ("create", "delete" or "change" of a kind), with its message."""
    late: dict[str, Objects] = field(default_factory=dict)
    """Kinds of which events are late though their watch is open: what was so some seconds ago."""
    late_nodes: dict[str, NodeState] = field(default_factory=dict)
    """The same of nodes."""
    kuberay: str = "ok"
    retries: ActionRetries | None = None
    down: bool = False
    """Nobody polls and nobody reconciles."""
    deaf: bool = False
    """POST /suspend does not reach the runtime."""
    late_document: Progress | None = None
    """An old document that is read now."""
    writes: int = 0
    reconciles: int = 0
    checkpoint: int = 0
    """Step of the newest checkpoint of which a document has told before a status was written."""
    begun_at: list[int] = field(default_factory=list)
    """The same when each attempt was begun."""
    _run: tuple[object, TrainingRun, str | None] | None = None

    # Reading

    def observe(self, *, confirmed: bool = False) -> Observed:
        """What the operator sees; `confirmed`: with a read of all that is the run's."""
        world = self.world
        if confirmed:
            self.events_arrive()
        run, invalid = self._read_run()
        pods = self._view("Pod", {pod.uid: pod.object for pod in world.pods})
        on = {pod["spec"].get("nodeName") for pod in pods}
        if "Node" in self.stale:
            nodes = {n: state for n, state in self.frozen_nodes.items() if n in on}
        else:
            nodes = {n: node.state(world.now) for n, node in world.nodes.items() if n in on}
            nodes |= {n: state for n, state in self.late_nodes.items() if n in on}
        polls, now = self.polls, world.now
        missing = self.kuberay == "missing"
        return Observed(
            run,
            invalid=invalid,
            ray_jobs=() if missing else tuple(self._view("RayJob", self._jobs())),
            ray_clusters=() if missing else tuple(self._view("RayCluster", self._clusters())),
            pods=tuple(pods),
            nodes=nodes,
            progress=polls.document,
            progress_age_s=None if polls.fetched_at is None else now - polls.fetched_at + 0.2,
            progress_failing_s=None if polls.failing_since is None else now - polls.failing_since,
            progress_polled_s=None if polls.polled_since is None else now - polls.polled_since,
            kuberay=self.kuberay,  # type: ignore[arg-type]
            failing=self.retries.failing() if self.retries else (),
            acted=self.retries is not None and self.retries.acted,
            stale={kind: reason for kind, (reason, _) in self.stale.items()},
            confirmed=confirmed,
        )

    def _read_run(self) -> tuple[TrainingRun, str | None]:
        status = RunStatus.model_validate(self.status)
        key = (self.generation, self.deleted)
        if self._run is None or self._run[0] != key:
            made = a_run(deleted=self.deleted, **self.spec)
            held = {"generation": self.generation, "finalizers": [FOREIGN] if self.deleted else []}
            made = made.model_copy(update={"metadata": made.metadata.model_copy(update=held)})
            invalid = None
            if self.broken_spec:
                raw = made.model_dump(by_alias=True, mode="json")
                raw["metadata"]["resourceVersion"] = "1"
                raw["spec"]["workers"]["count"] = -1  # the rest stays as it was: it cannot change
                made, invalid = parse(raw)
            self._run = (key, made, invalid)
        return self._run[1].model_copy(update={"status": status}), self._run[2]

    def _jobs(self) -> Objects:
        return {job["metadata"]["uid"]: job for job in self.world.jobs.values()}

    def _clusters(self) -> Objects:
        return {cluster.uid: cluster.object for cluster in self.world.clusters}

    def _view(self, kind: str, true: Objects) -> list[dict[str, Any]]:
        seen = self.stale[kind][1] if kind in self.stale else self.late.get(kind, true)
        return [*seen.values(), *self.world.foreign.get(kind, ())]

    def view(self) -> View:
        """What is so now."""
        world = self.world
        pods = {pod.uid: pod.object for pod in world.pods}
        objects = {"Pod": pods, "RayJob": self._jobs(), "RayCluster": self._clusters()}
        nodes = {name: node.state(world.now) for name, node in world.nodes.items()}
        return View(world.now, copy.deepcopy(objects), nodes)

    def lag(self, kind: str, view: View) -> None:
        """The events of a kind since then have not arrived yet."""
        if kind == "Node":
            self.late_nodes = view.nodes
        else:
            self.late = {kind: dict(view.objects[kind])}

    def events_arrive(self) -> None:
        """Nothing is late any more."""
        self.late, self.late_nodes = {}, {}

    def freeze(self, kind: str, reason: str, empty: bool) -> None:
        """From now on the watch of a kind fails; empty: it has never listed."""
        if kind in self.stale:
            return
        if kind == "Node":
            world = self.world
            self.frozen_nodes = {
                name: node.state(world.now) for name, node in world.nodes.items() if not empty
            }
            self.stale[kind] = (reason, {})
            return
        true = {
            "Pod": {pod.uid: pod.object for pod in self.world.pods},
            "RayJob": self._jobs(),
            "RayCluster": self._clusters(),
        }[kind]
        self.stale[kind] = (reason, {} if empty else copy.deepcopy(true))

    # Polling

    def poll(self) -> None:
        """One poll of the head pod, if an attempt is followed."""
        polls, world = self.polls, self.world
        if not polls.followed:
            return
        head = self._target()
        if head is None or head["metadata"]["uid"] != polls.pod_uid:
            polls.failing_since = polls.polled_since = None
            polls.pod_uid = head["metadata"]["uid"] if head else ""
        if head is None:
            return
        polls.polled_since = world.now if polls.polled_since is None else polls.polled_since
        pod = next((pod for pod in world.pods if pod.uid == polls.pod_uid), None)
        if world.polls_fail or pod is None or not pod.alive:
            polls.failing_since = world.now if polls.failing_since is None else polls.failing_since
            return
        polls.failing_since = None
        driver = world.driver
        document = driver.document(world.now) if driver and driver.head is pod else None
        if self.late_document is not None:
            document, self.late_document = self.late_document, None
        if document is not None:
            polls.document, polls.fetched_at = document, world.now

    def _target(self) -> dict[str, Any] | None:
        number = str(self.status.get("attempt", 0))
        found = None
        own = {pod.uid: pod.object for pod in self.world.pods}
        clusters = self._view("RayCluster", self._clusters())
        heads = {one["metadata"]["uid"]: named_head(one) for one in clusters}
        for pod in self._view("Pod", own):
            named = heads.get(controller_uid(pod, "RayCluster") or "")
            if named is None or named.name != pod["metadata"]["name"]:
                continue
            labels = pod["metadata"]["labels"]
            if labels["trainingrun.dev/role"] != "head" or pod["status"]["phase"] != "Running":
                continue
            if labels["trainingrun.dev/attempt"] != number:
                continue
            if "deletionTimestamp" not in pod["metadata"]:
                return pod
            found = pod
        return found

    # Reconciling

    def restart(self) -> None:
        """The process dies; a new one knows what the status says."""
        self.polls, self.retries = Polls(), None

    def reconcile(self, crash_after: int | None = None) -> Plan:
        """One reconcile, and another one at once of an attempt that has begun.

        Args:
            crash_after: It dies after so many actions; -1: before the status is written.
        """
        self.reconciles += 1
        if self._has_ended():
            self.polls.followed = True
            self.poll()
        seen = self.observe()
        now = T0 + timedelta(seconds=self.world.now)
        made = self.plan(seen, RENDER, SETTINGS, now)
        if made.confirm:
            seen = self.observe(confirmed=True)
            made = self.plan(seen, RENDER, SETTINGS, now)
        if crash_after == -1:
            self.restart()
            return made
        written = made.status.to_dict()
        if not self.world.run_deleted and written != seen.run.status.to_dict():
            self.writes += 1
            self.status = json.loads(json.dumps(written))
            ended = (known.number for known in made.status.attempts if known.outcome != "Running")
            self.world.ended = max(ended, default=0)
        told = self.polls.document
        if told is not None and told.checkpoint is not None:
            self.checkpoint = max(self.checkpoint, told.checkpoint.step)
        self.polls.followed = any(
            attempt.number == made.status.attempt and attempt.outcome == "Running"
            for attempt in made.status.attempts
        )
        if not self.polls.followed:
            self.polls.failing_since = self.polls.polled_since = None
        jobs = len(self.world.created)
        self._act(made, now, crash_after)
        if crash_after is not None:
            self.restart()
            return made
        return self.reconcile() if len(self.world.created) > jobs else made

    def _act(self, made: Plan, now: datetime, crash_after: int | None) -> None:
        """As the controller's `Reconciler` does."""
        self.retries = self.retries or ActionRetries(lambda: self.world.now)
        self.retries.keep(made.actions)
        creates = True
        for action in made.actions[:crash_after]:
            is_creation, what = isinstance(action, Apply | EnsureToken), key_of(action)
            if is_creation and not creates:
                continue
            if self.retries.due(what):
                try:
                    self._carry_out(action)
                except ClusterError as error:
                    assert what is not None
                    self.retries.failed(what, error, now)
                else:
                    self.retries.worked(what)
                    continue
            creates = creates and not is_creation

    def _has_ended(self) -> bool:
        attempts = self.status.get("attempts") or ()
        known = attempts[-1] if attempts else None
        if known is None or known["outcome"] != "Running":
            return False
        document = self.polls.document
        if document and document.attempt == known["number"] and document.state.final:
            return False
        return any(
            job["metadata"]["name"] == known["rayJob"]
            and job["status"]["jobDeploymentStatus"] in ("Complete", "Failed")
            for job in self._view("RayJob", self._jobs())
        )

    def _carry_out(self, action: Action) -> None:
        what = key_of(action)
        message = self.refuses.get(what[:2]) if what else None
        if message:
            raise Rejected(message)
        match action:
            case Apply(manifest):
                self._apply(dict(manifest))
            case EnsureToken():
                pass
            case Delete(ref, grace_s):
                self._delete(ref.kind, ref.uid, grace_s)
            case ExcludeNodes(ref, names):
                self._patch_cluster(ref.uid, lambda cluster: exclusion_patch(cluster, names))
            case PlaceWorkers(ref, template):
                self._patch_cluster(ref.uid, lambda cluster: placement_patch(cluster, template))
            case ScaleWorkers(ref, pods, removed):
                self._patch_cluster(ref.uid, lambda found: scale_patch(found, pods, removed))
            case RequestSuspend(attempt):
                driver = self.world.driver
                if driver and driver.attempt == attempt and not self.deaf and driver.asked is None:
                    driver.asked = self.world.now
            case _:
                raise NotImplementedError(action)

    def _apply(self, manifest: dict[str, Any]) -> None:
        kind = manifest["kind"]
        if kind != "RayJob":
            return
        self.writes += 1
        number = int(manifest["metadata"]["labels"]["trainingrun.dev/attempt"])
        if number in self.world.jobs:
            return
        job = self.world.add_job(manifest)
        self.begun_at.append(self.checkpoint)
        self._saw(kind, job["metadata"]["uid"], job)

    def _patch_cluster(
        self, uid: str | None, patch: Callable[[dict[str, Any]], list[dict[str, Any]]]
    ) -> None:
        for cluster in self.world.clusters:
            if cluster.uid == uid:
                operations = patch(cluster.object)
                self.writes += bool(operations)
                cluster.object = patched(cluster.object, operations)
                self._saw("RayCluster", cluster.uid, cluster.object)

    def _delete(self, kind: str, uid: str | None, grace_s: int | None) -> None:
        world = self.world
        self.writes += 1
        foreign = [
            found["metadata"]["uid"]
            for found in world.foreign.get(kind, ())
            if not is_forged(found)  # it says that it is the run's
        ]
        assert uid not in foreign, f"deletes {kind} {uid}, which is not the run's own"
        self._forget(kind, uid)  # also what is not there: the API server answers 404
        if kind == "TrainingRun":
            world.run_deleted = True
        elif kind == "RayJob":
            for job in list(world.jobs.values()):
                if job["metadata"]["uid"] == uid:
                    world.delete_job(job)
                    self._saw(kind, job["metadata"]["uid"], job)
        elif kind == "RayCluster":
            for cluster in list(world.clusters):
                if cluster.uid == uid:
                    world.remove_cluster(cluster)
        elif kind == "Pod":
            world.foreign["Pod"] = [
                pod for pod in world.foreign.get("Pod", ()) if pod["metadata"]["uid"] != uid
            ]
            for pod in list(world.pods):
                if pod.uid == uid:
                    self._delete_pod(pod, grace_s)
        else:
            raise NotImplementedError(kind)

    def _delete_pod(self, pod: Pod, grace_s: int | None) -> None:
        if grace_s == 0:
            self.world.remove_pod(pod)
        else:
            pod.leave(self.world.now)
            self._saw("Pod", pod.uid, pod.object)

    def _saw(self, kind: str, uid: str, found: dict[str, Any]) -> None:
        for known in self._not_up_to_date(kind):
            known[uid] = copy.deepcopy(found)

    def _forget(self, kind: str, uid: str | None) -> None:
        for known in self._not_up_to_date(kind):
            known.pop(uid or "", None)

    def _not_up_to_date(self, kind: str) -> list[Objects]:
        stale = [self.stale[kind][1]] if kind in self.stale else []
        return [*stale, *([self.late[kind]] if kind in self.late else [])]
