"""`--preempt-after`: takes a node away in mid-run, as a preemption does."""

import contextlib
import time

from ..api.contract import NOTICE_FILE, SAVED_FILE, WATCHER_FILE
from .ray_nodes import NOTICE_SECONDS, LocalRay, Node


class Preemption:
    """One node's way out: notice, checkpoint, death, replacement. Polled, never blocking."""

    def __init__(self, ray: LocalRay, after_s: float) -> None:
        """Plan to take the newest worker of `ray` away `after_s` seconds after the first step."""
        self._ray = ray
        self._after_s = after_s
        self._deadline = 0.0
        self.node: Node | None = None
        """The node that is or was taken away; None before its notice."""
        self.done = False
        """The node is gone, and another one was started."""

    def poll(self, first_step_time: float | None) -> bool:
        """Go on; whether the node was killed just now.

        Args:
            first_step_time: Unix time of the first trained step; None before it.
        """
        if self.done or first_step_time is None:
            return False
        now = time.time()
        if self.node is None:
            if now < first_step_time + self._after_s or not self._ray.workers:
                return False
            self.node = self._ray.workers[-1]
            self._deadline = now
            if (self.node.state / WATCHER_FILE).exists():
                self._deadline = now + NOTICE_SECONDS
                (self.node.state / NOTICE_FILE).write_text(str(self._deadline))
        if now < self._deadline and not (self.node.state / SAVED_FILE).exists():
            return False
        with contextlib.suppress(ValueError):  # it died by itself, and was replaced already
            self._ray.remove(self.node)
            self._ray.add_worker()
        self.done = True
        return True
