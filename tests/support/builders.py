"""Valid runs, pods, RayJobs, nodes and progress documents; a test says only what matters to it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from trainingrun.api.status import RunStatus
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.reconciling.model import NodeState
from trainingrun_protocol.progress import Progress

T0 = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
"""When every story begins."""

UID = "1a2b3c4d-0000-4000-8000-000000000001"
OTHER_UID = "1a2b3c4d-0000-4000-8000-00000000000f"
NAMESPACE = "team-a"


def at(seconds: float) -> str:
    """The time so many seconds into the story, as Kubernetes writes it."""
    return (T0 + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(seconds: float) -> float:
    """The time so many seconds into the story, as the runtime writes it."""
    return T0.timestamp() + seconds


def a_run(
    *, name: str = "digits", status: RunStatus | None = None, deleted: bool = False, **spec: Any
) -> TrainingRun:
    """A run with two workers; `spec` replaces whole fields, by their names in YAML."""
    return TrainingRun.model_validate(
        {
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": UID,
                "generation": 1,
                "creationTimestamp": at(0),
                "deletionTimestamp": at(1) if deleted else None,
            },
            "spec": {
                "image": "example.org/torch:1",
                "training": {"function": "examples.digits:train"},
                "workers": {"count": 2},
                "storage": {"uri": "s3://runs/team-a"},
                **spec,
            },
            "status": (status or RunStatus()).model_dump(by_alias=True),
        }
    )


def an_object(name: str, version: int, uid: str = "u", **fields: Any) -> dict[str, Any]:
    """An object of any kind, as a watch brings this version of it."""
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | fields.pop("metadata", {}), **fields}


def labels(number: int, *, uid: str = UID, role: str | None = None) -> dict[str, str]:
    """The labels that rendering gives to everything of an attempt."""
    found = {
        "trainingrun.dev/run": "digits",
        "trainingrun.dev/run-uid": uid,
        "trainingrun.dev/attempt": str(number),
    }
    return {**found, "trainingrun.dev/role": role} if role else found


def controlled_by(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    """The owner references of an object with this controller."""
    return [{"kind": kind, "name": name, "uid": uid, "controller": True}]


def a_ray_job(
    number: int = 1,
    *,
    status: str = "",
    deployment: str = "",
    reason: str = "",
    message: str = "",
    owner: str = UID,
    created_at: float = 0,
    terminating: bool = False,
    queued: bool = False,
) -> dict[str, Any]:
    """The RayJob of an attempt."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": f"digits-{number}",
            "namespace": NAMESPACE,
            "uid": f"job-{number}-{owner[-1]}",
            "labels": labels(number, uid=owner),
            "ownerReferences": controlled_by("TrainingRun", "digits", owner),
            "creationTimestamp": at(created_at),
            **({"deletionTimestamp": at(created_at)} if terminating else {}),
        },
        "spec": {"suspend": True} if queued else {},
        "status": {
            "jobStatus": status,
            "jobDeploymentStatus": deployment,
            "reason": reason,
            "message": message,
        },
    }


def a_ray_cluster(
    number: int = 1,
    *,
    failure: str | None = None,
    replicas: int | None = None,
    removed: Sequence[str] = (),
    version: str = "1",
    head: str | None = None,
) -> dict[str, Any]:
    """The RayCluster of an attempt; `failure`: why KubeRay cannot create a pod; `head`: its name.

    With `replicas` it has a group of so many workers, and KubeRay deletes the pods in `removed`.
    """
    strategy = {"scaleStrategy": {"workersToDelete": list(removed)}} if removed else {}
    group = {"groupName": "workers", "replicas": replicas, **strategy}
    condition = {"type": "ReplicaFailure", "status": "True", "message": failure}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": f"digits-{number}-abcde",
            "namespace": NAMESPACE,
            "uid": f"cluster-{number}",
            "labels": labels(number),
            "ownerReferences": controlled_by(
                "RayJob", f"digits-{number}", f"job-{number}-{UID[-1]}"
            ),
            "creationTimestamp": at(0),
            **({} if replicas is None else {"resourceVersion": version}),
        },
        **({} if replicas is None else {"spec": {"workerGroupSpecs": [group]}}),
        "status": {
            "conditions": [condition] if failure else [],
            "head": {"podName": head or f"digits-{number}-head"},
        },
    }


