"""What can go wrong on the test cluster. Each fault is a context manager: it is there while its
block runs, and undone when that is left, whatever happened inside.

What needs something that this cluster has not, such as Kueue or several zones, is not here.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import cluster as clusters
from e2e import outages
from e2e.cluster import NAMESPACE, SYSTEM, TestCluster
from e2e.installing import DEPLOYMENT
from e2e.kube import Kubectl, wait_for
from e2e.network import client
from e2e.runs import WORKERS, Run, kill_trainer, signal_trainer

from .plan import PHASE_S, Phase, Scenario

Act = Callable[[Run], AbstractContextManager[None]]

STORAGE_PROXY = Path(__file__).parent / "storage_proxy.py"
FLOW = "flowcontrol.apiserver.k8s.io/v1"
OUTRANKING = "chaos-outranking"
"""Name of the pod, and of its priority class, that takes a worker's place."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong."""

    name: str
    act: Act
    budget_s: float
    """Seconds without training that it may cost a run that trains: two to three times what it
    costs on two cores, `lasts_s` included where training cannot go on meanwhile."""
    lasts_s: float = 0.0
    """How long it is there; 0: it is over at once."""
    phases: tuple[Phase, ...] = (Phase.TRAINING,)
    needs_spot: bool = False
    """It happens to the spot node, on which a worker has to be."""
    restarts: int = 0
    """Of the application that it may use up: what it does looks like an error of the code."""
    ends_run: bool = False
    """It is the run's end; nothing is left of it."""


PROCESS_S, POD_S, NODE_S, RAYLET_S, HEAD_S, ATTEMPT_S = 45.0, 60.0, 120.0, 180.0, 150.0, 240.0
"""Budgets by what has to begin again: a process, a pod, a node's pods where the node has to be
noticed, a raylet whose container goes on, the head, the whole attempt."""
UNNOTICED_S = 30.0
"""Budget of what stops no training; the longest pause on a machine that is busy otherwise."""


# Processes


@contextmanager
def trainer_killed(run: Run) -> Iterator[None]:
    """`kill -9` of rank 0's process."""
    kill_trainer(run.kubectl, run.trainer())
    yield


@contextmanager
def other_rank_killed(run: Run) -> Iterator[None]:
    """`kill -9` of the process of the rank that is not 0."""
    kill_trainer(run.kubectl, other_worker(run))
    yield


@contextmanager
def both_ranks_killed(run: Run) -> Iterator[None]:
    """Both, one right after the other: nobody is left to save the last step."""
    for pod in run.workers():
        kill_trainer(run.kubectl, pod)
    yield


@contextmanager
def trainer_stopped(run: Run) -> Iterator[None]:
    """SIGSTOP of rank 0's process, which is never continued: a hang."""
    signal_trainer(run.kubectl, run.trainer(), "STOP")
    yield


@contextmanager
def trainer_paused(run: Run) -> Iterator[None]:
    """SIGSTOP of rank 0's process, and SIGCONT before it counts as hung."""
    pod = run.trainer()
    try:
        signal_trainer(run.kubectl, pod, "STOP")
        yield
    finally:
        signal_trainer(run.kubectl, pod, "CONT")


@contextmanager
def raylet_killed(run: Run) -> Iterator[None]:
    """A worker's raylet dies, and its container goes on."""
    run.cluster.kill_raylet(run.kubectl, run.trainer())
    yield


@contextmanager
def agent_killed(run: Run) -> Iterator[None]:
    """The agent beside a worker's raylet dies, and the raylet with it."""
    signal(run.kubectl, run.trainer(), "ray-worker", "ray::DashboardAgent*", "KILL")
    yield


@contextmanager
def gcs_killed(run: Run) -> Iterator[None]:
    """Ray's control store dies in the head."""
    signal(run.kubectl, run.head(), "ray-head", "*/gcs_server *", "KILL")
    yield


