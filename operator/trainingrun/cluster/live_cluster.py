"""A real cluster: reads answered from the stores, writes by the API server.

kopf's events feed the stores (`handle`). `Stores.subscribe` calls back for each run that something
changed about; `KubernetesCluster.observe` then reads the stores and makes no call at all, but for
the defaults of a run that has not begun.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import aiohttp

from ..api.status import RunStatus
from ..reconciling.model import Observed, Ref
from ..reconciling.pod_status import controller_uid
from ..rendering import defaults
from ..rendering.names import MANAGER, PLACEMENT_LABEL, RUN_LABEL, WORKER_GROUP
from ..rendering.scheduling import excluded, excluding, placement_label
from .api_client import (
    JSON_PATCH,
    AlreadyExists,
    ClusterError,
    Conflict,
    Connection,
    Forbidden,
    NotFound,
    NotServed,
    Rejected,
    text_of,
)
from .defaults import Defaults
from .kuberay import KubeRayNamespaces
from .kueue import QueueWait, what_it_waits_for
from .nodes import Leases, Nodes
from .object_store import Object, key_of
from .parsing import field_names, parse
from .resources import path, path_of, path_of_manifest
from .run_stores import Kind, Stores
from .watches import Watches

log = logging.getLogger(__name__)

PAGE = 5
"""Objects of a run that are read at once: whoever creates one makes it 1.4 MB, see `run_stores`."""


class KubernetesCluster:
    """What the controller reads from the cluster behind a connection, and does there.

    Absent is not unknown: a method answers None or an empty list only when the API server confirms
    it; 403, 429, 5xx and timeouts raise.
    """

    def __init__(
        self,
        connection: Connection,
        namespaces: Collection[str] = (),
        *,
        kuberay_check_s: float = 30.0,
        count_unreadable: Callable[[str], None] = lambda kind: None,
        node_labels: Collection[str] = (),
    ):
        """Empty until `run`, and until kopf passes what it watches.

        Args:
            connection: To the API server.
            namespaces: Only these are watched; empty: all.
            kuberay_check_s: Seconds between checks for a KubeRay that is missing or too old.
            count_unreadable: Called with the kind for each object that cannot be read in full, see
                `Watches` and `handle`.
            node_labels: Labels of nodes that are kept, beside those that the operator itself reads.
        """
        self._connection, self.server = connection, connection.server
        self.stores = Stores(node_labels)
        self._count_unreadable = count_unreadable
        self.watches = Watches(
            connection,
            self.stores,
            namespaces,
            kuberay_check_s=kuberay_check_s,
            count_unreadable=count_unreadable,
        )
        self._nodes = Nodes(self.watches.nodes)
        self._leases = Leases(connection)
        self._defaults = Defaults(connection, confined=bool(namespaces))
        self._kuberay_namespaces = KubeRayNamespaces(connection, kuberay_check_s)

    def session(self) -> aiohttp.ClientSession:
        """The session that kopf is to use; whoever takes it closes it."""
        return self._connection.session_for_watches(self.watches.observe)

    def handle(self, event: Mapping[str, Any]) -> None:
        """Takes in an event of a watch, or (type None) an object that was listed.

        One that cannot be read is skipped: what was known of it stays, and the others continue.
        """
        obj: Object = event["object"]
        store = self.stores.store_of(obj["kind"])
        if event["type"] == "DELETED":
            metadata = obj["metadata"]
            store.forget(*key_of(obj), metadata["uid"], int(metadata["resourceVersion"]))
            return
        try:
            store.update(obj)
        except Exception:
            store.skip(obj)
            self._count_unreadable(obj["kind"])
            log.exception("%s %s cannot be read", obj["kind"], "/".join(key_of(obj)))

    async def run(self) -> None:
        """Checks the watches until cancelled; for what it raises see `Watches.run`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watches.run(), name="watches")
            tasks.create_task(self._kuberay_namespaces.run(), name="find KubeRay")
            tasks.create_task(self._defaults.find_out(), name="find defaults")

    async def wait_synced(self) -> None:
        """Waits until every store was filled once, and KubeRay's namespaces were read."""
        await self.watches.wait_synced()
        await self._kuberay_namespaces.known()

    async def catch_up(self) -> None:
        """Waits until no TrainingRun is older than this call: what a former leader has written, and
        what users have changed. What runs own is read when a decision rests on it, see `confirm`.
        """
        await self.watches.catch_up_with_runs()

    @property
    def alive_at(self) -> float:
        """Monotonic time at which the slowest watch last did anything."""
        return min(watch.alive_at for watch in self.watches.all())

    async def observe(self, namespace: str, name: str) -> Observed | None:
        """Everything about one run, never older than our own writes; None: it does not exist.

        Raises:
            ClusterError: the run has not begun, and its defaults cannot be read.
        """
        raw = self.stores.runs.store.get(namespace, name)
        if raw is None:
            return None
        key = (namespace, name)
        current, unread, begun = None, None, True
        if _takes_defaults(raw) and not self._has_ray_job(key, raw["metadata"]["uid"]):
            try:
                current = defaults.applied(raw, await self._defaults.of(namespace))
            except (Forbidden, NotServed) as error:  # the status says what somebody has to repair
                unread = text_of(error)
            raw, begun = self.stores.runs.store.get(namespace, name), False
            if raw is None:
                return None
        run, invalid = parse(raw, current)
        pods = self.stores.pods.of_run(key)
        on = {node for pod in pods if (node := pod["spec"].get("nodeName"))}
        lost = run.status.seen.get("lostNodes")
        nodes = sorted(on.union(lost if isinstance(lost, Mapping) else ()))
        source = run.spec.storage.restore_from
        return Observed(
            run=run,
            invalid=invalid,
            field_names=field_names(raw),
            defaults=current,
            defaults_unread=unread,
            repairable=not begun and (current is not None or not defaults.names_storage(raw)),
            restore_source=self._restore_source(namespace, source.run)
            if source and source.run
            else None,
            ray_jobs=self.stores.ray_jobs.of_run(key),
            ray_clusters=self.stores.ray_clusters.of_run(key),
            pods=pods,
            nodes=self._nodes.states(nodes),
            kuberay=self.watches.kuberay or "missing",
            stale=self.watches.stale_kinds(namespace),
        )

    def _has_ray_job(self, key: tuple[str, str], uid: str) -> bool:
        """Of its own: that of a former run of its name, or a stranger's, begins no run."""
        jobs = self.stores.ray_jobs.of_run(key)
        return any(controller_uid(job, "TrainingRun") == uid for job in jobs)

    def _restore_source(self, namespace: str, name: str) -> Object | None:
        found = self.stores.runs.store.get(namespace, name)
        return None if found is None else defaults.resolved_by_status(found)

    async def confirm(self, namespace: str, name: str) -> None:
        """Read what the run owns, and the nodes of its pods that are not known, from the API
        server: after it, `observe` lacks nothing that existed when it began.

        Raises:
            ClusterError: it did not answer, so that nothing is confirmed.
        """
        key = (namespace, name)
        for kind in self.stores.owned_by_runs:
            watch = self.watches.of(kind.name, namespace)
            if watch.stale or watch.state == "missing":
                continue  # unknown, so that nothing rests on it; or known to have no objects
            found, version = await self._read(kind, namespace, labelSelector=f"{RUN_LABEL}={name}")
            for item in found:
                kind.store.update(item)
            kind.store.keep_listed_of("run", key, [key_of(item) for item in found], version)
        nodes = self.stores.nodes
        on = {pod["spec"].get("nodeName") for pod in self.stores.pods.of_run(key)}
        for node in sorted(filter(None, on)):
            if ("", node) not in nodes.store and not self.watches.nodes.stale:
                for item in (await self._read(nodes, "", fieldSelector=f"metadata.name={node}"))[0]:
                    nodes.store.update(item)

    @property
    def kuberay_namespaces(self) -> tuple[str, ...]:
        """Namespaces in which KubeRay's operator runs; empty: that is not known."""
        return self._kuberay_namespaces.namespaces

    async def lease_ages(self, nodes: Iterable[str]) -> Mapping[str, float]:
        """Seconds since the kubelets of these nodes renewed their Leases.

        Only for nodes with another sign of failure, and again while they have it: the first answer
        about a node has no age yet. A node whose Lease cannot be read is left out. Never raises.
        """
        return await self._leases.ages(nodes)

    async def queue_wait(self, ray_job: Object) -> QueueWait:
        """What Kueue says of a RayJob that it has not admitted, see `kueue`. Never raises."""
        return await what_it_waits_for(self._connection, ray_job)

    async def apply(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create it, or make the run's own object of that name be as given; the result.

        An object that has no owner, or another one, is never changed.

        Raises:
            Rejected: the API server refused it as invalid, or another owner has its name.
        """
        kind = self.stores.kind_of(manifest["apiVersion"], manifest["kind"])
        metadata = manifest["metadata"]
        known: Object | None = None
        if kind is not None:
            known = kind.store.get(metadata["namespace"], metadata["name"])
        if known is None:
            try:
                made = await self._connection.create(path_of_manifest(manifest, True), manifest)
                self.stores.update(made)
                return made
            except AlreadyExists:
                known = await self._existing(manifest, kind)
        owner_uid = controller_uid(known, "TrainingRun")
        if owner_uid is None or owner_uid != controller_uid(manifest, "TrainingRun"):
            whose = "not this run's" if owner_uid is None else "of another run"
            raise Rejected(
                f"a {manifest['kind']} named {metadata['name']} exists and is {whose}; delete it, "
                "or create the run under another name"
            )
        # With its UID: another of that name, made meanwhile by another client, is a conflict.
        own = {**manifest, "metadata": {**metadata, "uid": known["metadata"]["uid"]}}
        if manifest["kind"] == "RayJob":
            # Kueue's since it was created: a second try would take back what it has admitted.
            own["spec"] = {key: at for key, at in manifest["spec"].items() if key != "suspend"}
        try:
            applied = await self._connection.apply(path_of_manifest(manifest), own)
        except Rejected as error:
            if "metadata.uid" in str(error):
                raise Conflict(str(error)) from None
            raise
        self.stores.update(applied)
        return applied

    async def _existing(self, manifest: Mapping[str, Any], kind: Kind | None) -> Object:
        """The object whose name is taken."""
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        if kind is None:
            return await self._connection.request("GET", path_of_manifest(manifest))
        for found in (await self._read(kind, namespace, fieldSelector=f"metadata.name={name}"))[0]:
            self.stores.update(found)
            return found
        raise ClusterError(f"{manifest['kind']} {name} was there already, and is gone")

    async def _read(self, kind: Kind, namespace: str, **selector: str) -> tuple[list[Object], int]:
        """What is kept of objects as the API server has them, and the version of the list. A list
        needs no other right than the watch does.
        """
        url = path(kind.api_version, kind.name, namespace or None)
        type_of = {"apiVersion": kind.api_version, "kind": kind.name}  # lists leave it out

        def keep(item: Object) -> Object:
            return kind.store.project({**type_of, **item})

        return await self._connection.list_objects(url, selector, PAGE, keep)

    async def find(self, manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The object of this kind and name, read from the API server; None: it does not exist."""
        try:
            return await self._connection.request("GET", path_of_manifest(manifest))
        except NotFound:
            return None

    async def restore(self, manifest: Mapping[str, Any], uid: str) -> None:
        """Make the spec of the object with this UID be exactly the manifest's.

        Raises:
            Unusable: the API server does not take all of it, such as a field that it does not know.
        """
        guard = {"op": "test", "path": "/metadata/uid", "value": uid}
        spec = {"op": "replace", "path": "/spec", "value": manifest["spec"]}
        # As strictly as it is created: without a selector that is misspelt it would select all.
        await self._connection.request(
            "PATCH",
            path_of_manifest(manifest),
            [guard, spec],
            query={"fieldValidation": "Strict"},
            content_type=JSON_PATCH,
        )

    async def create(self, manifest: Mapping[str, Any]) -> bool:
        """Create it; False if one of that name is there already."""
        try:
            self.stores.update(
                await self._connection.create(path_of_manifest(manifest, True), manifest)
            )
        except AlreadyExists:
            return False
        return True

    async def delete(
        self, ref: Ref, grace_s: int | None = None, unchanged_since: str | None = None
    ) -> None:
        """Delete it, in the background; absent, or of another uid, is fine, and so is one that has
        another resource version than `unchanged_since`.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        options["propagationPolicy"] = "Background"
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        known = {"uid": ref.uid, "resourceVersion": unchanged_since}
        if preconditions := {name: value for name, value in known.items() if value is not None}:
            options["preconditions"] = preconditions
        try:
            left = await self._connection.request("DELETE", path_of(ref), options)
        except NotFound:
            left = {}
        except Conflict:
            return  # it has changed, or is another object; its events are in the store, or follow
        metadata = left.get("metadata", {})
        if left.get("kind") == ref.kind and (grace_s != 0 or metadata.get("finalizers")):
            self.stores.update(left)  # it goes later, and is seen to be terminating
            return
        uid = ref.uid or metadata.get("uid") or left.get("details", {}).get("uid")
        kind = self.stores.kind_of(ref.api_version, ref.kind)
        if kind and uid:
            kind.store.forget(ref.namespace, ref.name, uid)

    async def exclude_nodes(self, ray_cluster: Ref, nodes: tuple[str, ...]) -> None:
        """Keep the pods that KubeRay makes from now on off exactly these nodes; none: off none.

        The head's group is patched as well.
        """
        known = self._known(ray_cluster)
        if known is not None:
            await self._patch(ray_cluster, known, exclusion_patch(known, nodes))

    async def scale_workers(
        self, ray_cluster: Ref, pods: int, removed: Sequence[str], version: str | None = None
    ) -> None:
        """Have KubeRay keep so many worker pods, and delete those named.

        Raises:
            Conflict: it is no longer of that version.
        """
        known = self._known(ray_cluster)
        if known is not None:
            await self._patch(ray_cluster, known, scale_patch(known, pods, removed), version)

    def _known(self, ray_cluster: Ref) -> Object | None:
        known = self.stores.ray_clusters.store.get(ray_cluster.namespace, ray_cluster.name)
        if known is None or ray_cluster.uid not in (None, known["metadata"]["uid"]):
            return None
        return known

    async def place_workers(self, ray_cluster: Ref, template: Mapping[str, Any]) -> None:
        """Have KubeRay make workers from now on for the nodes that a pod template selects, see
        `rendering.worker_nodes`. Nodes that are excluded stay so.
        """
        known = self._known(ray_cluster)
        if known is not None:
            await self._patch(ray_cluster, known, placement_patch(known, template))

    async def _patch(
        self,
        ray_cluster: Ref,
        known: Object,
        operations: list[dict[str, Any]],
        version: str | None = None,
    ) -> None:
        if not operations:
            return
        # Another of the same name, made since, must not inherit it.
        guard = {"op": "test", "path": "/metadata/uid", "value": known["metadata"]["uid"]}
        if version is not None:
            # Written, not tested: the API server answers with a conflict where it differs.
            at = "/metadata/resourceVersion"
            operations = [{"op": "replace", "path": at, "value": version}, *operations]
        try:
            self.stores.update(
                await self._connection.request(
                    "PATCH", path_of(ray_cluster), [guard, *operations], content_type=JSON_PATCH
                )
            )
        except NotFound:
            return

    async def write_status(self, run: Ref, status: RunStatus, resource_version: str) -> None:
        """Replace the status.

        Raises:
            Conflict: the run changed since `resource_version`.
        """
        metadata = {"name": run.name, "namespace": run.namespace}
        metadata |= {"resourceVersion": resource_version, **({"uid": run.uid} if run.uid else {})}
        body = {"apiVersion": run.api_version, "kind": run.kind, "metadata": metadata}
        body["status"] = status.to_dict()
        url = path_of(run) + "/status"
        query = {"fieldManager": MANAGER}
        self.stores.update(await self._connection.request("PUT", url, body, query=query))

    async def emit(self, run: Ref, type_: str, reason: str, message: str) -> None:
        """Write an Event about the run; best effort: it never raises."""
        now = self._connection.clock.now().isoformat(timespec="seconds").replace("+00:00", "Z")
        about = {"apiVersion": run.api_version, "kind": run.kind, "namespace": run.namespace}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{run.name}.", "namespace": run.namespace},
            "involvedObject": {**about, "name": run.name, "uid": run.uid},
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
        """A Secret that the operator may read; None: absent."""
        try:
            return await self._connection.request("GET", path("v1", "Secret", namespace, name))
        except NotFound:
            return None

    async def replace(self, manifest: Mapping[str, Any]) -> None:
        """Replaces an object of the operator's own namespace, of the version that is given."""
        await self._connection.request("PUT", path_of_manifest(manifest), manifest)


def _takes_defaults(run: Object) -> bool:
    """Whether a run has not begun, so that the defaults of now count."""
    status = run.get("status") or {}
    if status.get("defaults") or status.get("attempt") or status.get("completionTime"):
        return False
    return not run["metadata"].get("deletionTimestamp")


def exclusion_patch(
    ray_cluster: Mapping[str, Any], hostnames: Sequence[str]
) -> list[dict[str, Any]]:
    """The JSON patch after which the head's and every worker group's pods exclude these hostnames.

    Only an exclusion of ours is changed, and taken away where no hostname is given; a user's own
    expressions stay. Empty, if there is nothing to change. Each change is guarded by a test of the
    group's name, for a patch of a list goes by position.
    """
    spec = ray_cluster["spec"]
    operations = _operations("/spec/headGroupSpec", spec["headGroupSpec"], hostnames)
    for number, group in enumerate(spec.get("workerGroupSpecs", [])):
        at = f"/spec/workerGroupSpecs/{number}"
        changes = _operations(at, group, hostnames)
        if changes:
            guard = {"op": "test", "path": f"{at}/groupName", "value": group["groupName"]}
            operations += [guard, *changes]
    return operations


def scale_patch(
    ray_cluster: Mapping[str, Any], pods: int, removed: Sequence[str]
) -> list[dict[str, Any]]:
    """The JSON patch after which KubeRay keeps so many pods of the group of workers, and deletes
    those named; empty, if there is nothing to change.
    """
    for number, group in enumerate(ray_cluster["spec"].get("workerGroupSpecs", [])):
        if group["groupName"] != WORKER_GROUP:
            continue
        at = f"/spec/workerGroupSpecs/{number}"
        operations: list[dict[str, Any]] = []
        if group.get("replicas") != pods:
            operations.append({"op": "add", "path": f"{at}/replicas", "value": pods})
        strategy = {"workersToDelete": list(removed)} if removed else {}
        if (group.get("scaleStrategy") or {}) != strategy:
            operations.append({"op": "add", "path": f"{at}/scaleStrategy", "value": strategy})
        guard = {"op": "test", "path": f"{at}/groupName", "value": WORKER_GROUP}
        return [guard, *operations] if operations else []
    return []


def _operations(
    at: str, group: Mapping[str, Any], hostnames: Sequence[str]
) -> list[dict[str, Any]]:
    old = group["template"]["spec"].get("affinity") or {}
    new = excluding(old, hostnames)
    if new == old:
        return []
    path = f"{at}/template/spec/affinity"
    return [{"op": "add", "path": path, "value": new} if new else {"op": "remove", "path": path}]


def placement_patch(
    ray_cluster: Mapping[str, Any], template: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The JSON patch after which new workers go to the nodes that `template` selects. It has what
    others have added to the group, see `rendering.worker_nodes`, and no exclusion of ours.

    Empty where the group was made for them, or patched, already: its label says so.
    """
    metadata, spec = template["metadata"], template["spec"]
    for number, group in enumerate(ray_cluster["spec"].get("workerGroupSpecs", [])):
        if group["groupName"] != WORKER_GROUP:
            continue
        live, at = group["template"], f"/spec/workerGroupSpecs/{number}"
        label = placement_label(metadata)
        if placement_label(live.get("metadata") or {}) == label:
            return []
        hostnames = sorted(excluded(live["spec"].get("affinity")))
        values = {
            f"metadata/labels/{PLACEMENT_LABEL.replace('/', '~1')}": label,
            "spec/affinity": excluding(spec["affinity"], hostnames),
            "spec/nodeSelector": spec["nodeSelector"],
            "spec/tolerations": spec["tolerations"],
        }
        return [
            {"op": "test", "path": f"{at}/groupName", "value": WORKER_GROUP},
            *(
                {"op": "add", "path": f"{at}/template/{field}", "value": value}
                for field, value in values.items()
            ),
        ]
    return []
