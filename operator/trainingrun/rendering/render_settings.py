"""What the operator's administrator sets and rendering needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .platforms import PlatformName

KUBERAY_NAMESPACES = ("default",)
"""Where KubeRay's own manifests and its guide install it: assumed where nothing else is known."""


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """How pods are rendered on this cluster."""

    image: str = "trainingrun-torch:dev"
    """Training image of runs that name none."""
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
    token_key: str = field(default="", metadata={"internal": True})
    """Name of the operator's newest key, of which new tokens are. No setting: found at start."""
