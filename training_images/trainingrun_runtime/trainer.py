"""Ray Train's trainer: built from the contract, or a script's own one, configured in `fit()`."""

import dataclasses
import logging
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.train import CheckpointConfig, RunConfig, ScalingConfig

from trainingrun.api.contract import RunContract

from . import backends, leaving_a_rank, overruled, prestarted_worker
from .backends import Backend
from .checkpoints import manifest, retention
from .checkpoints.bucket import Bucket
from .checkpoints.manifest import CHECKPOINTS
from .checkpoints.storage_retry import StorageRetry, report_to
from .coordination.lease import Lease
from .failure_policy import AttemptPolicy
from .progress.report_callback import CoordinatorReports
from .ray_internals import air_session, connection, filesystem, training
from .scaling import config_of
from .training_function import TrainingFunction

log = logging.getLogger(__name__)


class Trainers:
    """Makes trainers that restore, commit and survive as this project promises.

    Args:
        contract: the operator's settings of this attempt.
        coordinator: handle of the `Coordinator` actor.
        bucket: the run's folder.
        lease: this driver's lease.
    """

    def __init__(
        self, contract: RunContract, coordinator: Any, bucket: Bucket, lease: Lease
    ) -> None:
        self._contract, self._coordinator, self._bucket = contract, coordinator, bucket
        self._lease = lease

    def fit_function(self) -> None:
        """Train with `contract.function` until it is done. Call `intercept` first.

        Raises:
            ray.train.TrainingFailedError: it is not done.
        """
        from ray.train.torch import TorchTrainer

        function = TrainingFunction(self._coordinator, self._contract)
        scaling = config_of(self._contract)
        TorchTrainer(
            function,
            train_loop_config=self._contract.config,
            torch_config=backends.torch(self._contract, scaling),
            scaling_config=scaling,
            run_config=self._run_config(RunConfig()),
        ).fit()

    def intercept(self) -> training.Fit:
        """From now on the trainer that is fitted in this process trains the run; its outcome."""
        connection.keep(lambda settings: self._say(overruled.by_connection(settings)))
        # Here and not only on the ranks: a script's function holds what the script has imported.
        air_session.refuse()
        return training.intercept_fit(
            self._prepare,
            lambda: AttemptPolicy(self._coordinator),
            prestarted_worker.controller_environment(),
            self._leave_out_the_deleted if self._contract.script is not None else lambda _: None,
        )

    def _leave_out_the_deleted(self, result: Any) -> None:
        """Of the checkpoints in a script's result, leave those that the run keeps.

        Ray deletes none (see `_run_config`), so it lists all that were ever reported.
        """
        while ray.get(self._coordinator.uploads_waiting.remote()):
            time.sleep(0.05)
        retry = StorageRetry(report_to(self._coordinator, "driver"))
        committed = retry(lambda: manifest.committed(self._bucket))
        wanted = self._contract.checkpoints
        expired = retention.expired(committed, wanted.keep, retention.wanted(wanted))
        kept = {each.path for each in committed if each not in expired}
        result.return_value = leaving_a_rank.unpacked(result.return_value)
        result.best_checkpoints = [
            (checkpoint, metrics)
            for checkpoint, metrics in result.best_checkpoints or ()
            if self._bucket.key_of(checkpoint.path) in kept
        ]

    def _prepare(self, trainer: Any) -> None:
        """Configure a script's trainer as `fit_function` does its own."""
        if isinstance(trainer.train_loop_per_worker, TrainingFunction):
            return
        trainer.train_loop_per_worker = TrainingFunction(
            self._coordinator, self._contract, trainer.train_loop_per_worker
        )
        scaling = config_of(self._contract)
        backend = backends.in_place_of_the_scripts(trainer, self._contract, scaling)
        self._warn(trainer, scaling, backend)
        # The YAML decides how large the run is: a script's own ScalingConfig would wait for
        # workers that were never started.
        trainer.scaling_config = scaling
        trainer.backend_config = backend.config
        if trainer.train_loop_config is None:
            trainer.train_loop_config = {}
        config = self._run_config(trainer.run_config, backend.variables)
        training.replace_run_config(trainer, config)

    def _warn(self, trainer: Any, scaling: ScalingConfig, backend: Backend) -> None:
        """Name each setting of a script's trainer that is overruled."""
        uri = self._bucket.uri(CHECKPOINTS)
        self._say(
            [
                *overruled.by_scaling(trainer.scaling_config, scaling),
                *overruled.by_run(trainer.run_config, self._contract, uri),
                *backend.overruled,
            ]
        )

    def _say(self, overruled_settings: list[str]) -> None:
        """In the log and in events."""
        for sentence in overruled_settings:
            log.warning("%s", sentence)
        if overruled_settings:
            self._coordinator.overruled.remote(overruled_settings)

    def _run_config(
        self, theirs: RunConfig, variables: Mapping[str, str] | None = None
    ) -> RunConfig:
        bucket, root = self._bucket.pyarrow()
        return dataclasses.replace(
            theirs,
            name=self._name(),
            storage_path=f"{root}/{CHECKPOINTS}",
            storage_filesystem=filesystem.for_ray(bucket),
            # Ray would delete a checkpoint that is the last intact one; see `retention`.
            checkpoint_config=CheckpointConfig(num_to_keep=None),
            failure_config=overruled.ray_failures(),
            callbacks=[
                *(theirs.callbacks or []),
                CoordinatorReports(self._coordinator, self._contract.needed_metrics),
            ],
            worker_runtime_env=self._worker_environment(
                theirs.worker_runtime_env or {}, variables or {}
            ),
        )

    def _name(self) -> str:
        # One name per fencing token: a superseded driver overwrites nothing, and an incomplete
        # snapshot of Ray's checkpoint manager does not affect the next driver.
        return f"{self._contract.attempt:04d}-{self._lease.fencing_token:06d}"

    def _worker_environment(
        self, theirs: Mapping[str, Any], variables: Mapping[str, str]
    ) -> dict[str, Any]:
        ours = {**prestarted_worker.ENVIRONMENT, **variables}
        return {**theirs, "env_vars": {**ours, **theirs.get("env_vars", {})}}
