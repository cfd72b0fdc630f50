"""What a run needs beside its attempts: they come and go, this stays until the run is deleted."""

from typing import Any

from ..api.v1alpha1 import TrainingRun
from . import names
from .settings import RenderSettings


def token_secret(run: TrainingRun) -> dict[str, Any]:
    """The Secret for the run's bearer token, without its data: only the controller knows it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.token_secret_name(run),
            "namespace": run.metadata.namespace,
            "labels": names.labels(run),
            "ownerReferences": [names.owner(run)],
        },
        "type": "Opaque",
        # The token is derived from the run's UID, so nobody ever has a reason to change it.
        "immutable": True,
    }


def support(run: TrainingRun, settings: RenderSettings) -> list[dict[str, Any]]:
    """The run's NetworkPolicy; apply it before the first attempt, so that no pod runs without."""
    raise NotImplementedError
