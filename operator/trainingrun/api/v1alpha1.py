"""What a user writes: `trainingrun.dev/v1alpha1`, the only source of the CRD and of its docs.

The status that the operator writes is in `status.py`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from .base import Model, Rule
from .status import RunStatus

GROUP = "trainingrun.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingRun"
PLURAL = "trainingruns"

MAX_NAME_LENGTH = 41
"""KubeRay takes RayJob names of up to 47 characters; an attempt's is `<run>-<number>`."""

Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$")]
"""A positive Kubernetes quantity, such as `500m`, `4` or `16Gi`."""

Freeform = dict[str, Any]
"""Any JSON object; the CRD keeps its fields as they are."""


class ScriptSource(Model):
    """A user's own Ray Train script, kept in a ConfigMap."""

    config_map: str = Field(min_length=1, max_length=253)
    """Name of the ConfigMap, in the run's namespace, that holds the script."""
    file: str = Field(default="train.py", pattern=r"^[A-Za-z0-9._-]+$", max_length=253)
    """Key in the ConfigMap; every key is mounted beside it and can be imported."""


class TorchSettings(Model):
    """How the process group of PyTorch is formed."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collective library: `auto` is nccl with accelerators that have it, else gloo."""
    timeout_seconds: int = Field(default=1800, ge=1, le=86400)
    """Seconds after which a collective call that does not finish fails."""


class EnvVar(Model):
    """An environment variable of the head and of every worker."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)
    """Name of the variable."""
    value: str | None = None
    """Its value. Leave it out and use valueFrom for anything secret."""
    value_from: Freeform | None = None
    """A Kubernetes EnvVarSource: secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.value) != has(self.valueFrom)",
            "set exactly one of value and valueFrom",
            lambda env: (env.value is None) != (env.value_from is None),
        ),
        Rule(
            "!self.name.startsWith('TRAININGRUN_')",
            "names that begin with TRAININGRUN_ are the operator's own; choose another name",
            lambda env: not env.name.startswith("TRAININGRUN_"),
        ),
    )


class Training(Model):
    """What is trained: a function in the image, or a script."""

    function: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$",
        max_length=253,
    )
    """`module:function` in the image, called on every worker with `config`."""
    script: ScriptSource | None = None
    """A Ray Train script, run as it is. Exactly one of function and script is set."""
    config: Freeform = Field(default_factory=dict)
    """JSON object handed to the function; a script finds it in $TRAININGRUN_CONFIG."""
    torch: TorchSettings = Field(default_factory=TorchSettings)
    """How the process group of PyTorch is formed."""
    env: list[EnvVar] = Field(default_factory=list, max_length=100)
    """Environment variables of the head and of every worker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.function) != has(self.script)",
            "set exactly one of training.function (module:function in the image) and "
            "training.script (a file in a ConfigMap)",
            lambda training: (training.function is None) != (training.script is None),
        ),
    )


class WorkerResources(Model):
    """What each worker pod requests and is limited to."""

    cpu: Quantity = "1"
    """CPU cores."""
    memory: Quantity = "2Gi"
    """Memory, in bytes with a suffix such as Gi."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, taken from memory. Default: a quarter of memory, for data loaders."""


class HeadResources(Model):
    """What the head pod requests and is limited to."""

    cpu: Quantity = "1"
    """CPU cores."""
    memory: Quantity = "4Gi"
    """Memory, in bytes with a suffix such as Gi."""


class Accelerator(Model):
    """The accelerators of each worker."""

    kind: Literal["nvidia", "amd", "tpu", "gaudi", "neuron"]
    """Whose device it is; this decides the resource name and the platform's tolerations."""
    product: str | None = Field(default=None, max_length=63)
    """Node label value of the wanted product, such as NVIDIA-A100-SXM4-80GB. Default: any."""
    count: int = Field(default=1, ge=1, le=64)
    """Devices per worker."""


class Capacity(Model):
    """Which kind of node the workers run on. The head always runs on on-demand capacity."""

    type: Literal["OnDemand", "Spot", "PreferSpot"] = "OnDemand"
    """OnDemand and Spot require that capacity; PreferSpot takes spot where there is some."""


class Workers(Model):
    """The workers, one pod each."""

    count: int = Field(default=1, ge=1, le=1000)
    """Number of workers: the world size."""
    resources: WorkerResources = Field(default_factory=WorkerResources)
    """What each worker pod requests and is limited to."""
    accelerator: Accelerator | None = None
    """The accelerators of each worker. Default: none, CPU only."""
    placement: Literal["Pack", "Spread", "StrictPack", "StrictSpread"] = "Pack"
    """Whether workers share nodes: prefer, avoid, require or forbid it."""
    capacity: Capacity = Field(default_factory=Capacity)
    """Which kind of node the workers run on."""
    pod_template: Freeform = Field(default_factory=dict)
    """A PodTemplateSpec merged last over the rendered one; containers and env merge by name."""


class Head(Model):
    """The head: Ray's control store and the driver. It trains nothing."""

    resources: HeadResources = Field(default_factory=HeadResources)
    """What the head pod requests and is limited to."""
    pod_template: Freeform = Field(default_factory=dict)
    """A PodTemplateSpec merged last over the rendered one; containers and env merge by name."""


