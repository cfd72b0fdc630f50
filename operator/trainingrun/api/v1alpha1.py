"""What a user writes: `trainingrun.dev/v1alpha1`, the only source of the CRD and of its docs.

Each section of the spec is in a `…_spec.py`, the status that the operator writes in `status.py`.
"""

import json
import re
from itertools import islice
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from trainingrun_protocol.contract import CLAIMS_FOLDER

from . import pod_references
from .base import Model, Rule, Switch, Whole, matching
from .budget_spec import RunBudget
from .checkpoints_spec import Checkpoints
from .failures_spec import Failures
from .notify_spec import MOST_RECEIVERS, Receiver
from .pod_schema import MOST_FAULTS
from .pods_spec import (
    CLAIM_VOLUME,
    DEVICE_RESOURCES,
    HEAD_PORTS,
    RAY_CONTAINERS,
    WORKER_PORTS,
    Head,
    PodTemplate,
    Workers,
)
from .quantities import unchanged
from .scheduling_spec import Scheduling
from .status import RunStatus
from .storage_spec import OTHER_CLAIM, Storage, claim_of, on_the_same_claim
from .sweep_spec import Sweep
from .tracking_spec import Tracking
from .training_spec import Training

GROUP = "trainingrun.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingRun"
PLURAL = "trainingruns"

KUEUE = "kueue.x-k8s.io"
"""Domain of Kueue's labels; those of a run are also its RayJobs'."""
KUEUE_QUEUE = f"{KUEUE}/queue-name"

MAX_NAME_LENGTH = 41
"""KubeRay takes RayJob names of up to 47 characters; an attempt's is `<run>-<number>`."""

_OF_QUANTITIES = {"workers": Workers, "head": Head, "storage": Storage}
"""Of the fields that cannot change, those with quantities and fields that are inherited, which are
compared by value."""

IMMUTABLE = (
    "image",
    "training",
    "workers",
    "head",
    "podTemplate",
    "storage",
    "tracking",
    "sweep",
    "scheduling",
)
"""Fields of the spec that cannot change: checkpoints already made, or curves, depend on them."""


MAX_CONTRACT_BYTES = 100 * 1024
"""Most bytes, as JSON, of what users pass to the runtime. It is in one environment variable, of
which Linux takes no 128 KiB; what else is in it needs less than the rest."""


def _contract_fits(spec: "RunSpec") -> bool:
    training, sweep = spec.training, spec.sweep
    args = training.script.args if training.script else []
    if training.torchrun is not None:
        args = training.torchrun.all_args
    rules = [rule.to_dict() for rule in spec.failures.contract_rules]
    swept = sweep.to_dict() if sweep else None
    passed = [training.config, training.requirements, args, swept, rules]
    text = json.dumps(passed, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode(errors="replace")) <= MAX_CONTRACT_BYTES


def _immutable(field: str, annotation: Any = None) -> Rule:
    return Rule(
        unchanged(annotation, field),
        f"{field} cannot change after creation; delete this TrainingRun and create a new one",
        field=field,
    )


