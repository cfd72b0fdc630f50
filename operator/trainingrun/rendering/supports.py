"""What a run needs beside its attempts: they come and go, this stays until the run is deleted."""

from typing import Any

from ..api.contract import PROGRESS_PORT
from ..api.v1alpha1 import TrainingRun
from . import names
from .settings import RenderSettings
from .templating import render


def support(run: TrainingRun, settings: RenderSettings) -> list[dict[str, Any]]:
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
            progress_port=PROGRESS_PORT,
        )
    ]


def token_secret(run: TrainingRun) -> dict[str, Any]:
    """The Secret for the run's bearer token, without its data: only the controller knows it."""
    return render(
        "secret",
        name=names.token_secret_name(run),
        namespace=run.metadata.namespace,
        labels=names.labels(run),
        owner=names.owner(run),
    )
