"""Why a run does not start: one sentence with what is wrong and what to do.

None of this ends an attempt or uses up a budget: once the cause is corrected, the pods start.
"""

import re
from datetime import datetime

from trainingrun_protocol.progress import Progress, RunState

from ...api.reasons import ConditionReason
from ...api.status import Attempt
from ...api.v1alpha1 import KUEUE_QUEUE
from .. import pod_status
from ..context import ReconcileContext
from ..findings import Blocker, StatusDraft
from ..losses.signs import is_refused
from ..model import Object
from ..texts import short
from . import hung_pods

MOUNT_PATIENCE_S = 30.0
"""How long a pod's volumes may take before the status reports it; Kubernetes says which one is
missing only in events."""

SET_UP_PATIENCE_S = 60.0
"""The same where no volume of the run's own is known: to attach a disk takes a while."""

RETRY_PATIENCE_S = 120.0
"""How long after a pod got its node a kubelet may fail for a moment: it tries again by itself."""

_NETWORK = ("timeout", "timed out", "deadline exceeded", "connection re", "eof", "temporary")
_PULL_MAY_PASS = (
    *_NETWORK,
    "too many requests",
    "toomanyrequests",
    "qps exceeded",
    "unavailable",
)
"""What a kubelet says, in lower case, of a pull that fails and whose next try may succeed."""

KUBERAY_CONTROLLER = "ray.io/kuberay-operator"
"""`spec.managedBy` of what KubeRay's operator runs; it may also be left out."""

_CREATION_MAY_PASS = (*_NETWORK, "failed to sync")
"""The same of a container that it cannot create."""

SCHEDULER_PATIENCE_S = 60.0
"""How long a pod may wait for its scheduler's first word before the status reports it."""

IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)

_MISSING = re.compile(r'(secret|configmap) "([^"]+)" not found', re.IGNORECASE)
_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)", re.IGNORECASE)
_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9./_-]*[A-Za-z0-9])")


def of_namespace(context: ReconcileContext) -> Blocker | None:
    """Whether training may run in this namespace at all: not beside the operator.

    Whoever creates a run chooses what its pods mount and which service account they have. In the
    operator's own namespace that would be the operator's key and the operator's rights.
    """
    namespace = context.run.metadata.namespace
    if namespace != context.render.operator_namespace:
        return None
    return Blocker(
        ConditionReason.IN_OPERATOR_NAMESPACE,
        f"Namespace {namespace} is the operator's own, and its pods could take the operator's key "
        "and rights; create the run in another namespace",
    )


def of_access(context: ReconcileContext) -> Blocker | None:
    """The kinds of which lists and watches fail at present."""
    stale = context.observed.stale
    if not stale:
        return None
    kinds = sorted(stale)
    return Blocker(
        ConditionReason.API_ACCESS_LOST,
        f"The operator has no news of {' and '.join(f'{kind}s' for kind in kinds)}: "
        f"{stale[kinds[0]]}; what runs continues, and nothing is decided on what seems missing",
    )


def of_storage(progress: Progress | None) -> Blocker | None:
    """The driver's report of a bucket that does not answer."""
    if progress is None or progress.storage_error is None:
        return None
    goes_on = "training continues, uploads and commits wait"
    effect = goes_on if progress.state is RunState.TRAINING else "training waits for it"
    return Blocker(
        ConditionReason.STORAGE_UNAVAILABLE, f"{short(progress.storage_error, 500)}; {effect}"
    )


def of_ranks(progress: Progress | None) -> Blocker | None:
    """The driver's report of a hang, or of ranks that wait for others."""
    if progress is None:
        return None
    if progress.hang is not None and progress.hang.under_way:
        return Blocker(ConditionReason.HANG, short(progress.hang.message, 500))
    if progress.standstill is None:
        return None
    return Blocker(ConditionReason.RANKS_WAIT, short(progress.standstill, 500))


