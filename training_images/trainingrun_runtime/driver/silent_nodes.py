"""Nodes that have died without Ray's knowing it yet: no time is lost on them.

Ray counts a node as dead once its health checks have failed, for up to 12 s. Until then the end of
a worker group waits 5 s for each lost rank's answer, the next group may be placed on that node, and
a rank of it may ask that node for 10 s for its copy of the training function.
A rank that is lost is the first sign of a dead node; that its raylet takes no connection is the
second one. No process is ended for it that the end of its group would not end.

Read for ray 2.58-2.60: `_shutdown_workers` in
`ray/train/v2/_internal/execution/worker_group/state.py`, `_start_worker_group` in
`.../controller/controller.py`, `ObjectRefWrapper` in `ray/train/v2/_internal/util.py`.
"""

import logging
from typing import Any

import ray

from ..error_text import first_line
from ..ray_internals import nodes
from ..ray_internals.training import ControllerCallback, WorkerGroupCallback

log = logging.getLogger(__name__)


class SilentNodes(WorkerGroupCallback, ControllerCallback):
    """Called by Ray's controller at the end of a worker group and before the next one."""

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        """End the ranks of silent nodes, so that Ray's controller does not wait for them."""
        try:
            workers = worker_group.get_workers()
            silent = nodes.find_silent({worker.metadata.node_id for worker in workers})
            for worker in workers:
                if worker.metadata.node_id in silent:
                    ray.kill(worker.actor)
        except ray.exceptions.RayError as error:  # it costs time alone
            log.warning("nodes that do not answer are waited for: %s", first_line(error))

    def on_controller_start_worker_group(
        self, *, scaling_config: Any, num_workers: int
    ) -> dict[str, str] | None:
        """Where other nodes have the resources, the next worker group is placed on them."""
        silent = nodes.silent()
        if not silent or scaling_config.use_tpu:  # a slice is taken whole
            return None
        possible = nodes.room_for(scaling_config._resources_per_worker_not_none)
        if sum(possible.values()) < num_workers:
            return None
        log.info("the next worker group is not placed on %d nodes that do not answer", len(silent))
        return {"ray.io/node-id": f"!in({','.join(sorted(silent))})"}

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Where a node is silent, have the ranks fetch the training function from this node."""
        if nodes.silent():
            function = worker_group_context.train_fn_ref
            # The context is frozen, and the controller makes a new one for each worker group.
            object.__setattr__(worker_group_context, "train_fn_ref", type(function)(function.get()))