@contextmanager
def driver_killed(run: Run) -> Iterator[None]:
    """The driver dies without a word."""
    signal(run.kubectl, run.head(), "ray-head", DRIVER, "KILL")
    yield


@contextmanager
def driver_paused(run: Run) -> Iterator[None]:
    """SIGSTOP of the driver, and SIGCONT after a while."""
    pod = run.head()
    try:
        signal(run.kubectl, pod, "ray-head", DRIVER, "STOP")
        yield
    finally:
        signal(run.kubectl, pod, "ray-head", DRIVER, "CONT")


@contextmanager
def worker_out_of_memory(run: Run) -> Iterator[None]:
    """A process in a worker's container takes more memory than the container may have."""
    run.kubectl.execute(
        other_worker(run),
        "ray-worker",
        ["python", "-c", "taken = []\nwhile True: taken.append(b'x' * 2**26)"],
        check=False,
    )
    yield


@contextmanager
def shared_memory_full(run: Run) -> Iterator[None]:
    """/dev/shm of a worker has no byte left."""
    pod = run.trainer()
    filled = ["sh", "-c", "dd if=/dev/zero of=/dev/shm/chaos bs=1M 2>/dev/null; true"]
    try:
        run.kubectl.execute(pod, "ray-worker", filled)
        yield
    finally:
        run.kubectl.execute(pod, "ray-worker", ["rm", "-f", "/dev/shm/chaos"], check=False)


# Containers and pods


@contextmanager
def worker_container_killed(run: Run) -> Iterator[None]:
    """`kill -9` of a worker container's main process."""
    run.cluster.kill_container(run.kubectl, run.trainer(), "ray-worker")
    yield


@contextmanager
def head_container_killed(run: Run) -> Iterator[None]:
    """`kill -9` of the head container's main process."""
    run.cluster.kill_container(run.kubectl, run.head(), "ray-head")
    yield


@contextmanager
def worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod is deleted, with its notice."""
    run.kubectl.delete("pod", a_worker(run))
    yield


@contextmanager
def worker_force_deleted(run: Run) -> Iterator[None]:
    """A worker pod is deleted without its notice."""
    run.kubectl.delete("pod", a_worker(run), *FORCED)
    yield


@contextmanager
def both_workers_deleted(run: Run) -> Iterator[None]:
    """Both worker pods, with their notice."""
    run.kubectl("delete", "pods", "--wait=false", f"--selector={of_run(run)},{IS_WORKER}")
    yield


@contextmanager
def both_workers_force_deleted(run: Run) -> Iterator[None]:
    """Both worker pods without their notice: nobody is left to save the last step."""
    run.kubectl("delete", "pods", "--wait=false", f"--selector={of_run(run)},{IS_WORKER}", *FORCED)
    yield


@contextmanager
def head_deleted(run: Run) -> Iterator[None]:
    """The head pod is deleted, with its notice."""
    run.kubectl.delete("pod", a_head(run))
    yield


@contextmanager
def head_force_deleted(run: Run) -> Iterator[None]:
    """The head pod is deleted without its notice."""
    run.kubectl.delete("pod", a_head(run), *FORCED)
    yield


@contextmanager
def head_and_worker_deleted(run: Run) -> Iterator[None]:
    """The head and one worker at once, without their notice."""
    run.kubectl("delete", "pod", a_head(run), a_worker(run), "--wait=false", *FORCED)
    yield


@contextmanager
def every_pod_deleted(run: Run) -> Iterator[None]:
    """All pods of the run at once, without their notice."""
    run.kubectl("delete", "pods", "--wait=false", f"--selector={of_run(run)}", *FORCED)
    yield


@contextmanager
def worker_evicted(run: Run) -> Iterator[None]:
    """By the eviction API, as drains and descheduling do it."""
    evict(run.kubectl, a_worker(run))
    yield


@contextmanager
def head_evicted(run: Run) -> Iterator[None]:
    """The same of the head."""
    evict(run.kubectl, a_head(run))
    yield


# Objects of the run


@contextmanager
def ray_cluster_deleted(run: Run) -> Iterator[None]:
    """Somebody deletes the attempt's RayCluster."""
    run.kubectl("delete", "rayclusters", "--wait=false", f"--selector={of_run(run)}")
    yield


