"""When a worker group grows, and what is made ready for it; called by Ray's controller."""

import logging
import threading
from typing import Any

import ray

from ..error_text import first_line
from ..worker import prestarted_worker

log = logging.getLogger(__name__)

ANSWER_S = 5.0


class Growth:
    """Asks the coordinator, which knows how far the training is.

    Args:
        coordinator: handle of the `Coordinator` actor.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def joined(self, nodes: dict[str, int]) -> None:
        """Have processes prestarted on nodes that have joined: by then the group may grow."""
        threading.Thread(
            target=prestarted_worker.prestart_joined, args=(nodes,), name="prestart", daemon=True
        ).start()

    def most_workers(self) -> int | None:
        """See `elastic.Control`."""
        most: int | None = ray.get(self._coordinator.most_workers.remote())
        return most

    def grow(self, workers: int, possible: int) -> bool:
        """See `elastic.Control`. A coordinator that does not answer is asked again."""
        try:
            return bool(ray.get(self._coordinator.grow.remote(workers, possible), timeout=ANSWER_S))
        except ray.exceptions.RayError as error:
            log.warning("the worker group does not grow for now: %s", first_line(error))
            return False

    def stay(self) -> bool:
        """See `elastic.Control`."""
        try:
            ray.get(self._coordinator.stay.remote(), timeout=ANSWER_S)
        except ray.exceptions.RayError as error:
            log.warning("the worker group may end to grow, in vain: %s", first_line(error))
            return False
        return True
