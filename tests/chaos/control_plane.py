"""What happens to the control plane, and to what else every pod needs of the cluster."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e import cluster as clusters
from e2e import outages
from e2e.cluster import NAMESPACE
from e2e.installing import DEPLOYMENT
from e2e.runs import Run, kill_trainer

from .acting import a_worker, process_stopped

FLOW = "flowcontrol.apiserver.k8s.io/v1"
PKI = "/etc/kubernetes/pki/etcd"


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
    certificates = f"--cacert {PKI}/ca.crt --cert {PKI}/server.crt --key {PKI}/server.key"

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