@contextmanager
def ray_job_deleted(run: Run) -> Iterator[None]:
    """Somebody deletes the attempt's RayJob."""
    run.kubectl("delete", "rayjobs", "--wait=false", f"--selector={of_run(run)}")
    yield


@contextmanager
def token_deleted(run: Run) -> Iterator[None]:
    """The Secret with the run's token is deleted; the operator makes it anew."""
    run.kubectl("delete", "secrets", f"--selector={of_run(run)}")
    yield


@contextmanager
def network_policy_deleted(run: Run) -> Iterator[None]:
    """The run's NetworkPolicy is deleted; the operator makes it anew."""
    run.kubectl("delete", "networkpolicies", f"--selector={of_run(run)}")
    yield


@contextmanager
def spec_edited(run: Run) -> Iterator[None]:
    """An edit of `checkpoints`, which applies from the next attempt on."""
    run.patch(checkpoints={"everySeconds": 4})
    yield


@contextmanager
def suspended_for_a_moment(run: Run) -> Iterator[None]:
    """`suspend` is set, and taken back before every pod is gone."""
    try:
        run.patch(suspend=True)
        yield
    finally:
        run.patch(suspend=False)


@contextmanager
def run_deleted(run: Run) -> Iterator[None]:
    """Its user deletes the run."""
    run.kubectl.delete("trainingrun", run.name)
    yield


# Nodes


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


# Who watches over it


@contextmanager
def operator_deleted(run: Run) -> Iterator[None]:
    """The operator's pod is deleted by force; a new one comes at once."""
    outages.replace_operator(run.cluster)
    yield


@contextmanager
def operator_killed(run: Run) -> Iterator[None]:
    """`kill -9` of the operator's process: it gives no Lease back."""
    leader = wait_for("an operator that leads", lambda: outages.leader(run.cluster), timeout=60)
    outages.kill_operator(run.cluster, leader)
    yield


@contextmanager
def operator_away(run: Run) -> Iterator[None]:
    """No operator for a while."""
    with outages.deployment_away(run.kubectl.within(SYSTEM), DEPLOYMENT):
        yield


@contextmanager
def operator_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while there is no operator."""
    with operator_away(run):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def operator_away_and_head_deleted(run: Run) -> Iterator[None]:
    """The head goes while there is no operator."""
    with operator_away(run):
        run.kubectl.delete("pod", a_head(run), *FORCED)
        yield


@contextmanager
def kuberay_deleted(run: Run) -> Iterator[None]:
    """KubeRay's pod is deleted by force; a new one comes at once."""
    selector = "--selector=app.kubernetes.io/name=kuberay-operator"
    run.kubectl.within("default")("delete", "pods", "--wait=false", selector, *FORCED)
    yield


@contextmanager
def kuberay_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while there is no KubeRay."""
    with outages.deployment_away(run.kubectl.within("default"), "kuberay-operator"):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def permissions_away(run: Run) -> Iterator[None]:
    """The operator may do nothing."""
    with outages.permissions_deleted(run.cluster):
        yield


@contextmanager
def permissions_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while the operator may do nothing."""
    with outages.permissions_deleted(run.cluster):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def pods_and_jobs_unreadable(run: Run) -> Iterator[None]:
    """The operator may see neither pods nor RayJobs."""
    others = ("trainingruns", "trainingruns/status", "secrets", "networkpolicies", "events")
    with outages.permissions_deleted(run.cluster, but=others):
        yield


# The control plane


@contextmanager
def api_server_paused(run: Run) -> Iterator[None]:
    """Connections to the API server stay open, and nobody answers."""
    with outages.api_server_paused(run.cluster):
        yield


