"""What was observed, sorted by what the run owns and by attempt."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from ..api.progress import Progress
from ..api.v1alpha1 import TrainingRun
from ..rendering import names
from ..rendering.render_settings import RenderSettings
from . import pod_index, pod_status
from .model import NodeState, Object, Observed, Ref
from .pod_index import PodIndex
from .reconcile_settings import ReconcileSettings

RAY_API = "ray.io/v1"
OWNED_KINDS = ("RayJob", "RayCluster", "Pod")
"""Kinds of which a run has objects while an attempt is there."""


@dataclass(frozen=True)
class ReconcileContext:
    """One reconcile of one run; everything is sorted at most once."""

    observed: Observed
    render: RenderSettings
    settings: ReconcileSettings
    now: datetime

    @property
    def run(self) -> TrainingRun:
        """The run, with the status that was last written."""
        return self.observed.run

    def unknown(self, *kinds: str) -> bool:
        """Whether nothing may be decided on the absence of objects of one of these kinds."""
        return bool(self.observed.stale) and any(kind in self.observed.stale for kind in kinds)

    @property
    def can_be_empty(self) -> bool:
        """Whether an empty observation would mean that nothing is left of any attempt."""
        return not self.unknown(*OWNED_KINDS)

    @cached_property
    def _own_jobs(self) -> dict[int, Object]:
        uid = self.run.metadata.uid
        found = {}
        for job in self.observed.ray_jobs:
            owners = job["metadata"].get("ownerReferences") or ()
            number = _number(job)
            if number is None or pod_status.name(job) != names.ray_job_name(self.run, number):
                continue
            if any(owner.get("uid") == uid for owner in owners):
                found[number] = job
        return found

    def own_jobs(self) -> dict[int, Object]:
        """The RayJobs that this run owns, by attempt."""
        return self._own_jobs

    def foreign_ray_job(self, number: int) -> Object | None:
        """A RayJob under the name of that attempt which this run does not own."""
        wanted = names.ray_job_name(self.run, number)
        own = self.job(number)
        for job in self.observed.ray_jobs:
            if job is not own and pod_status.name(job) == wanted:
                return job
        return None

    def job(self, number: int) -> Object | None:
        """The RayJob of that attempt."""
        return self._own_jobs.get(number)

    def deleted(self, number: int) -> bool:
        """Whether the attempt's RayJob was deleted, so that all of it goes."""
        job = self.job(number)
        if job is not None:
            return pod_status.terminating(job)
        # Without the CRD, or while its watch is stale, no RayJob is seen: that is not a deletion.
        return self.observed.kuberay != "missing" and not self.unknown("RayJob")

    @cached_property
    def _pods(self) -> dict[int, PodIndex]:
        return pod_index.sort(self.observed.pods, self.run.metadata.uid)

    def index(self, number: int) -> PodIndex:
        """The pods of one attempt, sorted."""
        return self._pods.get(number) or PodIndex()

    def pods(self, number: int | None = None) -> Sequence[Object]:
        """The run's own pods; of one attempt where a number is given."""
        if number is not None:
            return self.index(number).all
        return [pod for _, index in sorted(self._pods.items()) for pod in index.all]

    def clusters(self, number: int | None = None) -> list[Object]:
        """The run's own RayClusters; of one attempt where a number is given."""
        uid = self.run.metadata.uid
        return [
            item
            for item in self.observed.ray_clusters
            if item["metadata"].get("labels", {}).get(names.RUN_UID_LABEL) == uid
            and (number is None or _number(item) == number)
        ]

    def head(self, number: int) -> Object | None:
        """The attempt's head pod; the newest where an old one is still terminating."""
        return max(
            self.index(number).heads,
            key=lambda pod: (
                not pod_status.terminating(pod),
                pod["metadata"].get("creationTimestamp") or "",
            ),
            default=None,
        )

    def node(self, name: str | None) -> NodeState | None:
        """A node as it is known now; None: it is not known."""
        if name is None or self.unknown("Node"):
            return None
        return self.observed.nodes.get(name)

    def progress(self, number: int) -> Progress | None:
        """The runtime's last document, if that attempt's driver wrote it."""
        found = self.observed.progress
        return found if found and found.attempt == number else None

    def suspended_by_queue(self, number: int) -> bool:
        """Whether a queue keeps the attempt waiting, or has suspended it."""
        job = self.job(number) or {}
        return bool((job.get("spec") or {}).get("suspend"))

    def live_progress(self, number: int) -> Progress | None:
        """The document, if the head pod that is there now has written it.

        After a loss of the head, the former driver's last document still says "Training".
        """
        progress, head, age = self.progress(number), self.head(number), self.observed.progress_age_s
        if head is None and self.unknown("Pod"):
            return progress  # the head may be there
        if progress is None or head is None or not pod_status.running(head):
            return None
        created_at = pod_status.created(head)
        if (
            age is not None
            and created_at is not None
            and age > (self.now - created_at).total_seconds()
        ):
            return None
        return progress

    def lost_by_ray(self, number: int) -> frozenset[str]:
        """Names or hostnames of the nodes that the live driver reports as lost."""
        found = self._lost_by_ray.get(number)
        if found is None:
            progress = self.live_progress(number)
            found = self._lost_by_ray[number] = frozenset(progress.lost_nodes if progress else ())
        return found

    def is_lost_by_ray(self, number: int, node: NodeState) -> bool:
        """Whether the live driver reports the node as lost, by its name or its hostname."""
        lost = self.lost_by_ray(number)
        return node.name in lost or node.hostname in lost

    @cached_property
    def _lost_by_ray(self) -> dict[int, frozenset[str]]:
        return {}

    def newest_number(self) -> int:
        """The highest attempt of which anything is left in the cluster; 0: none.

        Labels of pods and RayClusters can be forged, and count only where they could be
        true: nothing comes after the attempt that follows the one in the status.
        """
        following = self.run.status.attempt + 1
        left = {*self._pods, *(_number(item) for item in self.clusters())}
        known = [*self._own_jobs, *(number for number in left if number and number <= following)]
        return max(known, default=0)

    def job_ref(self, job: Object) -> Ref:
        """A reference to this RayJob, with its UID."""
        return pod_status.ref(job, RAY_API, "RayJob")


def _number(item: Object) -> int | None:
    text = item["metadata"].get("labels", {}).get(names.ATTEMPT_LABEL, "")
    return int(text) if text.isdecimal() else None
