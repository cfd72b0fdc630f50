"""Ray's asynchronous validation: its scores are added to the checkpoint that it reads."""

import copy
from collections.abc import Callable
from typing import Any

import ray

from .progress.document import printable_metrics


def with_scores_told(config: Any, coordinator: Any) -> Any:
    """A script's ValidationConfig, whose function tells the coordinator what it returns.

    Args:
        config: of the script; none: it has none.
        coordinator: handle of the `Coordinator` actor.
    """
    if config is None:
        return None
    told = copy.copy(config)
    told.fn = _Told(config.fn, coordinator)
    return told


class _Told:
    """Called in a task of Ray, on any node."""

    def __init__(self, function: Callable[..., Any], coordinator: Any) -> None:
        self._function, self._coordinator = function, coordinator

    def __call__(self, checkpoint: Any, **arguments: Any) -> Any:
        scores: Any = None
        try:
            scores = self._function(checkpoint, **arguments)
            return scores
        finally:
            known = printable_metrics(scores) if isinstance(scores, dict) else {}
            ray.get(self._coordinator.validated.remote(checkpoint.path, known))
