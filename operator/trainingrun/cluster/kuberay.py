"""Whether KubeRay is there and new enough, and where its operator runs.

The runs' NetworkPolicies let in that namespace alone.

A pod or a Deployment with KubeRay's labels would be no proof, because every user of the cluster may
make one in a namespace of their own. The ClusterRoleBinding that gives KubeRay its rights is: only
an administrator writes it, and it names the service account that has them.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Literal

from ..rendering.platforms import KUBERAY_NAMESPACES
from .api_client import ClusterError, Connection, Forbidden, NotFound
from .resources import PLURALS

log = logging.getLogger(__name__)

BINDING = "kuberay-operator"
"""Its name in KubeRay's manifests, and in its chart where the release is named after the chart."""
BINDING_PATH = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{BINDING}"

AGAIN_S = 300.0
"""Between two reads once it is found, or could never be read: KubeRay is hardly ever moved."""


def namespaces_of(binding: Mapping[str, Any]) -> tuple[str, ...]:
    """The namespaces of the service accounts that a ClusterRoleBinding names."""
    accounts = [one for one in binding.get("subjects") or () if one.get("kind") == "ServiceAccount"]
    return tuple(sorted({one["namespace"] for one in accounts if one.get("namespace")}))


class KubeRayNamespaces:
    """Reads KubeRay's ClusterRoleBinding and keeps its subjects' namespaces."""

    def __init__(self, connection: Connection, retry_s: float):
        """Nothing is read until `run`; `retry_s` passes between reads that find nothing."""
        self._connection, self._retry_s = connection, retry_s
        self._answered = asyncio.Event()
        self.namespaces: tuple[str, ...] = ()
        """The namespaces; empty: the binding is not there, or could never be read."""

    async def known(self) -> None:
        """Waits for the first answer of the API server."""
        await self._answered.wait()

    async def run(self) -> None:
        """Reads it again and again until cancelled."""
        while True:
            wait_s = await self._read()
            await asyncio.sleep(wait_s)

    async def _read(self) -> float:
        """Reads it once; seconds until the next time."""
        # What was found stays while nothing is said of it: a role may be taken away for a moment,
        # and a change would close the running runs' NetworkPolicies to KubeRay.
        found, wait_s = self.namespaces, self._retry_s
        try:
            named = namespaces_of(await self._connection.request("GET", BINDING_PATH))
            if named:
                found, wait_s = named, AGAIN_S
        except NotFound:
            found = ()
        except Forbidden:
            if not found:
                wait_s = AGAIN_S  # confined to namespaces, it may never read it
        except ClusterError as error:
            log.warning("KubeRay's ClusterRoleBinding: %s", error)
            return min(2.0, self._retry_s)
        if found != self.namespaces or not self._answered.is_set():
            _log(found)
        self.namespaces = found
        self._answered.set()
        return wait_s


def _log(namespaces: tuple[str, ...]) -> None:
    if namespaces:
        log.info("KubeRay's operator is in %s", ", ".join(namespaces))
    else:
        log.warning(
            "ClusterRoleBinding %s cannot be read; KubeRay is taken to be in namespace %s: if it "
            "is in another, set kuberayNamespaces",
            BINDING,
            ", ".join(KUBERAY_NAMESPACES),
        )


KubeRay = Literal["ok", "missing", "too-old"]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

NEEDED_FIELD = "preRunningDeadlineSeconds"
"""A field of RayJob's spec that came with KubeRay 1.6. The version itself is nowhere in the CRD,
and 1.5 replaces a lost head in HTTPMode without submitting the job again."""


def crd_path(api_version: str, kind: str) -> str:
    """URL path of the CRD of a kind, which is `<plural>.<group>`."""
    return f"{CRDS}/{PLURALS[api_version, kind]}.{api_version.partition('/')[0]}"


def crd_verdict(crd: Mapping[str, Any]) -> KubeRay:
    """Checks the CRD `rayjobs.ray.io` by the schema of its served v1."""
    for version in crd["spec"]["versions"]:
        if version["name"] == "v1" and version["served"]:
            schema = version["schema"]["openAPIV3Schema"]
            spec = schema.get("properties", {}).get("spec", {})
            return "ok" if NEEDED_FIELD in spec.get("properties", {}) else "too-old"
    return "too-old"
