"""What the driver of a sweep asks of the trials that are trained now."""

import logging
import time
from collections.abc import Iterable
from typing import Any

import ray

from trainingrun.api.contract import ContractTrial

from ..coordination.command import Command
from ..coordination.coordinator_actor import trial_coordinator
from ..error_text import first_line

log = logging.getLogger(__name__)

CALL_S = 5.0
"""Seconds for which a trial's coordinator may take to answer."""


def suspend(trial: ContractTrial) -> bool:
    """Have a trial save its state and end; False: its coordinator does not run now."""
    try:
        coordinator = ray.get_actor(trial_coordinator(trial))
    except ValueError:
        return False
    coordinator.request.remote(Command.SUSPEND)
    return True


def checkpoint_all(trials: Iterable[ContractTrial], deadline: float) -> None:
    """Have trials make a checkpoint before Ray ends; returns once they have, or at the deadline.

    Args:
        trials: those that are trained now.
        deadline: Unix time in seconds.
    """
    waiting: dict[str, int] = {}
    for name in map(trial_coordinator, trials):
        try:
            coordinator = ray.get_actor(name)
            waiting[name] = ray.get(coordinator.commits.remote(), timeout=CALL_S)
            coordinator.request.remote(Command.CHECKPOINT_AND_EXIT)
        except (ValueError, ray.exceptions.RayError) as error:
            log.warning("%s makes no checkpoint: %s", name, first_line(error))
    while waiting and time.time() < deadline:
        for name, before in list(waiting.items()):
            if _has_committed(name, before):
                del waiting[name]
        time.sleep(0.1)


def _has_committed(name: str, before: int) -> bool:
    try:
        coordinator: Any = ray.get_actor(name)
        return bool(ray.get(coordinator.commits.remote(), timeout=CALL_S) > before)
    except (ValueError, ray.exceptions.RayError):
        return True  # it has ended meanwhile
