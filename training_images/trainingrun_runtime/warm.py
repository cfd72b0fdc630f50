"""Keeps one spare worker process on each worker's node, with PyTorch loaded already.

Most of a restart is Python starting and importing: 5 s of the 7 that `kill -9` costs stock Ray.
The raylet can start a process ahead of need (`PrestartWorkers` of Ray's `node_manager.proto`), and
gives it to the next actor with the same runtime environment, which is the worker's successor. The
environment has a setup hook, so that the spare imports everything before anyone asks for it; it
takes the memory of one idle Python process with PyTorch.
"""

import logging
import threading
from typing import Any

import ray

from . import seam

log = logging.getLogger(__name__)

SETUP_HOOK = "trainingrun_runtime.preload.import_everything"
"""For `worker_process_setup_hook` of the workers' runtime environment."""
DELAY_S = 3.0
"""After the start of training: the first steps need the CPU more."""
KEEP_S = 30 * 24 * 3600


def keep_spare() -> threading.Timer:
    """Have this node's raylet start a spare for this worker soon; cancel it at the end."""
    timer = threading.Timer(DELAY_S, _start_spare)
    timer.daemon = True
    timer.start()
    return timer


def _start_spare() -> None:
    try:
        import grpc
        from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

        context = ray.get_runtime_context()
        request = node_manager_pb2.PrestartWorkersRequest(
            job_id=ray.JobID.from_hex(context.get_job_id()).binary(),
            num_workers=1,
            keep_alive_duration_secs=KEEP_S,
        )
        request.runtime_env_info.serialized_runtime_env = context.get_runtime_env_string()
        with grpc.insecure_channel(_raylet_address(context.get_node_id())) as channel:
            node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(
                request, timeout=10, metadata=seam.authorization()
            )
    except Exception as error:  # without a spare a restart is slower, not wrong
        log.warning("no spare worker process was started: %s", error)


def _raylet_address(node_id: str) -> str:
    node: dict[str, Any] = next(n for n in ray.nodes() if n["NodeID"] == node_id)
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
