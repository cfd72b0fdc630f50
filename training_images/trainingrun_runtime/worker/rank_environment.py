"""What a rank's process has before any of the user's modules is imported in it.

A module may read its rank, folder, devices and more at its import. So all of it is set between
Ray's own part, the variables of PyTorch's process group included, and the training function, with
which a script's modules are imported.
"""

import os
from typing import Any

import ray.train

from trainingrun_protocol.contract import WORKER_RESOURCE, RunContract

from ..ray_internals import nodes, training
from . import user_code


class RankEnvironments(training.WorkerGroupCallback):
    """Sets it in each process of a worker group; the last of the callbacks of Ray's controller.

    Args:
        contract: the operator's settings of this attempt.
    """

    def __init__(self, contract: RunContract) -> None:
        self._identity = contract.identity()
        self._has_code = contract.code is not None or bool(contract.requirements)

    def after_worker_group_start(self, worker_group: Any) -> None:
        """The processes are connected, and no function is called in them yet."""
        worker_group.execute(enter, self._identity, self._has_code)


def enter(identity: dict[str, str], has_code: bool) -> None:
    """Set what Ray does not set, in the process of a rank.

    Args:
        identity: variables that name the run and the attempt.
        has_code: whether the run has code or requirements that are not in the image.
    """
    os.environ.update(identity)  # in a local run the attempts share a node's environment
    if has_code:
        user_code.enter_on_rank()
    if ray.train.get_context().get_local_world_size() > 1:
        training.number_local_ranks(nodes.total_on_own_node(WORKER_RESOURCE))
