"""States in which nothing moves and nobody says why: each gets a sentence, and help if it is safe.

Deletions name the very object by its UID, and only what belongs to the run by its labels and by its
chain of owners is deleted.
"""

from collections.abc import Sequence

from ..api.status import Attempt
from ..rendering import names
from . import pods
from .diagnosis import Trouble
from .draft import Draft
from .model import Delete, Manifest
from .moments import seconds_since, written
from .scene import RAY_API, Scene
from .silence import wanted_pods

KUBERAY_SILENT_S = 60.0
"""How long KubeRay may do nothing about a RayJob or about missing pods before the status says so.
It makes pods within seconds; one that starts 300 RayJobs at once takes 13 s."""

DELETION_S = 60.0
"""How long a deletion may take beyond its grace period before the status says what holds it."""

ORPHAN_S = 30.0
"""How long the garbage collector may take after an attempt's end before the operator deletes what
its RayJob has left: it was deleted with `--cascade=orphan`."""


def of_attempt(scene: Scene, draft: Draft, attempt: Attempt) -> Trouble | None:
    """What does not move in a running attempt; asked after all that explains itself."""
    if not scene.can_be_empty or scene.taken_back(attempt.number) or draft.ledger.end_seen:
        _complete(draft)
        return None
    job, index = scene.job(attempt.number), scene.index(attempt.number)
    if job is None or seconds_since(attempt.start_time, scene.now) < KUBERAY_SILENT_S / 2:
        _complete(draft)
        return None
    hanging = _terminating(scene, draft, index.unwell)
    if hanging:
        return hanging
    leaving = [pod for pod in index.unwell if pods.leaving(pod)]
    gone = sum(1 for pod in index.unwell if pods.leaving(pod) or pods.ended(pod))
    missing = wanted_pods(scene, draft) - (len(index.all) - gone)
    if missing <= 0 or leaving:
        _complete(draft)
        return None
    if draft.ledger.incomplete_since is None:
        draft.note(incomplete_since=written(scene.now))
    if seconds_since(draft.ledger.incomplete_since or "", scene.now) < KUBERAY_SILENT_S:
        return None
    return Trouble(
        "KubeRaySilent",
        f"KubeRay makes {missing} missing pods of RayJob {attempt.ray_job} for over "
        f"{round(KUBERAY_SILENT_S)} s; look whether its operator runs, watches namespace "
        f"{scene.run.metadata.namespace} and keeps up",
    )


def of_leftovers(scene: Scene, draft: Draft) -> Trouble | None:
    """What of an ended attempt does not go; deletes what nobody else would."""
    ended = _ended_s(scene, draft)
    found: list[Trouble | None] = [
        _held(scene, "RayJob", job) for _, job in sorted(scene.own_jobs().items())
    ]
    held_jobs = any(found)
    for cluster in scene.clusters():
        orphaned = ended >= ORPHAN_S and _owner_is_gone(scene, cluster)
        if pods.leaving(cluster):
            found.append(_held(scene, "RayCluster", cluster))
        elif held_jobs or orphaned:
            found.append(_delete_ours(scene, draft, "RayCluster", RAY_API, "RayJob", cluster))
    if ended >= ORPHAN_S and not scene.own_jobs() and not scene.clusters() and scene.can_be_empty:
        for pod in scene.pods():
            if not pods.leaving(pod):
                found.append(_delete_ours(scene, draft, "Pod", "v1", "RayCluster", pod))
    found.append(_terminating(scene, draft, scene.pods()))
    return next((trouble for trouble in found if trouble), None)


def _complete(draft: Draft) -> None:
    if draft.ledger.incomplete_since is not None:
        draft.note(incomplete_since=None)


def _ended_s(scene: Scene, draft: Draft) -> float:
    last = draft.status.attempts[-1] if draft.status.attempts else None
    end = draft.status.completion_time or (last.end_time if last else None)
    return seconds_since(end, scene.now) if end else 0.0


def _held(scene: Scene, kind: str, item: Manifest) -> Trouble | None:
    """A deletion that somebody's finalizer holds up."""
    asked = item["metadata"].get("deletionTimestamp")
    if not asked or seconds_since(asked, scene.now) < DELETION_S:
        return None
    holders = ", ".join(item["metadata"].get("finalizers") or ()) or "none"
    name, namespace = pods.name(item), scene.run.metadata.namespace
    return Trouble(
        "DeletionHangs",
        f"{kind} {name} is being deleted since {asked} and is still there (finalizers: {holders}); "
        "look whether KubeRay's operator runs, or take the finalizers away: kubectl patch "
        f"{kind.lower()} {name} -n {namespace} --type=merge -p "
        '\'{"metadata":{"finalizers":null}}\'',
    )


def _terminating(scene: Scene, draft: Draft, found: Sequence[Manifest]) -> Trouble | None:
    """A pod that outstays its grace period although nothing is wrong with its node."""
    for pod in found:
        late_s = pods.overdue_s(pod, scene.now)
        if late_s is None or late_s < DELETION_S:
            continue
        name, namespace = pods.name(pod), scene.run.metadata.namespace
        finalizers = pod["metadata"].get("finalizers")
        if finalizers:
            return _held(scene, "Pod", pod)
        if pods.all_containers_ended(pod):
            # The kubelet itself says that no process is left; only the object is.
            draft.do(Delete(pods.pod_ref(pod), grace_s=0))
        return Trouble(
            "PodTerminating",
            f"Pod {name} outstays its grace period for over {round(DELETION_S)} s on node "
            f"{pods.node_name(pod)}; look at that node's kubelet, or free the pod: kubectl delete "
            f"pod {name} -n {namespace} --force",
        )
    return None


def _owner_is_gone(scene: Scene, cluster: Manifest) -> bool:
    if scene.unknown("RayJob"):
        return False
    number = cluster["metadata"].get("labels", {}).get(names.ATTEMPT_LABEL, "")
    return not number.isdecimal() or scene.job(int(number)) is None


def _delete_ours(
    scene: Scene, draft: Draft, kind: str, api_version: str, owner: str, item: Manifest
) -> Trouble | None:
    """Delete what its owner has left behind, unless it belongs to somebody else."""
    owners = item["metadata"].get("ownerReferences") or ()
    ours = f"{scene.run.metadata.name}-"
    stranger = next(
        (
            known
            for known in owners
            if known.get("kind") != owner or not str(known.get("name", "")).startswith(ours)
        ),
        None,
    )
    if stranger is None:
        draft.do(Delete(pods.ref(item, api_version, kind)))
        return None
    return Trouble(
        "ForeignObject",
        f"{kind} {pods.name(item)} has this run's labels but belongs to {stranger.get('kind')} "
        f"{stranger.get('name')}; delete it, or take the labels away, and the run goes on",
    )
