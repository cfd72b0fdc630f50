"""Which pod is a run's head: the one whose chain of owners leads to the run.

Labels alone decide nothing: whoever may create pods can label one like a run's head.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..api.contract import PROGRESS_PORT
from ..cluster.object_store import Object
from ..reconciling.pod_status import controller_uid
from ..rendering.names import ATTEMPT_LABEL, HEAD, ROLE_LABEL, RUN_UID_LABEL, TOKEN_KEY_LABEL


@dataclass(frozen=True, slots=True)
class Target:
    """A head pod to poll."""

    pod_uid: str
    url: str
    """Such as `http://10.0.0.7:8484`."""
    token_key: str = ""
    """Name of the operator's key that its token is of."""


def head_of(
    pods: Iterable[Object],
    ray_clusters: Iterable[Object],
    ray_jobs: Iterable[Object],
    uid: str,
    attempt: int,
) -> Target | None:
    """The attempt's head among a run's pods, if it runs, has an address and is the run's own.

    Its controller is a RayCluster, whose controller is a RayJob, whose controller is the run `uid`.
    One that is terminating is polled as well, while there is no other: it may have final progress.
    """
    jobs = {job["metadata"]["uid"] for job in ray_jobs if controller_uid(job, "TrainingRun") == uid}
    clusters = {
        cluster["metadata"]["uid"]
        for cluster in ray_clusters
        if controller_uid(cluster, "RayJob") in jobs
    }
    wanted = {RUN_UID_LABEL: uid, ATTEMPT_LABEL: str(attempt), ROLE_LABEL: HEAD}
    found = None
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        address = status.get("podIP")
        if not address or status.get("phase") != "Running":
            continue
        if not wanted.items() <= metadata.get("labels", {}).items():
            continue
        if controller_uid(pod, "RayCluster") not in clusters:
            continue
        host = f"[{address}]" if ":" in address else address
        key = metadata["labels"].get(TOKEN_KEY_LABEL, "")
        target = Target(metadata["uid"], f"http://{host}:{PROGRESS_PORT}", key)
        if not metadata.get("deletionTimestamp"):
            return target
        found = target
    return found
