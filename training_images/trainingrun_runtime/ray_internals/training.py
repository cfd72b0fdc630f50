"""Ray Train's internals.

Read for ray 2.58-2.60: `ray/train/v2/_internal/execution/{context,storage,preemption}.py`,
`.../controller/controller.py`, `.../worker_group/{worker_group,state,worker}.py`,
`.../scaling_policy/`, `.../callbacks/`, `.../callback.py`, `.../failure_handling/`,
`ray/train/v2/_internal/exceptions.py` and `ray/train/v2/api/data_parallel_trainer.py`.
"""

import copy
import inspect
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
import ray.train
from ray import cloudpickle
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.callback import (
    ControllerCallback,
    ReportCallback,
    WorkerGroupCallback,
)
from ray.train.v2._internal.execution.failure_handling import (
    FailureDecision,
    FailurePolicy,
)

from ..error_text import first_line
from ..store.bucket_files import bucket_of, raise_unwritten
from ..store.manifest import DIGEST_FOLDER, digest_file
from ..store.storage_retry import StorageRetry
from .elastic import Control, ElasticSize
from .expected import UnknownRay, check, sentence
from .filesystem import RetryingCheckpoint

__all__ = [  # beside what is defined here
    "ControllerCallback",
    "FailureDecision",
    "FailurePolicy",
    "ReportCallback",
    "WorkerGroupCallback",
    "WorkerGroupStartupTimeoutError",
    "WorkerHealthCheckFailedError",
    "WorkerHealthCheckTimeoutError",
]

log = logging.getLogger(__name__)

_PIECE = 8 * 1024 * 1024
"""Bytes of a checkpoint's file that are read at once."""
_UPLOAD = "checkpoint_upload_fn"
"""The parameter of `report` with the function that uploads."""
_SMALL_AT_ONCE = 8
"""Files of less than a piece that are uploaded at once."""


def train_context() -> Any:
    """The worker's own train context.

    Raises:
        RuntimeError: this process is no Ray Train worker.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    return get_train_context()


def offer_checkpoint(
    path: str | None, filesystem: pyarrow.fs.FileSystem | None
) -> RetryingCheckpoint | None:
    """Make `ray.train.get_checkpoint()` return the checkpoint at `path`, or None.

    Returns:
        The same.

    Raises:
        UnknownRay: it returns something else: training would begin from scratch.
    """
    offered: RetryingCheckpoint | None = None
    if path:
        offered = RetryingCheckpoint(path=path, filesystem=filesystem)
    train_context().checkpoint = offered
    handed_on: object = ray.train.get_checkpoint()
    if handed_on is not offered:
        raise UnknownRay(sentence("does not hand on the checkpoint that it is given"))
    return offered


def number_local_ranks(per_node: int) -> None:
    """Number the ranks of each node from 0 where several nodes have one address.

    Ray gives the ranks of a node consecutive numbers, but takes all nodes at one address for one
    when it numbers them locally: in a local run every node is at 127.0.0.1.

    Args:
        per_node: how many ranks each node has.
    """
    context = train_context()
    known = context.distributed_context
    if known.local_world_size <= per_node:
        return
    node, local = divmod(known.world_rank, per_node)
    context.distributed_context = replace(
        known, local_rank=local, local_world_size=per_node, node_rank=node
    )
    ours = {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": per_node, "NODE_RANK": node}
    # Set by Ray for PyTorch; without it nothing reads them.
    os.environ.update({name: str(value) for name, value in ours.items() if name in os.environ})


def attach_checksums(digest: Callable[[Path], Mapping[str, Any]], retry: StorageRetry) -> None:
    """Upload the checksums of a checkpoint's files with every checkpoint of this worker.

    They are computed from the local files before the upload, so that a damaged upload is detected
    and a commit does not read the checkpoint back. An upload that fails is repeated by `retry`.
    """
    context = train_context()

    def persist_with_checksums(checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
        target = stored(name)
        files = digest(Path(checkpoint.path)) if _is_local(checkpoint) else None
        retry(lambda: _upload(context, checkpoint, target.path, files))
        return target

    context.storage_context.persist_current_checkpoint = persist_with_checksums


def stored(name: str) -> RetryingCheckpoint:
    """The checkpoint of that name in this driver's folder, whether it is there yet or not."""
    storage = train_context().storage_context
    path = storage.build_checkpoint_path_from_name(name)
    return RetryingCheckpoint(path=path, filesystem=storage.storage_filesystem)


