"""The kinds that the operator touches, and where each lives in the API."""

from collections.abc import Mapping
from typing import Any

from ..api.defaults import (
    CLUSTER_DEFAULTS_KIND,
    CLUSTER_DEFAULTS_PLURAL,
    DEFAULTS_KIND,
    DEFAULTS_PLURAL,
)
from ..api.v1alpha1 import API_VERSION, KIND, PLURAL
from ..reconciling.model import Ref

RAY_API = "ray.io/v1"

PLURALS: Mapping[tuple[str, str], str] = {
    (API_VERSION, KIND): PLURAL,
    (API_VERSION, DEFAULTS_KIND): DEFAULTS_PLURAL,
    (API_VERSION, CLUSTER_DEFAULTS_KIND): CLUSTER_DEFAULTS_PLURAL,
    (RAY_API, "RayJob"): "rayjobs",
    (RAY_API, "RayCluster"): "rayclusters",
    ("v1", "Pod"): "pods",
    ("v1", "Node"): "nodes",
    ("v1", "Secret"): "secrets",
    ("v1", "Event"): "events",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
}


def path(api_version: str, kind: str, namespace: str | None = None, name: str | None = None) -> str:
    """URL path of an object, or without `name` of its collection.

    Raises:
        KeyError: a kind that this operator has no rights to anyway.
    """
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    if namespace:
        root += f"/namespaces/{namespace}"
    root += f"/{PLURALS[api_version, kind]}"
    return f"{root}/{name}" if name else root


def path_of(ref: Ref) -> str:
    """URL path of the object that `ref` names."""
    return path(ref.api_version, ref.kind, ref.namespace, ref.name)


def path_of_manifest(manifest: Mapping[str, Any], collection: bool = False) -> str:
    """URL path of a manifest's object, or of its collection."""
    metadata = manifest["metadata"]
    name = None if collection else metadata["name"]
    return path(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), name)
