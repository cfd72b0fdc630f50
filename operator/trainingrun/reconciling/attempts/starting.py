"""How an attempt begins, what prevents it, and what a run needs beside its attempts.

The RayJob is created before the status has the attempt: a RayJob that the status does not have yet
is therefore the attempt that was just begun.
"""

from ... import rendering
from ...api.reasons import ConditionReason, EventReason
from ...api.status import MOST_ATTEMPTS, Attempt, RestoredFrom
from ...api.storage_spec import OTHER_CLAIM, claim_of
from ...rendering import names
from ...rendering.defaults import names_storage
from .. import pod_status
from ..bookkeeping import OF_ONE_ATTEMPT
from ..context import OWNED_KINDS, ReconcileContext
from ..diagnosis import blockers
from ..findings import Blocker, Findings, StatusDraft
from ..losses import capacity, node_loss
from ..model import Action, Apply, EnsureToken, Manifest, Object, Restore, RunEvent
from ..texts import seconds_since, written
from . import retry_policy

MOST_FORMER_RAY_CLUSTERS = 16
"""Of one attempt; KubeRay makes another one each time that somebody deletes it."""


def adopt(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """Record the attempt whose RayJob was created and is not in the status yet.

    Never beside an attempt that runs: each begins only after the end of the former is written.
    """
    if draft.status.running_attempt:
        return Findings()
    newest, last = context.newest_number(), draft.status.attempt
    entered = any(attempt.number == newest for attempt in draft.status.attempts)
    if not newest or newest < last or entered:  # an entry may have been edited away
        return Findings()
    created_at = pod_status.created(context.own_jobs[newest]) or context.now
    return _begun(context, draft, newest, written(created_at))


def remember_cluster(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """Remember which RayCluster is the attempt's: its pods stay the run's own once it is gone."""
    newest, known = context.cluster(attempt), draft.bookkeeping.ray_cluster
    if newest is None or pod_status.uid(newest) == known:
        return Findings()
    found: dict[str, object] = {"ray_cluster": pod_status.uid(newest)}
    if known is not None:
        former = [*draft.bookkeeping.former_ray_clusters, known]
        found["former_ray_clusters"] = former[-MOST_FORMER_RAY_CLUSTERS:]
    return Findings(bookkeeping=found)


def prevented(context: ReconcileContext, draft: StatusDraft) -> Findings | None:
    """What prevents the next attempt, by the first of these that applies; None: nothing does."""
    last = draft.status.last_attempt
    charged = retry_policy.budgets(last.reason if last else None)
    run_failure = retry_policy.exhausted(draft, context.run.spec, charged)
    if run_failure:
        return Findings(run_failure=run_failure)
    foreign = context.foreign_ray_job(draft.status.attempt + 1)
    if foreign is not None:
        message = (
            f"RayJob {pod_status.name(foreign)} belongs to another owner, such as a deleted run of "
            "the same name; the run begins once it is gone"
        )
        return Findings(
            blocker=Blocker(ConditionReason.NAME_TAKEN, message),
            requeue_within_s=context.settings.poll_s,
        )
    missing = blockers.of_kuberay(context)
    if missing:
        return Findings(blocker=missing, requeue_within_s=context.settings.kuberay_retry_s)
    until = draft.status.next_attempt_time
    wait_s = -seconds_since(until, context.now) if until else 0.0
    return Findings(requeue_within_s=wait_s) if wait_s > 0 else None


def begin(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """Create the next attempt's RayJob, after the objects that it needs.

    The status gets the attempt in the next reconcile, which sees the RayJob (`adopt`): creating it
    may fail, or the operator die before.
    """
    run, number = context.run, draft.status.attempt + 1
    if draft.status.attempt and not context.is_absent_for_certain(*OWNED_KINDS):
        return Findings()  # the former attempt may still have pods
    excluded = node_loss.excluded_hostnames(draft.bookkeeping)
    ray_job = rendering.attempt(
        run, number, context.render, excluded, capacity.placement(context, draft)
    )
    if unreadable := rendering.unreadable(ray_job):
        message = (
            "No RayJob is created, since KubeRay could not read it nor any other one beside it: "
            f"{unreadable}; correct what it is made of, a podTemplate or a setting of the operator"
        )
        return Findings(refused=Blocker(ConditionReason.INVALID_SPEC, message))
    actions: tuple[Action, ...] = (
        EnsureToken(rendering.token_secret(run, context.render.token_key)),
        *(Apply(manifest) for manifest in rendering.support_objects(run, context.render)),
        Apply(ray_job),
    )
    return Findings(actions=actions, requeue_within_s=context.settings.poll_s)


def _begun(context: ReconcileContext, draft: StatusDraft, number: int, start: str) -> Findings:
    attempt = Attempt(
        number=number,
        ray_job=names.ray_job_name(context.run, number),
        capacity="OnDemand"
        if capacity.placement(context, draft).capacity == "OnDemand"
        else context.run.spec.workers.capacity.type,
        start_time=start,
    )
    event = RunEvent(
        "Normal", EventReason.ATTEMPT_STARTED, f"Attempt {number} is RayJob {attempt.ray_job}"
    )
    return Findings(
        status={
            "attempt": number,
            "attempts": [*draft.status.attempts, attempt][-MOST_ATTEMPTS:],
            "next_attempt_time": None,
        },
        bookkeeping={
            **OF_ONE_ATTEMPT,
            "ray_cluster": None,
            "former_ray_clusters": [],
            "head": None,
            "workers": context.run.spec.total_workers,
            "per_pod": context.run.spec.workers.per_pod,
            "checkpoints": context.run.spec.checkpoints.to_dict(),
            "attempts_without_progress": draft.bookkeeping.attempts_without_progress + 1,
        },
        events=(event,),
    )


def keep_defaults(context: ReconcileContext, draft: StatusDraft) -> Findings | None:
    """Write what the run has from its defaults to the status; None: nothing is to be done.

    As they are now: they may then be changed or deleted without effect on this run.
    """
    found = context.observed.defaults
    if found is None or draft.status.defaults is not None:
        return None
    # Only written now: an attempt whose RayJob exists must find them in the status.
    return Findings(status={"defaults": found}, requeue_within_s=0)


def find_restore_source(context: ReconcileContext, draft: StatusDraft) -> Findings | None:
    """Write the folder of storage.restoreFrom's run to the status; None: nothing is to be done.

    What a name stands for is decided once, before the first attempt: the other TrainingRun may then
    be deleted, or created again, without effect on this run.
    """
    storage = context.run.spec.storage
    wanted = storage.restore_from
    if wanted is None or draft.status.restored_from is not None:
        return None
    uri = wanted.uri or _folder_of_run(context)
    if uri is None:
        why = (
            f"and namespace {context.run.metadata.namespace} has no TrainingRun of that name; "
            "create it, or create this run again with the right name, or with the other run's "
            "folder in restoreFrom.uri"
            if context.observed.restore_source is None
            else "which has no storage.uri until it begins; wait for it, or write the folder of "
            "another run in restoreFrom.uri"
        )
        return _without_source(context, wanted.run, why)
    if wanted.run is not None and claim_of(uri) not in (None, storage.claim):
        return _without_source(context, wanted.run, f"whose folder {uri} {OTHER_CLAIM}")
    source = RestoredFrom(uri=uri.rstrip("/"))
    # Only written now: an attempt whose RayJob exists must find the folder in the status.
    return Findings(status={"restored_from": source}, requeue_within_s=0)


def _without_source(context: ReconcileContext, run: str | None, why: str) -> Findings:
    message = f"storage.restoreFrom.run is {run}, {why}"
    return Findings(
        blocker=Blocker(ConditionReason.RESTORE_SOURCE_MISSING, message),
        requeue_within_s=context.settings.poll_s,
    )


def _folder_of_run(context: ReconcileContext) -> str | None:
    source = context.observed.restore_source
    return names.folder_of(source) if source is not None and names_storage(source) else None


def keep_support_objects(context: ReconcileContext) -> Findings:
    """Make again what is missing, and restore what differs: also where KubeRay has moved."""
    if context.observed.support is None:
        return Findings()
    existing = {pod_status.name(known): known for known in context.observed.support}
    wanted = rendering.support_objects(context.run, context.render)
    actions = (
        _restored(context, manifest, existing.get(manifest["metadata"]["name"]))
        for manifest in wanted
    )
    return Findings(actions=tuple(action for action in actions if action))


def _restored(context: ReconcileContext, manifest: Manifest, known: Object | None) -> Action | None:
    if known is None or not _is_own(context, known):
        return Apply(manifest)  # which is refused, and said, where another's has its name
    if known.get("spec") != manifest["spec"] and not pod_status.terminating(known):
        return Restore(manifest, pod_status.uid(known))
    return None


def _is_own(context: ReconcileContext, known: Object) -> bool:
    owners = known["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == context.run.metadata.uid for owner in owners)