@contextmanager
def api_server_paused_and_trainer_killed(run: Run) -> Iterator[None]:
    """A process dies while the API server does not answer."""
    pod = run.trainer()
    node = run.workers()[pod]
    with outages.api_server_paused(run.cluster):
        # kubectl does not work now: from the node.
        run.cluster.on_node(node, "pkill -9 -f '^ray::.*TrainWorker'")
        yield


@contextmanager
def api_server_killed(run: Run) -> Iterator[None]:
    """Every watch is cut; the kubelet starts the API server anew."""
    try:
        run.cluster.on_node(run.cluster.control_plane, "kill -9 $(pidof kube-apiserver)")
        yield
    finally:
        outages.wait_for_api_server(run.cluster)


@contextmanager
def etcd_compacted(run: Run) -> Iterator[None]:
    """Nothing older than now is kept, and every watch has to begin anew: 410 to what is older."""
    certificates = " ".join(f"--{name}={PKI}/{file}" for name, file in ETCD_FILES.items())

    def ask(path: str, request: dict[str, str]) -> Any:
        """Of etcd's gRPC gateway: not every etcd image has etcdctl."""
        curl = f"curl --silent --fail-with-body {certificates} https://127.0.0.1:2379/v3/{path}"
        command = f"{curl} --data {shlex.quote(json.dumps(request))}"
        return json.loads(run.cluster.on_node(run.cluster.control_plane, command))

    revision = ask("maintenance/status", {})["header"]["revision"]
    ask("kv/compaction", {"revision": revision})
    with api_server_killed(run):
        yield


@contextmanager
def etcd_paused(run: Run) -> Iterator[None]:
    """The API server gets no answer from its store."""
    try:
        with process_stopped(run.cluster, run.cluster.control_plane, "etcd"):
            yield
    finally:
        outages.wait_for_api_server(run.cluster)


@contextmanager
def scheduler_paused_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes, and nobody chooses a node for the next one."""
    with process_stopped(run.cluster, run.cluster.control_plane, "kube-scheduler"):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def controllers_paused(run: Run) -> Iterator[None]:
    """No garbage collector, no node lifecycle, no deployment controller."""
    with process_stopped(run.cluster, run.cluster.control_plane, "kube-controller-manager"):
        yield


@contextmanager
def operator_throttled(run: Run) -> Iterator[None]:
    """The API server works on one request of the operator at a time: it always takes one where none
    is underway, also with no share of its own. It answers 429 to each that comes meanwhile.
    """
    cluster = run.kubectl.within("")
    (subject,) = cluster.get("clusterrolebinding", DEPLOYMENT)["subjects"]
    account = {"name": subject["name"], "namespace": subject["namespace"]}
    everything = {
        "verbs": ["*"],
        "apiGroups": ["*"],
        "resources": ["*"],
        "namespaces": ["*"],
        "clusterScope": True,
    }
    level = {"apiVersion": FLOW, "kind": "PriorityLevelConfiguration"}
    nothing = {
        "nominalConcurrencyShares": 0,
        "lendablePercent": 0,
        "limitResponse": {"type": "Reject"},
    }
    schema = {
        "priorityLevelConfiguration": {"name": "chaos"},
        "matchingPrecedence": 2,  # 1 is the API server's own
        "rules": [
            {
                "subjects": [{"kind": "ServiceAccount", "serviceAccount": account}],
                "resourceRules": [everything],
            }
        ],
    }
    metadata = {"metadata": {"name": "chaos"}}
    try:
        cluster.apply(
            {**level, **metadata, "spec": {"type": "Limited", "limited": nothing}},
            {"apiVersion": FLOW, "kind": "FlowSchema", **metadata, "spec": schema},
        )
        yield
    finally:
        cluster.delete("flowschema", "chaos")
        cluster.delete("prioritylevelconfiguration", "chaos")


@contextmanager
def dns_away(run: Run) -> Iterator[None]:
    """No name is known."""
    with outages.deployment_away(run.kubectl.within("kube-system"), "coredns"):
        yield


@contextmanager
def dns_away_and_trainer_killed(run: Run) -> Iterator[None]:
    """A process dies while no name is known."""
    with dns_away(run):
        kill_trainer(run.kubectl, run.trainer())
        yield


@contextmanager
def credentials_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while the Secret with the bucket's credentials is not there."""
    try:
        run.kubectl.delete("secret", "s3-credentials")
        run.kubectl.delete("pod", a_worker(run))
        yield
    finally:
        clusters.namespace(run.cluster, NAMESPACE)


