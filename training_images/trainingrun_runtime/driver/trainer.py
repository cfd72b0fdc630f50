"""Ray Train's trainer: built from the contract, or a script's own one, configured in `fit()`.

What `fit()` returns to a script has what the whole run has: Ray knows what this driver has seen,
and of the metrics those that came with a checkpoint.
"""

import copy
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import ray
from ray import cloudpickle
from ray.train import CheckpointConfig, Result, RunConfig, ScalingConfig

from trainingrun_protocol.contract import RunContract
from trainingrun_protocol.progress import ProgressResult

from ..checkpoints import checkpoint_files
from ..ray_internals import filesystem, replaced_functions, training
from ..ray_internals.filesystem import RetryingCheckpoint
from ..store import retention
from ..store.bucket import Bucket
from ..store.lease import Lease
from ..store.manifest import CHECKPOINTS, Manifest
from ..store.reported_metrics import SPELLED, printable_metrics
from ..store.storage_retry import StorageRetry, report_to
from ..worker import leaving_a_rank, prestarted_worker
from ..worker.rank_environment import RankEnvironments
from ..worker.training_function import TrainingFunction
from . import backends, overruled, script
from .committer import Committer
from .failure_policy import AttemptPolicy
from .growth import Growth
from .report_callback import CoordinatorReports
from .silent_nodes import SilentNodes

log = logging.getLogger(__name__)


