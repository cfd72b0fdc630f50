"""What operator and runtime exchange, beside the exit codes in `exit_codes`.

The operator writes a `RunContract` into the environment of the head pod ($TRAININGRUN_CONTRACT);
the head pod answers `GET /progress` with a `Progress`. The bearer tokens for it are the
files in `TOKEN_FOLDER`. Unknown fields are ignored on reading, so that either side can be newer.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from .base import Model
from .bounded import (
    Count,
    Duration,
    EndOfText,
    Metrics,
    Name,
    Sentence,
    Share,
    UnixTime,
    Uri,
)

CONTRACT_ENV = "TRAININGRUN_CONTRACT"
"""The driver's `RunContract`, as JSON."""
CONFIG_ENV = "TRAININGRUN_CONFIG"
"""JSON of `training.config`, for scripts."""
NAME_ENV = "TRAININGRUN_NAME"
"""Name of the run, on the head and on every worker, as the three that follow."""
NAMESPACE_ENV = "TRAININGRUN_NAMESPACE"
UID_ENV = "TRAININGRUN_UID"
ATTEMPT_ENV = "TRAININGRUN_ATTEMPT"
"""Number of the attempt, from 1."""
TENSORBOARD_FOLDER_ENV = "TENSORBOARD_LOGGING_DIR"
"""Where rank 0 writes TensorBoard's event files; the runtime uploads them. The name is that which
Hugging Face's Transformers read."""
TOKEN_FOLDER = "/etc/trainingrun/tokens"  # noqa: S105 - a folder of the head pod
"""Each file in it holds a bearer token that the head accepts. A file may appear while it runs."""
NOTICE_ENV = "TRAININGRUN_NOTICE_SECONDS"
STORAGE_PATIENCE_ENV = "STORAGE_PATIENCE_SECONDS"
"""Seconds for which the runtime waits before an attempt ends for a storage error that rarely goes
away by itself: no such bucket, refused credentials, a full disk. Default: 300. A store that does
not answer is waited for without limit. Users set it in training.env."""
PROGRESS_PORT = 8484
"""Port of the head pod: GET /progress and POST /suspend (bearer token), GET /metrics, /healthz."""
STATE_DIRECTORY = "/tmp/trainingrun"  # noqa: S108 - a folder inside the pod's own container
"""Files by which the processes of one pod communicate: the `…_FILE` below."""
STATE_DIRECTORY_ENV = "TRAININGRUN_STATE_DIRECTORY"
"""Another state directory, where several nodes share a machine."""
PREEMPTION_NOTICE_FILE = "notice"
"""Written by the preStop hook: the Unix time in seconds at which the pod will be killed."""
SAVED_FILE = "saved"
"""Written by the runtime once the checkpoint for that notice is committed; preStop then ends."""
WATCHERS_FOLDER = "watchers"
"""Has an empty file for each process that will answer a notice, named by its process id; without
one preStop ends at once."""
PROGRESS_FILE = "progress.json"
"""The driver's `Progress`, for the server of `GET /progress` and for a local run."""
SUSPEND_FILE = "suspend"
"""Written on `POST /suspend`: the driver makes a checkpoint and ends once it is there."""
WORKER_RESOURCE = "trainingrun_worker"
"""Ray resource of which each worker takes one. A pod has `workers.perPod` of it and so never holds
more workers, however many CPUs are left there for Ray Data."""

MAX_CODE_BYTES = 100 * 1024**2
"""Largest zip file with code. Larger things are data, and belong into the bucket or the image."""
MAX_UNPACKED_BYTES = 400 * 1024**2
"""Most bytes of the files in it, and of the package with which Ray passes them to its nodes: it
keeps that in the head's memory, and takes no more than a gRPC message, 500 MB."""
MAX_CODE_FILES = 20_000
"""Most files in it."""


MOST_RECORDS = 100
"""Records in a document; of more, the newest are read."""
MOST_NODES = 1000
"""Lost nodes in a document."""
MOST_WARNINGS = 5
"""Warnings in a document; of more, the newest are read."""
MOST_TRIALS = 200
"""Trials in a document, and of a sweep."""


def _the_last(number: int) -> BeforeValidator:
    return BeforeValidator(lambda found: found[-number:] if isinstance(found, list) else found)


