"""What the operator tells the runtime, and the names by which the two find each other.

The operator writes a `RunContract` into the environment of the head pod ($TRAININGRUN_CONTRACT);
the head pod answers `GET /progress` with the `Progress` of `progress`. The bearer tokens for
it are the files in `TOKEN_FOLDER`. Exit codes are in `exit_codes`. Unknown fields are ignored on
reading, so that either side can be newer.
"""

from typing import Any, Literal

from pydantic import Field

from .failure_rules import ContractRule
from .wire import Wire

CONTRACT_ENV = "TRAININGRUN_CONTRACT"
"""The driver's `RunContract`, as JSON."""
CONFIG_ENV = "TRAININGRUN_CONFIG"
"""JSON of `training.config`, for scripts."""
OUTPUT_ENV = "TRAININGRUN_SCRIPT_OUTPUT"
"""File that gets what a script prints after its training, for a local run; unset: no file."""
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
CLAIMS_FOLDER = "/mnt/claims"
"""A PersistentVolumeClaim of `pvc://<name>/…` is mounted in it, at its name."""
CLAIM_FOLDERS_ENV = "TRAININGRUN_CLAIM_FOLDERS"
"""Where claims are mounted on a machine that is no pod of a run: `runs=/mnt/nfs/runs`, several with
commas. Such a folder counts as mounted unless it is empty."""
PROGRESS_PORT = 8484
"""Port of the head pod: GET /progress and POST /suspend (bearer token), GET /metrics, /healthz."""
STACKS_REQUEST_FILE = "stacks-wanted"
"""Asks the driver for the stacks of all ranks; it deletes the file once they are in the bucket."""
RANK_PODS_FILE = "rank-pods.json"
"""On the head: the name of the pod of each rank, by its number; the status has 16 of them."""
CHECKPOINT_FOLDER_ENV = "TRAININGRUN_CHECKPOINT_DIR"
"""The pod's folder for the checkpoints of a script that torchrun would start, on its ranks."""
STATE_DIRECTORY = "/tmp/trainingrun"  # noqa: S108 - a folder inside the pod's own container
"""Files by which the processes of one pod communicate: the `…_FILE` below."""
ONE_MACHINE_ENV = "TRAININGRUN_ONE_MACHINE"
"""Set where all of Ray's nodes are on one machine, as `trainingrun run --local` starts them."""
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


class ContractStorage(Wire):
    """A folder in a bucket: the run's own. Credentials are in the environment, never here."""

    uri: str
    """Such as `s3://runs/team-a/digits-1a2b3c4d`."""
    endpoint: str | None = None
    """URL of an S3-compatible service."""
    region: str | None = None
    """Region of the bucket."""


class ContractRestore(ContractStorage):
    """Another run's folder, from which a run begins that has no intact checkpoint of its own."""

    step: int | None = None
    """Step of the checkpoint; none: the newest intact one."""


class ContractCode(ContractStorage):
    """The zip file with the user's code, such as `s3://runs/code/train.zip`."""


class ContractTorchrun(Wire):
    """A script or module that torchrun would start on each rank."""

    script: str | None = None
    """The script's path; a relative one is below the code's folder. None: a module is started."""
    module: str | None = None
    """The module, as of `python -m`."""
    args: list[str] = Field(default_factory=list)
    """Its arguments."""


class ContractCheckpoints(Wire):
    """When checkpoints are made and which are kept."""

    keep: int = 2
    """Newest checkpoints kept."""
    best_metric: str | None = None
    """Metric that decides which one is the best."""
    best_order: Literal["min", "max"] = "max"
    """Whether smaller or larger is better."""
    keep_best: int = 1
    """Best checkpoints kept beside the newest ones, where there is a metric."""
    every_seconds: float | None = None
    """Seconds of training between periodic checkpoints; none: they are not made by time, or
    `assumed_seconds_between_losses` is set."""
    every_steps: int | None = None
    """A checkpoint is made at each multiple of so many steps; none: not by steps."""
    assumed_seconds_between_losses: float | None = None
    """Set where `everySeconds` is `auto`: what the mean time between two losses is taken for before
    the first one."""


