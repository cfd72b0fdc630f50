"""What is installed, here and in the cluster."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

from ..api.v1alpha1 import API_VERSION, KIND
from ..cluster.kuberay import crd_path
from .errors import ForbiddenError, NotFoundError

if TYPE_CHECKING:
    from .kube import Kube

OPERATOR = "app.kubernetes.io/component=trainingrun-operator"
"""Label of its Deployment."""
VERSION_LABEL = "app.kubernetes.io/version"
TIMEOUT_S = 5.0
"""Of each request: whoever asks what is wrong waits for no longer."""
_DEPLOYMENTS = "/apis/apps/v1/deployments"


def own_version() -> str:
    """This command's version."""
    try:
        return version("trainingrun")
    except PackageNotFoundError:
        return "not installed: run from its source"


class Deployment(NamedTuple):
    """The Deployment of an operator."""

    namespace: str
    name: str
    version: str
    """By its label; "": it has none."""
    image: str
    ready: int
    wanted: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables with a value, which references have not."""

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Deployment":
        """From the object."""
        metadata, spec = found["metadata"], found["spec"]
        container = spec["template"]["spec"]["containers"][0]
        return cls(
            metadata["namespace"],
            metadata["name"],
            (metadata.get("labels") or {}).get(VERSION_LABEL, ""),
            container.get("image", ""),
            (found.get("status") or {}).get("readyReplicas", 0),
            spec.get("replicas", 1),
            tuple(container.get("args") or ()),
            {each["name"]: each.get("value", "") for each in container.get("env") or ()},
        )

    def __str__(self) -> str:
        return f"Deployment {self.namespace}/{self.name} (image {self.image})"

    @property
    def log(self) -> str:
        """The command that shows its log."""
        return f"kubectl logs -n {self.namespace} deployment/{self.name}"


def in_cluster(kube: "Kube") -> list[tuple[str, str]]:
    """Versions of the CRD and of the operators, by name; one that may not be read is unknown.

    Raises:
        RunError: The cluster does not answer.
    """
    return [("CRD", _crd_version(kube)), *_operator_versions(kube)]


def _crd_version(kube: "Kube") -> str:
    try:
        found = kube.get(crd_path(API_VERSION, KIND), TIMEOUT_S, has="metadata")
    except NotFoundError:
        return "not installed"
    except ForbiddenError as error:
        return f"unknown ({error})"
    return labeled(found) or "not labeled"


def _operator_versions(kube: "Kube") -> list[tuple[str, str]]:
    try:
        found = deployments(kube, OPERATOR)
    except ForbiddenError as error:
        return [("operator", f"unknown ({error})")]
    return [("operator", f"{each.version or 'not labeled'}, {each}") for each in found] or [
        ("operator", "not installed")
    ]


def labeled(found: Mapping[str, Any]) -> str:
    """The version by its label; "": it has none."""
    return str((found["metadata"].get("labels") or {}).get(VERSION_LABEL, ""))


def deployments(kube: "Kube", labels: str) -> list[Deployment]:
    """The Deployments with these labels.

    Raises:
        RunError: The cluster does not answer, or refuses it.
    """
    found = kube.get(_DEPLOYMENTS, TIMEOUT_S, has="items", labelSelector=labels)
    return [Deployment.read(each) for each in found["items"]]
