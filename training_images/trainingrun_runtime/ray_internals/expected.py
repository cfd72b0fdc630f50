"""What this package expects of Ray's internals, checked before anything rests on it.

An attribute that Ray no longer reads can still be set: training would then begin from scratch, and
without any message. So a Ray that differs from what is listed here ends the attempt with an error.
"""

import dataclasses
import importlib.util
import inspect
from importlib import metadata
from typing import Any

LOWEST, BELOW = (2, 58), (2, 61)
"""Versions of Ray that were read and tested, as in pyproject.toml: from the first, below the
second."""

_EXECUTION = "ray.train.v2._internal.execution"
_CONSTANTS = "ray.train.v2._internal.constants"
_CONTEXT = f"{_EXECUTION}.context"
_STORAGE = f"{_EXECUTION}.storage"
_CALLBACK = f"{_EXECUTION}.callback"
_FAILURES = f"{_EXECUTION}.failure_handling"
_PREEMPTION = f"{_EXECUTION}.preemption"
_TRAINER = "ray.train.v2.api.data_parallel_trainer"
_EXCEPTIONS = "ray.train.v2._internal.exceptions"
_SCALING = f"{_EXECUTION}.scaling_policy"
_GROUP = f"{_EXECUTION}.worker_group.worker_group"
_PLACES = f"{_EXECUTION}.worker_group.placement_group_handle"
_TORCH = "ray.train.torch"
"""Not checked in an image without PyTorch."""

PARAMETERS: dict[tuple[str, str], str] = {
    (_CONTEXT, "get_train_context"): "",
    (
        _STORAGE,
        "StorageContext.persist_current_checkpoint",
    ): "self, checkpoint, checkpoint_dir_name",
    (_STORAGE, "StorageContext.build_checkpoint_path_from_name"): "self, checkpoint_name",
    (_CONTEXT, "TrainContext._sync_checkpoint_dir_name_across_ranks"): "self, checkpoint_dir_name",
    (f"{_EXECUTION}.worker_group.worker", "RayTrainWorker.execute"): "self, fn, fn_args, fn_kwargs",
    (_GROUP, "WorkerGroup._start"): "self",
    (_GROUP, "WorkerGroup.shutdown"): "self",
    (_GROUP, "WorkerGroup.has_started"): "self",
    (_GROUP, "WorkerGroup.get_worker_group_state"): "self",
    (f"{_EXECUTION}.worker_group.state", "WorkerGroupState.shutdown"): "self",
    (_CALLBACK, "ReportCallback.after_report"): "self, training_report, metrics",
    (_CALLBACK, "ControllerCallback.after_controller_start"): "self, train_run_context",
    (_CALLBACK, "ControllerCallback.after_controller_finish"): "self, result",
    (
        f"{_EXECUTION}.checkpoint.checkpoint_manager",
        "CheckpointManager._write_state_to_storage",
    ): "self",
    (_CALLBACK, "WorkerGroupCallback.before_worker_group_start"): "self, worker_group_context",
    (_CALLBACK, "WorkerGroupCallback.after_worker_group_start"): "self, worker_group",
    (_CALLBACK, "WorkerGroupCallback.before_worker_group_shutdown"): "self, worker_group",
    (
        _CALLBACK,
        "ControllerCallback.on_controller_start_worker_group",
    ): "self, scaling_config, num_workers",
    (
        f"{_EXECUTION}.worker_group.execution_group",
        "ExecutionGroup.execute",
    ): "self, fn, fn_args, fn_kwargs",
    ("ray.train.v2._internal.util", "ObjectRefWrapper.__init__"): "self, obj",
    ("ray.train.v2._internal.util", "ObjectRefWrapper.get"): "self",
    (_EXCEPTIONS, "WorkerGroupStartupTimeoutError.__init__"): "self, num_workers",
    (_FAILURES, "FailurePolicy.make_decision"): "self, training_failed_error",
    (_FAILURES, "FailurePolicy.__init__"): "self, failure_config",
    (_SCALING, "FixedScalingPolicy.__init__"): "self, scaling_config",
    (_SCALING, "FixedScalingPolicy._send_resource_request"): "self",
    (_SCALING, "FixedScalingPolicy._maybe_send_resource_request"): "self",
    (_SCALING, "FixedScalingPolicy._cancel_resource_request"): "self",
    (_SCALING, "ElasticScalingPolicy.__init__"): "self, scaling_config",
    (_SCALING, "ElasticScalingPolicy._send_resource_request"): "self",
    (_SCALING, "ElasticScalingPolicy._maybe_send_resource_request"): "self",
    (_SCALING, "ElasticScalingPolicy._cancel_resource_request"): "self",
    (_SCALING, "ElasticScalingPolicy.after_controller_start"): "self, train_run_context",
    (_SCALING, "ElasticScalingPolicy.make_decision_for_non_running_worker_group"): "self",
    (
        _SCALING,
        "ElasticScalingPolicy.make_decision_for_running_worker_group",
    ): "self, worker_group_state, worker_group_status",
    (_PLACES, "DefaultPlacementGroupHandle.wait"): "self, timeout_seconds",
    (_TRAINER, "DataParallelTrainer.fit"): "self",
    (
        _TRAINER,
        "DataParallelTrainer._initialize_and_run_controller",
    ): "self, controller_init_kwargs",
    (_TRAINER, "get_env_vars_to_propagate"): "",
    (_CONSTANTS, "get_env_vars_to_propagate"): "",
    (f"{_TORCH}.config", "_TorchBackend.on_shutdown"): "self, worker_group, backend_config",
    (
        "ray._private.authentication.http_token_authentication",
        "get_auth_headers_if_auth_enabled",
    ): "user_headers",
}
"""Parameters of the functions that are called, replaced or overridden, by module and name."""

