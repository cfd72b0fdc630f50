"""`--preempt-after`: preempts a node during the run."""

import time

from trainingrun_protocol.contract import PREEMPTION_NOTICE_FILE, SAVED_FILE, WATCHERS_FOLDER

from .ray_nodes import NOTICE_SECONDS, LocalRay, Node

_GRACE_S = 5.0
"""What a pod's grace period leaves after the notice."""


class Preemption:
    """Preemption of one node: notice, checkpoint, SIGTERM, kill. Polled, never blocking."""

    def __init__(self, ray: LocalRay, after_s: float) -> None:
        """Plan to preempt the newest worker of `ray` `after_s` seconds after the first step."""
        self._ray = ray
        self._after_s = after_s
        self._deadline = 0.0
        self.node: Node | None = None
        """The node that is or was preempted; None before its notice."""
        self.done = False
        """The node is gone, and another one was started."""
        self._terminating = False

    def poll(self, first_step_time: float | None) -> None:
        """Do the next step if it is due.

        Args:
            first_step_time: Unix time of the first trained step; None before it.
        """
        if self.done or first_step_time is None:
            return
        if self.node is None:
            if time.time() >= first_step_time + self._after_s and self._ray.workers:
                self.node = self._ray.workers[-1]
                self._give_notice(self.node)
        elif not self._terminating:
            saved = (self.node.state / SAVED_FILE).exists()
            if (
                saved
                or not _watched(self.node)
                or time.time() >= self._deadline
                or not self.node.alive
            ):
                self._terminating = True
                self._deadline = time.time() + _GRACE_S
                # As a kubelet does when the preStop hook has ended. The replacement does not wait,
                # unless it needs the GPUs.
                self.node.process.terminate()
                if not self.node.devices:
                    self._ray.add_worker()
        elif not self.node.alive or time.time() >= self._deadline:
            self._ray.remove(self.node)
            if self.node.devices:
                self._ray.add_worker()
            self.done = True

    def _give_notice(self, node: Node) -> None:
        """As the preStop hook: request a checkpoint if a process watches for the notice."""
        self._deadline = time.time()
        if _watched(node):
            self._deadline += NOTICE_SECONDS
            (node.state / PREEMPTION_NOTICE_FILE).write_text(str(self._deadline))


def _watched(node: Node) -> bool:
    """Whether a process there answers a notice, or has not ended since."""
    return any((node.state / WATCHERS_FOLDER).glob("*"))
