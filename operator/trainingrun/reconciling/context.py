"""What was observed, sorted by what the run owns and by attempt.

What the run owns is what its chain of controllers says, by UID: a pod of a RayCluster, of a RayJob,
of this run. The UID of an attempt's RayCluster is remembered in the status, so that its pods are
still the run's own once it or its RayJob is gone. Of these pods the attempt's own are those in
`members`: whoever creates a pod writes its owner references.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from trainingrun_protocol.progress import Progress, Record, RunState

from ..api.v1alpha1 import TrainingRun
from ..rendering import names
from ..rendering.platforms import RenderSettings
from . import pod_status
from .bookkeeping import Bookkeeping
from .findings import StatusDraft
from .members import TOLD_S, Evidence, LostPlace, foreign_pods
from .model import NodeState, Object, Observed, ReconcileSettings, Ref
from .pod_index import PodIndex, PodSummary, summary_of
from .pod_status import controller_uid
from .texts import from_unix, parsed, written

RAY_API = "ray.io/v1"
OWNED_KINDS = ("RayJob", "RayCluster", "Pod")
"""Kinds of which a run has objects while an attempt is there."""

ENDED_JOB = ("SUCCEEDED", "FAILED", "STOPPED")
"""What Ray says of a job that has ended; KubeRay submits none a second time then."""


class UnconfirmedAbsence(Exception):
    """A decision rests on the absence of objects, and the API server has not confirmed it yet."""


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

    def is_absent_for_certain(self, *kinds: str) -> bool:
        """Whether what of these kinds is not observed does not exist; False: that is unknown.

        An open watch may lag, above all in an operator that has just begun to lead. What ends
        something, or begins an attempt, because an object is missing is decided by this alone.

        Raises:
            UnconfirmedAbsence: It is to be read from the API server first, see `Plan.confirm`.
        """
        if self.unknown(*kinds):
            return False
        if not self.observed.confirmed:
            raise UnconfirmedAbsence
        return True

    @property
    def can_be_empty(self) -> bool:
        """Whether an empty observation would mean that nothing is left of any attempt."""
        return not self.unknown(*OWNED_KINDS)

    @cached_property
    def written(self) -> Bookkeeping:
        """The bookkeeping as it was last written."""
        return Bookkeeping.read(self.run.status.seen)

    @cached_property
    def budget_is_spent(self) -> bool:
        """Whether the run had cost spec.budget.amount when its status was last written."""
        budget = self.run.spec.budget
        return budget is not None and self.written.meter.spent >= budget.amount

    @property
    def suspends(self) -> bool:
        """Whether the run is to have no pods: by spec.suspend, or by its budget."""
        budget = self.run.spec.budget
        by_budget = budget is not None and budget.action == "Suspend" and self.budget_is_spent
        return self.run.spec.suspend or by_budget

    @cached_property
    def own_jobs(self) -> dict[int, Object]:
        """The RayJobs that this run owns, by attempt."""
        jobs = {}
        for job in self.observed.ray_jobs:
            number = pod_status.attempt_of(job)
            if number is None or pod_status.name(job) != names.ray_job_name(self.run, number):
                continue
            if controller_uid(job, "TrainingRun") == self.run.metadata.uid:
                jobs[number] = job
        return jobs

    @cached_property
    def _own_clusters(self) -> dict[str, Object]:
        jobs = {pod_status.uid(job) for job in self.own_jobs.values()}
        return {
            pod_status.uid(item): item
            for item in self.observed.ray_clusters
            if controller_uid(item, "RayJob") in jobs
            or pod_status.uid(item) in self._remembered_clusters
        }

    @cached_property
    def _own_cluster_uids(self) -> frozenset[str]:
        return frozenset((*self._own_clusters, *self._remembered_clusters))

    @cached_property
    def _remembered_clusters(self) -> frozenset[str]:
        """UIDs of the RayClusters of the newest attempt, see `Bookkeeping.ray_cluster`."""
        newest = (self.written.ray_cluster,) if self.written.ray_cluster else ()
        return frozenset((*self.written.former_ray_clusters, *newest))

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
        return self.own_jobs.get(number)

    def deleted(self, number: int) -> bool:
        """Whether the attempt's RayJob was deleted, so that all of it goes."""
        job = self.job(number)
        if job is not None:
            return pod_status.terminating(job)
        # Without the CRD, or while its watch is stale, no RayJob is seen: that is not a deletion.
        return self.observed.kuberay != "missing" and self.is_absent_for_certain("RayJob")

    @cached_property
    def _candidates(self) -> dict[int, list[tuple[Object, PodSummary]]]:
        """By attempt, the pods that one of the run's RayClusters controls, by UID."""
        attempts: dict[int, list[tuple[Object, PodSummary]]] = defaultdict(list)
        run_uid, ray_clusters = self.run.metadata.uid, self._own_cluster_uids
        for pod in self.observed.pods:
            known = summary_of(pod)
            owner = known.controller
            if known.run_uid != run_uid or known.attempt is None or owner is None:
                continue
            if owner.uid in ray_clusters:
                attempts[known.attempt].append((pod, known))
        return attempts

    @cached_property
    def _pods(self) -> dict[int, PodIndex]:
        """The run's own pods by attempt, see `members`."""
        attempts = {}
        for number, pods in self._candidates.items():
            strangers: frozenset[str] = frozenset()
            if self.clusters(number) or self.run.status.running_attempt is not None:
                candidates = [summary.candidate for _, summary in pods]
                strangers = foreign_pods(candidates, self._evidence(number))
            own = [(pod, summary) for pod, summary in pods if summary.uid not in strangers]
            attempts[number] = PodIndex(own)
        return attempts

    def _evidence(self, number: int) -> Evidence:
        """What says, beside their owner references, which pods are an attempt's own."""
        known = self.written if number == self.run.status.attempt else Bookkeeping()
        workers = (known.workers or self.run.spec.total_workers) // self._per_pod(known)
        replicas = self.worker_group(number).get("replicas") or 0
        lost, progress, here = known.counted, self.progress(number), set[str]()
        if progress is not None:
            named = (*(row.pod for row in progress.ranks), *progress.spare_pods)
            # KubeRay gives no second pod the name of one that was lost.
            here = {pod for pod in named if pod} - {one.pod or "" for one in lost.values()}
        return Evidence(
            named_heads={
                pod_status.uid(item): pod_status.named_head(item) for item in self.clusters(number)
            },
            known=frozenset((*lost, *((known.head,) if known.head else ()))),
            joined=frozenset(here),
            kept=max(workers + self.run.spec.workers.standby, replicas),
            lost=lost_places(known, progress.records if progress is not None else ()),
        )

    def index(self, number: int) -> PodIndex:
        """The pods of one attempt, sorted."""
        return self._pods.get(number) or PodIndex()

    @property
    def held(self) -> Iterator[PodSummary]:
        """Each pod that holds a node for the run, which it is charged for.

        The head's document has a part in which workers are the run's own, and its tenant may have
        forged it: of as many as KubeRay keeps, it leaves out none here.
        """
        for number, pods in self._candidates.items():
            own = self.index(number).by_uid
            held = [known for _, known in pods if known.requests is not None]
            charged = [known for known in held if known.uid in own]
            yield from charged
            others = [known for known in held if known.uid not in own and not known.head]
            if others:
                more = self._evidence(number).kept - sum(not known.head for known in charged)
                others.sort(key=lambda known: (known.candidate.created, known.name))
                yield from others[: max(more, 0)]

    def pods(self, number: int) -> Sequence[Object]:
        """The run's own pods of one attempt."""
        return self.index(number).all

    def clusters(self, number: int) -> list[Object]:
        """The run's own RayClusters of one attempt."""
        return [
            item for item in self._own_clusters.values() if pod_status.attempt_of(item) == number
        ]

    @property
    def pods_left(self) -> list[Object]:
        """Every pod of the run, of whatever attempt, by the UID of its RayCluster. Of one that
        nobody has seen a name says nothing.
        """
        return [pod for pods in self._candidates.values() for pod, _ in pods]

    def head_is_gone(self, number: int) -> bool:
        """Whether the attempt has no head pod that lives, nor one that KubeRay may name soon."""
        if not pod_status.absent(self.head(number)):
            return False
        candidates = self._candidates.get(number, ())
        return not any(known.head and known.candidate.living for _, known in candidates)

    @property
    def clusters_left(self) -> list[Object]:
        """Every RayCluster of the run, of whatever attempt, by UID; see `pods_left`."""
        return list(self._own_clusters.values())

    def cluster(self, number: int) -> Object | None:
        """The attempt's newest RayCluster that is not being deleted."""
        clusters = (item for item in self.clusters(number) if not pod_status.terminating(item))
        return max(clusters, key=pod_status.creation_text, default=None)

    def worker_group(self, number: int) -> Object:
        """The group of workers of that RayCluster; empty: there is none."""
        cluster = self.cluster(number)
        groups = (cluster.get("spec") or {}).get("workerGroupSpecs") or () if cluster else ()
        return next((one for one in groups if one.get("groupName") == names.WORKER_GROUP), {})

    def removed_pods(self, number: int) -> tuple[str, ...]:
        """Names of the pods that the operator has KubeRay delete, see `attempts.scaling`."""
        strategy = self.worker_group(number).get("scaleStrategy") or {}
        return tuple(strategy.get("workersToDelete") or ())

    def head(self, number: int) -> Object | None:
        """The attempt's head pod: the one that lives, else the newest.

        A second one beside a head that lives is a copy: KubeRay replaces only what is gone.
        """
        heads = self.index(number).heads
        living = [pod for pod in heads if not pod_status.absent(pod)]
        if living:
            return min(living, key=pod_status.creation_text)
        return max(
            heads,
            key=lambda pod: (not pod_status.terminating(pod), pod_status.creation_text(pod)),
            default=None,
        )

    def node(self, name: str | None) -> NodeState | None:
        """A node as it is known now; None: it is not known."""
        if name is None or self.unknown("Node"):
            return None
        return self.observed.nodes.get(name)

    def progress(self, number: int) -> Progress | None:
        """The runtime's last document, if that attempt's driver wrote it."""
        newest = self.observed.progress
        return newest if newest and newest.attempt == number else None

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

    def trains(self, number: int) -> bool:
        """Whether the driver that is there now says that steps are being done."""
        return trains(self.live_progress(number))

    def driver_answers(self, number: int) -> bool:
        """Whether the driver answered this process's last poll lately, and has not ended: what it
        said then is so.
        """
        is_read = self.progress(number) is not None and self.observed.progress_failing_s is None
        age_s = self.observed.progress_age_s
        lately = age_s is not None and age_s < self.settings.final_progress_s
        return is_read and lately and self.driver_has_answered(number)

    def driver_has_answered(self, number: int) -> bool:
        """Whether the driver has answered the last poll or lately, or nobody knows yet: one poll
        that fails does not end a driver that saves, nor do polls that are far between, nor does an
        operator that has just begun to ask.
        """
        progress, age_s = self.live_progress(number), self.observed.progress_age_s
        polled_s, patience_s = self.observed.progress_polled_s, self.settings.final_progress_s
        if self.progress(number) is None:
            return polled_s is not None and polled_s < patience_s
        works = polled_s is not None and self.observed.progress_failing_s is None
        return (
            progress is not None
            and not progress.state.final
            and age_s is not None
            and (works or age_s < patience_s)
        )

    def store_may_answer(self, number: int) -> bool:
        """Whether the driver, as far as is known, does not wait for its bucket."""
        progress = self.live_progress(number)
        return progress is None or progress.storage_error is None

    def wanted_workers(self, draft: StatusDraft) -> int:
        """Workers of the current attempt as it was rendered: its world size."""
        return draft.bookkeeping.workers or self.run.spec.total_workers

    def workers_per_pod(self, draft: StatusDraft) -> int:
        """Those in each pod of it."""
        return self._per_pod(draft.bookkeeping)

    def _per_pod(self, known: Bookkeeping) -> int:
        # A spec that cannot be used any more is read as far as it can, perhaps without this field.
        return known.per_pod or self.run.spec.workers.per_pod

    def wanted_pods(self, draft: StatusDraft) -> int:
        """Pods of the current attempt: those of its workers as they were rendered, and the head."""
        return self.wanted_workers(draft) // self.workers_per_pod(draft) + 1

    def all_pods(self, draft: StatusDraft) -> int:
        """Those, and the standby pods."""
        return self.wanted_pods(draft) + self.run.spec.workers.standby

    @property
    def is_elastic(self) -> bool:
        """Whether the training goes on with fewer workers than all."""
        return self.run.spec.workers.minimum is not None

    @property
    def can_lack_pods(self) -> bool:
        """Whether the training begins, and goes on, while some pods are missing."""
        return self.is_elastic or self.run.spec.workers.standby > 0

    def asked_pods(self, draft: StatusDraft, number: int) -> int:
        """Pods that KubeRay is to keep: fewer than all while an attempt begins without some."""
        wanted = self.all_pods(draft)
        if not self.can_lack_pods:
            return wanted
        replicas = self.worker_group(number).get("replicas")
        return wanted if replicas is None else min(wanted, replicas + 1)

    def trains_with_fewer(self, draft: StatusDraft, number: int) -> bool:
        """Whether an elastic run trains, and with fewer workers than all."""
        progress = self.live_progress(number)
        if progress is None or not self.is_elastic or not trains(progress):
            return False
        return self.run.spec.minimum_workers <= progress.world_size < self.wanted_workers(draft)

    def trains_without_standby(self, draft: StatusDraft, number: int) -> bool:
        """Whether all workers train, and standby pods are missing."""
        progress, standby = self.live_progress(number), self.run.spec.workers.standby
        if not standby or progress is None or not trains(progress):
            return False
        ready = len(self.index(number).ready_workers)
        return progress.world_size >= self.wanted_workers(draft) and (
            ready < self.all_pods(draft) - 1
        )

    def spare_pods(self, number: int) -> frozenset[str]:
        """Names of the pods in which no rank is, by the driver that answers."""
        spare = self._spare_pods.get(number)
        if spare is None:
            progress = self.live_progress(number) if self.run.spec.workers.standby else None
            known = progress is not None and self.driver_answers(number)
            spare = frozenset(progress.spare_pods if progress is not None and known else ())
            self._spare_pods[number] = spare
        return spare

    @cached_property
    def _spare_pods(self) -> dict[int, frozenset[str]]:
        return {}

    def every_pod_runs(self, draft: StatusDraft, number: int) -> bool:
        """Whether the attempt has all of its pods, and each of them runs."""
        index = self.index(number)
        if len(index.all) < self.asked_pods(draft, number):
            return False
        return all(pod_status.running(pod) for pod in index.unwell)

    def enough_pods_run(self, draft: StatusDraft, number: int) -> bool:
        """Whether so many pods run that the attempt trains: all; or the head and, of an elastic run
        as many as `workers.minimum` takes, of one with standby pods as many as all workers take.
        """
        if not self.can_lack_pods:
            return self.every_pod_runs(draft, number)
        head, index = self.head(number), self.index(number)
        if head is None or not pod_status.running(head):
            return False
        run = sum(pod_status.running(pod) and not pod_status.is_head(pod) for pod in index.all)
        return run >= self.run.spec.minimum_worker_pods

    def lost_by_ray(self, number: int) -> frozenset[str]:
        """Names or hostnames of the nodes that the live driver reports as lost."""
        nodes = self._lost_by_ray.get(number)
        if nodes is None:
            progress = self.live_progress(number)
            nodes = self._lost_by_ray[number] = frozenset(progress.lost_nodes if progress else ())
        return nodes

    def is_lost_by_ray(self, number: int, node: NodeState) -> bool:
        """Whether the live driver reports the node as lost, by its name or its hostname."""
        lost = self.lost_by_ray(number)
        return node.name in lost or node.hostname in lost

    @cached_property
    def _lost_by_ray(self) -> dict[int, frozenset[str]]:
        return {}

    def newest_number(self) -> int:
        """The highest attempt that has a RayJob; 0: none has. What has lost its owner proves no
        attempt: whoever creates it writes its labels and its owner's name.
        """
        return max(self.own_jobs, default=0)

    def job_ref(self, job: Object) -> Ref:
        """A reference to this RayJob, with its UID."""
        return pod_status.ref(job, RAY_API, "RayJob")


