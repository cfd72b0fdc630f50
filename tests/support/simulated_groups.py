"""A simulator: node groups, the autoscaler that makes them grow, the scheduler and KubeRay's pods.

The API server is a real one, so that a real operator works with it; no cloud, autoscaler, scheduler
or KubeRay runs. What is simulated of an autoscaler is what its documentation says of a pod for
which no node is found:

- Cluster Autoscaler asks for each group whether the scheduler's filters let the pod onto a node of
  it: required affinity, node selector, taints. Which group of several grows, an expander decides
  that knows no preference of a pod. Here it is the group that is named first.
- GKE's auto-provisioning makes spot nodes only for a pod that also tolerates their taint.
- Karpenter takes a preference for a requirement at first, and drops it where nothing fits.
"""

import contextlib
import copy
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from support.apiserver import ApiError, ApiServer
from support.operators import RAY_API, controlled_by
from trainingrun.rendering.names import ROLE_LABEL, WORKER
from trainingrun.rendering.scheduling import HOSTNAME, REQUIRED

Object = dict[str, Any]

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HEAD = "head"


@dataclass(frozen=True)
class Group:
    """A node group, or what a NodePool may make."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str], ...] = ()
    """Key and value, with effect NoSchedule."""
    stocked: bool = True
    """False: the cloud has no machine of it."""


@dataclass(frozen=True)
class Cloud:
    """The groups of a cluster, and what makes them grow."""

    autoscaler: Literal["cluster-autoscaler", "gke", "karpenter"]
    groups: tuple[Group, ...]


def matches(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a node selector term selects a node with these labels, as the scheduler has it."""
    found = term.get("matchExpressions") or ()
    return bool(found) and all(
        (labels.get(each["key"]) in each["values"]) == (each["operator"] == "In") for each in found
    )


