"""spec.workers, spec.head and each podTemplate: the pods.

Of a user's PodTemplateSpec the fields are here that the operator depends on. Each other field is
kept as it is, once `pod_schema` has found nothing wrong with it.
"""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from trainingrun_protocol.contract import PROGRESS_PORT

from . import pod_schema
from .base import (
    Freeform,
    Model,
    Rule,
    Whole,
    inherited,
    is_own_variable,
    list_by,
    matching,
    own_variable_cel,
    without_default,
)
from .quantities import Quantity, at_least, more_cores, not_more, times

RAY_CONTAINERS = ("ray-head", "ray-worker")
"""The containers that run Ray, in the head pod and in a worker pod."""
CLAIM_VOLUME = "trainingrun-claim"
"""The volume of a claim in `storage.uri`."""
_OWN_VOLUMES = ("script", "shared-memory", "tokens", CLAIM_VOLUME)
"""Volumes that are rendered."""
HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "progress": PROGRESS_PORT, "metrics": 8080}
WORKER_PORTS = {"metrics": 8080}
"""Ports of Ray's containers that are rendered."""
_SHORTEST_GRACE_S, _LONGEST_GRACE_S = 10, 86400
"""Seconds of a pod's grace period: Ray takes up to 5 to end, a checkpoint has the rest."""

_NOT_RAYS = f"!has(self.name) || !(self.name in {list(RAY_CONTAINERS)})"


class _Part(Model):
    """A part of a pod template. A field's default stands for its absence, since null would remove
    what is rendered.
    """

    model_config = ConfigDict(extra="allow")


class _Hook(_Part):
    http_get: Freeform = Field(default={}, json_schema_extra=without_default)
    """Not in Ray's container."""
    tcp_socket: Freeform = Field(default={}, json_schema_extra=without_default)
    """Not in Ray's container."""


class _Lifecycle(_Part):
    pre_stop: _Hook = Field(default=_Hook(), json_schema_extra=without_default)
    """Runs before the container is ended; in Ray's container after the operator's own hook."""


class _Variable(_Part):
    name: str = Field(max_length=253)
    """Name of the variable."""


class _Container(_Part):
    name: str
    """ray-head and ray-worker are Ray's; each other one is a sidecar."""
    env: list[_Variable] = Field(
        default_factory=list, max_length=200, json_schema_extra=list_by("name")
    )
    """Its environment variables; those of one name replace each other."""
    lifecycle: _Lifecycle = Field(default=_Lifecycle(), json_schema_extra=without_default)
    """What runs at its start and before its end."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{_NOT_RAYS} || !has(self.env) || "
            f"self.env.all(v, !has(v.name) || !({own_variable_cel('v.name')}))",
            "no variable of Ray's container may be one that the operator or KubeRay sets; choose "
            "another name",
            lambda container: (
                container.name not in RAY_CONTAINERS
                or not any(is_own_variable(variable.name) for variable in container.env)
            ),
            "env",
        ),
        Rule(
            f"{_NOT_RAYS} || !has(self.lifecycle) || !has(self.lifecycle.preStop) || "
            "(!has(self.lifecycle.preStop.httpGet) && !has(self.lifecycle.preStop.tcpSocket))",
            "must be exec or sleep in Ray's container, where it begins once the checkpoint of a "
            "preemption is saved",
            lambda container: (
                container.name not in RAY_CONTAINERS
                or not {"http_get", "tcp_socket"} & container.lifecycle.pre_stop.model_fields_set
            ),
            "lifecycle.pre_stop",
        ),
    )


class _Volume(_Part):
    name: str
    """Name of the volume."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.name) || !(self.name in {list(_OWN_VOLUMES)})",
            f"must not be {', '.join(_OWN_VOLUMES[:-1])} or {_OWN_VOLUMES[-1]}, the operator's own "
            "volumes; choose another name, and set the size of /dev/shm by "
            "workers.resources.sharedMemory",
            lambda volume: volume.name not in _OWN_VOLUMES,
            "name",
        ),
    )


