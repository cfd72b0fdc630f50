"""Which pod is a run's head: the one whose chain of owners leads to the run.

Labels alone decide nothing: whoever may create pods can label one like a run's head. Its progress
document is read with bounded cost, since the pod runs the user's code: what a healthy runtime could
exceed is cut (see `trainingrun_protocol.wire`), and what it never sends is refused.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import ValidationError

from trainingrun_protocol.contract import PROGRESS_PORT
from trainingrun_protocol.progress import Progress

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


MAX_BYTES = 2**18
"""A longer document is refused. 100 records of 1,000 characters fit; parsing one that is as long
takes a few milliseconds of the event loop."""


class DocumentError(ValueError):
    """The document cannot be used; the text says why and holds nothing of the document."""


def read_document(content: bytes) -> Progress:
    """The document in `content`.

    Raises:
        DocumentError: it is too long, no JSON, or not a document of this contract.
    """
    if len(content) > MAX_BYTES:
        raise DocumentError(f"it is longer than {MAX_BYTES // 1024} KiB")
    try:
        found: Any = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise DocumentError("it is not JSON, or nested too deeply") from None
    try:
        return Progress.model_validate(found)
    except ValidationError as error:
        names = sorted(
            {_document_field(problem["loc"]) for problem in error.errors(include_input=False)}
        )
        raise DocumentError(f"its {', '.join(names[:5])} cannot be read") from None


def _document_field(location: tuple[str | int, ...]) -> str:
    """The document's own field, never a key that the sender chose."""
    known = set(Progress.model_fields)
    known |= {str(one.alias) for one in Progress.model_fields.values()}
    return str(location[0]) if location and location[0] in known else "content"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
