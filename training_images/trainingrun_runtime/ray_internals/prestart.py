"""Processes that a raylet starts in advance, for the next actor with the same runtime environment.

Read for ray 2.58-2.60: `src/ray/protobuf/node_manager.proto` (`PrestartWorkers`),
`src/ray/core_worker/core_worker.cc` (an actor's environment extends that of its creator),
`ray/train/v2/_internal/constants.py` and `ray/train/v2/api/data_parallel_trainer.py` (what Ray
Train adds). Imports no Ray Train, which takes a second.
"""

import json
from collections.abc import Mapping

import ray
from ray._private import ray_constants
from ray.runtime_env import RuntimeEnv

SETUP_HOOK_ENV: str = ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR
"""Variable with the function that a worker process calls when it starts, as `module.function`.

What `worker_process_setup_hook` of a job's runtime environment becomes; of an actor's it becomes
nothing (`ray/_private/runtime_env/setup_hook.py`)."""


REQUEST_TIMEOUT_S = 5.0


def own_environment() -> str:
    """This process's runtime environment, as Ray writes it."""
    return str(ray.get_runtime_context().get_runtime_env_string())


def extended(environment: str, variables: Mapping[str, str]) -> str:
    """The runtime environment of an actor with these variables.

    Args:
        environment: that of the actor's creator.
        variables: the actor's `env_vars`.
    """
    found = json.loads(environment or "{}")
    if not found:  # nothing to extend: Ray takes the actor's own as Python writes it
        return str(RuntimeEnv(env_vars=dict(variables)).serialize())
    found["env_vars"] = {**found.get("env_vars", {}), **variables}
    # The raylet compares the text, which nlohmann's JSON library writes in C++.
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def controller_variables() -> dict[str, str]:
    """What Ray Train sets in the environment of its controller."""
    from ray.train.v2._internal import constants

    warn = constants.RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR
    return {
        warn: constants.DEFAULT_RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_VALUE,
        **constants.get_env_vars_to_propagate(),
    }


def prestart(address: str, environment: str, keep_s: float, number: int = 1) -> None:
    """Have a raylet start processes.

    Args:
        address: host and port of the raylet.
        environment: the runtime environment of the actors that may get one.
        keep_s: seconds for which the raylet keeps them at least.
        number: how many.
    """
    import grpc
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    request = node_manager_pb2.PrestartWorkersRequest(
        job_id=ray.JobID.from_hex(ray.get_runtime_context().get_job_id()).binary(),
        num_workers=number,
        keep_alive_duration_secs=int(keep_s),
    )
    request.runtime_env_info.serialized_runtime_env = environment
    # As Ray's own channels: not through the proxy that a user may have set for the internet.
    with grpc.insecure_channel(address, ray_constants.GLOBAL_GRPC_OPTIONS) as channel:
        node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(
            request, timeout=REQUEST_TIMEOUT_S, metadata=_authorization()
        )


def _authorization() -> list[tuple[str, str]]:
    """Metadata of a gRPC call to Ray's own services; empty where the cluster wants no token."""
    from ray._private.authentication.http_token_authentication import (
        get_auth_headers_if_auth_enabled,
    )

    headers = get_auth_headers_if_auth_enabled({})
    return [(name.lower(), value) for name, value in headers.items()]