class _PodSpec(_Part):
    restart_policy: str = Field(default="Never", json_schema_extra=without_default)
    """Never."""
    termination_grace_period_seconds: Whole = Field(
        default=_SHORTEST_GRACE_S, json_schema_extra=without_default
    )
    """Seconds from the notice of a preemption to the end of the pod; the checkpoint has all but 5.
    A cloud may grant less. Default: what the platform grants."""
    active_deadline_seconds: Whole = Field(default=0, json_schema_extra=without_default)
    """Not to be set."""
    node_name: str = Field(default="", json_schema_extra=without_default)
    """Not to be set."""
    containers: list[_Container] = Field(
        default_factory=list, max_length=50, json_schema_extra=list_by("name")
    )
    """Containers, merged by name."""
    volumes: list[_Volume] = Field(
        default_factory=list, max_length=200, json_schema_extra=list_by("name")
    )
    """Volumes, merged by name."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
            "must be Never, or left out: a pod whose container has ended is replaced as a whole",
            lambda spec: spec.restart_policy == "Never",
            "restart_policy",
        ),
        Rule(
            "!has(self.terminationGracePeriodSeconds) || "
            f"(self.terminationGracePeriodSeconds >= {_SHORTEST_GRACE_S} && "
            f"self.terminationGracePeriodSeconds <= {_LONGEST_GRACE_S})",
            f"must be {_SHORTEST_GRACE_S} to {_LONGEST_GRACE_S}: Ray takes up to 5 s to end, and "
            "the checkpoint of a preemption has the rest",
            lambda spec: (
                _SHORTEST_GRACE_S <= spec.termination_grace_period_seconds <= _LONGEST_GRACE_S
            ),
            "termination_grace_period_seconds",
        ),
        Rule(
            "!has(self.activeDeadlineSeconds)",
            "must not be set: a pod that it ends is replaced again and again; set "
            "spec.activeDeadlineSeconds of the TrainingRun",
            lambda spec: "active_deadline_seconds" not in spec.model_fields_set,
            "active_deadline_seconds",
        ),
        Rule(
            "!has(self.nodeName)",
            "must not be set: it passes by the scheduler, and pods for a node that does not exist "
            "are deleted again and again; write nodeSelector: {kubernetes.io/hostname: NODE}",
            lambda spec: "node_name" not in spec.model_fields_set,
            "node_name",
        ),
    )


class _PodTemplate(_Part):
    spec: _PodSpec = Field(default=_PodSpec(), json_schema_extra=without_default)
    """The PodSpec."""


class _CheckedBy:
    """The value stays the mapping that was written, once the model has accepted it, and Kubernetes'
    own types do.
    """

    def __init__(self, model: type[Model]) -> None:
        self._model = model

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def check(value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
            found: list[InitErrorDetails] = []
            try:
                validate(value)
            except ValidationError as error:
                found += [
                    InitErrorDetails(
                        type=one["type"], loc=one["loc"], input=one["input"], ctx=one.get("ctx", {})
                    )
                    for one in error.errors()
                ]
            known = [detail.get("loc") for detail in found]
            for fault in pod_schema.faults(value, pod_schema.TEMPLATE):
                if fault.location not in known:
                    found.append(fault.error())
            if found:
                raise ValidationError.from_exception_data(self._model.__name__, found)
            return value

        checked = core_schema.no_info_wrap_validator_function(
            check, handler.generate_schema(self._model)
        )
        return core_schema.chain_schema(
            [checked, handler(source)],
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value),
        )


PodTemplate = Annotated[Freeform, _CheckedBy(_PodTemplate)]
"""A PodTemplateSpec as a mapping."""


_CPU = at_least("cpu", "1m", "must be a quantity of cores of at least 1m, such as 500m or 4")
_MEMORY = at_least(
    "memory", "64Mi", "must be a quantity of bytes of at least 64Mi with its unit, such as 16Gi"
)

_TPU_CHIPS = (1, 2, 4, 8)
"""How many chips Ray gives to a worker."""


class WorkerResources(Model):
    """What each worker requests and is limited to; its pod, perPod times as much."""

    cpu: Quantity = "1"
    """CPU cores."""
    memory: Quantity = "2Gi"
    """Memory, in bytes with a suffix such as Gi."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, taken from memory. Default: a quarter of memory, for data loaders."""
    data_cpus: Whole | None = Field(default=None, ge=1, le=1000)
    """CPU cores of each pod for Ray Data, which the pod requests beside those of its workers.
    Default: none of its own; Ray Data shares the cores of the workers.
    """

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