class Trainers:
    """Makes trainers that restore, commit and survive as this project promises.

    Args:
        contract: the operator's settings of this attempt.
        coordinator: handle of the `Coordinator` actor.
        lease: this driver's lease.
        committer: told which checkpoints are kept, where a script says it.
    """

    def __init__(
        self, contract: RunContract, coordinator: Any, lease: Lease, committer: Committer
    ) -> None:
        self._contract, self._coordinator, self._committer = contract, coordinator, committer
        self._lease, self._bucket = lease, lease.bucket
        self._retry = StorageRetry(report_to(coordinator, "driver"))

    def fit_function(self) -> None:
        """Train with `contract.function` until it is done. Call `intercept` first.

        Raises:
            ray.train.TrainingFailedError: it is not done.
        """
        from ray.train.torch import TorchTrainer

        function = TrainingFunction(self._coordinator, self._contract)
        scaling = scaling_of(self._contract)
        TorchTrainer(
            function,
            train_loop_config=self._contract.config,
            torch_config=backends.torch(self._contract, scaling),
            scaling_config=scaling,
            run_config=self._run_config(RunConfig()),
        ).fit()

    def intercept(self) -> training.Fit:
        """From now on the trainer that is fitted in this process trains the run; its outcome."""
        replaced_functions.keep_connection(
            lambda settings: self._say(overruled.by_connection(settings))
        )
        # Here and not only on the ranks: a script's function holds what the script has imported.
        replaced_functions.refuse_removed()
        return training.intercept_fit(
            self._prepare,
            lambda: AttemptPolicy(
                self._coordinator,
                self._bucket,
                self._contract.attempt,
                self._contract.rules or (),
                self._contract.trial,
                self._contract.resources_per_worker,
                self._contract.on_one_machine,
            ),
            prestarted_worker.controller_environment(self._contract.resources_per_worker),
            Growth(self._coordinator),
            self._complete if self._contract.script is not None else lambda result: result,
        )

    def _complete(self, result: Any) -> Any:
        """What a script gets: Ray's result, with what the run has in all.

        Ray deletes no checkpoint (see `_run_config`), so it lists all that this driver has made.
        """
        self._committer.drain()
        committed = self._retry(self._committer.listed)
        wanted = self._committer.checkpoints
        result.return_value = leaving_a_rank.unpacked(result.return_value)
        best = retention.wanted(wanted)
        expired = retention.expired(committed, wanted)
        newest = committed[-1] if committed else None
        saved = ProgressResult(metrics=newest.metrics if newest else {})
        step = newest.step if newest else 0
        said, pickled = ray.get(
            [
                self._coordinator.complete.remote(saved, step),
                self._coordinator.last_report.remote(),
            ]
        )
        whole = completed(
            result,
            self._bucket,
            _in_order([each for each in committed if each not in expired], best),
            last_metrics(said.metrics, pickled),
            self._table,
        )
        answer_from_path(whole, self._bucket)
        script.copy_output()
        return whole

    def _table(self) -> Any:
        """What the run has reported, as a DataFrame."""
        from ..store import metrics_table

        self._retry(self._committer.write_reports)
        return self._retry(lambda: metrics_table.read(self._bucket)).to_pandas()

    def _prepare(self, trainer: Any) -> None:
        """Configure a script's trainer as `fit_function` does its own."""
        self._coordinator.driver_times.remote({"fit": time.time()})
        if isinstance(trainer.train_loop_per_worker, TrainingFunction):
            return
        kept = overruled.kept(trainer.run_config.checkpoint_config, self._contract.checkpoints)
        scaling = scaling_of(self._contract, trainer.scaling_config)
        update: dict[str, Any] = {"checkpoints": kept}
        if scaling.elasticity_enabled:  # the ranks ask for no group that is smaller than this
            update["minimum_workers"] = scaling.min_workers
        self._contract = self._contract.model_copy(update=update)
        self._committer.checkpoints = kept
        trainer.validation_config = _with_scores_told(trainer.validation_config, self._coordinator)
        trainer.train_loop_per_worker = TrainingFunction(
            self._coordinator, self._contract, trainer.train_loop_per_worker
        )
        backend = backends.in_place_of_the_scripts(trainer, self._contract, scaling)
        self._say(
            [
                *overruled.by_scaling(trainer.scaling_config, scaling),
                *overruled.by_run(
                    trainer.run_config, self._contract, self._bucket.uri(CHECKPOINTS)
                ),
                *backend.overruled,
            ]
        )
        # The YAML decides how large the run is: a script's own ScalingConfig would wait for
        # workers that were never started.
        trainer.scaling_config = scaling
        trainer.backend_config = backend.config
        if trainer.train_loop_config is None:
            trainer.train_loop_config = {}
        config = self._run_config(trainer.run_config, backend.variables)
        training.replace_run_config(trainer, config)

    def _say(self, overruled_settings: list[str]) -> None:
        """Name in the log and in events what is overruled of a script's settings."""
        for sentence in overruled_settings:
            log.warning("%s", sentence)
        if overruled_settings:
            self._coordinator.overruled.remote(overruled_settings)

    def _run_config(
        self, theirs: RunConfig, variables: Mapping[str, str] | None = None
    ) -> RunConfig:
        own = theirs.worker_runtime_env or {}
        environment = {
            **prestarted_worker.ENVIRONMENT,
            **(variables or {}),
            **own.get("env_vars", {}),
        }
        return dataclasses.replace(
            theirs,
            # One name per fencing token: a superseded driver overwrites nothing, and an incomplete
            # snapshot of Ray's checkpoint manager does not affect the next driver.
            name=f"{self._contract.attempt:04d}-{self._lease.fencing_token:06d}",
            storage_path=f"{self._bucket.path}/{CHECKPOINTS}",
            storage_filesystem=filesystem.for_ray(self._bucket),
            # Ray would delete a checkpoint that is the last intact one; see `retention`.
            checkpoint_config=CheckpointConfig(num_to_keep=None),
            failure_config=overruled.ray_failures(),
            callbacks=[
                *(theirs.callbacks or []),
                CoordinatorReports(
                    self._coordinator,
                    self._contract.needed_metrics,
                    prestarts=self._contract.trial is None,
                ),
                RankEnvironments(self._contract),
                SilentNodes(),
            ],
            worker_runtime_env={**own, "env_vars": environment},
        )


def _in_order(kept: list[Manifest], best: retention.Best | None) -> list[Manifest]:
    """As Ray has them: by age, or by score with the best one last."""
    if best is None:
        return kept
    rated = retention.by_score(kept, best)
    return [*(each for each in kept if each not in rated), *rated]


def scaling_of(contract: RunContract, theirs: ScalingConfig | None = None) -> ScalingConfig:
    """The ScalingConfig of this attempt's workers.

    Args:
        contract: the operator's settings of this attempt.
        theirs: a script's own. Of an elastic run its bounds count within those of the run.

    Raises:
        ValueError: Ray refuses it, such as several workers with TPUs, whose slice it does not know.
    """
    resources = {
        # Ray's JAX counts devices with range(), which takes no 2.0.
        name: int(count) if count.is_integer() else count
        for name, count in contract.resources_per_worker.items()
    }
    workers = _number_of_workers(contract, theirs)
    elastic = {"elastic_resize_monitor_interval_s": float(contract.resize_seconds)}
    return ScalingConfig(
        num_workers=workers,
        **(elastic if isinstance(workers, tuple) else {}),
        use_gpu=resources.get("GPU", 0) > 0,
        use_tpu=resources.get("TPU", 0) > 0,
        resources_per_worker=resources,
        placement_strategy=contract.placement,
    )