def of_quota(what: str, message: str) -> Blocker | None:
    """Whether a ResourceQuota refuses an object, by the API server's message."""
    if "exceeded quota" not in message:
        return None
    return Blocker(
        ConditionReason.QUOTA_EXCEEDED,
        f"The namespace's quota refuses {what}: {message}; raise it or request less",
    )


def of_kuberay(context: ReconcileContext) -> Blocker | None:
    """Whether KubeRay is there and new enough."""
    if context.observed.kuberay == "missing":
        return Blocker(
            ConditionReason.KUBERAY_MISSING,
            "The cluster has no RayJob resource (rayjobs.ray.io); install KubeRay 1.6 or later",
        )
    if context.observed.kuberay == "too-old":
        return Blocker(
            ConditionReason.KUBERAY_TOO_OLD,
            "The cluster's RayJob resource does not know submissionMode HTTPMode; upgrade KubeRay "
            "and its CRDs to 1.6 or later",
        )
    return None


def of_manager(context: ReconcileContext, attempt: Attempt) -> Blocker | None:
    """Whether another controller than KubeRay's is to run the RayJob: Kueue's webhook sets the
    field, which nobody may change afterwards, where the queue dispatches to other clusters.
    """
    job = context.job(attempt.number)
    manager = (job.get("spec") or {}).get("managedBy") if job else None
    if manager in (None, KUBERAY_CONTROLLER):
        return None
    return Blocker(
        ConditionReason.MANAGED_ELSEWHERE,
        f"RayJob {attempt.ray_job} is managed by {short(str(manager), 100)}, so that KubeRay in "
        "this cluster leaves it alone; delete the run, and create it with a queue that admits in "
        "this cluster, or in the other cluster itself",
    )


def of_queue(context: ReconcileContext, attempt: Attempt) -> Blocker | None:
    """What a run waits for that Kueue has not admitted, or from which it took the capacity back."""
    job = context.job(attempt.number)
    queue = (job["metadata"].get("labels") or {}).get(KUEUE_QUEUE) if job else None
    if job is None or not context.suspended_by_queue(attempt.number):
        return None
    if queue is None:
        return _of_no_queue(context, attempt)
    what = f"Kueue has not admitted RayJob {attempt.ray_job} to queue {queue}"
    wait, namespace = context.observed.queue_wait, context.run.metadata.namespace
    if wait:
        return Blocker(ConditionReason.QUEUED, f"{what}: {_brief(wait)}")
    if wait == "" and _lasts(context, pod_status.created(job), SCHEDULER_PATIENCE_S):
        message = (
            f"{what}, nor made a Workload for it; check that Kueue runs, manages namespace "
            f"{namespace} and has ray.io/rayjob among its integrations"
        )
        return Blocker(ConditionReason.QUEUED, message)
    see = f"kubectl get workloads -n {namespace} shows what it waits for"
    return Blocker(ConditionReason.QUEUED, f"{what}; {see}")


def _of_no_queue(context: ReconcileContext, attempt: Attempt) -> Blocker:
    """A RayJob that somebody has suspended, or a Kueue that manages jobs without a queue too."""
    resume = (
        f"kubectl patch rayjob {attempt.ray_job} -n {context.run.metadata.namespace} --type=merge "
        '-p \'{"spec":{"suspend":false}}\''
    )
    return Blocker(
        ConditionReason.QUEUED,
        f"RayJob {attempt.ray_job} is suspended and names no queue; where Kueue manages jobs "
        f"without one, create the run with scheduling.queue, else resume it: {resume}",
    )


def of_pods(context: ReconcileContext, attempt: Attempt) -> Blocker | None:
    """What the attempt's pods and RayCluster report; the gravest first."""
    pods = sorted(
        context.index(attempt.number).unwell,
        key=lambda pod: (not pod_status.is_head(pod), pod_status.name(pod)),
    )
    for pod in pods:
        blocker = _of_refusal(pod) or _of_containers(context, pod)
        if blocker:
            return blocker
    for cluster in context.clusters(attempt.number):
        blocker = _of_cluster(cluster)
        if blocker:
            return blocker
    for pod in pods:
        blocker = _of_scheduling(context, pod)
        if blocker:
            return blocker
    return hung_pods.of_pods(context, attempt.number, pods)