# The bucket


@contextmanager
def storage_away(run: Run) -> Iterator[None]:
    """The bucket is unreachable."""
    with outages.storage_unreachable(run.cluster):
        yield


@contextmanager
def storage_away_and_trainer_killed(run: Run) -> Iterator[None]:
    """A process dies while the bucket is unreachable."""
    with storage_away(run):
        kill_trainer(run.kubectl, run.trainer())
        yield


@contextmanager
def storage_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while the bucket is unreachable."""
    with storage_away(run):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def storage_restarted(run: Run) -> Iterator[None]:
    """`kill -9` of the gateway before the bucket; its container begins anew."""
    storage = run.kubectl.within("storage")
    (pod,) = storage.list("pods", "app=s3")
    run.cluster.kill_container(storage, pod["metadata"]["name"], "versitygw")
    yield


@contextmanager
def storage_paused(run: Run) -> Iterator[None]:
    """The gateway before the bucket does not answer; connections stay open."""
    with process_stopped(run.cluster, run.cluster.on_demand_node, "versitygw"):
        yield


def storage_answers(mode: str) -> Act:
    """A gateway that answers badly stands before the bucket; see `storage_proxy`."""

    @contextmanager
    def act(run: Run) -> Iterator[None]:
        storage = run.kubectl.within("storage")
        (real,) = storage.list("pods", "app=s3")
        pod = client(run.cluster.on_demand_node, "chaos", {"app": "chaos"})
        (container,) = pod["spec"]["containers"]
        environment = {"TARGET": f"{real['status']['podIP']}:7070", "MODE": mode}
        pod["spec"]["containers"] = [
            {
                **container,
                "command": ["python", "-c", STORAGE_PROXY.read_text()],
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "ports": [{"name": "s3", "containerPort": 7070}],
                "readinessProbe": {"tcpSocket": {"port": "s3"}, "periodSeconds": 1},
            }
        ]
        try:
            storage.apply(pod)
            storage("wait", "pod/chaos", "--for=condition=Ready", "--timeout=60s", timeout=70)
            outages.direct_storage(run.cluster, "chaos")
            outages.forget_connections(run.cluster)
            yield
        finally:
            outages.direct_storage(run.cluster, "s3")
            outages.forget_connections(run.cluster)
            storage.delete("pod", "chaos", wait=True)

    return act


# What they share

DRIVER = "*python* -m trainingrun_runtime"
FORCED = ("--force", "--grace-period=0")
IS_WORKER = "trainingrun.dev/role=worker"
DRAINING = ("--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=trainingrun.dev/run")
PKI = "/etc/kubernetes/pki/etcd"
ETCD_FILES = {"cacert": "ca.crt", "cert": "server.crt", "key": "server.key"}
"""By curl's options."""

SIGNAL = r"""
for entry in /proc/[0-9]*; do
  [ "${entry#/proc/}" = $$ ] && continue
  mapfile -d '' -t words 2>/dev/null < "$entry/cmdline"
  case "${words[*]}" in
    PATTERN) kill -NAME "${entry#/proc/}" && signaled=yes ;;
  esac
done
[ -n "$signaled" ]
"""
"""Signals the processes whose command line fits; a container has neither ps nor pkill."""


def signal(kubectl: Kubectl, pod: str, container: str, pattern: str, name: str) -> None:
    """Send a signal to the processes of a container whose command line fits the shell pattern.

    Raises:
        CommandError: none does.
    """
    kubectl.execute(pod, container, ["bash", "-c", signal_script(pattern, name)])


