"""What a run needs beside its attempts: they come and go, this stays until the run is deleted."""

from typing import Any

from ..api.contract import PROGRESS_PORT
from ..api.v1alpha1 import TrainingRun
from . import names
from .render_settings import KUBERAY_NAMESPACES, RenderSettings
from .templating import render


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
    return render(
        "secret",
        name=name,
        namespace=run.metadata.namespace,
        labels=names.labels(run),
        owner=names.owner(run),
    )
