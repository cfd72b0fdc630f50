"""spec.workers and spec.head: the pods."""

from typing import ClassVar, Literal

from pydantic import Field

from .base import Model, Rule, matching
from .pod_template import PodTemplate
from .quantities import Quantity, at_least, not_more
from .spec_fields import Whole, without_default

_CPU = at_least("cpu", "1m", "must be a quantity of cores of at least 1m, such as 500m or 4")
_MEMORY = at_least(
    "memory", "64Mi", "must be a quantity of bytes of at least 64Mi with its unit, such as 16Gi"
)

TPU_CHIPS = (1, 2, 4, 8)
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


class HeadResources(Model):
    """What the head pod requests and is limited to."""

    cpu: Quantity = "1"
    """CPU cores."""
    memory: Quantity = "4Gi"
    """Memory, in bytes with a suffix such as Gi."""

    rules: ClassVar[tuple[Rule, ...]] = (_CPU, _MEMORY)


class Accelerator(Model):
    """The accelerators of each worker; its pod has perPod times as many."""

    kind: Literal["nvidia", "amd", "tpu", "gaudi", "neuron"]
    """Whose device it is; this decides the resource name and the platform's tolerations. With tpu,
    workers.count is 1: the chips of one machine.
    """
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
        Rule(
            f"self.kind != 'tpu' || self.count in {list(TPU_CHIPS)}",
            "must be 1, 2, 4 or 8 for kind tpu, since Ray gives a worker no other number of chips",
            lambda accelerator: accelerator.kind != "tpu" or accelerator.count in TPU_CHIPS,
            "count",
        ),
    )


class Capacity(Model):
    """Which kind of node the workers run on. The head always runs on on-demand capacity."""

    type: Literal["OnDemand", "Spot", "PreferSpot"] = "OnDemand"
    """OnDemand and Spot require that capacity; PreferSpot takes spot where there is some."""


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
    resources: WorkerResources = Field(default_factory=WorkerResources)
    """What each worker requests and is limited to; its pod, perPod times as much."""
    accelerator: Accelerator | None = None
    """The accelerators of each worker. Default: none, CPU only."""
    placement: Literal["Pack", "Spread", "StrictPack", "StrictSpread"] = "Pack"
    """Whether worker pods share nodes: prefer, avoid, require or forbid it. Spread comes before
    capacity PreferSpot: a node without a worker of the run before a spot node that has one."""
    capacity: Capacity = Field(default_factory=Capacity)
    """Which kind of node the workers run on."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """A PodTemplateSpec merged last over the rendered one; containers and env merge by name."""

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
    )


class Head(Model):
    """The head: Ray's control store and the driver. It trains nothing."""

    resources: HeadResources = Field(default_factory=HeadResources)
    """What the head pod requests and is limited to."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """A PodTemplateSpec merged last over the rendered one; containers and env merge by name."""
