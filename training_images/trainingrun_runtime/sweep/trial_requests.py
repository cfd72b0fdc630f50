"""What the driver of a sweep asks of the trials that are trained now."""

import logging
import time
from collections.abc import Iterable
from typing import Any

import ray

from ..coordination.command import Command
from ..coordination.coordinator import trial_coordinator
from ..error_text import first_line

log = logging.getLogger(__name__)

CALL_S = 5.0
"""Seconds for which a trial's coordinator may take to answer."""


def suspend(number: int) -> bool:
    """Have a trial save its state and end; False: its coordinator does not run now."""
    try:
        coordinator = ray.get_actor(trial_coordinator(number))
    except ValueError:
        return False
    coordinator.request.remote(Command.SUSPEND)
    return True


def checkpoint_all(numbers: Iterable[int], deadline: float) -> None:
    """Have trials make a checkpoint before Ray ends; returns once they have, or at the deadline.

    Args:
        numbers: of the trials.
        deadline: Unix time in seconds.
    """
    waiting: dict[int, int] = {}
    for number in numbers:
        try:
            coordinator = ray.get_actor(trial_coordinator(number))
            waiting[number] = ray.get(coordinator.commits.remote(), timeout=CALL_S)
            coordinator.request.remote(Command.CHECKPOINT_AND_EXIT)
        except (ValueError, ray.exceptions.RayError) as error:
            log.warning("trial %d makes no checkpoint: %s", number, first_line(error))
    while waiting and time.time() < deadline:
        for number, before in list(waiting.items()):
            if _has_committed(number, before):
                del waiting[number]
        time.sleep(0.1)


def _has_committed(number: int, before: int) -> bool:
    try:
        coordinator: Any = ray.get_actor(trial_coordinator(number))
        return bool(ray.get(coordinator.commits.remote(), timeout=CALL_S) > before)
    except (ValueError, ray.exceptions.RayError):
        return True  # it has ended meanwhile
