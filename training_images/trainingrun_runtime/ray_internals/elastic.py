"""Ray Train's elastic scaling policy, on the nodes that live now.

Read for ray 2.58-2.60: `ray/train/v2/_internal/execution/scaling_policy/`,
`.../controller/controller.py`, `.../worker_group/{placement_group_handle,worker_group}.py`.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ray.train import ScalingConfig
from ray.train.v2._internal.constants import (
    DEFAULT_WORKER_GROUP_START_TIMEOUT_S,
    WORKER_GROUP_START_TIMEOUT_S_ENV_VAR,
)
from ray.train.v2._internal.execution.scaling_policy import (
    ElasticScalingPolicy,
    NoopDecision,
    ResizeDecision,
)
from ray.train.v2._internal.execution.worker_group.placement_group_handle import (
    DefaultPlacementGroupHandle,
)

from . import nodes

log = logging.getLogger(__name__)

FIRST_GROUP_S = 5.0
"""Seconds without a further node after which the first worker group begins with fewer workers."""
SETTLE_S = 2.0
"""Seconds without a further node after which a worker group grows: nodes often join together."""
_LOOK_EVERY_S = 1.0
"""Seconds between two looks at the nodes while a worker group trains."""
_POLL_S = 0.1
"""The same while none does."""


@dataclass
class GrowthRule:
    """When a worker group may grow. Times are seconds of a monotonic clock."""

    interval_s: float
    """Seconds that pass at least after the group has grown."""
    grown: float = float("-inf")
    """When it has grown last."""
    _seen: int = 0
    _changed: float = float("-inf")

    def due(self, now: float, workers: int, possible: int) -> bool:
        """Whether it may grow now, where so many workers can be had."""
        if possible != self._seen:
            self._seen, self._changed = possible, now
        settled = now - self._changed >= SETTLE_S
        return possible > workers and settled and now - self.grown >= self.interval_s


class Control(Protocol):
    """What decides, beside the nodes, how many workers there are. Called by Ray's controller."""

    def most_workers(self) -> int | None:
        """Most workers that the worker group may have that begins; none: as many as there are."""
        ...

    def joined(self, nodes: dict[str, int]) -> None:
        """Nodes have joined that may get workers: their numbers by the raylets' addresses."""
        ...

    def grow(self, workers: int, possible: int) -> bool:
        """More workers can be had than train; whether their group is to be ended right now.

        False: it is not, or it ends by itself once it has made a checkpoint.
        """
        ...

    def stay(self) -> bool:
        """No more workers can be had any longer; whether their group is told not to end by itself.

        False: it could not be told.
        """
        ...