FIELDS: dict[tuple[str, str], frozenset[str]] = {
    (_CONTEXT, "TrainContext"): frozenset(
        {"checkpoint", "distributed_context", "storage_context", "preemption_context"}
    ),
    (_CONTEXT, "DistributedContext"): frozenset(
        {"world_rank", "local_rank", "local_world_size", "node_rank"}
    ),
    (_CONTEXT, "TrainRunContext"): frozenset(
        {"run_config", "train_loop_config", "scaling_config", "backend_config", "dataset_config"}
    ),
    (f"{_EXECUTION}.worker_group.state", "WorkerGroupContext"): frozenset({"train_fn_ref"}),
    (f"{_EXECUTION}.worker_group.worker", "Worker"): frozenset({"actor", "metadata"}),
    (f"{_EXECUTION}.worker_group.worker", "ActorMetadata"): frozenset({"node_id"}),
    (_SCALING, "ResizeDecision"): frozenset({"num_workers", "resources_per_worker"}),
    (_PREEMPTION, "PreemptionInfo"): frozenset({"deadline_ms"}),
    (_PREEMPTION, "PreemptionContext"): frozenset({"preemption_info"}),
}
"""Fields that are read or set, of dataclasses."""

NAMES: dict[tuple[str, str], frozenset[str]] = {
    (f"{_TORCH}.config", "TorchConfig"): frozenset({"backend_cls"}),
    ("ray.train.v2._internal.callbacks.datasets", "DatasetsCallback"): frozenset(),
    (
        "ray.train.v2._internal.callbacks.placement_group_callback",
        "PlacementGroupCleanerCallback",
    ): frozenset(),
    (_FAILURES, "FailureDecision"): frozenset({"RETRY", "RAISE"}),
    (_SCALING, "NoopDecision"): frozenset(),
    (_CONSTANTS, "WORKER_GROUP_START_TIMEOUT_S_ENV_VAR"): frozenset(),
    (_CONSTANTS, "DEFAULT_WORKER_GROUP_START_TIMEOUT_S"): frozenset(),
    ("ray._private.state", "GlobalState"): frozenset({"get_draining_nodes"}),
    (_EXCEPTIONS, "WorkerHealthCheckFailedError"): frozenset(),
    (_EXCEPTIONS, "WorkerHealthCheckTimeoutError"): frozenset(),
    (_CONTEXT, "TrainContext"): frozenset({"report"}),
    (_CONSTANTS, "CHECKPOINT_MANAGER_SNAPSHOT_FILENAME"): frozenset(),
    (_CONSTANTS, "VALIDATE_STORAGE_MARKER_FILENAME"): frozenset(),
    (_CONSTANTS, "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR"): frozenset(),
    (_CONSTANTS, "DEFAULT_RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_VALUE"): frozenset(),
    ("ray._private.ray_constants", "WORKER_PROCESS_SETUP_HOOK_ENV_VAR"): frozenset(),
    ("ray._private.ray_constants", "GLOBAL_GRPC_OPTIONS"): frozenset(),
    ("ray.core.generated.node_manager_pb2_grpc", "NodeManagerServiceStub"): frozenset(),
    ("ray.core.generated.runtime_environment_pb2", "RuntimeEnvInfo"): frozenset(
        {"serialized_runtime_env"}
    ),
    ("ray._raylet", "InnerGcsClient"): frozenset({"drain_node"}),  # GcsClient hands on to it
    ("ray.core.generated.node_manager_pb2", "PrestartWorkersRequest"): frozenset(
        {"job_id", "num_workers", "keep_alive_duration_secs", "runtime_env_info"}
    ),
}
"""Names that are used, and attributes of them."""


class UnknownRay(RuntimeError):
    """The installed Ray is not one that this project knows."""


def check_version() -> None:
    """Make sure of the version alone, without loading Ray.

    Raises:
        UnknownRay: with one sentence.
    """
    version = tuple(int(part) for part in metadata.version("ray").split(".")[:2])
    if not LOWEST <= version < BELOW:
        raise UnknownRay(sentence("is not a version that was tested"))


def check() -> None:
    """Make sure that the installed Ray is one that was read and tested.

    Raises:
        UnknownRay: with one sentence: what differs, and which Ray to install.
    """
    check_version()
    skipped = () if importlib.util.find_spec("torch") else (_TORCH,)
    for (module, name), wanted in PARAMETERS.items():
        if module.startswith(skipped):
            continue
        found = ", ".join(inspect.signature(_find(module, name)).parameters)
        if found != wanted:
            raise UnknownRay(sentence(f"has {name} with parameters {found or 'none'}"))
    for (module, name), fields in FIELDS.items():
        lacking = fields - {field.name for field in dataclasses.fields(_find(module, name))}
        if lacking:
            raise UnknownRay(sentence(f"has {name} without {', '.join(sorted(lacking))}"))
    for (module, name), attributes in NAMES.items():
        if module.startswith(skipped):
            continue
        thing = _find(module, name)
        descriptor = getattr(thing, "DESCRIPTOR", None)  # a message of Ray's protocol
        known = descriptor.fields_by_name if descriptor is not None else dir(thing)
        lacking = attributes - set(known)
        if lacking:
            raise UnknownRay(sentence(f"has {name} without {', '.join(sorted(lacking))}"))


def _find(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnknownRay(sentence(f"has no {module}.{name}")) from error
    return found


def sentence(what: str) -> str:
    """Why this Ray cannot be used: it `what`."""
    lowest, below = (".".join(map(str, version)) for version in (LOWEST, BELOW))
    return (
        f"Ray {metadata.version('ray')} {what}, and training with it might begin from scratch "
        f"unnoticed; use an image with ray>={lowest},<{below}"
    )