DEVICE_RESOURCES = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "tpu": "google.com/tpu",
    "gaudi": "habana.ai/gaudi",
    "neuron": "aws.amazon.com/neuroncore",
}
"""What the device plugin of each kind of accelerator calls it, on every platform."""


class HeadResources(Model):
    """What the head pod requests and is limited to."""

    cpu: Quantity = "1"
    """CPU cores."""
    memory: Quantity = "4Gi"
    """Memory, in bytes with a suffix such as Gi."""

    rules: ClassVar[tuple[Rule, ...]] = (_CPU, _MEMORY)


MOST_PRODUCTS = 8
_LABEL_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LABEL_VALUE_SAYS = "must be the value of a node label, such as NVIDIA-A100-SXM4-80GB"

Product = Annotated[str, Field(max_length=63)]
"""Value of a node label."""


class Accelerator(Model):
    """The accelerators of each worker; its pod has perPod times as many."""

    kind: Literal["nvidia", "amd", "tpu", "gaudi", "neuron"]
    """Whose device it is; this decides the resource name and the platform's tolerations. With tpu,
    workers.count is 1: the chips of one machine.
    """
    product: str | None = Field(default=None, max_length=63)
    """Node label value of the product, such as NVIDIA-A100-SXM4-80GB. Default: any."""
    products: list[Product] | None = Field(default=None, min_length=1, max_length=MOST_PRODUCTS)
    """Several products instead, tried in this order: once a worker pod has found no node with one
    for capacity.fallback.afterPendingSeconds, new pods go to nodes with the next one. Pods that run
    stay, so that workers may have different ones. After returnAfterSeconds new pods go to the first
    again. Default: product alone."""
    count: Whole = Field(default=1, ge=1, le=64)
    """Devices per worker; for neuron, NeuronCores."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "product",
            _LABEL_VALUE,
            _LABEL_VALUE_SAYS,
        ),
        Rule(
            f"!has(self.products) || self.products.all(p, p.matches(r'^({_LABEL_VALUE})$'))",
            f"each {_LABEL_VALUE_SAYS}",
            lambda accelerator: all(
                re.fullmatch(_LABEL_VALUE, product) for product in accelerator.products or ()
            ),
            "products",
        ),
        Rule(
            "!has(self.products) || !has(self.product)",
            "cannot be set together with product; write it as the first of products",
            lambda accelerator: accelerator.products is None or accelerator.product is None,
            "products",
        ),
        Rule(
            "!has(self.products) || self.products.all(p, self.products.exists_one(q, q == p))",
            "must name each product once",
            lambda accelerator: (
                len(set(accelerator.products or ())) == len(accelerator.products or ())
            ),
            "products",
        ),
        Rule(
            f"self.kind != 'tpu' || self.count in {list(_TPU_CHIPS)}",
            "must be 1, 2, 4 or 8 for kind tpu, since Ray gives a worker no other number of chips",
            lambda accelerator: accelerator.kind != "tpu" or accelerator.count in _TPU_CHIPS,
            "count",
        ),
    )

    @property
    def choices(self) -> list[str]:
        """The products in order; empty: any will do."""
        return self.products or ([self.product] if self.product else [])


MOST_PREEMPTIONS = 50
"""Most `afterPreemptions`: the losses that a status keeps."""


class Fallback(Model):
    """When new worker pods go to on-demand nodes instead of spot nodes. Pods that run stay where
    they are, and so does the head.
    """

    after_preemptions: Whole = Field(
        default=3, ge=1, le=MOST_PREEMPTIONS, json_schema_extra=inherited
    )
    """Spot nodes lost within withinSeconds after which new pods go to on-demand nodes.
    Default: 3."""
    within_seconds: Whole = Field(default=3600, ge=60, le=604800, json_schema_extra=inherited)
    """The seconds in which they are counted. Default: 3600."""
    after_pending_seconds: Whole | None = Field(default=None, ge=10, le=86400)
    """Seconds for which a worker pod finds no spot node after which it goes to an on-demand one, or
    with PreferSpot to any. Default: 600, with PreferSpot 60."""
    return_after_seconds: Whole = Field(
        default=1800, ge=60, le=31536000, json_schema_extra=inherited
    )
    """Seconds after the change, and after the last loss of a spot node, from which on new pods go
    to spot nodes again. Default: 1800."""


class Capacity(Model):
    """Which kind of node the workers run on. The head always runs on on-demand capacity."""

    type: Literal["OnDemand", "Spot", "PreferSpot"] = Field(
        default="OnDemand", json_schema_extra=inherited
    )
    """OnDemand and Spot require that capacity. PreferSpot requires spot nodes, so that node groups
    grow, until a worker pod has found none for 60 s, and then takes any node; with placement Spread
    it takes any node at once, spot where there is some. Default: OnDemand."""
    fallback: Fallback | None = None
    """When new worker pods go to on-demand nodes instead. Default: never."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.fallback) || (has(self.type) && self.type != 'OnDemand')",
            "needs capacity.type Spot or PreferSpot; with OnDemand every worker is on an on-demand "
            "node already",
            lambda capacity: capacity.fallback is None or capacity.type != "OnDemand",
            "fallback",
        ),
    )