def a_pod(
    name: str = "worker-1",
    *,
    number: int = 1,
    role: str = "worker",
    node: str | None = "spot-1",
    phase: str = "Running",
    created_at: float = 0,
    uid: str | None = None,
    run_uid: str = UID,
    ray_cluster: str | None = None,
    terminating_at: float | None = None,
    grace: int = 35,
    reason: str | None = None,
    disruption: str | None = None,
    exit_code: int | None = None,
    ended_because: str = "Error",
    ended_at: float | None = None,
    termination_message: str | None = None,
    waiting: tuple[str, str] | None = None,
    image: str | None = None,
    unschedulable: str | None = None,
    unschedulable_at: float | None = None,
    ready: bool | None = None,
    ready_at: float | None = None,
    requests: dict[str, str] | None = None,
    set_up: bool | None = None,
    message: str | None = None,
) -> dict[str, Any]:
    """A pod of an attempt; running unless something else is said.

    `leaving_at` is when its deletion was asked for, `exit_code` ends its container.
    """
    conditions: list[dict[str, Any]] = []
    if unschedulable:
        phase, node = "Pending", None
        conditions.append(
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": unschedulable,
                "lastTransitionTime": at(
                    created_at if unschedulable_at is None else unschedulable_at
                ),
            }
        )
    else:
        conditions.append(
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(created_at + 3)}
        )
    if ready is not None:
        changed = {} if ready_at is None else {"lastTransitionTime": at(ready_at)}
        conditions.append({"type": "Ready", "status": str(ready), **changed})
    if set_up is not None:
        conditions.append({"type": "PodReadyToStartContainers", "status": str(set_up)})
    if disruption:
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": disruption})
    state: dict[str, Any] = {"running": {}}
    if exit_code is not None:
        phase = "Succeeded" if exit_code == 0 else "Failed"
        ending: dict[str, Any] = {"exitCode": exit_code, "reason": ended_because}
        if ended_at is not None:
            ending["finishedAt"] = at(ended_at)
        if termination_message is not None:
            ending["message"] = termination_message
        state = {"terminated": ending}
    if waiting:
        phase = "Pending"
        state = {"waiting": {"reason": waiting[0], "message": waiting[1]}}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": uid or f"uid-{number}-{name}",
        "labels": labels(number, uid=run_uid, role=role),
        "ownerReferences": controlled_by(
            "RayCluster", f"digits-{number}-abcde", ray_cluster or f"cluster-{number}"
        ),
        "creationTimestamp": at(created_at),
    }
    if terminating_at is not None:
        metadata["deletionTimestamp"] = at(terminating_at + grace)
        metadata["deletionGracePeriodSeconds"] = grace
    status: dict[str, Any] = {"phase": phase, "conditions": conditions}
    if node:
        status["containerStatuses"] = [{"name": f"ray-{role}", "image": image, "state": state}]
    if reason:
        status["reason"] = reason
    if message:
        status["message"] = message
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"name": f"ray-{role}", "resources": {"requests": requests or {}}}],
        },
        "status": status,
    }


def a_head(number: int = 1, **pod: Any) -> dict[str, Any]:
    """The head pod of an attempt, on a node of its own."""
    return a_pod(
        f"digits-{number}-head", **{"number": number, "role": "head", "node": "base-1", **pod}
    )


def pods(number: int = 1, **pod: Any) -> tuple[dict[str, Any], ...]:
    """All pods of a healthy attempt: the head and two workers on two nodes."""
    return (
        a_head(number, **pod),
        a_pod("worker-1", number=number, node="spot-1", **pod),
        a_pod("worker-2", number=number, node="spot-2", **pod),
    )


def a_node(name: str = "spot-1", **state: Any) -> NodeState:
    """A healthy node."""
    return NodeState(name, **{"lease_age_s": 5.0, **state})


def nodes(*changed: NodeState) -> dict[str, NodeState]:
    """The nodes of `pods`, all healthy but for those given."""
    found = {name: a_node(name) for name in ("base-1", "spot-1", "spot-2", "spot-3")}
    return {**found, **{node.name: node for node in changed}}


def a_progress(attempt: int = 1, **document: Any) -> Progress:
    """A driver in the middle of its training; `document` replaces fields, by their Python names."""
    return Progress.model_validate(
        {
            "attempt": attempt,
            "fencing_token": attempt,
            "state": "Training",
            "time": unix(60),
            "resumed_from_step": 0,
            "step": 10,
            "step_time": unix(60),
            "total_steps": 100,
            "world_size": 2,
            "metrics": {"loss": 0.5},
            "seconds": {"productive": 30.0, "startup": 20.0},
            **document,
        }
    )