def signal_script(pattern: str, name: str) -> str:
    """The script for bash; it fails if no process fits."""
    quoted = "*".join(f"'{part}'" if part else "" for part in pattern.split("*"))
    return SIGNAL.replace("PATTERN", quoted).replace("NAME", name)


@contextmanager
def process_stopped(cluster: TestCluster, node: str, name: str) -> Iterator[None]:
    """SIGSTOP of a process on a node, by its name."""
    try:
        cluster.on_node(node, f"kill -STOP $(pidof {name})")
        yield
    finally:
        cluster.on_node(node, f"kill -CONT $(pidof {name})")


def of_run(run: Run) -> str:
    """The label selector of the run's objects."""
    return f"trainingrun.dev/run={run.name}"


def a_worker(run: Run) -> str:
    """Name of a worker pod: rank 0's, where it stays; one that ends where no other is there."""
    return _pod(run, "worker")


def a_head(run: Run) -> str:
    """Name of the head pod."""
    return _pod(run, "head")


def _pod(run: Run, role: str) -> str:
    """In the phases without training there may be none for a moment."""

    def there() -> list[str]:
        pods = run.pods(role)
        staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return [pod["metadata"]["name"] for pod in staying or pods]

    names = wait_for(f"a {role} pod of {run.name}", there, timeout=90, instead=run.sentence)
    if role == "worker" and run.steps() and (trainer := run.trainer()) in names:
        return trainer
    return names[0]


def other_worker(run: Run) -> str:
    """Name of the worker pod that has not rank 0."""
    trainer = run.trainer()
    return next(pod for pod in run.workers() if pod != trainer)


def evict(kubectl: Kubectl, pod: str) -> None:
    """Ask the eviction API for it."""
    metadata = {"name": pod, "namespace": kubectl.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{pod}/eviction"
    kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(body))


def address_of(run: Run, node: str) -> str:
    """The node's own address."""
    addresses = run.kubectl.get("node", node)["status"]["addresses"]
    return str(next(one["address"] for one in addresses if one["type"] == "InternalIP"))


def pods_of(run: Run, node: str) -> str:
    """The range of addresses of the node's pods."""
    return str(run.kubectl.get("node", node)["spec"]["podCIDR"])


# All of them

STARTING, TRAINING, RECOVERING = Phase.STARTING, Phase.TRAINING, Phase.RECOVERING
SUSPENDING, RESUMING, ENDING = Phase.SUSPENDING, Phase.RESUMING, Phase.ENDING
EVERY = tuple(Phase)

