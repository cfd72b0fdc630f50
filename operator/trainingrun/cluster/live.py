"""A real cluster: the port's questions answered from watch caches, its effects by the API server.

Every cache is fed by its own list and watch. `subscribe` tells of each run that something changed
about; `KubernetesCluster.observe` then reads the caches and makes no call at all.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ..api.status import RunStatus
from ..api.v1alpha1 import API_VERSION, KIND
from ..reconciling.model import Observed, Ref
from ..rendering.names import MANAGER, RUN_LABEL
from . import kuberay
from .avoiding import avoiding
from .cache import Object, WatchCache
from .connection import (
    JSON_PATCH,
    AlreadyExists,
    Connection,
    Forbidden,
    NotFound,
)
from .nodes import Nodes, hostname, looks_different
from .parsing import parse
from .port import ClusterError, Conflict, Rejected
from .resources import RAY_API, path, path_of, path_of_manifest

log = logging.getLogger(__name__)

NODE_LEASES = "kube-node-lease"

RunKey = tuple[str, str]
"""Namespace and name of a run."""
Subscriber = Callable[[str, str], None]
"""Called with namespace and name of a run that something changed about; must not block."""


class KubernetesCluster:
    """Implements `port.Cluster` for the cluster behind a connection."""

    def __init__(
        self,
        connection: Connection,
        namespaces: Collection[str] = (),
        *,
        look_for_kuberay_s: float = 30.0,
    ):
        """Nothing is watched until `run`.

        Args:
            connection: To the API server.
            namespaces: Only these are looked at; empty: all.
            look_for_kuberay_s: Seconds between looks for a KubeRay that is missing or too old.
        """
        self._connection = connection
        self._look_for_kuberay_s = look_for_kuberay_s
        self._subscribers: list[Subscriber] = []
        self._kuberay: kuberay.KubeRay | None = None
        self._check_kuberay = asyncio.Event()
        self.runs = self._caches(API_VERSION, KIND, namespaces, "")
        self.ray_jobs = self._caches(RAY_API, "RayJob", namespaces)
        self.ray_clusters = self._caches(RAY_API, "RayCluster", namespaces)
        self.pods = self._caches("v1", "Pod", namespaces)
        self.nodes = WatchCache(connection, path("v1", "Node"), on_change=self._node_changed)
        self.leases = WatchCache(
            connection,
            path("coordination.k8s.io/v1", "Lease", NODE_LEASES),
            on_change=self._lease_changed,
        )
        self._sights = Nodes(self.nodes, self.leases)
        self._synced = asyncio.Event()
        for cache in self._all_caches():
            cache.on_list = self._note_synced
        for cache in self.ray_jobs.values():
            cache.on_list = self._ray_jobs_listed

    # Watching

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls `subscriber` for every run that something changes about from now on."""
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Keeps the caches up until cancelled; raises if one of them ends, which is a bug."""
        async with asyncio.TaskGroup() as tasks:
            for cache in self._all_caches():
                tasks.create_task(cache.run(), name=f"watch {cache.path}")
            tasks.create_task(self._watch_kuberay(), name="check KubeRay")

    @property
    def synced(self) -> bool:
        """Whether every cache was filled once: before that, absence means nothing."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Waits until `synced`."""
        await self._synced.wait()

    @property
    def alive_at(self) -> float:
        """Monotonic time at which the stalest watch last did anything."""
        return min(cache.alive_at for cache in self._all_caches())

    def run_keys(self) -> list[RunKey]:
        """Every run that is there."""
        return [_own_key(run) for cache in self.runs.values() for run in cache.all()]

    def raw_runs(self) -> list[Object]:
        """Every run as the API server gives it."""
        return [run for cache in self.runs.values() for run in cache.all()]

    # The port

    async def observe(self, namespace: str, name: str) -> Observed | None:
        """See `port.Cluster.observe`."""
        runs = self._of(self.runs, namespace)
        raw = runs.get(namespace, name) if runs else None
        if raw is None:
            return None
        run, invalid = parse(raw)
        key = (namespace, name)
        pods = self._labelled(self.pods, key)
        nodes = sorted({node for pod in pods if (node := pod["spec"].get("nodeName"))})
        return Observed(
            run=run,
            invalid=invalid,
            ray_jobs=tuple(self._labelled(self.ray_jobs, key)),
            ray_clusters=tuple(self._labelled(self.ray_clusters, key)),
            pods=tuple(pods),
            nodes=self._sights.sights(nodes),
            kuberay=self._kuberay or "missing",
        )

    async def apply(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `port.Cluster.apply`.

        An object with the run's label is created first if the caches do not have it: a forced
        apply would take over a RayJob that happens to have the same name.
        """
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        cache = self._cache_of(manifest["apiVersion"], manifest["kind"], namespace)
        if cache is not None and cache.get(namespace, name) is None:
            try:
                applied = await self._connection.create(path_of_manifest(manifest, True), manifest)
            except AlreadyExists:
                raise Rejected(
                    f"a {manifest['kind']} named {name} exists and is not this run's; delete it, "
                    "or create the run under another name"
                ) from None
        else:
            applied = await self._connection.apply(path_of_manifest(manifest), manifest)
        self._saw(applied)
        return applied

    async def create(self, manifest: Mapping[str, Any]) -> bool:
        """See `port.Cluster.create`."""
        try:
            self._saw(await self._connection.create(path_of_manifest(manifest, True), manifest))
        except AlreadyExists:
            return False
        return True

    async def delete(self, ref: Ref, grace_s: int | None = None) -> None:
        """See `port.Cluster.delete`."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if ref.uid is not None:
            options["preconditions"] = {"uid": ref.uid}
        try:
            left = await self._connection.request("DELETE", path_of(ref), options)
        except NotFound:
            left = {}
        except Conflict:
            return  # another object by now; its own news are in the cache, or come
        metadata = left.get("metadata", {})
        if left.get("kind") == ref.kind and (grace_s != 0 or metadata.get("finalizers")):
            self._saw(left)  # it goes later, and is seen to be terminating
            return
        uid = ref.uid or metadata.get("uid") or left.get("details", {}).get("uid")
        cache = self._cache_of(ref.api_version, ref.kind, ref.namespace)
        if cache and uid:
            cache.forget(ref.namespace, ref.name, uid)

    async def avoid_nodes(self, ray_cluster: Ref, nodes: tuple[str, ...]) -> None:
        """See `port.Cluster.avoid_nodes`; the head's group is patched as well."""
        cache = self._of(self.ray_clusters, ray_cluster.namespace)
        known = cache.get(ray_cluster.namespace, ray_cluster.name) if cache else None
        if known is None or ray_cluster.uid not in (None, known["metadata"]["uid"]):
            return
        hostnames = [hostname(self.nodes.get("", node), node) for node in nodes]
        operations = avoiding(known, hostnames)
        if not operations:
            return
        # Another of the same name, made since, must not inherit it.
        guard = {"op": "test", "path": "/metadata/uid", "value": known["metadata"]["uid"]}
        try:
            self._saw(
                await self._connection.request(
                    "PATCH", path_of(ray_cluster), [guard, *operations], content_type=JSON_PATCH
                )
            )
        except NotFound:
            return

    async def write_status(self, run: Ref, status: RunStatus, resource_version: str) -> None:
        """See `port.Cluster.write_status`."""
        body = {
            "apiVersion": run.api_version,
            "kind": run.kind,
            "metadata": {
                "name": run.name,
                "namespace": run.namespace,
                "resourceVersion": resource_version,
                **({"uid": run.uid} if run.uid else {}),
            },
            "status": status.to_dict(),
        }
        url = path_of(run) + "/status"
        query = {"fieldManager": MANAGER}
        self._saw(await self._connection.request("PUT", url, body, query=query))

    async def emit(self, run: Ref, type_: str, reason: str, message: str) -> None:
        """See `port.Cluster.emit`."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{run.name}.", "namespace": run.namespace},
            "involvedObject": {
                "apiVersion": run.api_version,
                "kind": run.kind,
                "namespace": run.namespace,
                "name": run.name,
                "uid": run.uid,
            },
            "type": type_,
            "reason": reason,
            "message": message[:1024],  # the API server refuses longer ones
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
        }
        try:
            await self._connection.request("POST", path("v1", "Event", run.namespace), event)
        except ClusterError as error:
            log.warning("event not written: %s", error)

    async def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """A Secret of the operator's own namespace; None: absent."""
        try:
            return await self._connection.request("GET", path("v1", "Secret", namespace, name))
        except NotFound:
            return None

    def pods_of(self, namespace: str, name: str) -> list[Object]:
        """The run's pods, for whoever needs their addresses."""
        return self._labelled(self.pods, (namespace, name))

    # Caches and their news

    def _caches(
        self,
        api_version: str,
        kind: str,
        namespaces: Collection[str],
        label_selector: str = RUN_LABEL,
    ) -> dict[str, WatchCache]:
        """One cache for all namespaces, under "", or one for each."""
        owned = bool(label_selector)
        indices: dict[str, Callable[[Object], Any]] = {"run": _run_key} if owned else {}
        if kind == "Pod":
            indices["node"] = lambda pod: pod["spec"].get("nodeName")
        return {
            namespace: WatchCache(
                self._connection,
                path(api_version, kind, namespace or None),
                label_selector=label_selector,
                indices=indices,
                on_change=self._owned_changed if owned else self._run_changed,
                missing_retry_s=self._look_for_kuberay_s,
            )
            for namespace in (sorted(namespaces) or [""])
        }

    def _all_caches(self) -> Iterator[WatchCache]:
        for kind in (self.runs, self.ray_jobs, self.ray_clusters, self.pods):
            yield from kind.values()
        yield self.nodes
        yield self.leases

    @staticmethod
    def _of(caches: Mapping[str, WatchCache], namespace: str) -> WatchCache | None:
        return caches.get(namespace) or caches.get("")

    def _labelled(self, caches: Mapping[str, WatchCache], run: RunKey) -> list[Object]:
        cache = self._of(caches, run[0])
        return cache.by("run", run) if cache else []

    def _cache_of(self, api_version: str, kind: str, namespace: str) -> WatchCache | None:
        caches = {
            (API_VERSION, KIND): self.runs,
            (RAY_API, "RayJob"): self.ray_jobs,
            (RAY_API, "RayCluster"): self.ray_clusters,
            ("v1", "Pod"): self.pods,
        }.get((api_version, kind))
        return self._of(caches, namespace) if caches else None

    def _saw(self, seen: Object) -> None:
        metadata = seen["metadata"]
        cache = self._cache_of(seen["apiVersion"], seen["kind"], metadata.get("namespace", ""))
        if cache and (cache in self.runs.values() or _run_key(seen) is not None):
            cache.saw(seen)

    def _tell(self, key: RunKey | None) -> None:
        if key is not None:
            for subscriber in self._subscribers:
                subscriber(*key)

    def _tell_all(self) -> None:
        for key in self.run_keys():
            self._tell(key)

    def _run_changed(self, old: Object | None, new: Object | None) -> None:
        self._tell(_own_key(new or old or {}))

    def _owned_changed(self, old: Object | None, new: Object | None) -> None:
        keys = {_run_key(found) for found in (old, new) if found is not None}
        for key in keys:
            self._tell(key)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        if not looks_different(old, new):
            return
        name = (new or old or {})["metadata"]["name"]
        pods = [pod for cache in self.pods.values() for pod in cache.by("node", name)]
        for key in {_run_key(pod) for pod in pods}:
            self._tell(key)

    def _lease_changed(self, old: Object | None, new: Object | None) -> None:
        # Renewals wake nobody: there is one per node every 10 s, and only their absence matters.
        self._sights.renewed(new, (new or old or {})["metadata"]["name"])

    def _note_synced(self) -> None:
        if self._kuberay is not None and all(cache.settled for cache in self._all_caches()):
            self._synced.set()

    # KubeRay

    def _ray_jobs_listed(self) -> None:
        self._check_kuberay.set()
        self._note_synced()

    async def _watch_kuberay(self) -> None:
        while True:
            self._check_kuberay.clear()
            found = await self._look_at_kuberay()
            if found is not None and found != self._kuberay:
                level = logging.INFO if found == "ok" else logging.WARNING
                log.log(level, "KubeRay's RayJob CRD: %s", found)
                self._kuberay = found
                self._note_synced()
                self._tell_all()
            try:
                wait_s = None if found == "ok" else self._look_for_kuberay_s
                await asyncio.wait_for(self._check_kuberay.wait(), wait_s)
            except TimeoutError:
                continue

    async def _look_at_kuberay(self) -> kuberay.KubeRay | None:
        """None: nobody knows at the moment."""
        states = {cache.state for cache in self.ray_jobs.values()}
        if "starting" in states:
            return None  # the first list asks again
        if "missing" in states:
            return "missing"
        try:
            return kuberay.verdict(await self._connection.request("GET", kuberay.CRD_PATH))
        except NotFound:
            return "missing"
        except Forbidden:
            return "ok"  # confined to namespaces; the list that has just worked has to do
        except ClusterError as error:
            log.warning("KubeRay's CRD: %s", error)
            return self._kuberay


def _own_key(run: Object) -> RunKey:
    return run["metadata"]["namespace"], run["metadata"]["name"]


def _run_key(owned: Object) -> RunKey | None:
    metadata = owned["metadata"]
    name = metadata.get("labels", {}).get(RUN_LABEL)
    return (metadata["namespace"], name) if name else None