def fits(pod_spec: Mapping[str, Any], group: Group, hostname: str = "new") -> bool:
    """Whether the scheduler's filters let a pod onto a node of the group."""
    labels = {**group.labels, HOSTNAME: hostname}
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms")
    if terms and not any(matches(term, labels) for term in terms):
        return False
    if not (pod_spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    return all(
        any(_tolerates(toleration, *taint) for toleration in pod_spec.get("tolerations") or ())
        for taint in group.taints
    )


def _tolerates(toleration: Mapping[str, Any], key: str, value: str) -> bool:
    if toleration.get("key") != key or toleration.get("effect", "NoSchedule") != "NoSchedule":
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value") == value


def growing(pod_spec: Mapping[str, Any], cloud: Cloud) -> Group | None:
    """The group that grows for a pod without a node; None: none can."""
    possible = [group for group in cloud.groups if group.stocked and fits(pod_spec, group)]
    if cloud.autoscaler == "karpenter":
        affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
        for preferred in affinity.get(PREFERRED) or ():
            for group in possible:
                if matches(preferred["preference"], group.labels):
                    return group
    return next(iter(possible), None)


@dataclass(eq=False)
class SimulatedCloud:
    """The nodes and pods of one run in a namespace; each worker takes a whole node.

    Attributes:
        grown: Names of the groups that grew, in order.
    """

    server: ApiServer
    namespace: str
    cloud: Cloud
    grown: list[str] = field(default_factory=list)
    _nodes: dict[str, Group] = field(default_factory=dict)
    _numbers: Any = field(default_factory=itertools.count)

    def look(self, job_name: str = "digits-1") -> None:
        """What KubeRay, the scheduler and the autoscaler do at one time."""
        with contextlib.suppress(ApiError):
            self._keep_pods(self.server.get(RAY_API, "RayJob", job_name, self.namespace))
        for pod in self.pods():
            if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                self._place(pod)

    def pods(self, role: str | None = None) -> list[Object]:
        """The run's pods."""
        return [
            {"apiVersion": "v1", "kind": "Pod", **pod}
            for pod in self._list("/api/v1", "pods")
            if role in (None, pod["metadata"]["labels"][ROLE_LABEL])
        ]

    def cluster(self) -> Object:
        """The RayCluster."""
        (found,) = self._list(f"/apis/{RAY_API}", "rayclusters")
        return {"apiVersion": RAY_API, "kind": "RayCluster", **found}

    def group_of(self, pod: Object) -> str:
        """The group whose node a pod has; "": it has none."""
        node = pod["spec"].get("nodeName")
        return self._nodes[node].name if node else ""

    def takes_back(self, node: str) -> None:
        """A spot node is drained: its pod gets its notice, and is gone some time later."""
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                options = {"gracePeriodSeconds": 30}
                self.server.request("DELETE", self.server.path(pod), options)

    def is_gone(self, node: str) -> None:
        """The drained node's kubelet has ended the pod, and the node is gone."""
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                options = {"gracePeriodSeconds": 0}
                self.server.request("DELETE", self.server.path(pod), options)
        self.server.request("DELETE", f"/api/v1/nodes/{node}")
        del self._nodes[node]

    def clear(self) -> None:
        """Nodes belong to no namespace."""
        for node in self._nodes:
            self.server.request("DELETE", f"/api/v1/nodes/{node}")

    def _list(self, api: str, plural: str) -> Iterable[Object]:
        found: list[Object] = self.server.request(
            "GET", f"{api}/namespaces/{self.namespace}/{plural}"
        )["items"]
        return found

    # KubeRay

    def _keep_pods(self, job: Object) -> None:
        name = f"{job['metadata']['name']}-abcde"
        try:
            cluster = self.server.get(RAY_API, "RayCluster", name, self.namespace)
        except ApiError:
            labels, owners = job["metadata"]["labels"], [controlled_by(job)]
            metadata = {"name": name, "namespace": self.namespace, "labels": labels}
            cluster = self.server.create(
                {
                    "apiVersion": RAY_API,
                    "kind": "RayCluster",
                    "metadata": {**metadata, "ownerReferences": owners},
                    "spec": job["spec"]["rayClusterSpec"],
                }
            )
        # Terminating pods count as replicas, as KubeRay counts them.
        if not self.pods(HEAD):
            head = self._create(cluster, HEAD, cluster["spec"]["headGroupSpec"]["template"])
            named = {**cluster, "status": {"head": {"podName": head}}}
            cluster = {**cluster, **self.server.replace(named, "status")}
        (group,) = cluster["spec"]["workerGroupSpecs"]
        for _ in range(group["replicas"] - len(self.pods(WORKER))):
            self._create(cluster, WORKER, group["template"])

    def _create(self, cluster: Object, role: str, template: Object) -> str:
        """The name of a new pod."""
        metadata = copy.deepcopy(template["metadata"])
        metadata["name"] = f"{cluster['metadata']['name']}-{role}-{next(self._numbers)}"
        metadata["namespace"] = self.namespace
        metadata["labels"]["ray.io/node-type"] = role
        metadata["ownerReferences"] = [controlled_by(cluster)]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        self.server.create(pod)
        return str(metadata["name"])

    # Scheduler and autoscaler

    def _place(self, pod: Object) -> None:
        role, spec = pod["metadata"]["labels"][ROLE_LABEL], pod["spec"]
        taken = {one["spec"].get("nodeName") for one in self.pods()}
        free = [
            node
            for node, group in self._nodes.items()
            if node not in taken
            and fits(spec, group, node)
            and (role == HEAD) == (group.name == HEAD)
        ]
        if not free and role == HEAD:
            free = [self._add_node(Group(HEAD, {}))]
        if free:
            self._bind(pod, free[0])
            return
        self._refuse(pod)
        group = growing(spec, self.cloud)
        if group is not None:
            self.grown.append(group.name)
            self._add_node(group)

    def _add_node(self, group: Group) -> str:
        name = f"{self.namespace}-{group.name}-{next(self._numbers)}"
        metadata = {"name": name, "labels": {**group.labels, HOSTNAME: name}}
        node = self.server.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        # The API server puts a taint on it, which a controller takes off once it is Ready.
        node["spec"]["taints"] = [
            {"key": key, "value": value, "effect": "NoSchedule"} for key, value in group.taints
        ]
        node = self.server.replace(node)
        node["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.server.replace(node, "status")
        self._nodes[name] = group
        return name

    def _bind(self, pod: Object, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        metadata = {"name": pod["metadata"]["name"]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self.server.request("POST", f"{self.server.path(pod)}/binding", body)
        bound = self.server.get("v1", "Pod", pod["metadata"]["name"], self.namespace)
        container = {
            "name": bound["spec"]["containers"][0]["name"],
            "image": "none",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": bound["metadata"]["creationTimestamp"]}},
        }
        bound["status"] |= {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "containerStatuses": [container],
        }
        self.server.replace(bound, "status")

    def _refuse(self, pod: Object) -> None:
        if pod["status"].get("conditions"):
            return
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0 nodes are available",
                "lastTransitionTime": pod["metadata"]["creationTimestamp"],
            }
        ]
        with contextlib.suppress(ApiError):
            self.server.replace(pod, "status")