class RunSpec(Model):
    """What the user wants. After creation only suspend, budget, failures, checkpoints, notify,
    activeDeadlineSeconds and ttlSecondsAfterFinished may change.
    """

    image: str | None = Field(default=None, max_length=1024)
    """Container image with the runtime. Default: the operator's setting."""
    training: Training
    """What is trained."""
    workers: Workers = Field(default_factory=Workers)
    """The workers, each of them one rank of the training, and their pods."""
    head: Head = Field(default_factory=Head)
    """The head: Ray's control store and the driver."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """A PodTemplateSpec merged over those of head and workers alike, before their own. Of the
    containers ray-head and ray-worker, each is merged in its own pods alone. A list has at most 500
    entries, a node selector 16 terms of 16,384 characters as JSON in all, and each of these 16
    requirements."""
    storage: Storage
    """The bucket in which the run keeps its lease, checkpoints and result. Required, here or in
    TrainingDefaults."""
    tracking: Tracking | None = None
    """Tools that draw curves of the run, and continue the same curve in every attempt. Default:
    none."""
    sweep: Sweep | None = None
    """The function is trained several times, with other values in its config each time.
    Default: it is trained once."""
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    """When checkpoints are made and which are kept. An edit applies from the next attempt on."""
    failures: Failures = Field(default_factory=Failures)
    """How often, and how soon, a run is tried again."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """How the pods are admitted and ordered."""
    suspend: Switch = False
    """True: checkpoint, then free every pod; false again: continue from that step."""
    budget: RunBudget | None = None
    """What the run may cost, by the operator's prices. Default: any amount."""
    notify: list[Receiver] = Field(default_factory=list, max_length=MOST_RECEIVERS)
    """Webhooks that are told what happens to the run from then on. Default: none."""
    active_deadline_seconds: Whole | None = Field(default=None, ge=1, le=31536000)
    """Seconds from acceptance after which the run fails. The time in which it is suspended, or
    waits for Kueue to admit it, does not count."""
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
        Rule(
            "!has(self.sweep) || has(self.training.__function__)",
            "needs training.function, which each trial calls with its own config; a script that "
            "uses Ray Tune by itself runs without sweep",
            lambda spec: spec.sweep is None or spec.training.function is not None,
            "sweep",
        ),
        Rule(
            "!has(self.sweep) || !has(self.storage) || !has(self.storage.restoreFrom)",
            "cannot be set together with storage.restoreFrom: trials begin at step 0; leave one of "
            "them out",
            lambda spec: spec.sweep is None or spec.storage.restore_from is None,
            "sweep",
        ),
        Rule(
            "!has(self.sweep) || !has(self.tracking) || "
            "(!has(self.tracking.wandb) && !has(self.tracking.mlflow))",
            "cannot be set together with tracking.wandb and tracking.mlflow, where all trials "
            "would be one curve; leave them out, and use tracking.tensorboard",
            lambda spec: (
                spec.sweep is None
                or spec.tracking is None
                or (spec.tracking.wandb is None and spec.tracking.mlflow is None)
            ),
            "sweep",
        ),
        Rule(
            "!has(self.sweep) || self.sweep.concurrency * self.workers.count <= 1000",
            "must be at most 1000 workers in all, workers.count for each trial; lower one of them",
            lambda spec: spec.asked_workers <= 1000,
            "sweep.concurrency",
        ),
        Rule(
            "!has(self.sweep) || !has(self.workers.minimum)",
            "cannot be set together with spec.sweep, whose trials keep their number of workers; "
            "leave one of them out",
            lambda spec: spec.sweep is None or spec.workers.minimum is None,
            "workers.minimum",
        ),
        Rule(
            "!has(self.sweep) || !has(self.workers.standby) || self.workers.standby == 0",
            "cannot be set together with spec.sweep, whose trials share the pods; leave one of "
            "them out",
            lambda spec: spec.sweep is None or spec.workers.standby == 0,
            "workers.standby",
        ),
        Rule(
            "!has(self.failures) || !has(self.failures.rules) || "
            "self.workers.placement != 'StrictPack' || "
            "!has(self.workers.capacity.type) || self.workers.capacity.type == 'OnDemand' || "
            "self.failures.rules.all(rule, rule.then != 'RestartOnDemand')",
            "RestartOnDemand cannot be set together with workers.placement StrictPack, by which a "
            "new worker has to be on the spot node of the others; use another placement or Restart",
            lambda spec: (
                spec.workers.placement != "StrictPack"
                or spec.workers.capacity.type == "OnDemand"
                or all(rule.then != "RestartOnDemand" for rule in spec.failures.failure_rules)
            ),
            "failures.rules",
        ),
        Rule(
            "!has(self.notify) || self.notify.all(one, self.notify.exists_one(other, "
            "one.webhook.secretRef.name == other.webhook.secretRef.name && "
            "one.webhook.secretRef.key == other.webhook.secretRef.key))",
            "must name each key of a Secret once; put all its events into one entry",
            lambda spec: len({one.webhook.secret_ref for one in spec.notify}) == len(spec.notify),
            "notify",
        ),
        Rule(
            None,  # CEL does not see the mounts
            "is a folder of each pod by itself, so that what one writes no other one finds; write "
            "a folder in a bucket, or mount one volume, such as a persistentVolumeClaim that many "
            "nodes can write, in ray-head and ray-worker at this folder or above it, in "
            "podTemplate",
            lambda spec: (
                not spec.storage.uri.startswith("file:")
                or pod_references.share(
                    spec.pods,
                    spec.storage.uri.removeprefix("file://"),
                    [variable.to_dict() for variable in spec.training.env],
                )
            ),
            "storage.uri",
        ),
        Rule(
            None,  # CEL does not see the mounts
            f"is mounted below {CLAIMS_FOLDER}, and podTemplate mounts another volume at its place "
            "or in it; choose another mountPath there",
            lambda spec: (
                spec.storage.claim is None
                or not pod_references.covers(spec.pods, f"{CLAIMS_FOLDER}/{spec.storage.claim}")
            ),
            "storage.uri",
        ),
        Rule(
            "!has(self.training.code) || !has(self.storage) || !has(self.storage.uri) || "
            + on_the_same_claim("self.training.code.uri", "self.storage.uri"),
            OTHER_CLAIM,
            lambda spec: (
                spec.training.code is None
                or claim_of(spec.training.code.uri) in (None, spec.storage.claim)
            ),
            "training.code.uri",
        ),
        Rule(
            None,  # CEL does not see config and the sweep's values
            f"config, requirements, script.args, spec.sweep and failures.rules must have at most "
            f"{MAX_CONTRACT_BYTES} bytes together, as JSON; put larger things into a file of "
            "training.code or of the image",
            _contract_fits,
            "training",
        ),
        *(_immutable(field, _OF_QUANTITIES.get(field)) for field in IMMUTABLE),
    )

    @model_validator(mode="after")
    def _pods_have_what_they_name(self) -> Self:
        all_faults = (fault for pod in self.pods for fault in pod_references.faults(*pod))
        found = dict.fromkeys(islice(all_faults, MOST_FAULTS))
        if found:
            errors = [fault.error() for fault in found]
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    @property
    def pods(self) -> list[tuple[pod_references.Pod, pod_references.Templates]]:
        """Head and worker, each with the templates that are merged over it."""
        source = self.training.any_script
        script = ("script",) if source and source.config_map else ()
        head, worker = RAY_CONTAINERS
        claim = (CLAIM_VOLUME,) if self.storage.claim else ()
        volumes = ("shared-memory", *script, *claim)
        accelerator, each = self.workers.accelerator, self.workers.pod_resources
        if accelerator is not None:
            devices = accelerator.count * self.workers.per_pod
            each[DEVICE_RESOURCES[accelerator.kind]] = str(devices)
        heads = self.head.resources.to_dict()
        of_head = pod_references.Pod(head, worker, ("tokens", *volumes), HEAD_PORTS, heads)
        of_worker = pod_references.Pod(worker, head, volumes, WORKER_PORTS, each)
        common = (("podTemplate",), self.pod_template)
        return [
            (of_head, [common, (("head", "podTemplate"), self.head.pod_template)]),
            (of_worker, [common, (("workers", "podTemplate"), self.workers.pod_template)]),
        ]

    @property
    def asked_workers(self) -> int:
        """Workers as written, also of a sweep that has fewer trials: limits are about these, since
        the API server's rules and the chart's policy do not count trials.
        """
        return self.workers.count * (self.sweep.concurrency if self.sweep else 1)

    @property
    def total_workers(self) -> int:
        """Workers of all trials that are trained at once; without a sweep the world size."""
        return self.workers.count * (self.sweep.trials_at_once if self.sweep else 1)

    @property
    def trials(self) -> int | None:
        """Number of trials of the sweep; None: there is no sweep."""
        return self.sweep.trials if self.sweep is not None else None

    @property
    def worker_pods(self) -> int:
        """Number of worker pods that train."""
        return self.total_workers // self.workers.per_pod

    @property
    def minimum_workers(self) -> int:
        """Workers with which training begins and goes on; all of them without workers.minimum."""
        return self.workers.minimum or self.total_workers

    @property
    def minimum_worker_pods(self) -> int:
        """Their pods."""
        return self.minimum_workers // self.workers.per_pod


