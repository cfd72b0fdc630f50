"""What happens to nodes, and what keeps pods off them."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.network import client
from e2e.runs import WORKERS, Run

from .acting import a_worker, address_of, pods_of, process_stopped

OUTRANKING = "chaos-outranking"
"""Name of the pod, and of its priority class, that takes a worker's place."""
DRAINING = ("--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=trainingrun.dev/run")


@contextmanager
def spot_node_killed(run: Run) -> Iterator[None]:
    """The machine is off, and comes back later."""
    node = run.cluster.spot_node
    try:
        run.cluster.kill_node(node)
        yield
    finally:
        run.cluster.start_node(node)


@contextmanager
def spot_node_paused(run: Run) -> Iterator[None]:
    """No process of the machine runs; when they go on, their work has been taken over, or not."""
    node = run.cluster.spot_node
    try:
        run.cluster.pause_node(node)
        yield
    finally:
        run.cluster.start_node(node)


@contextmanager
def spot_node_cut_off(run: Run) -> Iterator[None]:
    """Nothing gets to the machine or from it; its processes run on, and are heard again later."""
    node, chains = run.cluster.spot_node, ("INPUT", "OUTPUT", "FORWARD")
    try:
        run.cluster.on_node(node, " && ".join(f"iptables -I {one} -j DROP" for one in chains))
        yield
    finally:
        run.cluster.on_node(node, "; ".join(f"iptables -D {one} -j DROP" for one in chains))
        run.cluster.start_node(node)


@contextmanager
def spot_node_without_api_server(run: Run) -> Iterator[None]:
    """The machine's kubelet reaches no API server; the pods reach each other."""
    node, address = run.cluster.spot_node, address_of(run, run.cluster.control_plane)
    try:
        run.cluster.on_node(node, f"iptables -I OUTPUT -d {address} -j DROP")
        yield
    finally:
        run.cluster.on_node(node, f"iptables -D OUTPUT -d {address} -j DROP")
        run.cluster.start_node(node)


@contextmanager
def workers_cut_off(run: Run) -> Iterator[None]:
    """No packet gets from one node's pods to the other's; everyone reaches the API server."""
    node, others = run.cluster.spot_node, pods_of(run, run.cluster.on_demand_node)
    try:
        run.cluster.on_node(node, f"iptables -I FORWARD -s {others} -j DROP")
        yield
    finally:
        run.cluster.on_node(node, f"iptables -D FORWARD -s {others} -j DROP")


@contextmanager
def spot_node_drained(run: Run) -> Iterator[None]:
    """`kubectl drain`, and the node is used again later."""
    node = run.cluster.spot_node
    try:
        run.kubectl("drain", node, *DRAINING, "--timeout=90s", timeout=100)
        yield
    finally:
        run.kubectl("uncordon", node)


@contextmanager
def spot_node_drained_against_a_budget(run: Run) -> Iterator[None]:
    """`kubectl drain`, which a PodDisruptionBudget of the run's pods refuses all the time."""
    node, name = run.cluster.spot_node, f"{run.name}-budget"
    selector = {"matchLabels": {"trainingrun.dev/run": run.name}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}}
    try:
        # Not maxUnavailable: its controller asks for a scale subresource; RayClusters have none.
        spec = {"minAvailable": WORKERS + 1, "selector": selector}
        run.kubectl.apply({**budget, "spec": spec})
        # Before its controller has seen it, an eviction is told to wait, not refused.
        seen = "--for=jsonpath={.status.observedGeneration}=1"
        run.kubectl("wait", f"poddisruptionbudget/{name}", seen, "--timeout=30s")
        run.kubectl("drain", node, *DRAINING, "--timeout=15s", timeout=100, check=False)
        yield
    finally:
        run.kubectl.delete("poddisruptionbudget", name)
        run.kubectl("uncordon", node)


@contextmanager
def spot_node_tainted(run: Run) -> Iterator[None]:
    """A taint with effect NoExecute."""
    node = run.cluster.spot_node
    try:
        run.kubectl("taint", "node", node, "chaos=now:NoExecute", "--overwrite")
        yield
    finally:
        run.kubectl("taint", "node", node, "chaos-", check=False)


@contextmanager
def spot_node_cordoned_and_worker_deleted(run: Run) -> Iterator[None]:
    """Its pod goes, and no other may come."""
    node = run.cluster.spot_node
    on_it = next(pod for pod, where in run.workers().items() if where == node)
    try:
        run.kubectl("cordon", node)
        run.kubectl.delete("pod", on_it)
        yield
    finally:
        run.kubectl("uncordon", node)


@contextmanager
def kubelet_stopped(run: Run) -> Iterator[None]:
    """SIGSTOP of the spot node's kubelet: its Lease gets old, and its containers run on."""
    with process_stopped(run.cluster, run.cluster.spot_node, "kubelet"):
        yield


@contextmanager
def kubelet_restarted(run: Run) -> Iterator[None]:
    """The spot node's kubelet begins anew."""
    run.cluster.on_node(run.cluster.spot_node, "systemctl restart kubelet")
    yield


@contextmanager
def containerd_restarted(run: Run) -> Iterator[None]:
    """The spot node's container runtime begins anew; containers run on."""
    run.cluster.on_node(run.cluster.spot_node, "systemctl restart containerd")
    yield


@contextmanager
def outranked_by_a_pod(run: Run) -> Iterator[None]:
    """A pod of a higher priority needs the spot node's CPUs: the scheduler preempts the worker."""
    node = run.cluster.spot_node
    found = run.kubectl.get("node", node)["status"]["allocatable"]["cpu"]
    free = int(float(found) * 1000) - 150  # beside the network's pod, and no worker
    pod = client(node, OUTRANKING, {})
    del pod["spec"]["nodeName"]
    (container,) = pod["spec"]["containers"]
    pod["spec"] |= {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "priorityClassName": OUTRANKING,
        "containers": [{**container, "resources": {"requests": {"cpu": f"{free}m"}}}],
    }
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    try:
        run.kubectl.within("").apply({**priority, "metadata": {"name": OUTRANKING}})
        run.kubectl.apply(pod)
        yield
    finally:
        run.kubectl.delete("pod", OUTRANKING, wait=True)
        run.kubectl.delete("priorityclass", OUTRANKING)


@contextmanager
def quota_used_up_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while a ResourceQuota admits no pod."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "chaos"}}
    try:
        run.kubectl.apply({**quota, "spec": {"hard": {"pods": "0"}}})
        run.kubectl.delete("pod", a_worker(run))
        yield
    finally:
        run.kubectl.delete("resourcequota", "chaos")