def _upload(
    context: Any, source: ray.train.Checkpoint, path: str, digests: Mapping[str, Any] | None
) -> None:
    """Copy a rank's files of a checkpoint to `path`, and then the digests of them.

    Not by `pyarrow.fs.copy_files`, as Ray does: it drops the error with which a file is closed.
    Left out are the digests that came with a checkpoint which the code has downloaded there.
    """
    bucket = bucket_of(context.storage_context.storage_filesystem)
    folder = bucket.key_of(path)
    found = source.filesystem.get_file_info(pyarrow.fs.FileSelector(source.path, recursive=True))
    root = f"{source.path.rstrip('/')}/"
    files = [f for f in found if f.is_file and not f.path.startswith(f"{root}{DIGEST_FOLDER}/")]

    def copy(file: pyarrow.fs.FileInfo) -> None:
        with (
            source.filesystem.open_input_stream(file.path) as content,
            bucket.writing(f"{folder}/{file.path.removeprefix(root)}", file.size) as append,
        ):
            while piece := content.read(_PIECE):
                append(piece)

    # Large ones have several requests under way each.
    with ThreadPoolExecutor(_SMALL_AT_ONCE) as pool:
        list(pool.map(copy, (file for file in files if file.size <= _PIECE)))
    for file in files:
        if file.size > _PIECE:
            copy(file)
    if digests is not None:
        own = f"{folder}/{digest_file(context.get_world_rank())}"
        bucket.put(own, json.dumps(digests).encode())


def worker_actor() -> bytes:
    """Handle of the actor that this process is, for `call_beside` and `kill`, pickled.

    Whoever unpickles it imports Ray Train, for a second in which Ray unpickles no other arguments:
    the coordinator, which all ranks wait for at their start, only hands it on.
    """
    return bytes(cloudpickle.dumps(ray.get_runtime_context().current_actor))