FAULTS = (
    Fault("rank 0 killed", trainer_killed, PROCESS_S, phases=(TRAINING, ENDING)),
    Fault("the other rank killed", other_rank_killed, PROCESS_S),
    Fault("both ranks killed", both_ranks_killed, PROCESS_S),
    Fault("rank 0 stopped", trainer_stopped, 120.0),
    Fault("rank 0 paused", trainer_paused, UNNOTICED_S + 8, lasts_s=8),
    Fault("raylet killed", raylet_killed, RAYLET_S),
    Fault("Ray's agent killed", agent_killed, RAYLET_S),
    Fault("Ray's control store killed", gcs_killed, HEAD_S),
    Fault("driver killed", driver_killed, ATTEMPT_S, restarts=1),
    Fault("driver paused", driver_paused, UNNOTICED_S + 15, lasts_s=15),
    Fault("worker out of memory", worker_out_of_memory, RAYLET_S, restarts=1),
    Fault("shared memory full", shared_memory_full, RAYLET_S, lasts_s=15),
    Fault("worker container killed", worker_container_killed, POD_S, phases=(TRAINING, ENDING)),
    Fault("head container killed", head_container_killed, HEAD_S),
    Fault("worker deleted", worker_deleted, POD_S, phases=EVERY),
    Fault("worker force-deleted", worker_force_deleted, POD_S, phases=(TRAINING, RECOVERING)),
    Fault("both workers deleted", both_workers_deleted, POD_S, phases=(TRAINING, RECOVERING)),
    Fault("both workers force-deleted", both_workers_force_deleted, POD_S),
    Fault("head deleted", head_deleted, HEAD_S, phases=(TRAINING, RECOVERING)),
    Fault("head force-deleted", head_force_deleted, HEAD_S, phases=EVERY),
    Fault("head and worker deleted", head_and_worker_deleted, HEAD_S),
    Fault("every pod deleted", every_pod_deleted, ATTEMPT_S, phases=(TRAINING, RECOVERING)),
    Fault("worker evicted", worker_evicted, POD_S),
    Fault("head evicted", head_evicted, HEAD_S),
    Fault("RayCluster deleted", ray_cluster_deleted, ATTEMPT_S),
    Fault("RayJob deleted", ray_job_deleted, ATTEMPT_S, phases=(TRAINING, RECOVERING)),
    Fault("token's Secret deleted", token_deleted, UNNOTICED_S),
    Fault("NetworkPolicy deleted", network_policy_deleted, UNNOTICED_S),
    Fault("spec edited", spec_edited, UNNOTICED_S, phases=EVERY),
    Fault("suspended for a moment", suspended_for_a_moment, ATTEMPT_S, lasts_s=2,
          phases=(STARTING, TRAINING, RECOVERING)),
    Fault("run deleted", run_deleted, 90.0, ends_run=True, phases=EVERY),
    Fault("spot node killed", spot_node_killed, NODE_S, lasts_s=45, needs_spot=True,
          phases=(TRAINING, ENDING)),
    Fault("spot node off and on", spot_node_killed, NODE_S, lasts_s=3, needs_spot=True),
    Fault("spot node paused", spot_node_paused, NODE_S, lasts_s=60, needs_spot=True),
    Fault("spot node paused for a moment", spot_node_paused, NODE_S, lasts_s=5, needs_spot=True),
    Fault("spot node cut off", spot_node_cut_off, NODE_S, lasts_s=60, needs_spot=True),
    Fault("spot node cut off for a moment", spot_node_cut_off, NODE_S, lasts_s=5, needs_spot=True),
    Fault("spot node without API server", spot_node_without_api_server, UNNOTICED_S, lasts_s=25,
          needs_spot=True),
    Fault("workers cut off for a moment", workers_cut_off, NODE_S, lasts_s=8, needs_spot=True),
    Fault("spot node drained", spot_node_drained, POD_S, needs_spot=True,
          phases=(TRAINING, ENDING)),
    Fault("spot node drained against a budget", spot_node_drained_against_a_budget, UNNOTICED_S,
          needs_spot=True),
    Fault("spot node tainted NoExecute", spot_node_tainted, POD_S, lasts_s=5, needs_spot=True),
    Fault("spot node cordoned, worker deleted", spot_node_cordoned_and_worker_deleted, POD_S,
          lasts_s=20, needs_spot=True),
    Fault("kubelet stopped", kubelet_stopped, UNNOTICED_S, lasts_s=30, needs_spot=True),
    Fault("kubelet restarted", kubelet_restarted, UNNOTICED_S, needs_spot=True),
    Fault("containerd restarted", containerd_restarted, UNNOTICED_S, needs_spot=True),
    Fault("preempted by the scheduler", outranked_by_a_pod, POD_S + 40, lasts_s=20,
          needs_spot=True),
    Fault("quota used up, worker deleted", quota_used_up_and_worker_deleted, POD_S + 40,
          lasts_s=20),
    Fault("operator deleted", operator_deleted, UNNOTICED_S, phases=EVERY),
    Fault("operator killed", operator_killed, UNNOTICED_S, phases=(TRAINING, RECOVERING)),
    Fault("operator away", operator_away, UNNOTICED_S, lasts_s=20),
    Fault("operator away, worker deleted", operator_away_and_worker_deleted, POD_S + 20,
          lasts_s=20),
    Fault("operator away, head force-deleted", operator_away_and_head_deleted, HEAD_S + 20,
          lasts_s=20),
    Fault("KubeRay deleted", kuberay_deleted, UNNOTICED_S, phases=(STARTING, TRAINING, RECOVERING)),
    Fault("KubeRay away, worker deleted", kuberay_away_and_worker_deleted, POD_S + 60, lasts_s=30),
    Fault("operator without permissions", permissions_away, UNNOTICED_S, lasts_s=25),
    Fault("operator without permissions, worker deleted", permissions_away_and_worker_deleted,
          POD_S + 25, lasts_s=25),
    Fault("pods and RayJobs unreadable", pods_and_jobs_unreadable, UNNOTICED_S, lasts_s=25),
    Fault("API server paused", api_server_paused, UNNOTICED_S, lasts_s=20),
    Fault("API server paused, rank 0 killed", api_server_paused_and_trainer_killed, PROCESS_S + 20,
          lasts_s=20),
    Fault("API server killed", api_server_killed, UNNOTICED_S, phases=(TRAINING, RECOVERING)),
    Fault("etcd compacted", etcd_compacted, UNNOTICED_S),
    Fault("etcd paused", etcd_paused, UNNOTICED_S, lasts_s=10),
    Fault("scheduler paused, worker deleted", scheduler_paused_and_worker_deleted, POD_S + 40,
          lasts_s=20),
    Fault("controllers paused", controllers_paused, UNNOTICED_S, lasts_s=20),
    Fault("operator throttled", operator_throttled, UNNOTICED_S, lasts_s=20,
          phases=(TRAINING, RECOVERING)),
    Fault("DNS away", dns_away, UNNOTICED_S, lasts_s=20),
    Fault("DNS away, rank 0 killed", dns_away_and_trainer_killed, PROCESS_S + 60, lasts_s=20),
    Fault("credentials away, worker deleted", credentials_away_and_worker_deleted, POD_S + 60,
          lasts_s=20),
    Fault("bucket away", storage_away, UNNOTICED_S, lasts_s=25,
          phases=(STARTING, TRAINING, ENDING)),
    Fault("bucket away, rank 0 killed", storage_away_and_trainer_killed, PROCESS_S + 70,
          lasts_s=25),
    Fault("bucket away, worker deleted", storage_away_and_worker_deleted, POD_S + 70, lasts_s=25),
    Fault("bucket's gateway killed", storage_restarted, UNNOTICED_S + 15),
    Fault("bucket hangs", storage_paused, UNNOTICED_S, lasts_s=20, phases=(TRAINING, RECOVERING)),
    Fault("bucket answers 503", storage_answers("503"), UNNOTICED_S, lasts_s=20,
          phases=(TRAINING, ENDING)),
    Fault("bucket answers 429", storage_answers("429"), UNNOTICED_S, lasts_s=20),
    Fault("bucket throttles", storage_answers("throttled"), UNNOTICED_S, lasts_s=25),
    Fault("bucket refuses writes", storage_answers("read-only"), UNNOTICED_S, lasts_s=20),
    Fault("bucket is slow", storage_answers("slow"), UNNOTICED_S, lasts_s=30),
    Fault("bucket accepts and hangs", storage_answers("hanging"), UNNOTICED_S, lasts_s=20),
)  # fmt: skip


def scenarios() -> dict[str, tuple[Scenario, Fault]]:
    """Every scenario and its fault, by the scenario's name."""
    found = {}
    for fault in FAULTS:
        for phase in fault.phases:
            scenario = Scenario(
                fault.name, phase, fault.lasts_s, fault.budget_s + PHASE_S[phase], fault.ends_run
            )
            assert scenario.name not in found, f"two scenarios are called {scenario.name}"
            found[scenario.name] = (scenario, fault)
    return found
