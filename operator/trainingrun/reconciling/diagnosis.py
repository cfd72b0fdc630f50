"""Why a run does not come off the ground: one sentence with what is wrong and what to do.

None of this ends an attempt or uses up a budget: once the cause is mended, the pods start.
"""

import re
from typing import NamedTuple

from ..api.contract import Progress
from ..api.status import Attempt
from . import pods
from .draft import Draft
from .model import Manifest
from .scene import Scene
from .texts import short

MOUNT_PATIENCE_S = 30.0
"""A container that is being created for longer waits for a volume; Kubernetes says so in events
only."""

IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)

_MISSING = re.compile(r'(secret|configmap) "([^"]+)" not found', re.IGNORECASE)
_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)", re.IGNORECASE)
_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9./_-]*[A-Za-z0-9])")


class Trouble(NamedTuple):
    """What keeps the run from going on."""

    reason: str
    message: str


def of_namespace(scene: Scene) -> Trouble | None:
    """Whether training may run in this namespace at all: not beside the operator.

    Whoever creates a run chooses what its pods mount and which service account they have. In the
    operator's own namespace that would be the operator's key and the operator's rights.
    """
    namespace = scene.run.metadata.namespace
    if namespace != scene.render.operator_namespace:
        return None
    return Trouble(
        "InOperatorNamespace",
        f"Namespace {namespace} is the operator's own, and its pods could take the operator's key "
        "and rights; create the run in another namespace",
    )


def of_access(scene: Scene) -> Trouble | None:
    """What the API server tells nothing of at the moment."""
    stale = scene.observed.stale
    if not stale:
        return None
    kinds = sorted(stale)
    return Trouble(
        "ApiAccessLost",
        f"The operator has no news of {' and '.join(f'{kind}s' for kind in kinds)}: "
        f"{stale[kinds[0]]}; what runs goes on, and nothing is decided on what seems missing",
    )


def of_storage(word: Progress | None) -> Trouble | None:
    """What the driver says of a bucket that does not answer."""
    if word is None or word.storage_error is None:
        return None
    return Trouble(
        "StorageUnavailable",
        f"{short(word.storage_error, 500)}; training goes on, uploads and commits wait",
    )


def of_kuberay(scene: Scene) -> Trouble | None:
    """Whether KubeRay is there and new enough."""
    if scene.observed.kuberay == "missing":
        return Trouble(
            "KubeRayMissing",
            "The cluster has no RayJob resource (rayjobs.ray.io); install KubeRay 1.6 or later",
        )
    if scene.observed.kuberay == "too-old":
        return Trouble(
            "KubeRayTooOld",
            "The cluster's RayJob resource does not know submissionMode HTTPMode; upgrade KubeRay "
            "and its CRDs to 1.6 or later",
        )
    return None


def of_pods(scene: Scene, draft: Draft, attempt: Attempt) -> Trouble | None:
    """What the attempt's pods and RayCluster complain about; the gravest first."""
    found = sorted(
        scene.index(attempt.number).unwell,
        key=lambda pod: (not pods.is_head(pod), pods.name(pod)),
    )
    for pod in found:
        trouble = _of_containers(scene, pod)
        if trouble:
            return trouble
    for cluster in scene.clusters(attempt.number):
        trouble = _of_cluster(cluster)
        if trouble:
            return trouble
    for pod in found:
        trouble = _of_scheduling(pod)
        if trouble:
            return trouble
    return None


def _of_containers(scene: Scene, pod: Manifest) -> Trouble | None:
    for reason, message in pods.waiting(pod):
        if reason in IMAGE_REASONS:
            image = scene.run.spec.image or scene.render.image
            return Trouble(
                "ImageCannotBePulled",
                f"Image {image} cannot be pulled ({_brief(message) or reason}); check its name "
                "and the pull secret",
            )
        if reason in ("CreateContainerConfigError", "CreateContainerError"):
            return _of_config(scene, message)
        if reason == "ContainerCreating":
            trouble = _of_mounts(scene, pod)
            if trouble:
                return trouble
    return None


def _of_config(scene: Scene, message: str) -> Trouble | None:
    missing = _MISSING.search(message)
    if missing:
        kind = {"secret": "Secret", "configmap": "ConfigMap"}[missing.group(1).lower()]
        name = missing.group(2)
        if name in {found["metadata"]["name"] for found in scene.observed.ray_clusters}:
            return Trouble(
                "RayTokenMissing",
                f"KubeRay has not made Secret {name}, which holds the token of Ray's API; see the "
                "log of KubeRay's operator, or set the chart's training.rayAuth to disabled",
            )
        return Trouble(
            f"{kind}Missing",
            f"{kind} {name} does not exist in namespace {scene.run.metadata.namespace}; create "
            "it, and the pods start",
        )
    key = _KEY.search(message)
    if key:
        return Trouble(
            "KeyMissing",
            f"{key.group(2)} {key.group(3)} has no key {key.group(1)}; add it, and the pods start",
        )
    return Trouble("ContainerConfigInvalid", f"A container cannot start: {_brief(message)}")


def _of_mounts(scene: Scene, pod: Manifest) -> Trouble | None:
    script = scene.run.spec.training.script
    scheduled = pods.scheduled_at(pod)
    if script is None or scheduled is None:
        return None
    if (scene.now - scheduled).total_seconds() < MOUNT_PATIENCE_S:
        return None
    return Trouble(
        "ScriptNotMounted",
        f"Pod {pods.name(pod)} waits for its volumes; check that ConfigMap {script.config_map} "
        f"exists in namespace {scene.run.metadata.namespace} and has key {script.file}",
    )


def _of_cluster(cluster: Manifest) -> Trouble | None:
    found = pods.condition(cluster, "ReplicaFailure")
    if not found or found.get("status") != "True":
        return None
    message = _brief(str(found.get("message", "")))
    if "exceeded quota" in message:
        return Trouble(
            "QuotaExceeded", f"The namespace's quota refuses a pod: {message}; raise it or ask less"
        )
    return Trouble("PodsRefused", f"KubeRay cannot create a pod: {message}")


def _of_scheduling(pod: Manifest) -> Trouble | None:
    found = pods.condition(pod, "PodScheduled")
    if found is None or not pods.unschedulable(pod):
        return None
    message = str(found.get("message", ""))
    scarce = sorted(set(_INSUFFICIENT.findall(message)))
    requests = _requests(pod)
    lacks = [
        f"{name} (the pod asks for {requests[name]})" if name in requests else name
        for name in scarce
    ]
    what = f"no node has enough {' and '.join(lacks)} free" if lacks else "no node takes it"
    return Trouble(
        "Unschedulable",
        f"Pod {pods.name(pod)} cannot be scheduled: {what}; the scheduler says: {_brief(message)}",
    )


def _requests(pod: Manifest) -> dict[str, str]:
    found: dict[str, str] = {}
    for container in pod.get("spec", {}).get("containers") or ():
        found.update((container.get("resources") or {}).get("requests") or {})
    return found


def _brief(message: str) -> str:
    return short(message, 300)