def of_fewer_workers(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> Blocker:
    """How many workers an elastic run trains with, and what the others wait for."""
    progress, wanted = context.live_progress(attempt.number), context.wanted_workers(draft)
    ready = len(context.index(attempt.number).ready_workers) * context.workers_per_pod(draft)
    in_the_way = of_pods(context, attempt)
    if in_the_way is not None:
        others = in_the_way.message
    elif ready >= wanted:
        others = "the others are ready, and training continues with them at a checkpoint"
    else:
        others = "the pods of the others start"
    training = progress.world_size if progress is not None else 0
    return Blocker(ConditionReason.FEWER_WORKERS, f"{training} of {wanted} workers train; {others}")


def of_missing_standby(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> Blocker:
    """How many standby pods a run has whose workers all train, and what the others wait for."""
    standby = context.run.spec.workers.standby
    ready = len(context.index(attempt.number).ready_workers)
    waiting = max(ready - (context.all_pods(draft) - 1 - standby), 0)
    in_the_way = of_pods(context, attempt)
    others = in_the_way.message if in_the_way is not None else "the others start"
    return Blocker(
        ConditionReason.STANDBY_MISSING,
        f"All workers train; {waiting} of {standby} standby pods are ready; {others}",
    )


def _of_refusal(pod: Object) -> Blocker | None:
    """A pod that the kubelet of its node does not take."""
    status = pod.get("status", {})
    if pod_status.phase(pod) != "Failed" or not is_refused(pod):
        return None
    return Blocker(
        ConditionReason.PODS_REFUSED,
        f"Node {pod_status.node_name(pod)} refuses pod {pod_status.name(pod)} "
        f"({status['reason']}): {_brief(str(status.get('message', '')))}",
    )


def _of_containers(context: ReconcileContext, pod: Object) -> Blocker | None:
    for reason, message, of_container in pod_status.waiting(pod):
        words = _PULL_MAY_PASS if reason in IMAGE_REASONS else _CREATION_MAY_PASS
        passes = any(word in message.lower() for word in words)
        if passes and not _lasts(context, pod_status.scheduled_at(pod), RETRY_PATIENCE_S):
            continue
        if reason in IMAGE_REASONS:
            image = of_container or context.run.spec.image or context.render.image
            return Blocker(
                ConditionReason.IMAGE_CANNOT_BE_PULLED,
                f"Image {image} cannot be pulled ({_brief(message) or reason}); check its name "
                "and the pull secret",
            )
        if reason in ("CreateContainerConfigError", "CreateContainerError"):
            return _of_config(context, message)
        # The same reasons stand while an image is pulled, which may take as long as it likes.
        if reason in pod_status.CREATING and pod_status.awaits_set_up(pod):
            return _of_set_up(context, pod)
    return None


def _of_config(context: ReconcileContext, message: str) -> Blocker | None:
    missing = _MISSING.search(message)
    if missing:
        kind = {"secret": "Secret", "configmap": "ConfigMap"}[missing.group(1).lower()]
        name = missing.group(2)
        if name in {cluster["metadata"]["name"] for cluster in context.observed.ray_clusters}:
            return Blocker(
                ConditionReason.RAY_TOKEN_MISSING,
                f"KubeRay has not made Secret {name}, which holds the token of Ray's API; see the "
                "log of KubeRay's operator, or set the chart's training.rayAuth to disabled",
            )
        return Blocker(
            ConditionReason.SECRET_MISSING
            if kind == "Secret"
            else ConditionReason.CONFIG_MAP_MISSING,
            f"{kind} {name} does not exist in namespace {context.run.metadata.namespace}; create "
            "it, and the pods start",
        )
    key = _KEY.search(message)
    if key:
        return Blocker(
            ConditionReason.KEY_MISSING,
            f"{key.group(2)} {key.group(3)} has no key {key.group(1)}; add it, and the pods start",
        )
    return Blocker(
        ConditionReason.CONTAINER_CONFIG_INVALID, f"A container cannot start: {_brief(message)}"
    )


def _of_set_up(context: ReconcileContext, pod: Object) -> Blocker | None:
    script, claim = context.run.spec.training.any_script, context.run.spec.storage.claim
    if not _lasts(context, pod_status.scheduled_at(pod), MOUNT_PATIENCE_S):
        return None
    if claim is not None:
        return Blocker(
            ConditionReason.CLAIM_NOT_MOUNTED,
            f"Pod {pod_status.name(pod)} waits for its volumes; check that claim {claim} is "
            f"ReadWriteMany and its server answers: kubectl describe pod names the error",
        )
    namespace = context.run.metadata.namespace
    if script is not None and script.config_map is not None:
        return Blocker(
            ConditionReason.SCRIPT_NOT_MOUNTED,
            f"Pod {pod_status.name(pod)} waits for its volumes; check that ConfigMap "
            f"{script.config_map} exists in namespace {namespace} and has key {script.file}",
        )
    if not _lasts(context, pod_status.scheduled_at(pod), SET_UP_PATIENCE_S):
        return None
    return Blocker(
        ConditionReason.POD_NOT_SET_UP,
        f"Pod {pod_status.name(pod)} waits for its volumes or its network for over "
        f"{round(SET_UP_PATIENCE_S)} s; kubectl describe pod {pod_status.name(pod)} -n {namespace} "
        "names what is missing",
    )


def _of_cluster(cluster: Object) -> Blocker | None:
    failure = pod_status.condition(cluster, "ReplicaFailure")
    if not failure or failure.get("status") != "True":
        return None
    message = _brief(str(failure.get("message", "")))
    return of_quota("a pod", message) or Blocker(
        ConditionReason.PODS_REFUSED, f"KubeRay cannot create a pod: {message}"
    )


def _of_scheduling(context: ReconcileContext, pod: Object) -> Blocker | None:
    scheduled = pod_status.condition(pod, "PodScheduled")
    if scheduled is None:
        return _of_scheduler(context, pod)
    if not pod_status.unschedulable(pod):
        return None
    message = str(scheduled.get("message", ""))
    scarce = sorted(set(_INSUFFICIENT.findall(message)))
    requests = _requests(pod)
    lacks = [
        f"{name} (the pod requests {requests[name]})" if name in requests else name
        for name in scarce
    ]
    what = f"no node has enough {' and '.join(lacks)} free" if lacks else "no node takes it"
    return Blocker(
        ConditionReason.UNSCHEDULABLE,
        f"Pod {pod_status.name(pod)} cannot be scheduled: {what}; the scheduler says: "
        f"{_brief(message)}",
    )


def _of_scheduler(context: ReconcileContext, pod: Object) -> Blocker | None:
    if pod_status.node_name(pod) is not None:
        return None
    if not _lasts(context, pod_status.created(pod), SCHEDULER_PATIENCE_S):
        return None
    return Blocker(
        ConditionReason.UNSCHEDULABLE,
        f"No scheduler has looked at pod {pod_status.name(pod)} for over "
        f"{round(SCHEDULER_PATIENCE_S)} s; check that the one runs that scheduling.queue or "
        "podTemplate's schedulerName names",
    )


def _lasts(context: ReconcileContext, since: datetime | None, patience_s: float) -> bool:
    return since is not None and (context.now - since).total_seconds() >= patience_s


def _requests(pod: Object) -> dict[str, str]:
    requests: dict[str, str] = {}
    for container in pod.get("spec", {}).get("containers") or ():
        requests.update((container.get("resources") or {}).get("requests") or {})
    return requests


def _brief(message: str) -> str:
    return short(message, 300)
