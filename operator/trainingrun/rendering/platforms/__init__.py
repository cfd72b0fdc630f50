"""What differs between clusters: what the administrator sets, and the cloud.

A cloud is data, one YAML file each; `load` reads it.
`generic.yaml` says what every key means; another file replaces the keys that it names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple, get_args

import yaml

from ...api.base import Model
from ..merge import merge

PlatformName = Literal["generic", "gke", "eks", "karpenter", "aks"]
"""Name of a file in this folder."""

KNOWN: tuple[PlatformName, ...] = get_args(PlatformName)

EXIT_SECONDS = 5
"""What is left of the grace period, after the preStop hook, for Ray to end."""


class Label(NamedTuple):
    """A label of nodes."""

    key: str
    value: str


class Spot(Model):
    """Spot capacity."""

    spot_labels: tuple[Label, ...]
    """Labels of spot nodes; pods for spot capacity require one of them."""
    on_demand_excludes: tuple[Label, ...]
    """Labels of nodes that on-demand pods exclude."""
    tolerations: tuple[dict[str, Any], ...]
    """For the taints of spot nodes."""


class Device(Model):
    """One kind of accelerator."""

    resource: str
    """Its resource name in Kubernetes."""
    ray: str
    """Its resource name in Ray."""
    product_label: str
    """Node label that holds the product's name."""
    tolerations: tuple[dict[str, Any], ...]
    """For the taints that keep other pods off its nodes."""


class Platform(Model):
    """One cloud."""

    termination_grace_period_seconds: int
    """From a pod's preemption notice to its end, preStop hook included."""
    spot: Spot
    """Spot capacity."""
    head_annotations: dict[str, str]
    """Prevent voluntary disruptions of the head."""
    accelerators: dict[str, Device]
    """By the API's kind."""


def known_name(text: str) -> PlatformName:
    """The text as the name of a platform.

    Raises:
        ValueError: there is none of that name.
    """
    for name in KNOWN:
        if name == text:
            return name
    raise ValueError(f"platform is {text!r}; use one of {', '.join(KNOWN)}")


@cache
def load(name: PlatformName) -> Platform:
    """The platform of that name."""
    return Platform.model_validate(merge(_file("generic"), _file(name)))


@cache
def capacity_labels() -> tuple[str, ...]:
    """Keys of the labels by which the platforms tell spot nodes from others."""
    spots = [load(name).spot for name in KNOWN]
    labels = [label for spot in spots for label in (*spot.spot_labels, *spot.on_demand_excludes)]
    return tuple(sorted({label.key for label in labels}))


def capacity_of(platform: PlatformName, labels: Mapping[str, str]) -> Literal["OnDemand", "Spot"]:
    """The capacity of a node with these labels."""
    spot = load(platform).spot
    known = (*spot.spot_labels, *spot.on_demand_excludes)
    found = any(labels.get(label.key) == label.value for label in known)
    return "Spot" if found else "OnDemand"


def _file(name: str) -> dict[str, Any]:
    text = resources.files(__package__).joinpath(f"{name}.yaml").read_text("utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


KUBERAY_NAMESPACES = ("default",)
"""Where KubeRay's own manifests and its guide install it: assumed where nothing else is known."""


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """How pods are rendered on this cluster."""

    image: str = "registry.example.com/trainingrun-torch:0.1.0"
    """Training image of runs that name none: the release's own, written here by `make generate`."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Pull policy of that image and of the runs' own."""
    platform: PlatformName = "generic"
    """The cloud of the nodes: a file in `platforms/`."""
    ray_version: str = "2.60.0"
    """Ray's version in the training image; KubeRay requires it."""
    ray_auth: Literal["token", "disabled"] = "token"
    """`token`: each Ray cluster takes only requests with its own token, which KubeRay makes.
    `disabled`: whoever reaches Ray's ports runs code there."""
    operator_namespace: str = "trainingrun-system"
    """The operator's own namespace: its pods there may read a run's progress, and no run is begun
    in it."""
    kuberay_namespaces: tuple[str, ...] = ()
    """Namespaces of KubeRay's operator: its pods there may reach Ray's dashboard. Empty: found
    in KubeRay's ClusterRoleBinding, else `default`."""
    metrics_from: tuple[Mapping[str, Any], ...] = ()
    """Who may read the metrics of runs, at port 8484 of their heads: peers as in NetworkPolicy's
    `from`, in JSON. Empty: nobody but the operator."""
    pod_security_context: Mapping[str, Any] | None = None
    """The securityContext of pods, in JSON, before a podTemplate is merged over them. Empty:
    runAsNonRoot, user, group and fsGroup 1000, and the runtime's seccomp profile."""
    history_collector: Mapping[str, Any] | None = None
    """The `collectorOptions` of a RayCluster's `historyServerOptions`, in JSON: KubeRay 1.7 adds
    the collector of its history server to each pod. Empty: none."""
    token_key: str = field(default="", metadata={"internal": True})
    """Name of the operator's newest key, of which new tokens are. No setting: found at start."""