class Wire(Model):
    """A message; fields of a newer version are ignored."""

    model_config = ConfigDict(extra="ignore")


class ContractStorage(Wire):
    """The run's own folder in the bucket. Credentials are in the environment, never here."""

    uri: str
    """The run's folder, such as `s3://runs/team-a/digits-1a2b3c4d`."""
    endpoint: str | None = None
    """URL of an S3-compatible service."""
    region: str | None = None
    """Region of the bucket."""


class ContractRestore(Wire):
    """Another run's folder, from which a run begins that has no intact checkpoint of its own."""

    uri: str
    """The other run's folder."""
    endpoint: str | None = None
    """URL of an S3-compatible service."""
    region: str | None = None
    """Region of the bucket."""
    step: int | None = None
    """Step of the checkpoint; none: the newest intact one."""


class ContractCode(Wire):
    """The user's code. Credentials are in the environment, never here."""

    uri: str
    """The zip file, such as `s3://runs/code/train.zip`."""
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
    every_seconds: float | None = None
    """Seconds of training between periodic checkpoints; none: they are not made by time, or
    `assumed_seconds_between_losses` is set."""
    every_steps: int | None = None
    """A checkpoint is made at each multiple of so many steps; none: not by steps."""
    assumed_seconds_between_losses: float | None = None
    """Set where `everySeconds` is `auto`: what the mean time between two losses is taken for before
    the first one."""


class ContractTracking(Wire):
    """What the runtime does for the tools that draw curves."""

    mlflow: bool = False
    """Whether rank 0 finds or makes the run in MLflow, whose address is in the environment."""
    tensorboard_every_seconds: float | None = None
    """Seconds between uploads of TensorBoard's event files; none: there are none."""


class ContractParameter(Wire):
    """A key of the config, and what is tried for it: values, or numbers from min to max."""

    name: str
    """The key."""
    values: list[Any] | None = None
    """What is chosen from."""
    min: float | None = None
    """The smallest number."""
    max: float | None = None
    """The largest number."""
    scale: Literal["linear", "log"] = "linear"
    """How numbers are drawn."""
    type: Literal["float", "integer"] = "float"
    """Which numbers are drawn."""


class ContractSweep(Wire):
    """The function is trained several times, with other values in its config each time."""

    samples: int | None = None
    """Number of trials; none: every combination of values."""
    metric: str
    """Metric by which trials are compared."""
    mode: Literal["min", "max"]
    """Whether smaller or larger is better."""
    asha: bool = False
    """Whether trials are stopped early that are worse than most others."""
    grace_steps: int = 100
    """Steps after which trials are first compared."""
    reduction_factor: int = 4
    """They are compared again after so many times the steps; one in so many goes on."""
    perturbation_interval: int | None = None
    """Steps after which all trials wait for each other, and the worst ones begin again from the
    checkpoints of the best ones; none: each is trained for itself."""
    library: Literal["Optuna", "HyperOpt"] | None = None
    """What chooses the values of a trial from the results of others; none: they are drawn, or every
    combination is tried."""
    concurrency: int = 1
    """Trials at once."""
    space: list[ContractParameter]
    """The keys of the config that differ from trial to trial."""


class ContractTrial(Wire):
    """One trial of a sweep; the driver makes its contract from that of the run."""

    number: int
    """1, 2, 3 …"""
    metric: str
    """Metric by which it is compared with others."""
    leg: int = 1
    """How often it has begun, where it waits for others."""
    until_step: int | None = None
    """Step after which it waits for the others; none: it is trained to its end."""


class RunContract(Wire):
    """Everything that the runtime needs for one attempt."""

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
    """Path of the script to run instead; a relative one is below the code's folder."""
    script_args: list[str] = Field(default_factory=list)
    """Its arguments."""
    code: ContractCode | None = None
    """Code that is not in the image."""
    requirements: list[str] = Field(default_factory=list)
    """Packages that are not in the image, as lines for pip."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Passed to the function."""
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
    restore_from: ContractRestore | None = None
    """Another run, from whose checkpoint this one begins; none: it begins at step 0."""
    checkpoints: ContractCheckpoints = Field(default_factory=ContractCheckpoints)
    """When checkpoints are made and which are kept."""
    tracking: ContractTracking | None = None
    """What the runtime does for the tools that draw curves."""
    sweep: ContractSweep | None = None
    """The function is trained several times; none: once."""
    trial: ContractTrial | None = None
    """Which trial of a sweep this is; none: a run, or the sweep itself."""

    def identity(self) -> dict[str, str]:
        """Environment variables that name the run and the attempt."""
        return identity(self.name, self.namespace, self.uid, self.attempt)


