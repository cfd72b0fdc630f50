"""What differs between clouds, as data: one YAML file each; `load` reads it.

`generic.yaml` says what every key means; another file replaces the keys that it names.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import yaml

from ..merge import merge

PlatformName = Literal["generic", "gke", "eks", "karpenter", "aks"]
"""Name of a file in this folder."""

KNOWN: tuple[PlatformName, ...] = get_args(PlatformName)

EXIT_SECONDS = 5
"""What is left of the grace period, after the preStop hook, for Ray to end."""


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of accelerator."""

    resource: str
    """Its resource name in Kubernetes."""
    ray: str
    """Its resource name in Ray."""
    product_label: str
    """Node label that holds the product's name."""
    tolerations: tuple[dict[str, Any], ...]
    """For the taints that keep other pods off its nodes."""


@dataclass(frozen=True, slots=True)
class Platform:
    """One cloud."""

    termination_grace_period_s: int
    """Seconds from a pod's preemption notice to its end, preStop hook included."""
    spot_labels: tuple[tuple[str, str], ...]
    """Labels of spot nodes; pods for spot capacity require one of them."""
    on_demand_excludes: tuple[tuple[str, str], ...]
    """Labels of nodes that on-demand pods exclude."""
    spot_tolerations: tuple[dict[str, Any], ...]
    """For the taints of spot nodes."""
    head_annotations: dict[str, str]
    """Prevent voluntary disruptions of the head."""
    devices: dict[str, Device]
    """Accelerators, by the API's kind."""


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
    data = merge(_file("generic"), _file(name))
    spot = data["spot"]
    return Platform(
        termination_grace_period_s=data["terminationGracePeriodSeconds"],
        spot_labels=tuple((label["key"], label["value"]) for label in spot["spotLabels"]),
        on_demand_excludes=tuple(
            (label["key"], label["value"]) for label in spot["onDemandExcludes"]
        ),
        spot_tolerations=tuple(spot["tolerations"]),
        head_annotations=data["headAnnotations"],
        devices={
            kind: Device(
                resource=device["resource"],
                ray=device["ray"],
                product_label=device["productLabel"],
                tolerations=tuple(device["tolerations"]),
            )
            for kind, device in data["accelerators"].items()
        },
    )


def _file(name: str) -> dict[str, Any]:
    text = resources.files(__package__).joinpath(f"{name}.yaml").read_text("utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data