def call_beside(actor: bytes, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a worker's process, beside its training thread; a reference to the result.

    Ray Train's worker trains in a thread of its own, so it answers while a collective hangs.
    """
    return cloudpickle.loads(actor).execute.remote(function, *arguments)


def kill(actor: bytes) -> None:
    """Have Ray end a worker's process."""
    ray.kill(cloudpickle.loads(actor))


def keep_checkpoints_apart(
    group: int, waiting: Callable[[], AbstractContextManager[None]] = nullcontext
) -> None:
    """Have each checkpoint of this driver get a folder of its own, also where code reuses a name.

    A second upload under one name would overwrite what is committed. All ranks call `report`
    equally often and agree on rank 0's name, so they count alike.

    Args:
        group: Number of the worker group, from 1.
        waiting: entered while a report waits for those of the other ranks.
    """
    context = train_context()
    agree = context._sync_checkpoint_dir_name_across_ranks
    used: Counter[str] = Counter()

    def agree_on_a_new_one(name: str | None = None) -> str:
        with waiting():
            agreed = str(agree(name))
        used[agreed] += 1
        count = used[agreed]
        return f"{agreed}-{group}" if count == 1 else f"{agreed}-{group}.{count}"

    context._sync_checkpoint_dir_name_across_ranks = agree_on_a_new_one


def check_uploads() -> None:
    """From now on have a report fail whose own function to upload has not written a file.

    pyarrow's `copy_files`, with which it usually copies, drops the error of the last part.
    """
    context = train_context()
    report = context.report

    signature = inspect.signature(report)

    def checked(*values: Any, **options: Any) -> None:
        given = signature.bind(*values, **options)
        if given.arguments.get(_UPLOAD) is not None:
            given.arguments[_UPLOAD] = _checked(given.arguments[_UPLOAD])
        report(*given.args, **given.kwargs)

    context.report = checked


def _checked(upload: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """This function of a report."""

    def written(checkpoint: Any, name: str) -> Any:
        made = upload(checkpoint, name)
        own = train_context().storage_context.storage_filesystem
        if isinstance(made, ray.train.Checkpoint) and made.filesystem == own:
            bucket = bucket_of(own)
            raise_unwritten(bucket.uri(bucket.key_of(made.path)))
        return made

    return written


def change_reports(change: Callable[[Mapping[Any, Any]], dict[Any, Any]]) -> None:
    """From now on have what this worker reports changed before it leaves the process.

    Args:
        change: of the metrics of a report.
    """
    context = train_context()
    report = context.report

    def changed(metrics: Mapping[Any, Any], *others: Any, **options: Any) -> None:
        report(change(metrics) if isinstance(metrics, dict) else metrics, *others, **options)

    context.report = changed


def keep_no_snapshot() -> None:
    """In Ray's controller: make no snapshot of the checkpoints; see `filesystem`, which drops it.

    It is JSON with all metrics of all checkpoints, and what JSON cannot hold, such as a number of
    NumPy or text that is no UTF-8, ends the worker group at each checkpoint again.
    """
    from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager

    CheckpointManager._write_state_to_storage = lambda _manager: None


def end_groups_that_fail_to_start() -> None:
    """In Ray's controller: end a worker group whose start fails once its processes are there.

    A rank may die while the group connects. Ray itself forgets such a group, which keeps its place:
    each further group would wait for that, in vain. Nothing is left to end where that fails before.
    """
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

    start = WorkerGroup._start

    def start_or_end(group: Any) -> None:
        try:
            start(group)
        except Exception:
            if group.has_started():
                _end(group)
            raise

    WorkerGroup._start = start_or_end


def _end(group: Any) -> None:
    try:
        group.shutdown()
    except Exception as error:  # of a callback, which may ask a rank that is dead
        log.warning("a worker group that has not started ends with %s", first_line(error))
        if group.has_started():
            group.get_worker_group_state().shutdown()


def _is_local(checkpoint: ray.train.Checkpoint) -> bool:
    return isinstance(checkpoint.filesystem, pyarrow.fs.LocalFileSystem)


class PreemptionDeadline:
    """When a node of this worker group goes away, as Ray's watcher stores it in this worker.

    Unlike `ray.train.get_preemption_info()` it is no collective, so a rank may ask alone.
    """

    def __init__(self) -> None:
        self._context = train_context().preemption_context  # one for each worker group
        self._without: float | None = None

    def read(self) -> float | None:
        """Unix time in seconds; None: no node goes away."""
        info = self._context.preemption_info
        if info is None:
            return None
        if info.deadline_ms:
            return float(info.deadline_ms / 1000)
        # Ray gives no deadline for some drains, and waits 120 s from when it has seen one.
        self._without = self._without or time.time() + 120
        return self._without


@dataclass
class Fit:
    """What became of the one `fit()` of this process."""

    begun: bool = False
    """Whether it was called."""
    succeeded: bool = False
    """Whether it returned."""
    error: BaseException | None = None
    """What it raised, or that it was called again."""


def intercept_fit(
    prepare: Callable[[Any], None],
    failure_policy: Callable[[], Any],
    controller_variables: Mapping[str, str],
    control: Control,
    finish: Callable[[Any], Any] = lambda result: result,
) -> Fit:
    """Have the Ray Train v2 trainer of this process prepared by us when it is fitted.

    This is how a user's script runs unmodified.

    Args:
        prepare: may replace the trainer's attributes.
        failure_policy: makes the policy that Ray's controller asks after each failure.
        controller_variables: environment variables of the controller's process.
        control: what decides about the number of workers, where the trainer has two bounds of it.
        finish: makes of Ray's result what the script gets.

    Returns:
        What becomes of it, whatever the code around it does with the exception.

    Raises:
        UnknownRay: this Ray is not one that is known.
    """
    check()
    outcome = Fit()
    from ray.train.v2.api import data_parallel_trainer
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    propagated = data_parallel_trainer.get_env_vars_to_propagate
    start = DataParallelTrainer._initialize_and_run_controller
    fit = DataParallelTrainer.fit

    def prepared_fit(trainer: Any) -> Any:
        if outcome.begun:
            # Its checkpoints would be taken for the first one's, and the other way round.
            again = RuntimeError(
                "fit() was called a second time; a run has one series of checkpoints, so train "
                "each stage in a TrainingRun of its own, or all of them in one training function"
            )
            outcome.error = outcome.error or again
            raise again
        outcome.begun = True
        try:
            prepare(trainer)
            result = finish(fit(trainer))
        except BaseException as error:
            outcome.error = error
            raise
        outcome.succeeded = True
        return result

    def start_ours(trainer: Any, **arguments: Any) -> Any:
        arguments["failure_policy"] = failure_policy()
        _leave_out_the_needless(trainer, arguments)
        arguments["train_run_context"] = _without_objects_of_users(arguments["train_run_context"])
        if trainer.scaling_config.elasticity_enabled:
            arguments["scaling_policy"] = ElasticSize(
                trainer.scaling_config, control, requests=bool(trainer.datasets)
            )
        return start(trainer, **arguments)

    data_parallel_trainer.get_env_vars_to_propagate = lambda: {
        **propagated(),
        **controller_variables,
    }
    DataParallelTrainer.fit = prepared_fit
    DataParallelTrainer._initialize_and_run_controller = start_ours
    return outcome


def _leave_out_the_needless(trainer: Any, arguments: dict[str, Any]) -> None:
    """Start no process that this trainer has no use for: each costs a second of CPU time.

    The cleaner removes placement groups that a controller left when it died; here the job ends
    with its controller, and its placement groups with the job. Without datasets there is nothing
    to hand out, and nobody to tell which resources training reserves.
    """
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import (
        PlacementGroupCleanerCallback,
    )
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

    class FixedSize(FixedScalingPolicy):
        """Asks for nothing: the cluster has the run's size, and no autoscaler."""

        def _send_resource_request(self) -> None:
            pass

        def _maybe_send_resource_request(self) -> None:
            pass

        def _cancel_resource_request(self) -> None:
            pass

    needless: tuple[type, ...] = (PlacementGroupCleanerCallback,)
    if not trainer.datasets:
        needless += (DatasetsCallback,)
        if not trainer.scaling_config.elasticity_enabled:
            arguments["scaling_policy"] = FixedSize(trainer.scaling_config)
    arguments["callbacks"] = [
        callback for callback in arguments["callbacks"] if not isinstance(callback, needless)
    ]


def _without_objects_of_users(context: Any) -> Any:
    """What each worker gets before its rank has an environment.

    To unpickle an object of the user's modules imports them. The training function, its config and
    the callbacks of Ray's controller have those objects already.
    """
    slim = copy.copy(context)
    vars(slim).update(
        run_config=replace(context.run_config, callbacks=None),
        train_loop_config=None,
        dataset_config=ray.train.DataConfig(),
    )
    return slim


def replace_run_config(trainer: Any, run_config: ray.train.RunConfig) -> None:
    """Give a trainer another RunConfig after its construction."""
    from ray.train.v2._internal.execution.context import TrainRunContext

    # With num_workers=0 Ray would train in the driver, without workers.
    trainer.running_in_local_mode = False
    trainer.run_config = run_config
    trainer.train_run_context = TrainRunContext(
        run_config=run_config,
        train_loop_config=trainer.train_loop_config,
        scaling_config=trainer.scaling_config,
        backend_config=trainer.backend_config,
        dataset_config=trainer.data_config,
    )
