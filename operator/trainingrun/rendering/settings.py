"""What the operator's administrator sets and rendering needs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """How pods are rendered on this cluster."""

    image: str = "trainingrun-torch:dev"
    """Training image of runs that name none."""
    image_pull_policy: str = "IfNotPresent"
    """Pull policy of that image and of the runs' own."""
    platform: str = "generic"
    """Name of a file in `platforms/`: generic, gke, eks, karpenter or aks."""
    ray_version: str = "2.60.0"
    """Ray's version in the training image; KubeRay wants to know it."""
    operator_namespace: str = "trainingrun-system"
    """Namespace whose pods may read a run's progress: the NetworkPolicy lets them in."""