def _number_of_workers(
    contract: RunContract, theirs: ScalingConfig | None
) -> int | tuple[int, int]:
    least, most = contract.minimum_workers, contract.workers
    if least is None or not contract.elastic:
        return most
    if theirs is not None and theirs.elasticity_enabled:
        within = max(least, theirs.min_workers), min(most, theirs.max_workers)
        if within[0] <= within[1]:
            return within
    return least, most


def _with_scores_told(config: Any, coordinator: Any) -> Any:
    """A script's ValidationConfig, if any, whose function tells the coordinator what it returns."""
    if config is None:
        return None
    told = copy.copy(config)
    told.fn = _Told(config.fn, coordinator)
    return told


class _Told:
    """Called in a task of Ray, on any node."""

    def __init__(self, function: Callable[..., Any], coordinator: Any) -> None:
        self._function, self._coordinator = function, coordinator

    def __call__(self, checkpoint: Any, **arguments: Any) -> Any:
        scores: Any = None
        try:
            scores = self._function(checkpoint, **arguments)
            return scores
        finally:
            known = printable_metrics(scores) if isinstance(scores, dict) else {}
            ray.get(self._coordinator.validated.remote(checkpoint.path, known))


class RunResult(Result):
    """Ray's `Result`, whose table is read when it is first asked for: it may be large."""

    read_table: Callable[[], Any]
    """Returns the run's table of metrics as a DataFrame."""
    _table: Any = None

    @property
    def metrics_dataframe(self) -> Any:
        """A row for each step with a report; None: nothing was reported."""
        if self._table is None:
            self._table = self.read_table()
        return self._table if len(self._table) else None

    @metrics_dataframe.setter
    def metrics_dataframe(self, table: Any) -> None:
        self._table = None  # Ray's own has the checkpoints alone


def completed(
    result: Result,
    bucket: Bucket,
    kept: Sequence[Manifest],
    metrics: dict[str, Any] | None,
    read_table: Callable[[], Any],
) -> RunResult:
    """Ray's result, with the run's metrics and the checkpoints that it keeps.

    Args:
        result: Ray's.
        bucket: the run's folder.
        kept: the checkpoints that the run keeps, in the order of `best_checkpoints`.
        metrics: the last ones, as `last_metrics` returns them; none: nothing was reported.
        read_table: of `RunResult`.
    """
    known = {bucket.key_of(each.path): (each, own) for each, own in result.best_checkpoints or ()}
    whole = RunResult(**{field.name: getattr(result, field.name) for field in fields(Result)})
    whole.read_table = read_table
    whole.metrics = metrics
    whole.best_checkpoints = [known.get(each.path) or _of(bucket, each) for each in kept]
    newest = max(kept, key=lambda each: each.sort_key, default=None)
    reported = whole.checkpoint and bucket.key_of(whole.checkpoint.path)
    if newest is not None and reported not in {each.path for each in kept}:  # it may have no file
        whole.checkpoint = _of(bucket, newest)[0]
    return whole


def answer_from_path(whole: RunResult, bucket: Bucket) -> None:
    """Have `Result.from_path` return this one for the run's folder and for `result.path`.

    Ray's own reads a file which the run does not write: it would name checkpoints that are deleted.
    """
    own = {whole.path.strip("/"), bucket.path.strip("/")}
    theirs = Result.from_path.__func__

    def from_path(cls: Any, path: Any, storage_filesystem: Any = None) -> Any:
        if str(path).rpartition("://")[2].strip("/") in own:
            return whole
        return theirs(cls, path, storage_filesystem)

    Result.from_path = classmethod(from_path)


def last_metrics(reported: Mapping[str, Any], pickled: bytes) -> dict[str, Any] | None:
    """The last metrics of the run, as they were reported where they are known so.

    Args:
        reported: as the run's result has them.
        pickled: the last report of this driver; empty: there is none.
    """
    if not reported and not pickled:
        return None
    original: Mapping[str, Any] = cloudpickle.loads(pickled) if pickled else {}
    printed = printable_metrics(original)
    others = {name: value for name, value in reported.items() if printed.get(name) != value}
    return {**original, **_numbers(others)}


def _of(bucket: Bucket, committed: Manifest) -> tuple[RetryingCheckpoint, dict[str, Any]]:
    path, filesystem = checkpoint_files.offered(bucket, committed)
    return RetryingCheckpoint(path=path, filesystem=filesystem), _numbers(committed.metrics)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: SPELLED.get(value, value) if isinstance(value, str) else value
        for name, value in metrics.items()
    }
