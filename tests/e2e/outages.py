"""Parts of the cluster that are away for a while. Each comes back when its block is left, whatever
happened inside.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .cluster import SYSTEM, TestCluster, available
from .installing import DEPLOYMENT
from .kube import CommandError, Kubectl, wait_for

NARROW = "e2e-narrow"
"""Name of a role of the operator's while its own is not bound."""


class Outage:
    """Something is away since now."""

    def __init__(self) -> None:
        self.began = time.time()

    def last(self, seconds: float) -> None:
        """Return when it has lasted so long."""
        time.sleep(max(0.0, self.began + seconds - time.time()))


@contextmanager
def deployment_away(kubectl: Kubectl, name: str) -> Iterator[Outage]:
    """A deployment without pods."""
    replicas = kubectl.get("deployment", name)["spec"]["replicas"]
    labels = kubectl.get("deployment", name)["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    try:
        kubectl("scale", f"deployment/{name}", "--replicas=0")
        wait_for(f"no pod of {name}", lambda: not kubectl.list("pods", selector), timeout=60)
        yield Outage()
    finally:
        kubectl("scale", f"deployment/{name}", f"--replicas={replicas}")
        available(kubectl, name)


@contextmanager
def storage_unreachable(cluster: TestCluster) -> Iterator[Outage]:
    """The bucket's Service without endpoints; connections that were open are cut too."""
    try:
        direct_storage(cluster, "away")
        forget_connections(cluster)
        yield Outage()
    finally:
        direct_storage(cluster, "s3")


def direct_storage(cluster: TestCluster, app: str) -> None:
    """Have the bucket's Service lead to the pods with that label `app`; `away`: to none."""
    kubectl = cluster.kubectl.within("storage")
    addresses = {
        address
        for pod in kubectl.list("pods", f"app={app}")
        if (address := pod["status"].get("podIP"))
    }

    def leads_there() -> bool:
        slices = kubectl.list("endpointslices", "kubernetes.io/service-name=s3")
        found = {
            address
            for part in slices
            for endpoint in part.get("endpoints") or ()
            for address in endpoint["addresses"]
        }
        return found <= addresses and bool(found) == (app != "away")

    kubectl.patch("service", "s3", {"spec": {"selector": {"app": app}}})
    wait_for(f"the bucket's Service leads to {app}", leads_there, timeout=30)


def forget_connections(cluster: TestCluster) -> None:
    """What is sent to the bucket on an open connection then meets the Service's present rules."""
    port = 7070
    for node in cluster.workers:
        script = f"sleep 2; conntrack -D -p tcp --orig-port-dst {port} 2>/dev/null; true"
        cluster.on_node(node, script)


@contextmanager
def api_server_paused(cluster: TestCluster) -> Iterator[Outage]:
    """The API server's process stopped: connections stay open and nobody answers."""
    node = cluster.control_plane
    try:
        cluster.on_node(node, "kill -STOP $(pidof kube-apiserver)")
        yield Outage()
    finally:
        cluster.on_node(node, "kill -CONT $(pidof kube-apiserver)")
        wait_for_api_server(cluster)


def wait_for_api_server(cluster: TestCluster) -> None:
    """Wait until it answers again."""
    wait_for("the API server answers", lambda: _answers(cluster), timeout=120)


def _answers(cluster: TestCluster) -> bool:
    try:
        cluster.kubectl("get", "trainingruns", timeout=5)  # it authorizes again too
        return True
    except CommandError:
        return False


@contextmanager
def permissions_deleted(cluster: TestCluster, but: Sequence[str] | None = None) -> Iterator[Outage]:
    """The operator without the binding of its role for runs: the API server refuses everything.

    Args:
        cluster: Where.
        but: Resources that it may still use as before.
    """
    kubectl = cluster.kubectl.within("")
    binding = kubectl.get("clusterrolebinding", DEPLOYMENT)
    rules = kubectl.get("clusterrole", DEPLOYMENT)["rules"]
    left = [rule for rule in rules if set(rule["resources"]) & set(but or ())]
    narrow = {"apiVersion": binding["apiVersion"], "metadata": {"name": NARROW}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NARROW}
    try:
        kubectl.apply(
            {**narrow, "kind": "ClusterRole", "rules": left},
            {
                **narrow,
                "kind": "ClusterRoleBinding",
                "roleRef": role,
                "subjects": binding["subjects"],
            },
        )
        kubectl.delete("clusterrolebinding", DEPLOYMENT)
        yield Outage()
    finally:
        # As Helm's, which finds it changed by somebody else otherwise.
        kubectl.apply_text(json.dumps(_as_applied(binding)), "--field-manager=helm")
        for kind in ("clusterrolebinding", "clusterrole"):
            kubectl.delete(kind, NARROW)


def replace_operator(cluster: TestCluster) -> None:
    """Its pods killed without a grace period; a Deployment makes new ones at once."""
    system = cluster.kubectl.within(SYSTEM)
    system("delete", "pods", "--all", "--force", "--grace-period=0")


def _as_applied(found: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "labels", "annotations")
    metadata = {key: found["metadata"][key] for key in kept if key in found["metadata"]}
    return {**found, "metadata": metadata}


def leader(cluster: TestCluster) -> str:
    """Name of the operator's pod that holds the Lease of the leader; empty if none does.

    A pod that ends is none: after a rollout the former leader holds the Lease until it has ended.
    """
    system = cluster.kubectl.within(SYSTEM)
    (lease,) = system.list("leases")
    # The name of its host, and what tells it from the same pod's former processes.
    name = (lease["spec"].get("holderIdentity") or "").partition("_")[0]
    pod = system.find("pod", name) if name else None
    return name if pod and "deletionTimestamp" not in pod["metadata"] else ""


def kill_operator(cluster: TestCluster, pod: str) -> None:
    """`kill -9` of its process, so that it gives nothing back, and then the pod is removed."""
    system = cluster.kubectl.within(SYSTEM)
    cluster.kill_container(system, pod, "operator")
    system.delete("pod", pod, "--force", "--grace-period=0")