_RUN_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"


class ObjectMeta(Model):
    """The part of Kubernetes' metadata that the operator reads."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=1)
    """Name of the run."""
    namespace: str = "default"
    """Namespace of the run and of everything it owns."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the run, which its pods get as well."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the run, which its pods get as well."""
    uid: str = ""
    """Set by the API server; distinguishes two runs of one name."""
    generation: int = 0
    """Counts changes of the spec."""
    resource_version: str = ""
    """Changes with every write; a status write with an older one is refused."""
    deletion_timestamp: str | None = None
    """RFC 3339 time at which deletion was requested."""
    finalizers: list[str] = Field(default_factory=list)
    """Who keeps the object after that; the operator sets none."""


class TrainingRun(Model):
    """One distributed training run that continues from its last checkpoint when machines vanish."""

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
        Rule(
            "!has(self.spec.storage) || !has(self.spec.storage.restoreFrom) || "
            "!has(self.spec.storage.restoreFrom.run) || "
            "self.spec.storage.restoreFrom.run != self.metadata.name",
            "must be another run, not this one; a former run of this name is named by its folder, "
            "in uri",
            lambda run: (
                run.spec.storage.restore_from is None
                or run.spec.storage.restore_from.run != run.metadata.name
            ),
            "spec.storage.restoreFrom.run",
        ),
        Rule(
            None,  # CEL sees no labels
            f"label {KUEUE_QUEUE} and spec.scheduling.queue name two queues; take one of them out",
            lambda run: (
                run.spec.scheduling.queue is None
                or run.spec.scheduling.queue.kind != "Kueue"
                or run.metadata.labels.get(KUEUE_QUEUE, run.spec.scheduling.queue.name)
                == run.spec.scheduling.queue.name
            ),
            "metadata.labels",
        ),
    )