def identity(name: str, namespace: str, uid: str, attempt: int) -> dict[str, str]:
    """Environment variables that name a run and its attempt."""
    return {
        NAME_ENV: name,
        NAMESPACE_ENV: namespace,
        UID_ENV: uid,
        ATTEMPT_ENV: str(attempt),
    }


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
    SETTING_OVERRULED = "SettingOverruled"
    RESTORED = "Restored"
    LEASE_LOST = "LeaseLost"


def _of_known_kinds(found: Any) -> Any:
    """Without records of kinds that only a newer runtime has: the others still count."""
    if not isinstance(found, list):
        return found
    known = {kind.value for kind in RecordKind}
    return [one for one in found if not _is_of_kind_beyond(known, one)]


def _is_of_kind_beyond(known: Collection[str], record: Any) -> bool:
    kind = record.get("kind") if isinstance(record, dict) else None
    return isinstance(kind, str) and kind not in known  # what is no text is refused as always


class Record(Wire):
    """One thing that happened inside an attempt, numbered so that it is counted once."""

    number: Count
    """1, 2, 3 … within the driver's fencing token."""
    kind: RecordKind
    """What happened."""
    time: UnixTime
    """Unix time in seconds."""
    message: Sentence = ""
    """In a sentence."""
    node: Name | None = None
    """Kubernetes node on which it happened, where known."""
    pod: Name | None = None
    """Pod on which it happened, where known."""
    step: Count | None = None
    """Step at which it happened, or that was restored."""


class LastCheckpoint(Wire):
    """A committed checkpoint."""

    uri: Uri
    """Where it is."""
    step: Count
    """Steps done when it was made."""
    time: UnixTime
    """Unix time of its commit, in seconds."""


class Seconds(Wire):
    """Where this driver's time went, in seconds."""

    productive: Duration = 0
    """In steps that counted."""
    startup: Duration = 0
    """From the driver's start to its first step."""
    lost_work: Duration = 0
    """In steps that were done again."""
    recovery: Duration = 0
    """From the last step before a disruption to the first one after it."""
    checkpoint: Duration = 0
    """Training stopped for checkpoints."""


class Failure(Wire):
    """Why the driver gave up."""

    kind: Literal["Application", "Storage", "Infrastructure"]
    """Whose fault it is."""
    message: Sentence
    """One sentence with the error, and what to do where that is known."""
    traceback: EndOfText = ""
    """The end of the traceback, at most 4,000 characters."""


class SlowestRank(Wire):
    """The rank for which the others wait longest."""

    rank: Count
    """Its number."""
    node: Name | None = None
    """Kubernetes node on which it runs, where known."""
    own_seconds: Duration
    """What a step takes it without waiting for other ranks, as the mean of the last steps."""
    median_seconds: Duration
    """Median of the same of all other ranks."""


class RankMemory(Wire):
    """The rank whose memory will be, or is, the fullest."""

    rank: Count
    """Its number."""
    node: Name | None = None
    """Kubernetes node on which it runs, where known."""
    used_bytes: Count
    """Memory of its container that cannot be freed, without the cache of files; without a limit
    what its process holds."""
    limit_bytes: Count | None = None
    """The container's limit; none: it has none."""
    bytes_per_hour: Count | None = None
    """How fast it grows; none: it does not, or has not been seen for long enough."""


class TrialState(StrEnum):
    """Where a trial of a sweep stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether it is not trained any further."""
        return self in (TrialState.SUCCEEDED, TrialState.STOPPED, TrialState.FAILED)


class TrialRow(Wire):
    """One trial of a sweep."""

    number: Count
    """1, 2, 3 …"""
    state: TrialState = TrialState.PENDING
    """Where it stands."""
    config: Metrics = Field(default_factory=dict)
    """The values of the config that differ from trial to trial."""
    step: Count = 0
    """Steps done."""
    value: float | None = None
    """The metric as it was last reported."""
    checkpoint_uri: Uri | None = None
    """Its newest committed checkpoint."""
    message: Sentence = ""
    """Why it failed."""


