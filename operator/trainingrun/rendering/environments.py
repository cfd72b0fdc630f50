"""Environment variables of the head and of the workers."""

import json
from typing import Any

from trainingrun_protocol.contract import BUSY_AUTO_S, CONFIG_ENV, CONTRACT_ENV, identity

from ..api.v1alpha1 import TrainingRun
from .contracts import contract
from .platforms import RenderSettings

RAY_TUNING = {
    # Losses are noticed within seconds; Ray's own defaults are made for links that come back.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "8",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    # The preStop hook has waited for the checkpoint already; waiting again only costs time.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray Train's own print would write each line twice, to stdout and to a logger.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_COLOR_PREFIX": "0",
}
"""Ray's settings on head and workers. A user's own env of the same name wins."""

NO_RAY_TOKEN = {"RAY_AUTH_MODE": "disabled"}
"""Where the administrator disables tokens. Set explicitly, because Ray's default changes with its
version, and a head that requires a token refuses workers that have none. With a token, KubeRay sets
the mode and the token on every pod itself."""


def head(run: TrainingRun, number: int, settings: RenderSettings) -> list[dict[str, Any]]:
    """The head's variables: the contract, and what all pods have."""
    document = contract(run, number, settings).model_dump_json(by_alias=True, exclude_none=True)
    own: list[dict[str, Any]] = [
        {"name": CONTRACT_ENV, "value": literal(document)},
        {"name": CONFIG_ENV, "value": literal(json.dumps(run.spec.training.config))},
    ]
    return _together(own, _plain(_nccl(run)), _common(run, number, settings), _users(run))


def _nccl(run: TrainingRun) -> dict[str, str]:
    """Has Ray ask NCCL itself for hangs, where the ranks may use it and the image has `ncclras`.

    NCCL knows that some ranks wait for others, and not whether these compute, as in an evaluation.
    """
    accelerator, hang = run.spec.workers.accelerator, run.spec.failures.hang
    if accelerator is None or accelerator.kind != "nvidia":
        return {}
    after = hang.after_seconds
    return {
        "RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR": "1",
        "RAY_TRAIN_NCCL_RAS_ACTION": "fail" if hang.action == "Restart" else "observe",
        "RAY_TRAIN_NCCL_RAS_CONFIRM_DURATION_S": str(
            after if isinstance(after, int) else BUSY_AUTO_S
        ),
    }


def worker(run: TrainingRun, number: int, settings: RenderSettings) -> list[dict[str, Any]]:
    """A worker's variables, of which none is secret."""
    return _together(_common(run, number, settings), _users(run))


def credentials(run: TrainingRun) -> list[dict[str, Any]]:
    """Where the bucket's credentials come from: a Secret, by reference only."""
    secret = run.spec.storage.credentials_secret
    return [{"secretRef": {"name": secret, "optional": False}}] if secret else []


def tracking(run: TrainingRun) -> dict[str, str]:
    """What names the run's curve to W&B and MLflow: the same in all attempts, and no secret."""
    wanted, metadata = run.spec.tracking, run.metadata
    found: dict[str, str | None] = {}
    if wanted and wanted.wandb:
        found |= {
            "WANDB_RUN_ID": metadata.uid,
            "WANDB_RESUME": "allow",
            "WANDB_NAME": metadata.name,
            "WANDB_PROJECT": wanted.wandb.project,
            "WANDB_ENTITY": wanted.wandb.entity,
        }
    if wanted and wanted.mlflow:
        found |= {
            "MLFLOW_TRACKING_URI": wanted.mlflow.uri,
            "MLFLOW_EXPERIMENT_NAME": wanted.mlflow.experiment,
        }
    return {name: value for name, value in found.items() if value is not None}


def literal(text: str) -> str:
    """`text` so that the kubelet passes it on as it is: it would replace `$(NAME)`."""
    return text.replace("$", "$$")


def _common(run: TrainingRun, number: int, settings: RenderSettings) -> list[dict[str, Any]]:
    metadata = run.metadata
    variables = {
        **identity(metadata.name, metadata.namespace, metadata.uid, number),
        **RAY_TUNING,
        **_storage(run),
        **{name: literal(value) for name, value in tracking(run).items()},
    }
    if settings.ray_auth == "disabled":
        variables |= NO_RAY_TOKEN
    return [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        *_plain(variables),
    ]


def _storage(run: TrainingRun) -> dict[str, str]:
    storage = run.spec.storage
    variables = {}
    if storage.endpoint:
        variables["AWS_ENDPOINT_URL"] = literal(storage.endpoint)
        if storage.endpoint.startswith("http://"):
            variables["AWS_ALLOW_HTTP"] = "true"
    if storage.region:
        variables["AWS_REGION"] = variables["AWS_DEFAULT_REGION"] = literal(storage.region)
    return variables


def _plain(variables: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _users(run: TrainingRun) -> list[dict[str, Any]]:
    return [variable.to_dict() for variable in run.spec.training.env]


def _together(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One variable per name, the last one wins, at its own place: the API server refuses two of one
    name, and a value may name the variables before it.
    """
    found: dict[str, dict[str, Any]] = {}
    for each in lists:
        for variable in each:
            found.pop(variable["name"], None)
            found[variable["name"]] = variable
    return list(found.values())
