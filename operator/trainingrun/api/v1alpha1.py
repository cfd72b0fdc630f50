"""What a user writes: `trainingrun.dev/v1alpha1`, the only source of the CRD and of its docs.

The status that the operator writes is in `status.py`.
"""

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, Strict

from .base import Model, Rule, matching
from .quantities import Quantity, at_least, not_more
from .status import RunStatus

GROUP = "trainingrun.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingRun"
PLURAL = "trainingruns"

MAX_NAME_LENGTH = 41
"""KubeRay takes RayJob names of up to 47 characters; an attempt's is `<run>-<number>`."""

Whole = Annotated[int, Strict()]
"""A whole number; "4" and true are none, as for the API server."""

Switch = Annotated[bool, Strict()]
"""true or false; "yes" and 1 are neither."""

Freeform = dict[str, Any]
"""Any JSON object; the CRD keeps its fields as they are."""

MAX_CONFIG_CHARACTERS = 65536
"""Linux takes no environment variable of 128 KiB, and the config travels in one."""

_OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


def _object_name(field: str, what: str) -> Rule:
    return matching(
        field,
        _OBJECT_NAME,
        f"must be the name of a {what}: lower-case letters, digits, hyphens and dots",
    )


def _is_small_json(value: Freeform) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= MAX_CONFIG_CHARACTERS
    except (TypeError, ValueError):
        return False


class ScriptSource(Model):
    """A user's own Ray Train script, kept in a ConfigMap."""

    config_map: str = Field(max_length=253)
    """Name of the ConfigMap, in the run's namespace, that holds the script."""
    file: str = Field(default="train.py", max_length=253)
    """Key in the ConfigMap; every key is mounted beside it and can be imported."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _object_name("config_map", "ConfigMap in the run's namespace"),
        matching(
            "file",
            r"[A-Za-z0-9._-]+",
            "must be a key of the ConfigMap, such as train.py: letters, digits, '.', '_' and '-'",
        ),
    )


class TorchSettings(Model):
    """How the process group of PyTorch is formed."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collective library: `auto` is nccl with accelerators that have it, else gloo."""
    timeout_seconds: Whole = Field(default=1800, ge=1, le=86400)
    """Seconds after which a collective call that does not finish fails."""


class EnvVar(Model):
    """An environment variable of the head and of every worker."""

    name: str = Field(max_length=253)
    """Name of the variable."""
    value: str | None = Field(default=None, max_length=16384)
    """Its value. Leave it out and use valueFrom for anything secret."""
    value_from: Freeform | None = None
    """A Kubernetes EnvVarSource: secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "name",
            r"[A-Za-z_][A-Za-z0-9_]*",
            "must be letters, digits and underscores, not beginning with a digit, such as "
            "NCCL_DEBUG",
        ),
        Rule(
            "has(self.value) != has(self.valueFrom)",
            "set exactly one of value and valueFrom",
            lambda env: (env.value is None) != (env.value_from is None),
        ),
        Rule(
            "!self.name.startsWith('TRAININGRUN_')",
            "names that begin with TRAININGRUN_ are the operator's own; choose another name",
            lambda env: not env.name.startswith("TRAININGRUN_"),
            "name",
        ),
    )


class Training(Model):
    """What is trained: a function in the image, or a script."""

    function: str | None = Field(default=None, max_length=253)
    """`module:function` in the image, called on every worker with `config`."""
    script: ScriptSource | None = None
    """A Ray Train script, run as it is. Exactly one of function and script is set."""
    config: Freeform = Field(default_factory=dict)
    """JSON object handed to the function; a script finds it in $TRAININGRUN_CONFIG."""
    torch: TorchSettings = Field(default_factory=TorchSettings)
    """How the process group of PyTorch is formed."""
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=100,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    """Environment variables of the head and of every worker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.__function__) != has(self.script)",
            "set exactly one of training.function (module:function in the image) and "
            "training.script (a file in a ConfigMap)",
            lambda training: (training.function is None) != (training.script is None),
        ),
        matching(
            "function",
            r"[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*",
            "must be module:function, such as trainingrun_runtime.examples.digits:train",
        ),
        Rule(
            None,
            f"must be JSON (no NaN, no infinity) of at most {MAX_CONFIG_CHARACTERS} characters; "
            "put larger things into the image or the bucket",
            lambda training: _is_small_json(training.config),
            "config",
        ),
        Rule(
            None,  # the list's map type says it at the API server
            "every name may appear only once",
            lambda training: len({env.name for env in training.env}) == len(training.env),
            "env",
        ),
    )


