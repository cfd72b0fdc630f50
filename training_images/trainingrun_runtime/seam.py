"""Every touch of Ray's internals, in one place, so that a new Ray version is checked here alone.

Read for ray 2.58-2.60: `ray/train/v2/_internal/execution/{context,storage,preemption}.py`,
`.../controller/controller.py`, `ray/train/v2/api/data_parallel_trainer.py`, and
`ray/scripts/scripts.py` (`ray drain-node`).
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
import ray.train

DIGEST_FOLDER = ".trainingrun"
"""Folder inside a checkpoint with one digest file per rank, made before the upload."""


def train_context() -> Any:
    """The worker's own train context.

    Raises:
        RuntimeError: this process is no Ray Train worker.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    return get_train_context()


def offer_checkpoint(path: str | None, filesystem: pyarrow.fs.FileSystem) -> None:
    """Make `ray.train.get_checkpoint()` return the checkpoint at `path`, or None."""
    train_context().checkpoint = (
        ray.train.Checkpoint(path=path, filesystem=filesystem) if path else None
    )


def seal_uploads(digest: Callable[[Path], Mapping[str, Any]]) -> None:
    """Have every checkpoint that this worker uploads carry the digests of its files.

    They are taken from the local files, before the upload, so that what was written and what
    arrived can be told apart later, and nobody has to read a checkpoint back to commit it.
    """
    context = train_context()
    rank = context.get_world_rank()
    storage = context.storage_context
    upload = storage.persist_current_checkpoint

    def sealed(checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
        files = digest(Path(checkpoint.path)) if _is_local(checkpoint) else None
        uploaded = upload(checkpoint, name)
        if files is not None:
            write_file(
                uploaded.filesystem,
                f"{uploaded.path}/{DIGEST_FOLDER}/rank-{rank}.json",
                json.dumps(files).encode(),
            )
        return uploaded

    storage.persist_current_checkpoint = sealed


def write_file(filesystem: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    """Write one small file, its folder included."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):  # an object store has no folders to make
        filesystem.create_dir(str(Path(path).parent))
    with filesystem.open_output_stream(path) as stream:
        stream.write(content)


def _is_local(checkpoint: ray.train.Checkpoint) -> bool:
    return isinstance(checkpoint.filesystem, pyarrow.fs.LocalFileSystem)


def preemption_deadline() -> float | None:
    """Unix time in seconds at which Ray says that a node of this group goes away; None: none does.

    Reads what Ray's watcher stored in this worker: unlike `ray.train.get_preemption_info()` it is
    no collective, so a rank may ask alone.
    """
    info = train_context().preemption_context.preemption_info
    if info is None:
        return None
    # Ray gives no deadline for some drains and then waits 120 s.
    return info.deadline_ms / 1000 if info.deadline_ms else time.time() + 120


def drain_own_node(message: str, deadline: float) -> None:
    """Tell Ray that this node goes away at `deadline` (Unix seconds): nothing new is placed on it.

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


def intercept_fit(prepare: Callable[[Any], None], failure_policy: Callable[[], Any]) -> None:
    """Have every Ray Train v2 trainer of this process prepared by us when it is fitted.

    `prepare` may replace the trainer's attributes; `failure_policy` makes the policy that Ray's
    controller asks after each failure. This is how a user's script runs unmodified.
    """
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    start = DataParallelTrainer._initialize_and_run_controller
    fit = DataParallelTrainer.fit

    def prepared_fit(trainer: Any) -> Any:
        prepare(trainer)
        return fit(trainer)

    def start_with_policy(trainer: Any, **arguments: Any) -> Any:
        arguments["failure_policy"] = failure_policy()
        return start(trainer, **arguments)

    DataParallelTrainer.fit = prepared_fit
    DataParallelTrainer._initialize_and_run_controller = start_with_policy


def replace_run_config(trainer: Any, run_config: ray.train.RunConfig) -> None:
    """Give a trainer another RunConfig after its construction."""
    from ray.train.v2._internal.execution.context import TrainRunContext

    trainer.run_config = run_config
    trainer.train_run_context = TrainRunContext(
        run_config=run_config,
        train_loop_config=trainer.train_loop_config,
        scaling_config=trainer.scaling_config,
        backend_config=trainer.backend_config,
        dataset_config=trainer.data_config,
    )


def torch_config(**arguments: Any) -> Any:
    """A `TorchConfig` whose worker groups end without taking their process group apart.

    Ray kills the workers right afterwards all the same. Taking the group apart first needs every
    rank: when one is dead the others hang in it, and a restart waits 5 s for them.
    """
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import _TorchBackend

    class Backend(_TorchBackend):
        def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
            pass

    class Config(TorchConfig):
        @property
        def backend_cls(self) -> type:
            return Backend

    return Config(**arguments)


def authorization() -> list[tuple[str, str]]:
    """Metadata of a gRPC call to Ray's own services; empty where the cluster wants no token."""
    from ray._private.authentication.http_token_authentication import (
        get_auth_headers_if_auth_enabled,
    )

    headers = get_auth_headers_if_auth_enabled({})
    return [(name.lower(), value) for name, value in headers.items()]


def dead_nodes() -> set[str]:
    """Ids of the Ray nodes that Ray counts as dead."""
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}


def exit_now(code: int) -> None:
    """End this process without unwinding: for a driver that may no longer write anything."""
    os._exit(code)
