"""Whether the RayJob CRD is there and takes what this operator renders."""

from collections.abc import Mapping
from typing import Any, Literal

from .resources import PLURALS

KubeRay = Literal["ok", "missing", "too-old"]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

NEEDED_FIELD = "preRunningDeadlineSeconds"
"""A field of RayJob's spec that came with KubeRay 1.6. The version itself is nowhere in the CRD,
and 1.5 replaces a lost head in HTTPMode without submitting the job again."""


def crd_path(api_version: str, kind: str) -> str:
    """URL path of the CRD of a kind, which is `<plural>.<group>`."""
    return f"{CRDS}/{PLURALS[api_version, kind]}.{api_version.partition('/')[0]}"


def verdict(crd: Mapping[str, Any]) -> KubeRay:
    """Checks the CRD `rayjobs.ray.io` by the schema of its served v1."""
    for version in crd["spec"]["versions"]:
        if version["name"] == "v1" and version["served"]:
            schema = version["schema"]["openAPIV3Schema"]["properties"]
            return "ok" if NEEDED_FIELD in schema["spec"]["properties"] else "too-old"
    return "too-old"