class SweepTable(Wire):
    """All trials of a sweep."""

    metric: Name
    """Metric by which they are compared."""
    best: Count | None = None
    """Number of the best trial so far; none: none has reported the metric."""
    trials: Annotated[list[TrialRow], _the_last(MOST_TRIALS)] = Field(default_factory=list)
    """Each of them, by number."""


class ProgressResult(Wire):
    """What a successful run leaves."""

    metrics: Metrics = Field(default_factory=dict)
    """Last reported metrics."""
    checkpoint_uri: Uri | None = None
    """The final checkpoint."""
    best_checkpoint_uri: Uri | None = None
    """The best checkpoint."""
    sweep: SweepTable | None = None
    """Of a sweep all trials; the rest is the best one's."""


class Progress(Wire):
    """Where the driver stands: the answer to `GET /progress`."""

    attempt: Count
    """The contract's attempt."""
    fencing_token: Count = Field(default=0, alias="epoch")
    """Of the driver's lease: it grows with every driver that takes over the run; 0 before that.
    The document's own name for it is that of earlier images and operators."""
    state: RunState = RunState.STARTING
    """What the driver is doing."""
    time: UnixTime = 0
    """Unix time of this document, in seconds."""
    resumed_from_step: Count | None = None
    """Step of the checkpoint that this driver first restored; 0 from scratch."""
    restored_from: Uri | None = None
    """That checkpoint, where it is another run's; none: it is the run's own, or there is none."""
    step: Count = 0
    """Steps done."""
    step_time: UnixTime | None = None
    """Unix time at which that step was done."""
    total_steps: Count | None = None
    """Steps of the whole training."""
    seconds_left: Duration | None = None
    """Estimated seconds of training left."""
    checkpoint_interval_seconds: Duration | None = None
    """Seconds between periodic checkpoints that are in force now; none: not made by time."""
    world_size: Count = 0
    """Workers that train now."""
    data_wait_share: Share | None = None
    """Share of the time in steps, from 0 to 1, in which the rank that waits longest has waited for
    data, since this worker group began; none: no rank measures it."""
    data_wait_rank: Count | None = None
    """That rank."""
    step_seconds: Duration | None = None
    """What a step takes, as the mean of the last steps; none: no session measures it."""
    communication_wait_share: Share | None = None
    """Share of the time in steps, from 0 to 1, in which the rank that waits longest has waited for
    gradients of other ranks; none: no rank measures it."""
    communication_wait_rank: Count | None = None
    """That rank."""
    slowest_rank: SlowestRank | None = None
    """The rank for which the others wait longest; none: not every rank measures it."""
    memory: RankMemory | None = None
    """The rank with the fullest memory; none: none has reported it."""
    warnings: Annotated[list[Sentence], _the_last(MOST_WARNINGS)] = Field(default_factory=list)
    """What slows the training or is about to end it, a sentence for each."""
    metrics: Metrics = Field(default_factory=dict)
    """Latest reported metrics; NaN and infinity as strings."""
    checkpoint: LastCheckpoint | None = None
    """The newest committed checkpoint."""
    records: Annotated[list[Record], _the_last(MOST_RECORDS), BeforeValidator(_of_known_kinds)] = (
        Field(default_factory=list)
    )
    """What happened, newest last, at most 100."""
    seconds: Seconds = Field(default_factory=Seconds)
    """Where this driver's time went."""
    lost_nodes: Annotated[list[Name], _the_last(MOST_NODES)] = Field(default_factory=list)
    """Kubernetes nodes from which Ray gets no more heartbeats."""
    storage_error: Sentence | None = None
    """Why the bucket does not answer at present, in a sentence; none: it does. Training goes on,
    uploads and commits wait."""
    storage_error_since: UnixTime | None = None
    """Unix time in seconds since when it does not."""
    standstill: Sentence | None = None
    """Which ranks wait for which others for long, in a sentence; none: no rank does."""
    paused_at_step: Count | None = None
    """Of a trial of a sweep: the step after which it waits for the others; none: it does not."""
    failure: Failure | None = None
    """Why the driver gave up, in state Failed."""
    result: ProgressResult | None = None
    """In state Succeeded."""
    sweep: SweepTable | None = None
    """Of a sweep all trials. Steps and checkpoint are then sums over the trials."""
