"""The objects of `scale.py`, as large as those of a real cluster."""

from datetime import UTC, datetime, timedelta
from typing import Any

from support.operators import controlled_by, owned_by
from trainingrun.api.v1alpha1 import API_VERSION, KIND

Manifest = dict[str, Any]

NOW = datetime.now(UTC)
HEADS = "127.0.0.1"
"""Where the heads' progress is served, of all runs at one address."""
PROGRESS = {
    "attempt": 1,
    "fencingToken": 1,
    "state": "Training",
    "worldSize": 1,
    "time": NOW.timestamp(),
    "step": 100,
    "stepTime": NOW.timestamp(),
    "totalSteps": 1000,
    "resumedFromStep": 0,
}
MANAGED_FIELDS = [
    {
        "manager": "controller",
        "operation": "Update",
        "apiVersion": "v1",
        "time": NOW.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {f"f:field-{number}": {} for number in range(60)}},
    }
]
VARIABLES = [{"name": f"SETTING_{number}", "value": "x" * 60} for number in range(60)]


def at(seconds: float) -> str:
    """A time so many seconds before this benchmark began."""
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _run(namespace: str, name: str, status: Manifest) -> Manifest:
    environment = [{"name": f"NCCL_{number}", "value": "1" * 20} for number in range(10)]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace, "labels": {"team": namespace}},
        "spec": {
            "image": "ghcr.io/acme/trainingrun-torch:0.1.0",
            "training": {
                "function": "acme.training.large:train",
                "config": {f"setting_{number}": number / 7 for number in range(20)},
                "env": environment,
            },
            "workers": {
                "count": 1,
                "resources": {"cpu": "4", "memory": "16Gi"},
                "capacity": {"type": "Spot"},
                "podTemplate": {"metadata": {"annotations": {"note": "x" * 500}}},
            },
            "storage": {"uri": "s3://runs/team", "credentialsSecret": "s3-credentials"},
        },
        "status": status,
    }


def _condition(type_: str, status: str, reason: str) -> Manifest:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": "What is so, and what to do about it, in a sentence of usual length.",
        "lastTransitionTime": at(3600),
        "observedGeneration": 1,
    }


def ended_run(namespace: str, name: str) -> Manifest:
    """A run that is done."""
    attempt = {
        "number": 1,
        "rayJob": f"{name}-1",
        "capacity": "Spot",
        "outcome": "Succeeded",
        "message": "The training is done",
        "startTime": at(7200),
        "endTime": at(3600),
        "resumedFromStep": 0,
        "lastStep": 1000,
    }
    status = {
        "observedGeneration": 1,
        "phase": "Succeeded",
        "conditions": [
            _condition("Accepted", "True", "Accepted"),
            _condition("Ready", "False", "Succeeded"),
            _condition("Waiting", "False", "NothingIsMissing"),
            _condition("Stalled", "False", "NothingIsMissing"),
            _condition("Succeeded", "True", "Succeeded"),
        ],
        "attempt": 1,
        "attempts": [attempt],
        "startTime": at(7200),
        "completionTime": at(3600),
        "progress": {"step": 1000, "totalSteps": 1000, "percent": 100, "metrics": {"loss": 0.1}},
        "checkpoint": {"uri": f"s3://runs/team/{name}/checkpoints/1", "step": 1000, "time": at(3)},
        "disruptions": {"preemptions": 2},
        "goodput": {"percent": 91, "productiveSeconds": 3300},
        "result": {"metrics": {"loss": 0.1}, "checkpointUri": f"s3://runs/team/{name}/1"},
    }
    return _run(namespace, name, status)


def running_run(namespace: str, name: str) -> Manifest:
    """A run whose first attempt goes on."""
    attempt = {
        "number": 1,
        "rayJob": f"{name}-1",
        "capacity": "Spot",
        "outcome": "Running",
        "startTime": at(60),
    }
    status = {"phase": "Starting", "attempt": 1, "attempts": [attempt], "startTime": at(60)}
    return _run(namespace, name, status)