_CPU = at_least("cpu", "1m", "must be a quantity of cores of at least 1m, such as 500m or 4")
_MEMORY = at_least(
    "memory", "64Mi", "must be a quantity of bytes of at least 64Mi with its unit, such as 16Gi"
)


class WorkerResources(Model):
    """What each worker pod requests and is limited to."""

    cpu: Quantity = "1"
    """CPU cores."""
    memory: Quantity = "2Gi"
    """Memory, in bytes with a suffix such as Gi."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, taken from memory. Default: a quarter of memory, for data loaders."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _CPU,
        _MEMORY,
        at_least(
            "shared_memory", "1Mi", "must be a quantity of bytes of at least 1Mi, such as 8Gi"
        ),
        not_more(
            "shared_memory",
            "memory",
            "must not be more than memory, from which it is taken; raise memory or lower it",
        ),
    )


class HeadResources(Model):
    """What the head pod requests and is limited to."""

    cpu: Quantity = "1"
    """CPU cores."""
    memory: Quantity = "4Gi"
    """Memory, in bytes with a suffix such as Gi."""

    rules: ClassVar[tuple[Rule, ...]] = (_CPU, _MEMORY)


class Accelerator(Model):
    """The accelerators of each worker."""

    kind: Literal["nvidia", "amd", "tpu", "gaudi", "neuron"]
    """Whose device it is; this decides the resource name and the platform's tolerations."""
    product: str | None = Field(default=None, max_length=63)
    """Node label value of the product, such as NVIDIA-A100-SXM4-80GB. Default: any."""
    count: Whole = Field(default=1, ge=1, le=64)
    """Devices per worker; for neuron, NeuronCores."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "product",
            r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
            "must be the value of a node label, such as NVIDIA-A100-SXM4-80GB",
        ),
    )


class Capacity(Model):
    """Which kind of node the workers run on. The head always runs on on-demand capacity."""

    type: Literal["OnDemand", "Spot", "PreferSpot"] = "OnDemand"
    """OnDemand and Spot require that capacity; PreferSpot takes spot where there is some."""


class Workers(Model):
    """The workers, one pod each."""

    count: Whole = Field(default=1, ge=1, le=1000)
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

    uri: str = Field(max_length=1024)
    """Folder for runs, such as `s3://runs/team-a`; each run takes `<name>-<uid>` below it."""
    endpoint: str | None = Field(default=None, max_length=1024)
    """URL of an S3-compatible service. Default: the cloud's own."""
    region: str | None = Field(default=None, max_length=63)
    """Region of the bucket. Default: the client's own rules."""
    credentials_secret: str | None = Field(default=None, max_length=253)
    """Secret, in the run's namespace, whose keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …)
    become environment variables. Default: none, the pods' service account is used."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "uri",
            r"(s3|gs|az|abfs|abfss)://[^/@?#\s]+(/[^@?#\s]*)?|file:///[^@?#\s]*",
            "must be a folder in a bucket, such as s3://bucket/folder (or gs, az, abfs, abfss, "
            "file), without credentials, query or spaces; credentials go into a Secret: "
            "credentialsSecret",
        ),
        matching(
            "endpoint",
            r"https?://[^/@?#\s]+(/[^@?#\s]*)?",
            "must be the http or https URL of an S3-compatible service, without credentials or "
            "query, such as https://minio.example.com:9000",
        ),
        matching("region", r"[A-Za-z0-9-]+", "must be the name of a region, such as eu-west-1"),
        _object_name("credentials_secret", "Secret in the run's namespace"),
    )


class BestCheckpoint(Model):
    """Which checkpoint is the best one."""

    metric: str = Field(min_length=1, max_length=253)
    """Name of a reported metric."""
    order: Literal["min", "max"] = "max"
    """Whether smaller or larger is better."""


class Checkpoints(Model):
    """When checkpoints are made and which are kept."""

    keep: Whole = Field(default=2, ge=2, le=1000)
    """Newest checkpoints kept. At least 2: the newest may be altered or lost."""
    best: BestCheckpoint | None = None
    """Also keep the best checkpoint by this metric. Default: newest only."""
    every_seconds: Whole = Field(default=300, ge=1, le=86400)
    """Seconds of training between the session's periodic checkpoints."""


