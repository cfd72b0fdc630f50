"""Runs with very many workers, as a watch would show them: every object has a resource version."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from trainingrun.api.status import RunStatus
from trainingrun.reconciling import Observed, Plan, ReconcileSettings, plan
from trainingrun.rendering import RenderSettings

from .builders import T0, a_head, a_node, a_pod, a_progress, a_ray_cluster, a_ray_job, a_run


def planned(observed: Observed, seconds: float) -> Plan:
    """One reconcile, so many seconds into the story."""
    return plan(observed, RenderSettings(), ReconcileSettings(), T0 + timedelta(seconds=seconds))


def written(observed: Observed, seconds: float) -> Observed:
    """What is seen once the status is written."""
    status = RunStatus.model_validate(planned(observed, seconds).status.to_dict())
    return replace(observed, run=observed.run.model_copy(update={"status": status}))


def versioned(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with a resource version, as the API server gives it."""
    return {**pod, "metadata": {**pod["metadata"], "resourceVersion": "1"}}


def a_large_run(workers: int) -> Observed:
    """It trains on as many nodes as it has workers, and has been reconciled before."""
    pods = (
        a_head(),
        *(a_pod(f"worker-{n}", node=f"spot-{n}", uid=f"uid-{n}") for n in range(workers)),
    )
    nodes = [a_node("base-1"), *(a_node(f"spot-{n}") for n in range(workers))]
    begun = Observed(
        a_run(workers={"count": workers}),
        nodes={node.name: node for node in nodes},
    )
    seen = replace(
        written(begun, 0),
        ray_jobs=(a_ray_job(status="RUNNING"),),
        ray_clusters=(a_ray_cluster(),),
        pods=tuple(versioned(pod) for pod in pods),
        progress=a_progress(world_size=workers),
        progress_age_s=0.5,
    )
    return written(written(seen, 30), 60)


def all_nodes_lost(observed: Observed) -> Observed:
    """Every worker's node is NotReady, and Ray reports all of them as lost."""
    names = [name for name in observed.nodes if name.startswith("spot-")]
    lost = {name: replace(observed.nodes[name], ready=False) for name in names}
    return replace(
        observed,
        nodes={**observed.nodes, **lost},
        progress=a_progress(world_size=len(names), lost_nodes=names),
    )