def _owned(run: Manifest, owner: Manifest, name: str, **labels: str) -> Manifest:
    owners = [controlled_by(owner)]
    return {**owned_by(run, name, attempt="1", **labels), "ownerReferences": owners}


def _template(role: str) -> Manifest:
    container = {"name": f"ray-{role}", "image": "none", "env": VARIABLES}
    return {"spec": {"containers": [container]}}


def _cluster_spec() -> Manifest:
    workers = {
        "groupName": "workers",
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 1,
        "rayStartParams": {},
        "template": _template("worker"),
    }
    head = {"rayStartParams": {}, "template": _template("head")}
    return {"headGroupSpec": head, "workerGroupSpecs": [workers]}


def ray_job(run: Manifest) -> Manifest:
    """The RayJob of the run's attempt."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _owned(run, run, f"{run['metadata']['name']}-1"),
        "spec": {"entrypoint": "train", "rayClusterSpec": _cluster_spec()},
        "status": {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"},
    }


def ray_cluster(run: Manifest, job: Manifest) -> Manifest:
    """The RayCluster that KubeRay makes of it."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _owned(run, job, f"{run['metadata']['name']}-1-abcde"),
        "spec": _cluster_spec(),
        "status": {
            "state": "ready",
            # The operator polls the head that KubeRay names, and no other pod.
            "head": {"podName": _pod_name(run, "head"), "podIP": HEADS},
        },
    }


def _pod_name(run: Manifest, role: str) -> str:
    return f"{run['metadata']['name']}-1-{role}"


def pod(run: Manifest, cluster: Manifest, role: str, node: str) -> Manifest:
    """Its head or worker, which runs."""
    metadata = _owned(run, cluster, _pod_name(run, role), role=role)
    metadata["labels"]["ray.io/node-type"] = role
    volumes = [
        {"name": f"v{number}", "configMap": {"name": "settings", "items": []}}
        for number in range(20)
    ]
    mounts = [
        {"name": f"v{number}", "mountPath": f"/mnt/settings/number-{number}"}
        for number in range(20)
    ]
    conditions = [
        {"type": type_, "status": "True", "lastTransitionTime": at(30)}
        for type_ in ("PodReadyToStartContainers", "Initialized", "Ready", "PodScheduled")
    ]
    container = {"name": f"ray-{role}", "image": "none", "env": VARIABLES, "volumeMounts": mounts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [container], "volumes": volumes},
        "status": {
            "phase": "Running",
            "startTime": at(30),
            "podIP": HEADS,
            "podIPs": [{"ip": HEADS}],
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": f"ray-{role}",
                    "image": "none",
                    "imageID": "none@sha256:" + "0" * 64,
                    "containerID": "containerd://" + "0" * 64,
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": at(20)}},
                }
            ],
        },
    }


def node(name: str) -> Manifest:
    """A node with the images, labels and conditions of a real one, some 16 KB."""
    images = [
        {"names": [f"registry.example.org/team/image-{number}@sha256:{'0' * 64}"], "sizeBytes": 1}
        for number in range(50)
    ]
    conditions = [
        {
            "type": type_,
            "status": status,
            "reason": "KubeletHasNoDiskPressure",
            "message": "kubelet has no disk pressure",
            "lastHeartbeatTime": at(10),
            "lastTransitionTime": at(86400),
        }
        for type_, status in (
            ("MemoryPressure", "False"),
            ("DiskPressure", "False"),
            ("PIDPressure", "False"),
            ("Ready", "True"),
        )
    ]
    labels = {f"topology.example.org/label-{number}": f"value-{number}" for number in range(30)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}},
        "status": {"conditions": conditions, "images": images},
    }


def lease(name: str) -> Manifest:
    """The Lease that the node's kubelet renews."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40},
    }
