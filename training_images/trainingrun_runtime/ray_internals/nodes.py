"""Ray's nodes and the raylets on them.

Read for ray 2.58-2.60: `ray/scripts/scripts.py` (`ray drain-node`) and
`src/ray/protobuf/node_manager.proto`. Imports no Ray Train, which takes a second.
"""

import time
from typing import Any

import ray
from ray._private import ray_constants

SETUP_HOOK_ENV: str = ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR
"""Variable with the function that a worker process calls when it starts, as `module.function`.

What `worker_process_setup_hook` of a job's runtime environment becomes; of an actor's it becomes
nothing (`ray/_private/runtime_env/setup_hook.py`)."""


def drain_own_node(message: str, deadline: float) -> None:
    """Drain this node until `deadline` (Unix seconds): Ray places nothing new on it.

    The same call as `ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION`.
    """
    from ray.core.generated import autoscaler_pb2

    context = ray.get_runtime_context()
    client = ray._raylet.GcsClient(address=context.gcs_address)
    client.drain_node(
        context.get_node_id(),
        autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        message,
        int(max(deadline, time.time() + 1) * 1000),
    )


def dead_nodes() -> set[str]:
    """Ids of the Ray nodes that Ray counts as dead."""
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}


def prestart_worker(keep_s: float) -> None:
    """Have this node's raylet start one more process with this process's runtime environment.

    It is assigned to the next actor on this node with the same environment (`PrestartWorkers`
    of `node_manager.proto`). Ends by itself after `keep_s` seconds without use.
    """
    import grpc
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    context = ray.get_runtime_context()
    request = node_manager_pb2.PrestartWorkersRequest(
        job_id=ray.JobID.from_hex(context.get_job_id()).binary(),
        num_workers=1,
        keep_alive_duration_secs=int(keep_s),
    )
    request.runtime_env_info.serialized_runtime_env = context.get_runtime_env_string()
    with grpc.insecure_channel(_raylet_address(context.get_node_id())) as channel:
        node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(
            request, timeout=10, metadata=_authorization()
        )


def _raylet_address(node_id: str) -> str:
    node: dict[str, Any] = next(n for n in ray.nodes() if n["NodeID"] == node_id)
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def _authorization() -> list[tuple[str, str]]:
    """Metadata of a gRPC call to Ray's own services; empty where the cluster wants no token."""
    from ray._private.authentication.http_token_authentication import (
        get_auth_headers_if_auth_enabled,
    )

    headers = get_auth_headers_if_auth_enabled({})
    return [(name.lower(), value) for name, value in headers.items()]