class ElasticSize(ElasticScalingPolicy):
    """Decides at each start of a worker group how many workers it has, by the nodes that live.

    Ray's own policy reads what its autoscaling coordinator has reserved for the run, up to 20 s
    before. So it begins groups on nodes that are gone and waits for them. Below the minimum it asks
    again without a pause, and it ends a group without a checkpoint.

    Args:
        scaling_config: with the smallest and the largest number of workers.
        control: what else decides.
        requests: whether Ray's autoscaling coordinator is told what training takes: Ray Data
            leaves that out then.
    """

    def __init__(self, scaling_config: ScalingConfig, control: Control, *, requests: bool) -> None:
        super().__init__(scaling_config)
        self._control, self._requests = control, requests
        self._workers = 0  # of the latest worker group
        self._growth = GrowthRule(scaling_config.elastic_resize_monitor_interval_s)
        self._asked = False  # whether the latest worker group may end by itself to grow
        self._looked = float("-inf")
        self._room: dict[str, int] = {}  # by the raylet's address
        self._known: set[str] = set()

    def after_controller_start(self, train_run_context: Any) -> None:
        """Called in the process of Ray's controller."""
        super().after_controller_start(train_run_context)
        _end_vain_waits(lambda: self._workers, self._possible)

    def make_decision_for_non_running_worker_group(self) -> ResizeDecision:
        """As many workers as can be had now, once they are the minimum.

        Where they are not for long, Ray waits for the minimum as it does for a group of fixed size.
        """
        self._maybe_send_resource_request()
        most = self._control.most_workers()
        possible = self._awaited()
        workers = max(
            possible if most is None else min(possible, most), self.scaling_config.min_workers
        )
        if workers != self._workers:
            log.info("the next worker group has %d workers", workers)
        # One of the same size, too: the further node was lost after the group before had ended.
        if workers > self._workers > 0 or (self._asked and workers == self._workers):
            self._growth.grown = time.monotonic()
        self._asked = False
        return self._decision(workers)

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> NoopDecision | ResizeDecision:
        """Have the group grow where more workers can be had; it never shrinks while it trains."""
        del worker_group_state, worker_group_status
        self._maybe_send_resource_request()
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return NoopDecision()
        self._looked, possible = now, self._possible()
        self._tell_who_joined()
        if not self._growth.due(now, self._workers, possible):
            if self._asked and possible <= self._workers:
                self._asked = not self._control.stay()
            return NoopDecision()
        self._asked = True
        if not self._control.grow(self._workers, possible):
            return NoopDecision()
        self._growth.grown, self._asked = now, False
        return self._decision(possible)

    def _decision(self, workers: int) -> ResizeDecision:
        self._workers, self._known = workers, set(self._room)
        resources: dict[str, float] = self.scaling_config._resources_per_worker_not_none
        return ResizeDecision(num_workers=workers, resources_per_worker=resources)

    def _awaited(self) -> int:
        """How many workers can be had, once that is the minimum or nobody waits any longer."""
        began = changed = time.monotonic()
        settle_s, seen = 0.0 if self._workers else FIRST_GROUP_S, 0
        while True:
            possible, now = self._possible(), time.monotonic()
            if possible != seen:
                seen, changed = possible, now
            if (
                possible >= self.scaling_config.max_workers
                or (possible >= self.scaling_config.min_workers and now - changed >= settle_s)
                or now - began >= _start_timeout_s()
            ):
                return possible
            time.sleep(_POLL_S)  # no worker trains that the controller would have to poll

    def _possible(self) -> int:
        """Workers for which there are nodes."""
        self._room = nodes.room_for(self.scaling_config._resources_per_worker_not_none)
        most: int = self.scaling_config.max_workers
        return min(sum(self._room.values()), most)

    def _tell_who_joined(self) -> None:
        joined = {
            address: room for address, room in self._room.items() if address not in self._known
        }
        self._known = set(self._room)
        if joined:
            self._control.joined(joined)

    def _send_resource_request(self) -> None:
        if self._requests:
            super()._send_resource_request()

    def _maybe_send_resource_request(self) -> None:
        if self._requests:
            super()._maybe_send_resource_request()

    def _cancel_resource_request(self) -> None:
        if self._requests:
            super()._cancel_resource_request()


def _start_timeout_s() -> float:
    default = DEFAULT_WORKER_GROUP_START_TIMEOUT_S
    return float(os.environ.get(WORKER_GROUP_START_TIMEOUT_S_ENV_VAR, default))


def _end_vain_waits(workers: Callable[[], int], possible: Callable[[], int]) -> None:
    """Have this process wait for no worker group of which a node is gone meanwhile.

    Ray waits for a minute until the group has its place, then begins another one. A rank often
    notices that another one is lost before Ray knows of its node.

    Args:
        workers: of the group that is waited for.
        possible: how many can be had now.
    """
    wait = DefaultPlacementGroupHandle.wait

    def wait_while_it_can_be_had(handle: Any, timeout_seconds: float = 30) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left_s = deadline - time.monotonic()
            if wait(handle, max(min(left_s, _LOOK_EVERY_S), 0)):
                return True
            if left_s <= 0 or possible() < workers():
                return False

    DefaultPlacementGroupHandle.wait = wait_while_it_can_be_had