BUSY_AUTO_S = 1800
"""Seconds without a step that are a hang by `auto`, where a rank may compute within the step, as in
an evaluation. After so long a collective that waits for it fails, unless
`training.torch.timeoutSeconds` says otherwise."""


MAX_GROUPS_WITHOUT_CHECKPOINT = 10
"""Worker groups in a row that may end without a newer checkpoint before the attempt fails, or of a
sweep the trial. Ray would retry without end; a new attempt may run on other nodes."""


class ContractHang(Wire):
    """What counts as a hang, and what follows."""

    after_seconds: float | None = None
    """Seconds without a step; none: ten times the longest of the last hundred steps, at least 5
    minutes."""
    action: Literal["Restart", "Report"] = "Restart"
    """Whether what hangs is replaced, or only reported."""


class ContractOutput(Wire):
    """How much of what is printed is kept in the run's folder."""

    most_bytes: int = 1024**3
    """Beyond them the oldest parts are deleted."""
    most_seconds: float | None = None
    """After which a part is deleted; none: parts stay."""


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
    """They are compared again after so many times the steps; one in so many continues."""
    perturbation_interval: int | None = None
    """Steps after which all trials wait for each other, and the worst ones begin again from the
    checkpoints of the best ones; none: each is trained for itself."""
    library: Literal["Optuna"] | None = None
    """What chooses the values of a trial from the results of others; none: they are drawn, or every
    combination is tried."""
    concurrency: int = 1
    """Trials at once."""
    max_hangs: int = -1
    """Hangs of one trial that are ended by a restart; after the next one it has failed. -1: as many
    as there are."""
    max_losses: int = -1
    """The same, of losses of infrastructure."""
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
    max_hangs: int = -1
    """Of the sweep."""
    max_losses: int = -1
    """Of the sweep."""


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
    torchrun: ContractTorchrun | None = None
    """The script that each rank runs instead, in a process of its own."""
    code: ContractCode | None = None
    """Code that is not in the image."""
    requirements: list[str] = Field(default_factory=list)
    """Packages that are not in the image, as lines for pip."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Passed to the function."""
    image: str | None = None
    """Of the pods, for people; none: on one machine."""
    torch_backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collective library."""
    torch_timeout_seconds: float = 1800
    """Seconds after which a collective call fails."""
    workers: int = 1
    """World size; with `minimum_workers` the largest one."""
    minimum_workers: int | None = None
    """Smallest world size with which training goes on while workers are lost; none: it waits until
    there are `workers` again."""
    resize_seconds: int = 60
    """Seconds that pass at least before a worker group that has grown grows again."""
    standby: int | None = None
    """Nodes beyond those that the workers take, on which processes for workers are to wait; none:
    there are no such nodes."""
    global_batch: Literal["keep", "scale"] = "scale"
    """With fewer workers: whether each step of the optimizer takes as many samples as with all of
    them, or as many for each rank."""
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
    hang: ContractHang = Field(default_factory=ContractHang)
    """What counts as a hang, and what follows."""
    output: ContractOutput = Field(default_factory=ContractOutput)
    """How much of what is printed is kept."""
    rules: list[ContractRule] | None = None
    """What follows failures of certain kinds; the first that a failure meets counts."""
    tracking: ContractTracking | None = None
    """What the runtime does for the tools that draw curves."""
    sweep: ContractSweep | None = None
    """The function is trained several times; none: once."""
    trial: ContractTrial | None = None
    """Which trial of a sweep this is; none: a run, or the sweep itself."""

    @property
    def on_one_machine(self) -> bool:
        """Whether it is a local run: no operator judges a loss, and nobody replaces a pod."""
        return self.image is None

    @property
    def elastic(self) -> bool:
        """Whether the number of workers may change while it trains."""
        return self.minimum_workers is not None and self.minimum_workers < self.workers

    @property
    def keeps_batch(self) -> bool:
        """Whether the batch of a step is that of all workers, however many there are."""
        return self.elastic and self.global_batch == "keep"

    @property
    def needed_metrics(self) -> tuple[str, ...]:
        """Metrics by which checkpoints or trials are compared."""
        named = (self.checkpoints.best_metric, self.trial.metric if self.trial else None)
        return tuple(name for name in named if name is not None)

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
