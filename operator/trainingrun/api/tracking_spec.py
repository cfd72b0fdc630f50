"""spec.tracking: the tools that draw curves of the run."""

from typing import ClassVar

from pydantic import Field

from .base import Model, Rule, Whole, matching


def _wandb_name(field: str, what: str) -> Rule:
    return matching(
        field,
        r"[^/\\#?%:\t\r\n]+",
        f"must be the name of {what}, without /, \\, #, ?, % and :",
    )


class WandbTracking(Model):
    """Weights & Biases."""

    project: str | None = Field(default=None, max_length=128)
    """Project of the run: $WANDB_PROJECT. Default: that of W&B."""
    entity: str | None = Field(default=None, max_length=128)
    """Team or user that the project belongs to: $WANDB_ENTITY. Default: that of the API key."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _wandb_name("project", "a W&B project"),
        _wandb_name("entity", "a W&B team or user"),
    )


class MlflowTracking(Model):
    """MLflow."""

    uri: str = Field(max_length=1024)
    """Tracking server: $MLFLOW_TRACKING_URI."""
    experiment: str | None = Field(default=None, min_length=1, max_length=256)
    """Experiment of the run, made if there is none: $MLFLOW_EXPERIMENT_NAME. Default: that of
    MLflow, `Default`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "uri",
            r"https?://[^/@?#\s]+(/[^@?#\s]*)?|databricks(://[A-Za-z0-9_.-]+)?",
            "must be the http or https URL of an MLflow server, such as "
            "https://mlflow.example.com, or databricks, without credentials or query; credentials "
            "go into a Secret, from which training.env sets MLflow's variables",
        ),
    )


class TensorboardTracking(Model):
    """TensorBoard."""

    every_seconds: Whole = Field(default=30, ge=5, le=3600)
    """Seconds between uploads of event files that have grown."""


class Tracking(Model):
    """Tools that draw curves of the run, and continue the same curve in every attempt."""

    wandb: WandbTracking | None = None
    """Weights & Biases: $WANDB_RUN_ID is the run's UID, and $WANDB_RESUME is allow. The API key
    comes from a Secret by `training.env`."""
    mlflow: MlflowTracking | None = None
    """MLflow: rank 0 finds or makes the run by its UID before training begins, and sets
    $MLFLOW_RUN_ID."""
    tensorboard: TensorboardTracking | None = None
    """TensorBoard: the event files that rank 0 writes into $TENSORBOARD_LOGGING_DIR are uploaded
    to `tensorboard/` in the run's folder."""
