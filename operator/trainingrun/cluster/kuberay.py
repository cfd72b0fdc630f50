"""Whether the RayJob CRD is there and takes what this operator renders."""

from collections.abc import Mapping
from typing import Any, Literal

KubeRay = Literal["ok", "missing", "too-old"]

CRD = "rayjobs.ray.io"
CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"

NEEDED_FIELD = "preRunningDeadlineSeconds"
"""A field of RayJob's spec that came with KubeRay 1.6. The version itself is nowhere in the CRD,
and 1.5 replaces a lost head in HTTPMode without submitting the job again."""


def verdict(crd: Mapping[str, Any]) -> KubeRay:
    """Judges the CRD `rayjobs.ray.io` by the schema of its served v1."""
    for version in crd["spec"]["versions"]:
        if version["name"] == "v1" and version["served"]:
            schema = version["schema"]["openAPIV3Schema"]["properties"]
            return "ok" if NEEDED_FIELD in schema["spec"]["properties"] else "too-old"
    return "too-old"
