"""Nodes on which no rank is, and what is made ready on them for the next worker group."""

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import ray

from trainingrun_protocol.progress import MOST_SPARE_PODS

from ..error_text import first_line

log = logging.getLogger(__name__)

LEFT_S = 60.0
"""Seconds for which a node that a rank has left counts as one that may be dying."""
AGAIN_S = 30.0
"""Seconds until a node is asked again on which the preparation has failed."""

Preparation = Callable[[], tuple[str, str]]
"""Run on a node that waits, it makes ready what the next worker there needs; the node's Kubernetes
node and pod, "" where not known."""


class Task(Protocol):
    """A preparation that was started on a node."""

    def result(self) -> tuple[str, str] | None:
        """What it has returned; None: it has not ended. Raises what it has raised."""
        ...

    def cancel(self) -> None:
        """Its node is gone."""
        ...


class _Asked(NamedTuple):
    task: Task
    since: float
    """When, in seconds of a monotonic clock."""


class Standby:
    """One lock guards all of it. No node is taken for one that waits before the preparation has
    ended there.

    Args:
        start: starts a preparation on a Ray node.
    """

    def __init__(self, start: Callable[[str, Preparation], Task] | None = None) -> None:
        self._lock, self._start = threading.Lock(), start or _RayTask
        self._preparation: Preparation | None = None
        self._asked: dict[str, _Asked] = {}  # by Ray node, as all that follows
        self._waiting: dict[str, str] = {}  # the pods
        self._had_ranks: dict[str, float] = {}  # when a rank was seen there last
        self._gone: list[str] = []  # pods that have ended while they waited

    def prepare(self, preparation: Preparation) -> None:
        """Rank 0: what is to be run on nodes that wait."""
        with self._lock:
            self._preparation = preparation

    def begin(self, of_ranks: frozenset[str], now: float) -> None:
        """A worker group begins on these nodes, which wait no more."""
        with self._lock:
            self._trains_on(of_ranks, now)

    def look(
        self, usable: frozenset[str], of_ranks: frozenset[str], now: float
    ) -> list[tuple[str, str]]:
        """While a worker group trains: ask the nodes that wait, and read what they have answered.

        Args:
            usable: the nodes that may get ranks.
            of_ranks: those of the worker group.
            now: seconds of a monotonic clock.

        Returns:
            The nodes that have answered since, with their Kubernetes nodes.
        """
        with self._lock:
            self._had_ranks = {n: at for n, at in self._had_ranks.items() if n in usable}
            self._trains_on(of_ranks, now)
            self._leave((self._waiting.keys() | self._asked.keys()) - usable)
            answered = []
            for node, asked in list(self._asked.items()):
                found = self._result(node, asked, now)
                if found is not None:
                    self._waiting[node] = found[1]
                    answered.append((node, found[0]))
            for node in usable - of_ranks - self._waiting.keys() - self._asked.keys():
                left_s = now - self._had_ranks.get(node, float("-inf"))
                if self._preparation is not None and left_s > LEFT_S:
                    self._asked[node] = _Asked(self._start(node, self._preparation), now)
        return answered

    def pods(self, *, training: bool) -> list[str]:
        """Pods that wait while a group trains, and before them those that have ended so."""
        with self._lock:
            waiting = [pod for pod in self._waiting.values() if pod] if training else []
            return [*self._gone, *waiting][-MOST_SPARE_PODS:]

    def _trains_on(self, of_ranks: frozenset[str], now: float) -> None:
        self._had_ranks |= dict.fromkeys(of_ranks, now)
        for node in of_ranks:
            self._waiting.pop(node, None)
            self._asked.pop(node, None)

    def _leave(self, gone: set[str]) -> None:
        for node in gone:
            pod = self._waiting.pop(node, "")
            if pod:
                self._gone = [*self._gone, pod][-MOST_SPARE_PODS:]
            if node in self._asked:
                self._asked.pop(node).task.cancel()

    def _result(self, node: str, asked: _Asked, now: float) -> tuple[str, str] | None:
        try:
            found = asked.task.result()
        except Exception as error:  # a start there is slower, not wrong
            if now - asked.since >= AGAIN_S:
                log.warning("no process waits on node %s: %s", node, first_line(error))
                del self._asked[node]
            return None
        if found is not None:
            del self._asked[node]
        return found


class _RayTask:
    def __init__(self, node: str, preparation: Preparation) -> None:
        # max_calls: its process ends with it.
        run = ray.remote(num_cpus=0, max_calls=1, max_retries=0)(_run)
        self._answer: Any = run.options(label_selector={"ray.io/node-id": node}).remote(preparation)

    def result(self) -> tuple[str, str] | None:
        if not ray.wait([self._answer], timeout=0)[0]:
            return None
        node, pod = ray.get(self._answer)
        return node, pod

    def cancel(self) -> None:
        ray.cancel(self._answer, force=True)


def _run(preparation: Preparation) -> tuple[str, str]:
    return preparation()