class Backoff(Model):
    """The wait before the next attempt: initialSeconds * factor ** (failures in a row - 1)."""

    initial_seconds: Whole = Field(default=10, ge=0, le=86400)
    """Seconds before the first retry."""
    factor: Whole = Field(default=2, ge=1, le=10)
    """By how much each further wait is longer."""
    max_seconds: Whole = Field(default=600, ge=0, le=86400)
    """The longest wait, in seconds."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # Defaults are checked before they are filled in, hence has().
            "!has(self.initialSeconds) || !has(self.maxSeconds) || "
            "self.initialSeconds <= self.maxSeconds",
            "must not be less than initialSeconds; raise it or lower initialSeconds",
            lambda backoff: backoff.initial_seconds <= backoff.max_seconds,
            "max_seconds",
        ),
    )


class Failures(Model):
    """How often, and how soon, a run is tried again."""

    max_restarts: Whole = Field(default=3, ge=0, le=10000)
    """Retries after failures of the application itself, such as an exception."""
    max_preemptions: Whole = Field(default=-1, ge=-1, le=100000)
    """Losses of infrastructure that are survived; -1: as many as there are."""
    backoff: Backoff = Field(default_factory=Backoff)
    """The wait before the next attempt."""
    max_attempts_without_progress: Whole = Field(default=3, ge=1, le=1000)
    """Attempts in a row that may end without a newer checkpoint, whatever ended them."""


class Queue(Model):
    """The queue that admits the run's pods."""

    kind: Literal["Kueue", "Volcano", "YuniKorn", "KAI"]
    """Which scheduler or queue controller owns the queue."""
    name: str = Field(max_length=63)
    """Name of the (local) queue; the pods carry it as a label, which holds 63 characters."""

    rules: ClassVar[tuple[Rule, ...]] = (_object_name("name", "queue"),)


class Scheduling(Model):
    """How the pods are admitted and ordered."""

    queue: Queue | None = None
    """The queue that admits the run's pods. Default: none, pods are scheduled at once."""
    priority_class_name: str | None = Field(default=None, max_length=253)
    """PriorityClass of every pod. Default: the cluster's."""

    rules: ClassVar[tuple[Rule, ...]] = (_object_name("priority_class_name", "PriorityClass"),)


IMMUTABLE = ("image", "training", "workers", "head", "storage", "scheduling")
"""Fields of the spec that cannot change: checkpoints already made depend on them."""


def _immutable(field: str) -> Rule:
    return Rule(
        f"has(self.{field}) == has(oldSelf.{field}) && "
        f"(!has(self.{field}) || self.{field} == oldSelf.{field})",
        f"{field} cannot change after creation; delete this TrainingRun and create a new one",
        field=field,
    )


class RunSpec(Model):
    """What the user wants. After creation only suspend, failures, checkpoints,
    activeDeadlineSeconds and ttlSecondsAfterFinished may change.
    """

    image: str | None = Field(default=None, max_length=1024)
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
    suspend: Switch = False
    """True: checkpoint, then free every pod; false again: go on from that step."""
    active_deadline_seconds: Whole | None = Field(default=None, ge=1, le=31536000)
    """Seconds from acceptance, suspended time left out, after which the run fails."""
    ttl_seconds_after_finished: Whole | None = Field(default=None, ge=0, le=31536000)
    """Seconds after its end until the TrainingRun is deleted. Default: it stays."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "image",
            r"[^\s@]+(:[^\s@]+)?(@sha256:[0-9a-f]{64})?",
            "must be the reference of an image, such as ghcr.io/acme/train:1.0",
        ),
        Rule(
            "self.training.torch.backend != 'nccl' || (has(self.workers.accelerator) && "
            "self.workers.accelerator.kind in ['nvidia', 'amd'])",
            "nccl needs workers.accelerator of kind nvidia or amd; use auto, or gloo for CPU",
            lambda spec: (
                spec.training.torch.backend != "nccl"
                or (spec.workers.accelerator and spec.workers.accelerator.kind in ("nvidia", "amd"))
            ),
            "training.torch.backend",
        ),
        *(_immutable(field) for field in IMMUTABLE),
    )


_RUN_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"


class ObjectMeta(Model):
    """The part of Kubernetes' metadata that the operator reads."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=1)
    """Name of the run."""
    namespace: str = "default"
    """Namespace of the run and of everything it owns."""
    uid: str = ""
    """Set by the API server; distinguishes two runs of one name."""
    generation: int = 0
    """Counts changes of the spec."""
    resource_version: str = ""
    """Changes with every write; a status write with an older one is refused."""
    creation_timestamp: str | None = None
    """RFC 3339 time of creation."""
    deletion_timestamp: str | None = None
    """RFC 3339 time at which deletion was requested."""


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
            f"self.metadata.name.matches(r'^({_RUN_NAME})$')",
            f"must have at most {MAX_NAME_LENGTH} characters, begin with a lower-case letter, end "
            "with a letter or digit, and hold only lower-case letters, digits and hyphens",
            lambda run: (
                len(run.metadata.name) <= MAX_NAME_LENGTH
                and re.fullmatch(_RUN_NAME, run.metadata.name) is not None
            ),
            "metadata.name",
        ),
    )
