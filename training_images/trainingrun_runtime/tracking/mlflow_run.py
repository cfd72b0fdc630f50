"""The run's own run in MLflow: made once, and found again by every attempt.

MLflow refuses $MLFLOW_RUN_ID of a run that does not exist, and chooses the id itself when it makes
one. So the run is found by a tag with the TrainingRun's UID.
"""

import importlib
import logging
import os
import threading
from typing import Any

from ..error_text import first_line

log = logging.getLogger(__name__)

RUN_ID_ENV = "MLFLOW_RUN_ID"
UID_TAG = "trainingrun.uid"
WAIT_S = 10.0
"""Seconds that the training waits for MLflow's server."""
INSTEAD = f"mlflow.start_run() begins a new run without ${RUN_ID_ENV}"


def set_run_id(name: str, uid: str) -> None:
    """Set $MLFLOW_RUN_ID to the run of this TrainingRun, unless the user has set it.

    Nothing is raised: without it training continues, and the log says why.

    Args:
        name: of the TrainingRun, and of a run that is made.
        uid: of the TrainingRun.
    """
    if os.environ.get(RUN_ID_ENV):
        return
    ids: list[str] = []
    errors: list[BaseException] = []

    def find() -> None:
        try:
            ids.append(find_or_make(importlib.import_module("mlflow").MlflowClient(), name, uid))
        except Exception as error:  # MLflow's own errors have no common type
            errors.append(error)

    # In a thread: MLflow's client tries for minutes to reach its server.
    thread = threading.Thread(target=find, name="mlflow", daemon=True)
    thread.start()
    thread.join(WAIT_S)
    if ids:
        os.environ[RUN_ID_ENV] = ids[0]
    elif errors and isinstance(errors[0], ModuleNotFoundError):
        log.warning(
            "spec.tracking.mlflow is set and mlflow is not installed; add it to "
            "training.requirements or to the image"
        )
    elif errors:
        log.warning("MLflow has no run for this one (%s); %s", first_line(errors[0]), INSTEAD)
    else:
        log.warning("MLflow did not answer within %.0f s; %s", WAIT_S, INSTEAD)


def find_or_make(client: Any, name: str, uid: str) -> str:
    """Id of the run with this UID.

    Args:
        client: an `mlflow.MlflowClient`.
        name: of a run that is made.
        uid: of the TrainingRun.
    """
    experiment = _experiment(client)
    # The oldest: two attempts that overlap might have made one each.
    known = client.search_runs(
        [experiment],
        filter_string=f"tags.`{UID_TAG}` = '{uid}'",
        order_by=["attributes.start_time ASC"],
        max_results=1,
    )
    run = known[0] if known else client.create_run(experiment, run_name=name, tags={UID_TAG: uid})
    return str(run.info.run_id)


def _experiment(client: Any) -> str:
    if chosen := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return chosen
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if not name:
        return "0"  # MLflow's default experiment
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id if known is not None else client.create_experiment(name))