class Storage(Model):
    """The bucket in which the run keeps its lease, checkpoints and result."""

    uri: str = Field(pattern=r"^(s3|gs|az|abfs|abfss|file)://[^@?#\s]+$", max_length=1024)
    """Folder for runs, such as `s3://runs/team-a`; each run takes `<name>-<uid>` below it."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^@?#\s]+$", max_length=1024)
    """URL of an S3-compatible service. Default: the cloud's own."""
    region: str | None = Field(default=None, max_length=63)
    """Region of the bucket. Default: the client's own rules."""
    credentials_secret: str | None = Field(default=None, min_length=1, max_length=253)
    """Secret, in the run's namespace, whose keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …)
    become environment variables. Default: none, the pods' service account is used."""


class BestCheckpoint(Model):
    """Which checkpoint is the best one."""

    metric: str = Field(min_length=1, max_length=253)
    """Name of a reported metric."""
    order: Literal["min", "max"] = "max"
    """Whether smaller or larger is better."""


class Checkpoints(Model):
    """When checkpoints are made and which are kept."""

    keep: int = Field(default=2, ge=2, le=1000)
    """Newest checkpoints kept. At least 2: the newest may be altered or lost."""
    best: BestCheckpoint | None = None
    """Also keep the best checkpoint by this metric. Default: newest only."""
    every_seconds: int = Field(default=300, ge=1, le=86400)
    """Seconds of training between the session's periodic checkpoints."""


class Backoff(Model):
    """The wait before the next attempt: initialSeconds * factor ** (failures in a row - 1)."""

    initial_seconds: int = Field(default=10, ge=0, le=86400)
    """Seconds before the first retry."""
    factor: int = Field(default=2, ge=1, le=10)
    """By how much each further wait is longer."""
    max_seconds: int = Field(default=600, ge=0, le=86400)
    """The longest wait, in seconds."""


class Failures(Model):
    """How often, and how soon, a run is tried again."""

    max_restarts: int = Field(default=3, ge=0, le=10000)
    """Retries after failures of the application itself, such as an exception."""
    max_preemptions: int = Field(default=-1, ge=-1, le=100000)
    """Losses of infrastructure that are survived; -1: as many as there are."""
    backoff: Backoff = Field(default_factory=Backoff)
    """The wait before the next attempt."""
    max_attempts_without_progress: int = Field(default=3, ge=1, le=1000)
    """Attempts in a row that may end without a newer checkpoint, whatever ended them."""


class Queue(Model):
    """The queue that admits the run's pods."""

    kind: Literal["Kueue", "Volcano", "YuniKorn", "KAI"]
    """Which scheduler or queue controller owns the queue."""
    name: str = Field(min_length=1, max_length=253)
    """Name of the (local) queue."""


class Scheduling(Model):
    """How the pods are admitted and ordered."""

    queue: Queue | None = None
    """The queue that admits the run's pods. Default: none, pods are scheduled at once."""
    priority_class_name: str | None = Field(default=None, max_length=253)
    """PriorityClass of every pod. Default: the cluster's."""


class RunSpec(Model):
    """What the user wants. Once the run is accepted only suspend, failures, checkpoints,
    activeDeadlineSeconds and ttlSecondsAfterFinished may change."""

    image: str | None = Field(default=None, min_length=1, max_length=1024, pattern=r"^\S+$")
    """Container image with the runtime. Default: the operator's setting."""
    training: Training
    """What is trained."""
    workers: Workers = Field(default_factory=Workers)
    """The workers, one pod each."""
    head: Head = Field(default_factory=Head)
    """The head: Ray's control store and the driver."""
    storage: Storage
    """The bucket in which the run keeps its lease, checkpoints and result."""
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    """When checkpoints are made and which are kept."""
    failures: Failures = Field(default_factory=Failures)
    """How often, and how soon, a run is tried again."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """How the pods are admitted and ordered."""
    suspend: bool = False
    """True: checkpoint, then free every pod; false again: go on from that step."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=31536000)
    """Seconds from acceptance, suspended time left out, after which the run fails."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31536000)
    """Seconds after its end until the TrainingRun is deleted. Default: it stays."""

    rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            f"has(self.{field}) == has(oldSelf.{field}) && "
            f"(!has(self.{field}) || self.{field} == oldSelf.{field})",
            f"{field} cannot change after creation; delete this TrainingRun and create a new one",
        )
        for field in ("image", "training", "workers", "head", "storage", "scheduling")
    )


class ObjectMeta(Model):
    """The part of Kubernetes' metadata that the operator reads."""

    model_config = {**Model.model_config, "extra": "ignore"}

    name: str = Field(max_length=MAX_NAME_LENGTH, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    """Name of the run."""
    namespace: str = "default"
    """Namespace of the run and of everything it owns."""
    uid: str = ""
    """Set by the API server; tells two runs of one name apart."""
    generation: int = 0
    """Counts changes of the spec."""
    resource_version: str = ""
    """Changes with every write; a status write with an older one is refused."""
    creation_timestamp: str | None = None
    """RFC 3339 time of creation."""
    deletion_timestamp: str | None = None
    """RFC 3339 time at which deletion was asked for."""


class TrainingRun(Model):
    """One distributed training run that goes on from its last checkpoint when machines vanish."""

    api_version: Literal["trainingrun.dev/v1alpha1"] = "trainingrun.dev/v1alpha1"
    """Version of this schema."""
    kind: Literal["TrainingRun"] = "TrainingRun"
    """Always TrainingRun."""
    metadata: ObjectMeta
    """Kubernetes' metadata."""
    spec: RunSpec
    """What the user wants."""
    status: RunStatus = Field(default_factory=RunStatus)
    """Where the run stands, written by the operator alone."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && "
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"metadata.name must have at most {MAX_NAME_LENGTH} characters, begin with a lower-case "
            "letter and hold only lower-case letters, digits and hyphens",
        ),
    )
