"""What the operator knows of nodes: those that are gone, and those that it may not watch."""

import pytest

from support.builders import an_object
from support.watches import a_watch
from trainingrun.cluster import nodes as module
from trainingrun.cluster.api_client import Forbidden
from trainingrun.cluster.nodes import UNKNOWN_NODE_S, Nodes
from trainingrun.reconciling.model import NodeState


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def watch(clock):
    watch = a_watch(clock, "/nodes", "Node")
    watch.opened(8)
    watch.state, watch._caught_up = "synced", True
    return watch


@pytest.fixture
def nodes(watch, clock):
    return Nodes(watch, lambda: clock[0])


def a_node(version: int = 1, **labels: str) -> dict:
    conditions = [{"type": "Ready", "status": "True"}]
    metadata = {"namespace": "", "labels": labels}
    return an_object("n", version, metadata=metadata, status={"conditions": conditions})


def test_what_is_known_of_nodes_that_come_and_go_has_a_bound(nodes, watch, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED_NODES", 10)
    for number in range(30):
        node = a_node()
        node["metadata"] |= {"name": f"n{number}", "uid": f"u{number}"}
        watch.store.update(node)
        nodes.states([f"n{number}", f"missing-{number}"])
        watch.store.forget("", f"n{number}", f"u{number}")
    assert max(len(nodes._last), len(nodes._missing_since)) <= 10


def test_a_node_that_is_not_listed_is_gone_only_after_a_while(nodes, clock):
    assert nodes.states(["n"]) == {}
    clock[0] += UNKNOWN_NODE_S + 1
    assert nodes.states(["n"])["n"].exists is False


def test_nodes_that_may_not_be_watched_are_unknown(nodes, watch, clock):
    watch.store.update(a_node())
    assert nodes.states(["n"])["n"].ready
    watch.failed(Forbidden("403"))
    clock[0] += 100
    assert nodes.states(["n"]) == {}


def test_of_a_node_that_is_gone_its_labels_and_hostname_are_known(nodes, watch, clock):
    labels = {"kubernetes.io/hostname": "ip-10-0-0-7", "topology.kubernetes.io/zone": "a"}
    node = a_node(**labels)
    node["spec"] = {"taints": [{"key": "going"}]}
    node["status"]["allocatable"] = {"cpu": "4"}
    watch.store.update(node)
    there = nodes.states(["n"])["n"]
    assert (there.hostname, there.taints, there.allocatable) == (
        "ip-10-0-0-7",
        ("going",),
        {"cpu": 4},
    )
    watch.store.forget("", "n", "u")
    assert nodes.states(["n"]) == {"n": there}, "as if its event came later"
    clock[0] += UNKNOWN_NODE_S
    assert nodes.states(["n"]) == {"n": there}
    clock[0] += 1
    gone = NodeState("n", "ip-10-0-0-7", exists=False, ready=False, labels=labels)
    assert nodes.states(["n"]) == {"n": gone}
    watch.store.update({**a_node(version=3), "metadata": a_node(3)["metadata"] | {"uid": "u2"}})
    back = nodes.states(["n"])["n"]
    assert (back.exists, back.ready, back.hostname) == (True, True, "n")


def test_without_the_label_its_name_is_its_hostname(nodes, watch):
    watch.store.update(a_node())
    assert nodes.states(["n"])["n"].hostname == "n"


def test_what_has_not_changed_is_not_read_again(nodes, watch):
    """A reconcile of a run with 1,000 workers on as many nodes is to cost 2 ms at most."""
    conditions = {"conditions": [{"type": "Ready", "status": "True"}]}
    for number in range(2):
        metadata = {"namespace": ""}
        node = an_object(f"n{number}", 1, f"u{number}", metadata=metadata, status=conditions)
        watch.store.update(node)
    first, second = nodes.states(["n0", "n1"]), nodes.states(["n0", "n1"])
    assert first["n0"] is second["n0"]
    watch.store.update(an_object("n0", 2, "u0", metadata={"namespace": ""}, status={}))
    third = nodes.states(["n0", "n1"])
    assert (third["n0"].ready, third["n1"] is first["n1"]) == (False, True)
