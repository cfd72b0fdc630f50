"""The RayJob of one attempt."""

from typing import Any

from ..api.v1alpha1 import TrainingRun
from . import names, pods
from .queues import queueing
from .settings import RenderSettings
from .templating import render


def attempt(
    run: TrainingRun, number: int, settings: RenderSettings, avoid_nodes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The RayJob of attempt `number`, whose pods keep off the nodes named in `avoid_nodes`.

    Raises:
        ValueError: the settings name a platform that is not known.
    """
    return render(
        "rayjob",
        name=names.ray_job_name(run, number),
        namespace=run.metadata.namespace,
        labels={**names.labels(run, number), **queueing(run, number).job_labels},
        owner=names.owner(run),
        ray_version=settings.ray_version,
        ray_auth=settings.ray_auth,
        head_start=pods.head_start(run),
        head=pods.head(run, number, settings, avoid_nodes),
        worker_group=names.WORKER_GROUP,
        workers=run.spec.workers.count,
        worker_start=pods.worker_start(run, settings),
        worker=pods.worker(run, number, settings, avoid_nodes),
    )
