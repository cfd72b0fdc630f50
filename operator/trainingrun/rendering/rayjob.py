"""The RayJob of one attempt."""

from typing import Any

from ..api.v1alpha1 import TrainingRun
from . import names, pod_templates
from .queues import queueing
from .render_settings import RenderSettings
from .templating import render


def attempt(
    run: TrainingRun,
    number: int,
    settings: RenderSettings,
    excluded_hostnames: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The RayJob of attempt `number`, whose pods exclude the nodes in `excluded_hostnames`.

    Raises:
        ValueError: the settings name a platform that is not known.
    """
    job = render(
        "rayjob",
        name=names.ray_job_name(run, number),
        namespace=run.metadata.namespace,
        labels={**names.labels(run, number), **queueing(run, number).job_labels},
        owner=names.owner(run),
        ray_version=settings.ray_version,
        ray_auth=settings.ray_auth,
        head_start=pod_templates.head_start(run),
        worker_group=names.WORKER_GROUP,
        worker_pods=run.spec.worker_pods,
        worker_start=pod_templates.worker_start(run, settings),
    )
    # Not by the template: they would be read as YAML a second time.
    cluster = job["spec"]["rayClusterSpec"]
    cluster["headGroupSpec"]["template"] = pod_templates.head(
        run, number, settings, excluded_hostnames
    )
    (workers,) = cluster["workerGroupSpecs"]
    workers["template"] = pod_templates.worker(run, number, settings, excluded_hostnames)
    return job
