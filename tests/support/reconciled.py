"""Short ways to reconcile a run and to write its status."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from trainingrun.api.reasons import CONDITIONS
from trainingrun.api.status import Condition, RunStatus
from trainingrun.cluster.run_stores import projection
from trainingrun.reconciling import Observed, Plan, ReconcileSettings, plan
from trainingrun.reconciling.model import Apply
from trainingrun.rendering import RenderSettings
from trainingrun.rendering.names import ATTEMPT_LABEL

from .builders import T0, a_progress, a_ray_cluster, a_ray_job, a_run, nodes, pods

DOCUMENTED = {(row.type.value, row.status, row.reason.value) for row in CONDITIONS}
"""Type, status and reason of each condition of docs/conditions.md."""


def reconcile(observed: Observed, seconds: float = 60) -> Plan:
    """One reconcile, so many seconds into the story, of whole objects and of what is kept."""
    now = T0 + timedelta(seconds=seconds)
    planned = plan(observed, RenderSettings(), ReconcileSettings(), now)
    kept = plan(as_kept(observed), RenderSettings(), ReconcileSettings(), now)
    if planned.confirm:
        assert (planned.actions, planned.status) == ((), observed.run.status), "not confirmed yet"
        return reconcile(replace(observed, confirmed=True), seconds)
    assert kept == planned, "a field is read that cluster/run_stores.py does not keep"
    assert undocumented(planned) == [], "missing in api/reasons.py"
    return planned


def begins(planned: Plan) -> int | None:
    """Number of the attempt whose RayJob the plan creates; None: it begins none."""
    for action in planned.actions:
        if isinstance(action, Apply) and action.manifest["kind"] == "RayJob":
            return int(action.manifest["metadata"]["labels"][ATTEMPT_LABEL])
    return None


def undocumented(planned: Plan) -> list[tuple[str, str, str]]:
    """The conditions of the next status that docs/conditions.md does not have."""
    return [
        found
        for known in planned.status.conditions
        if (found := (known.type.value, known.status, str(known.reason))) not in DOCUMENTED
    ]


def as_kept(observed: Observed) -> Observed:
    """With the fields alone that the operator keeps in memory of each object."""
    return replace(
        observed,
        ray_jobs=tuple(map(projection("RayJob"), observed.ray_jobs)),
        ray_clusters=tuple(map(projection("RayCluster"), observed.ray_clusters)),
        pods=tuple(map(projection("Pod"), observed.pods)),
    )


def then(before: Observed, seconds: float = 60, **changes: Any) -> Observed:
    """What is observed once `before` was reconciled and its status written, with changes."""
    status = RunStatus.model_validate(reconcile(before, seconds).status.to_dict())
    return replace(before, run=before.run.model_copy(update={"status": status}), **changes)


def wanting(observed: Observed, **spec: Any) -> Observed:
    """The same with another spec."""
    return replace(observed, run=a_run(status=observed.run.status, **spec))


def a_training_run(**spec: Any) -> Observed:
    """An attempt whose pods were all seen to be well, 30 seconds into the story."""
    begun = then(
        Observed(a_run(**spec)),
        0,
        ray_jobs=(a_ray_job(status="RUNNING"),),
        ray_clusters=(a_ray_cluster(),),
        pods=pods(),
        nodes=nodes(),
        progress_age_s=0.5,
    )
    return then(begun, 30)


def a_polled_run(**spec: Any) -> Observed:
    """The same once its head has told of its progress."""
    return replace(a_training_run(**spec), progress=a_progress())


def condition(planned: Plan, type_: str) -> Condition:
    """One condition of the next status."""
    return next(known for known in planned.status.conditions if known.type == type_)


def in_the_way(planned: Plan) -> Condition:
    """Condition Waiting where it holds, else Stalled: what is in the run's way, if anything is."""
    waiting = condition(planned, "Waiting")
    return waiting if waiting.status == "True" else condition(planned, "Stalled")
