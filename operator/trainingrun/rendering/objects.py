"""The objects of a run: the RayJob of each attempt, and what stays until the run is deleted."""

from typing import Any

from trainingrun_protocol.contract import PROGRESS_PORT

from ..api.v1alpha1 import TrainingRun
from . import names, pod_templates
from .platforms import KUBERAY_NAMESPACES, RenderSettings
from .scheduling import queueing
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


def support_objects(run: TrainingRun, settings: RenderSettings) -> list[dict[str, Any]]:
    """The run's NetworkPolicy; apply it before the first attempt, so that no pod runs without."""
    return [
        render(
            "networkpolicy",
            name=names.network_policy_name(run),
            namespace=run.metadata.namespace,
            labels=names.labels(run),
            owner=names.owner(run),
            pods=names.selector(run),
            operator_namespace=settings.operator_namespace,
            operator_component=names.MANAGER,
            kuberay_namespaces=settings.kuberay_namespaces or KUBERAY_NAMESPACES,
            progress_port=PROGRESS_PORT,
            metrics_from=settings.metrics_from,
        )
    ]


def token_secret(run: TrainingRun, key: str) -> dict[str, Any]:
    """The Secret for the run's bearer token of the operator's key of that name.

    Without its data: only the controller has it.
    """
    return _secret(run, names.token_secret_name(run, key))


def renewed_token_secret(run: TrainingRun, lost_key: str) -> dict[str, Any]:
    """The Secret by which a running head, whose token is of a lost key, gets one that fits.

    The head mounts it where it exists; the kubelet brings it within a minute or two.
    """
    return _secret(run, names.renewed_token_secret_name(run, lost_key))


def _secret(run: TrainingRun, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": run.metadata.namespace,
            "labels": names.labels(run),
            "ownerReferences": [names.owner(run)],
        },
        "type": "Opaque",
        # Its name identifies the key and the run of the token, so that it is never changed.
        "immutable": True,
    }
