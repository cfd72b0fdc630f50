"""What operator and runtime tell each other: the only module that both sides import.

The operator writes a `RunContract` into the environment of the head pod ($TRAININGRUN_CONTRACT);
the head pod answers `GET /progress` with a `Progress`. The bearer token for it is in
$TRAININGRUN_TOKEN. Unknown fields are ignored on reading, so that either side can be newer.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import ConfigDict, Field

from .base import Model

CONTRACT_ENV = "TRAININGRUN_CONTRACT"
TOKEN_ENV = "TRAININGRUN_TOKEN"  # noqa: S105 - the variable's name, not a token
NOTICE_ENV = "TRAININGRUN_NOTICE_SECONDS"
PROGRESS_PORT = 8484
"""Port of the head pod: GET /progress and POST /suspend (bearer token), GET /metrics, /healthz."""
STATE_DIRECTORY = "/tmp/trainingrun"  # noqa: S108 - a folder inside the pod's own container
"""Files by which the processes of one pod talk: the `…_FILE` below."""
NOTICE_FILE = "notice"
"""Written by the preStop hook: the Unix time in seconds at which the pod will be killed."""
SAVED_FILE = "saved"
"""Written by the runtime once the checkpoint for that notice is committed; preStop then ends."""
WATCHER_FILE = "watcher"
"""Process id of the process that will answer a notice; without it preStop ends at once."""
PROGRESS_FILE = "progress.json"
"""The driver's `Progress`, for the server that hands it out and for a local run."""
SUSPEND_FILE = "suspend"
"""Written on `POST /suspend`: the driver makes a checkpoint and ends when it sees it."""
LEASE_LOST_EXIT_CODE = 3
"""The driver's exit code when another driver has taken the run over."""
SUSPEND_EXIT_CODE = 75
"""The driver's exit code after `suspend`: not 0, so that RayJob success always means done."""


class Wire(Model):
    """A message; fields that this side does not know yet are ignored."""

    model_config = ConfigDict(extra="ignore")


class ContractStorage(Wire):
    """The run's own folder in the bucket. Credentials are in the environment, never here."""

    uri: str
    """The run's folder, such as `s3://runs/team-a/digits-1a2b3c4d`."""
    endpoint: str | None = None
    """URL of an S3-compatible service."""
    region: str | None = None
    """Region of the bucket."""


class ContractCheckpoints(Wire):
    """When checkpoints are made and which are kept."""

    keep: int = 2
    """Newest checkpoints kept."""
    best_metric: str | None = None
    """Metric that decides which one is the best."""
    best_order: Literal["min", "max"] = "max"
    """Whether smaller or larger is better."""
    every_seconds: float = 300
    """Seconds of training between periodic checkpoints."""


class RunContract(Wire):
    """Everything that the runtime needs to know about one attempt."""

    name: str
    """Name of the run."""
    namespace: str
    """Namespace of the run."""
    uid: str
    """UID of the TrainingRun."""
    attempt: int
    """Number of the attempt, from 1."""
    function: str | None = None
    """`module:function` to train with."""
    script: str | None = None
    """Path of the script to run instead."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Handed to the function."""
    torch_backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collective library."""
    torch_timeout_seconds: float = 1800
    """Seconds after which a collective call fails."""
    workers: int = 1
    """World size."""
    resources_per_worker: dict[str, float] = Field(default_factory=lambda: {"CPU": 1.0})
    """Ray resources of each worker, such as {"CPU": 4, "GPU": 1}."""
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Ray's placement strategy."""
    storage: ContractStorage
    """The run's own folder in the bucket."""
    checkpoints: ContractCheckpoints = Field(default_factory=ContractCheckpoints)
    """When checkpoints are made and which are kept."""


class RunState(StrEnum):
    """What the driver is doing."""

    STARTING = "Starting"
    TRAINING = "Training"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether the driver has ended, or is about to."""
        return self in (RunState.SUSPENDED, RunState.SUCCEEDED, RunState.FAILED)


class RecordKind(StrEnum):
    """What happened inside an attempt."""

    PREEMPTED = "Preempted"
    WORKER_LOST = "WorkerLost"
    APPLICATION_ERROR = "ApplicationError"
    CHECKPOINT_SKIPPED = "CheckpointSkipped"
    RESTORED = "Restored"
    LEASE_LOST = "LeaseLost"


class Record(Wire):
    """One thing that happened inside an attempt, numbered so that it is counted once."""

    number: int
    """1, 2, 3 … within the driver's epoch."""
    kind: RecordKind
    """What happened."""
    time: float
    """Unix time in seconds."""
    message: str = ""
    """In a sentence."""
    node: str | None = None
    """Kubernetes node on which it happened, where known."""
    pod: str | None = None
    """Pod on which it happened, where known."""
    step: int | None = None
    """Step at which it happened, or that was restored."""


class LastCheckpoint(Wire):
    """A committed checkpoint."""

    uri: str
    """Where it is."""
    step: int
    """Steps done when it was made."""
    time: float
    """Unix time of its commit, in seconds."""


class Seconds(Wire):
    """Where this driver's time went, in seconds."""

    productive: float = 0
    """In steps that counted."""
    startup: float = 0
    """From the driver's start to its first step."""
    lost_work: float = 0
    """In steps that were done again."""
    recovery: float = 0
    """From the last step before a disruption to the first one after it."""
    checkpoint: float = 0
    """Training stopped for checkpoints."""


class Failure(Wire):
    """Why the driver gave up."""

    kind: Literal["Application", "Storage", "Infrastructure"]
    """Whose fault it is."""
    message: str
    """One sentence with the error, and what to do where that is known."""
    traceback: str = ""
    """The end of the traceback, at most 4,000 characters."""


class ProgressResult(Wire):
    """What a successful run leaves."""

    metrics: dict[str, Any] = Field(default_factory=dict)
    """Last reported metrics."""
    checkpoint_uri: str | None = None
    """The final checkpoint."""
    best_checkpoint_uri: str | None = None
    """The best checkpoint."""


class Progress(Wire):
    """Where the driver stands: the answer to `GET /progress`."""

    attempt: int
    """The contract's attempt."""
    epoch: int = 0
    """The lease's epoch: it grows with every driver that takes over the run; 0 before that."""
    state: RunState = RunState.STARTING
    """What the driver is doing."""
    time: float = 0
    """Unix time of this document, in seconds."""
    resumed_from_step: int | None = None
    """Step of the checkpoint that this driver first restored; 0 from scratch."""
    step: int = 0
    """Steps done."""
    step_time: float | None = None
    """Unix time at which that step was done."""
    total_steps: int | None = None
    """Steps wanted."""
    seconds_left: float | None = None
    """Estimated seconds of training left."""
    world_size: int = 0
    """Workers that train now."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Latest reported metrics; NaN and infinity as strings."""
    checkpoint: LastCheckpoint | None = None
    """The newest committed checkpoint."""
    records: list[Record] = Field(default_factory=list)
    """What happened, newest last, at most 100."""
    seconds: Seconds = Field(default_factory=Seconds)
    """Where this driver's time went."""
    lost_nodes: list[str] = Field(default_factory=list)
    """Kubernetes nodes that Ray no longer hears from."""
    failure: Failure | None = None
    """Why the driver gave up, in state Failed."""
    result: ProgressResult | None = None
    """In state Succeeded."""
