"""Nodes on which no rank is, and what is made ready on them for the next worker group."""

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import ray

from trainingrun_protocol.progress import MOST_SPARE_PODS

from ..error_text import first_line

log = logging.getLogger(__name__)

LEFT_S = 60.0
"""Seconds for which a node that a rank has left counts as one that may be dying."""
AGAIN_S = 30.0
"""Seconds until a node is asked again that has not answered, or on which nothing was started."""


Preparation = Callable[[], tuple[str, str]]
"""Run on a node that waits, it makes ready what the next worker there needs; the node's Kubernetes
node and pod, "" where not known."""


class _Asked(NamedTuple):
    """A node that was asked to start processes."""

    answer: Any
    """The task's reference."""
    since: float
    """When, in seconds of a monotonic clock."""


class Standby:
    """Called by one thread, except where it is said. It takes no node for one that waits before
    the preparation has ended there.

    Args:
        ask: has a task run a preparation on a Ray node; its reference.
    """

    def __init__(self, ask: Callable[[str, Preparation], Any] | None = None) -> None:
        self._ask = ask or _ask
        self._preparation: Preparation | None = None
        self._asked: dict[str, _Asked] = {}  # by Ray node, as all that follows
        self._pods: dict[str, str] = {}  # of nodes that have answered
        self._had_ranks: dict[str, float] = {}  # when a rank was seen there last
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._gone: list[str] = []

    def prepare(self, preparation: Preparation) -> None:
        """Rank 0: what is to be run on nodes that wait. Called by any thread."""
        self._preparation = preparation

    def look(
        self, usable: frozenset[str], of_ranks: frozenset[str], now: float
    ) -> list[tuple[str, str]]:
        """While a worker group trains: ask the nodes that wait, and read what they have answered.

        Args:
            usable: the nodes that may get ranks.
            of_ranks: those of the worker group.
            now: seconds of a monotonic clock.

        Returns:
            The nodes that have answered, with their Kubernetes nodes.
        """
        self._had_ranks |= dict.fromkeys(of_ranks, now)
        idle = {
            node
            for node in usable - of_ranks
            if now - self._had_ranks.get(node, float("-inf")) > LEFT_S
        }
        answered = [
            (node, found)
            for node, asked in list(self._asked.items())
            if (found := self._answer(node, asked, now)) is not None
        ]
        if self._preparation is not None:
            for node in idle - self._pods.keys() - self._asked.keys():
                self._asked[node] = _Asked(self._ask(node, self._preparation), now)
        with self._lock:
            gone = [pod for node, pod in self._pods.items() if node not in usable | of_ranks]
            self._gone = [*self._gone, *gone][-MOST_SPARE_PODS:]
            self._pods = {n: pod for n, pod in self._pods.items() if n in usable | of_ranks}
            self._waiting = [pod for node, pod in self._pods.items() if pod and node in idle]
        return answered

    def pods(self, training: bool) -> list[str]:
        """Pods that wait while a group trains, and before them those that have ended while they
        waited. Called by any thread.
        """
        with self._lock:
            return [*self._gone, *(self._waiting if training else ())][-MOST_SPARE_PODS:]

    def _answer(self, ray_node: str, asked: _Asked, now: float) -> str | None:
        """The Kubernetes node, where the task has ended now."""
        try:
            if not ray.wait([asked.answer], timeout=0)[0]:
                return None
            node, pod = ray.get(asked.answer)
        except Exception as error:  # the node may be gone; a start there is slower, not wrong
            if now - asked.since >= AGAIN_S:
                log.warning("no process waits on node %s: %s", ray_node, first_line(error))
                del self._asked[ray_node]
            return None
        del self._asked[ray_node]
        self._pods[ray_node] = pod
        return str(node)


def _ask(node: str, preparation: Preparation) -> Any:
    # max_calls: its process ends with it.
    run = ray.remote(num_cpus=0, max_calls=1, max_retries=0)(_run)
    return run.options(label_selector={"ray.io/node-id": node}).remote(preparation)


def _run(preparation: Preparation) -> tuple[str, str]:
    return preparation()
