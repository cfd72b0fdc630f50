"""Only the fields that decisions read are kept in memory.

That none is missing is checked wherever a test calls `support.reconciled.reconcile`: the plan
made from what is kept is the plan made from whole objects.
"""

import json

import pytest

from support.builders import a_pod, a_ray_cluster, a_ray_job
from trainingrun.cluster.live_cluster import exclusion_patch
from trainingrun.cluster.run_stores import projection
from trainingrun.rendering.scheduling import REQUIRED, excluded, exclusion

FILLING = {
    "managedFields": [{"manager": "x", "fieldsV1": {f"f:{n}": {} for n in range(500)}}],
    "annotations": {"notes": "x" * 5000},
}


def size(found: dict) -> int:
    return len(json.dumps(found))


def with_filling(found: dict) -> dict:
    return found | {"metadata": found["metadata"] | FILLING}


def test_of_a_pod_of_46_kb_less_than_2_kb_are_kept():
    pod = with_filling(a_pod("worker-1"))
    container = {
        "env": [{"name": f"NAME_{n}", "value": "x" * 100} for n in range(200)],
        "volumeMounts": [{"name": f"v{n}", "mountPath": "/x" * 20} for n in range(50)],
    }
    pod["spec"] |= {
        "containers": [pod["spec"]["containers"][0] | container],
        "volumes": [{"name": f"v{n}", "projected": {"sources": ["x" * 50]}} for n in range(50)],
    }
    assert size(pod) > 46_000
    assert size(projection("Pod")(pod)) < 2_000


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x" * 5000, "uid": "u" * 5000}
METADATA = {
    "labels": {f"label-{n}": "x" * 63 for n in range(10_000)},
    "ownerReferences": [OWNER] * 100,
    "finalizers": [f"example.com/{n}" for n in range(10_000)],
}


@pytest.mark.parametrize(
    ("kind", "found"), [("RayJob", a_ray_job()), ("RayCluster", a_ray_cluster()), ("Pod", a_pod())]
)
def test_of_labels_owners_and_finalizers_a_few_are_kept(kind: str, found: dict):
    metadata = found["metadata"]
    whole = found | {
        "metadata": metadata
        | {
            "labels": metadata["labels"] | METADATA["labels"],
            "ownerReferences": metadata["ownerReferences"] + METADATA["ownerReferences"],
            "finalizers": METADATA["finalizers"],
        }
    }
    assert size(whole) > 1_000_000
    kept = projection(kind)(whole)
    assert size(kept) < 20_000
    assert kept["metadata"]["labels"] == metadata["labels"]
    assert kept["metadata"]["ownerReferences"][:1] == metadata["ownerReferences"]
    assert len(kept["metadata"]["ownerReferences"]) == len(kept["metadata"]["finalizers"]) == 20


def test_of_what_a_pod_asks_of_nodes_the_exclusions_and_requests_are_kept():
    values = [f"v{n}" for n in range(20_000)]
    terms = [{"matchExpressions": [{"key": "a", "operator": "In", "values": values}]} for _ in "ab"]
    terms[1]["matchExpressions"].append(exclusion(("node-a", "node-b")))
    pod = a_pod(requests={"cpu": "1", **{f"example.com/{n}": "0" for n in range(1000)}})
    pod["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    pod["spec"]["containers"] += [{"resources": {"limits": {"cpu": "1"}}}] * 1000
    kept = projection("Pod")(pod)["spec"]
    assert excluded(kept["affinity"]) == {"node-a", "node-b"}
    assert kept["containers"] == [{"resources": {"requests": {"cpu": "1"}}}]
    assert size(kept) < 500


def test_of_very_many_exclusions_and_requests_200_are_kept():
    hostnames = tuple(f"node-{n:05}" for n in range(10_000))
    term = {"matchExpressions": [exclusion(hostnames)]}
    pod = a_pod()
    pod["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term] * 10}}}
    requests = {f"example.com/{n}": "1" for n in range(50)}
    pod["spec"]["containers"] = [{"resources": {"requests": requests}}] * 100
    kept = projection("Pod")(pod)["spec"]
    assert excluded(kept["affinity"]) == set(hostnames[:200])
    assert sum(len(one["resources"]["requests"]) for one in kept["containers"]) == 200


def test_of_a_node_its_conditions_taints_and_hostname_are_kept():
    images = [{"names": ["x" * 200], "sizeBytes": 1} for _ in range(50)]
    node = {
        "metadata": {
            "name": "n",
            "uid": "u",
            "resourceVersion": "1",
            "labels": {"kubernetes.io/hostname": "h", "other": "x"},
            **FILLING,
        },
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "now"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "now"}],
            "images": images,
        },
    }
    assert projection("Node")(node) == {
        "metadata": {
            "name": "n",
            "uid": "u",
            "resourceVersion": "1",
            "labels": {"kubernetes.io/hostname": "h"},
        },
        "spec": {"taints": [{"key": "k"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_a_ray_cluster_as_it_is_kept_can_be_patched_like_a_whole_one():
    cluster = with_filling(a_ray_cluster())
    affinity = {"podAntiAffinity": {"required": ["of the user's own"]}}
    group = {"groupName": "workers", "template": {"spec": {"containers": [], "affinity": affinity}}}
    head = {"rayStartParams": {}, "template": {"spec": {"containers": []}}}
    cluster["spec"] = {"headGroupSpec": head, "workerGroupSpecs": [group]}
    operations = exclusion_patch(cluster, ["lost"])
    assert operations
    assert exclusion_patch(projection("RayCluster")(cluster), ["lost"]) == operations


def test_a_run_keeps_what_its_next_attempt_is_made_from_until_it_has_ended():
    template = {"metadata": {"annotations": {"a": "x" * 10_000}}}
    run = {
        "metadata": {
            "name": "r",
            **FILLING,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 10_000},
        },
        "spec": {"workers": {"count": 2, "podTemplate": template}, "head": {}},
        "status": {"phase": "Running"},
    }
    kept = projection("TrainingRun")(run)
    assert kept["spec"] == run["spec"]
    assert "managedFields" not in kept["metadata"]
    assert kept["metadata"]["annotations"] == {}
    run["status"] = {"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"}
    assert projection("TrainingRun")(run)["spec"] == {"workers": {"count": 2}, "head": {}}