MOST_STANDBY = 16
"""Most pods that wait. The driver's document names them."""


class Workers(Model):
    """The workers, each of them one rank of the training, and their pods."""

    count: Whole = Field(default=1, ge=1, le=1000)
    """Number of workers: the world size."""
    # Without a default in the CRD: an earlier operator, which does not know the field, would refuse
    # every run from the upgrade of the CRD to its own.
    per_pod: Whole = Field(default=1, ge=1, le=64, json_schema_extra=without_default)
    """Workers in each pod, which is one node of Ray; it divides count. GPUs use NVLink and CUDA IPC
    only within a pod. Default: 1.
    """
    minimum: Whole | None = Field(default=None, ge=1, le=999)
    """Workers with which training begins, and goes on, while others are lost or find no node; a
    multiple of perPod. Once there are more again, training continues with them, at a checkpoint.
    Default: training waits for all workers.
    """
    resize_seconds: Whole = Field(default=60, ge=10, le=86400, json_schema_extra=without_default)
    """With minimum: least seconds from one growth of the number of workers to the next, and seconds
    after which a start waits no longer for pods beyond minimum. Default: 60.
    """
    standby: Whole = Field(default=0, ge=0, le=MOST_STANDBY, json_schema_extra=without_default)
    """Further worker pods, which wait with the code there and PyTorch imported: after a loss
    training goes on in one of them at once, with all workers. The pod that replaces the lost one
    waits then. Training neither waits for them nor stops for their loss. Default: 0.
    """
    global_batch: Literal["keep", "scale"] = Field(
        default="scale", json_schema_extra=without_default
    )
    """With minimum, the samples of a step of the optimizer while fewer workers train. keep: as many
    as with all of them; each rank takes its part in several microbatches, by a loop over
    session.microbatches(). scale: as many for each rank as before. Default: scale.
    """
    resources: WorkerResources = Field(default_factory=WorkerResources)
    """What each worker requests and is limited to; its pod, perPod times as much."""
    accelerator: Accelerator | None = None
    """The accelerators of each worker. Default: none, CPU only."""
    placement: Literal["Pack", "Spread", "StrictPack", "StrictSpread"] = "Pack"
    """Whether worker pods share nodes: prefer, avoid, require or forbid it. Spread comes before
    capacity PreferSpot: a node without a worker of the run before a spot node that has one, and no
    spot node is waited for."""
    capacity: Capacity = Field(default_factory=Capacity)
    """Which kind of node the workers run on."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """A PodTemplateSpec merged last over the rendered one; containers and env merge by name."""

    @property
    def pod_resources(self) -> dict[str, str]:
        """CPU cores and bytes of memory of a pod, with its unit: those of all workers in it."""
        each = self.resources
        return {
            "cpu": more_cores(times(each.cpu, self.per_pod), each.data_cpus or 0),
            "memory": times(each.memory, self.per_pod),
        }

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # The minimum does not keep the API server from a division by zero here.
            "!has(self.perPod) || self.perPod < 1 || self.count % self.perPod == 0",
            "must divide workers.count, since every pod holds the same number of workers; write a "
            "count that is a multiple of perPod, such as 16 for 2 pods with 8 workers each",
            lambda workers: workers.count % workers.per_pod == 0,
            "per_pod",
        ),
        Rule(
            "!has(self.minimum) || self.minimum < self.count",
            "must be less than workers.count, the number of workers at full size; lower it, or "
            "leave it out for a number of workers that stays",
            lambda workers: workers.minimum is None or workers.minimum < workers.count,
            "minimum",
        ),
        Rule(
            "!has(self.minimum) || !has(self.perPod) || self.perPod < 1 || "
            "self.minimum % self.perPod == 0",
            "must be a multiple of workers.perPod, since pods are lost and replaced as a whole; "
            "write a multiple, such as 8 for one pod with 8 workers",
            lambda workers: workers.minimum is None or workers.minimum % workers.per_pod == 0,
            "minimum",
        ),
        Rule(
            "!has(self.resizeSeconds) || has(self.minimum)",
            "needs workers.minimum, without which the number of workers stays; set it, or leave "
            "resizeSeconds out",
            lambda workers: (
                "resize_seconds" not in workers.model_fields_set or workers.minimum is not None
            ),
            "resize_seconds",
        ),
        Rule(
            "!has(self.globalBatch) || has(self.minimum)",
            "needs workers.minimum, without which the number of workers stays, and the batch with "
            "it; set it, or leave globalBatch out",
            lambda workers: (
                "global_batch" not in workers.model_fields_set or workers.minimum is not None
            ),
            "global_batch",
        ),
        Rule(
            "!has(self.accelerator) || self.accelerator.kind != 'tpu' || self.count == 1",
            "must be 1 with accelerator.kind tpu, since Ray places several workers with TPUs by "
            "the topology of a slice, which a TrainingRun does not have; write count: 1, and the "
            "chips of one machine as accelerator.count",
            lambda workers: (
                workers.accelerator is None
                or workers.accelerator.kind != "tpu"
                or workers.count == 1
            ),
            "count",
        ),
        Rule(
            "!has(self.accelerator) || self.accelerator.kind != 'tpu' || !has(self.standby) || "
            "self.standby == 0",
            "must be 0 with accelerator.kind tpu, whose worker is moved to no other pod; leave it "
            "out",
            lambda workers: (
                workers.accelerator is None
                or workers.accelerator.kind != "tpu"
                or workers.standby == 0
            ),
            "standby",
        ),
    )


class Head(Model):
    """The head: Ray's control store and the driver. It trains nothing."""

    resources: HeadResources = Field(default_factory=HeadResources)
    """What the head pod requests and is limited to."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """A PodTemplateSpec merged last over the rendered one; containers and env merge by name."""
