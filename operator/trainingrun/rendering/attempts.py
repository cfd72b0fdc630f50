"""The RayJob of one attempt."""

from typing import Any

from ..api.v1alpha1 import TrainingRun
from .settings import RenderSettings


def attempt(
    run: TrainingRun, number: int, settings: RenderSettings, avoid_nodes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The RayJob of attempt `number`, whose pods keep off the nodes named in `avoid_nodes`."""
    raise NotImplementedError