def lost_places(known: Bookkeeping, records: Iterable[Record]) -> tuple[LostPlace, ...]:
    """The places of lost workers. A pod has one, however many sources tell of its loss."""
    places = [
        LostPlace(key, one.pod, one.created_at, one.time)
        for key, one in known.counted.items()
        if one.created_at and one.pod and is_of_a_pod(key)
    ]
    named = {place.name for place in places}
    for one in records:
        if one.group_time is None or not one.pod or one.pod in named:
            continue
        began, time = written(from_unix(one.group_time)), written(from_unix(one.time))
        earliest, latest = (written(from_unix(one.time + s)) for s in (-TOLD_S, TOLD_S))
        # The driver keeps a record for longer than the bookkeeping keeps the pod's name.
        forgotten = any(
            created <= began and earliest <= seen <= latest for created, seen in known.lost_places
        )
        if not forgotten:
            places.append(LostPlace("", one.pod, began, time))
    return (*(LostPlace("", "", created, seen) for created, seen in known.lost_places), *places)


def is_of_a_pod(key: str) -> bool:
    """Whether a key of `Bookkeeping.counted` is a pod's UID."""
    return ":" not in key and "/" not in key


def trains(progress: Progress | None) -> bool:
    """Whether the driver says that steps are being done."""
    return progress is not None and progress.state is RunState.TRAINING


def job_status(job: Object) -> str:
    """RayJob's status.jobStatus; "": KubeRay has set none."""
    return str((job.get("status") or {}).get("jobStatus") or "")


def job_ended_at(job: Object | None) -> datetime | None:
    """RayJob's status.endTime; None: KubeRay has set none."""
    text = ((job or {}).get("status") or {}).get("endTime")
    return parsed(text) if text else None
