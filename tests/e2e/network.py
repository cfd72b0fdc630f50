"""Who reaches a run's ports, tried from real pods; and NetworkPolicies where nobody enforces them.

kind's own network plugin enforces them. On a cluster whose plugin does not, `enforced` puts them
into the nodes' iptables, as they apply to the pods that are there then.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .cluster import TRAINING_IMAGE, TestCluster
from .kube import Kubectl, wait_for

DASHBOARD, GCS, PROGRESS = 8265, 6379, 8484
"""A head's ports: Ray's API, its control store, the runtime's progress document."""
PORTS = (DASHBOARD, GCS, PROGRESS)
CHAIN = "E2E-POLICIES"

CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=3).close()
        print(port)
    except OSError:
        pass
"""
GET = """
import os, sys, urllib.error, urllib.request
headers = {"Authorization": "Bearer " + sys.argv[2]} if sys.argv[2:] else {}
try:
    print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=headers)).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def client(node: str, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """A pod that does nothing until it is told to connect somewhere."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "client",
                    "image": TRAINING_IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["python", "-m", "http.server", "8000"],
                    # The operator's namespace admits restricted pods only.
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 1000,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }


def start(kubectl: Kubectl, *pods: dict[str, Any]) -> None:
    """Create client pods and wait until they can be used."""
    kubectl.apply(*pods)
    for pod in pods:
        name = pod["metadata"]["name"]
        kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s", timeout=70)
        wait_for(
            f"{name} listens",
            lambda name=name: reached(kubectl, name, "client", "localhost", 8000),
            timeout=20,
        )


def reached(kubectl: Kubectl, pod: str, container: str, address: str, *ports: int) -> set[int]:
    """Which ports of an address a pod can connect to."""
    words = ["python", "-c", CONNECT, address, *map(str, ports)]
    return {int(line) for line in kubectl.execute(pod, container, words).split()}


def answer(kubectl: Kubectl, pod: str, url: str, *token: str) -> int:
    """The HTTP status that a pod gets, with a bearer token or none."""
    return int(kubectl.execute(pod, "client", ["python", "-c", GET, url, *token]))


def is_enforced(cluster: TestCluster, kubectl: Kubectl) -> bool:
    """Whether the cluster's network plugin keeps NetworkPolicies; tried in an empty namespace."""
    node = cluster.on_demand_node
    start(kubectl, client(node, "from", {}), client(cluster.spot_node, "to", {"e2e": "to"}))
    address = kubectl.get("pod", "to")["status"]["podIP"]
    assert reached(kubectl, "from", "client", address, 8000), "no pod reaches another one"
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "nobody"},
        "spec": {"podSelector": {"matchLabels": {"e2e": "to"}}, "policyTypes": ["Ingress"]},
    }
    kubectl.apply(policy)
    try:
        tries = (reached(kubectl, "from", "client", address, 8000) for _ in range(3))
        return not all(tries)
    finally:
        kubectl.delete("networkpolicy", "nobody")
        kubectl.delete("pod", "from", wait=True)
        kubectl.delete("pod", "to", wait=True)


@contextmanager
def enforced(cluster: TestCluster, namespace: str) -> Iterator[None]:
    """The namespace's ingress policies in the iptables of every node, for the pods of now.

    Only what is forwarded to a pod is checked: a node always reaches its own pods.
    """
    rules = list(_rules(cluster.kubectl.within(namespace)))
    nodes = (cluster.control_plane, *cluster.workers)
    try:
        for node in nodes:
            lines = [f"-N {CHAIN}", f"-I FORWARD 1 -j {CHAIN}", *rules]
            cluster.on_node(node, "set -e\n" + "\n".join(f"iptables {line}" for line in lines))
        yield
    finally:
        for node in nodes:
            lines = (f"-D FORWARD -j {CHAIN}", f"-F {CHAIN}", f"-X {CHAIN}")
            cluster.on_node(node, "\n".join(f"iptables {line}" for line in lines) + "\ntrue")


def _rules(kubectl: Kubectl) -> Iterator[str]:
    allowed: dict[str, list[str]] = {}
    for policy in kubectl.list("networkpolicies"):
        spec = policy["spec"]
        assert spec["policyTypes"] == ["Ingress"], "only ingress is known here"
        for address in _addresses(kubectl, kubectl.namespace, spec["podSelector"]):
            rules = allowed.setdefault(address, [])
            for rule in spec.get("ingress", []):
                rules += _allowing(kubectl, rule)
    new = "-m conntrack --ctstate NEW"
    for address, rules in allowed.items():
        for rule in rules:
            yield f"-A {CHAIN} -d {address} {rule} {new} -j RETURN"
        yield f"-A {CHAIN} -d {address} {new} -j DROP"


def _allowing(kubectl: Kubectl, rule: Mapping[str, Any]) -> Iterator[str]:
    ports = [
        f"-p {port['protocol'].lower()} --dport {int(port['port'])}"
        for port in rule.get("ports", [])
    ]
    sources = ["0.0.0.0/0"] if not rule.get("from") else []
    for peer in rule.get("from", []):
        assert set(peer) <= {"podSelector", "namespaceSelector"}, f"{peer} is not known here"
        namespaces = [kubectl.namespace]
        if "namespaceSelector" in peer:
            found = kubectl.list("namespaces", _selector(peer["namespaceSelector"]))
            namespaces = [entry["metadata"]["name"] for entry in found]
        for namespace in namespaces:
            sources += _addresses(kubectl, namespace, peer.get("podSelector", {}))
    for source, port in itertools.product(sources, ports or [""]):
        yield f"-s {source} {port}"


def _addresses(kubectl: Kubectl, namespace: str, selector: Mapping[str, Any]) -> list[str]:
    pods = kubectl.within(namespace).list("pods", _selector(selector))
    return [pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")]


def _selector(selector: Mapping[str, Any]) -> str:
    """A label selector as kubectl takes it."""
    parts = [f"{key}={value}" for key, value in selector.get("matchLabels", {}).items()]
    for term in selector.get("matchExpressions", []):
        key, values = term["key"], ",".join(term.get("values", []))
        form = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}
        parts.append(form[term["operator"]].format(key, values))
    return ",".join(parts)
