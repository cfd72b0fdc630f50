"""What tools that draw curves need on a rank: one curve for all attempts of the run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from trainingrun_protocol.contract import TENSORBOARD_FOLDER_ENV, RunContract

from ..state_directory import state_directory
from ..store.bucket import Bucket
from . import mlflow_run
from .event_files import FOLDER, EventFiles


@contextmanager
def tracking(rank: int, contract: RunContract, bucket: Bucket) -> Iterator[None]:
    """While the training function runs: the environment that it finds, and uploads of event files.

    Tracking never stops the training: what does not work is logged.

    Args:
        rank: of this process.
        contract: the operator's settings of this attempt.
        bucket: the run's folder.
    """
    wanted = contract.tracking
    if wanted is not None and wanted.mlflow and rank == 0:
        mlflow_run.set_run_id(contract.name, contract.uid)
    if wanted is None or wanted.tensorboard_every_seconds is None:
        yield
        return
    folder, trial = state_directory() / FOLDER, contract.trial
    if trial is not None:  # others write on the same pod
        folder /= f"{trial.number:04d}-{trial.leg:02d}"
    # On every rank, so that code which reads it before it asks for its rank does not fail.
    os.environ[TENSORBOARD_FOLDER_ENV] = str(folder)
    if rank != 0:
        yield
        return
    files = EventFiles(folder, bucket, wanted.tensorboard_every_seconds)
    files.start()
    try:
        yield
    finally:
        files.stop()
