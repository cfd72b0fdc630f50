"""One reconcile of one run: observe, plan, act, publish. Whatever enqueued it, all is read anew.

A crash between any two lines is repaired by the next reconcile. The status is written first,
whatever becomes of the actions: it holds what was observed and decided, and an action counts as
done only once the next reconcile sees what it did. Actions are idempotent.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from ..api.reasons import EventReason
from ..api.v1alpha1 import API_VERSION, KIND, KUEUE_QUEUE
from ..cluster.api_client import ClusterError, Conflict, NotLeading, Rejected, Unusable, text_of
from ..cluster.kueue import QueueWait
from ..cluster.live_cluster import KubernetesCluster
from ..cluster.resources import RAY_API
from ..reconciling import plan as decide
from ..reconciling import pod_status
from ..reconciling.bookkeeping import Bookkeeping
from ..reconciling.diagnosis import failing_actions
from ..reconciling.losses.node_loss import suspect_nodes
from ..reconciling.model import (
    Action,
    ActionKey,
    Apply,
    Delete,
    EnsureToken,
    ExcludeNodes,
    Observed,
    PlaceWorkers,
    Plan,
    ReconcileSettings,
    Ref,
    RequestSuspend,
    Restore,
    RunEvent,
    ScaleWorkers,
    key_of,
)
from ..rendering import renewed_token_secret, support_objects, token_secret
from ..rendering.platforms import RenderSettings
from .logs import about
from .notifier import Notifier
from .progress_polling import Poller
from .tokens import Tokens, with_token
from .work_queue import Key
from .write_limits import STATUS, ActionRetries, EventLimits, StatusPace

log = logging.getLogger(__name__)

TERMINAL_DEPLOYMENTS = ("Complete", "Failed")
"""RayJob's status.jobDeploymentStatus once it does nothing more."""
ACT_S = 20.0
"""After so long what is left of a plan waits for the next reconcile, but for what begins an
attempt: a reconcile of a thousand slow deletions would look like one that hangs."""
EMIT_S = 5.0
"""The longest time for the events of one reconcile."""
ERROR_RETRY_S = 60.0
"""Until a run is planned again for which planning has raised an error, unless it changes."""
SUPPORT_S = 60.0
"""Between two reads of what a running attempt needs beside its pods, while it is reconciled."""
REPAIRED_S = 10.0
"""The same after it was repaired: another controller may change it again and again."""
QUEUE_S = 5.0
"""Between two reads of what a run waits for in a queue, while it is reconciled."""
RENEW_S = 60.0
"""Between two tokens made for one head: about as long as the kubelet takes to mount one."""


class Reconciler:
    """Reconciles runs. Keeps only what a restart may lose."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        polls: Poller,
        notifier: Notifier,
        tokens: Callable[[], Tokens],
        render: RenderSettings,
        settings: ReconcileSettings,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
        count_error: Callable[[str], None] = lambda reason: None,
    ):
        """With everything that it acts through.

        What `render` leaves open is found out. `now` is the API server's clock, and `clock` gives
        seconds that only go forward. `count_error` is called with the kind of each error that is
        not raised.
        """
        self._cluster, self._polls, self._notifier = cluster, polls, notifier
        self._tokens = tokens
        self._render, self._settings, self._now = render, settings, now
        self._clock, self._count_error = clock, count_error
        self._retries: dict[Key, tuple[tuple[str, int], ActionRetries]] = {}
        self._events, self._pace = EventLimits(clock), StatusPace(clock)
        self._plan_errors: dict[Key, str] = {}
        self._support_due: dict[Key, tuple[tuple[str, ...], float]] = {}
        self._queue_waits: dict[Key, tuple[float, QueueWait]] = {}
        self._renewed: dict[str, datetime] = {}

    async def reconcile(self, key: Key) -> float | None:
        """One reconcile; seconds until the next one, None: when something happens.

        Raises:
            ClusterError: try again; nothing is lost.
        """
        observed = await self._cluster.observe(*key)
        if observed is None:
            self._forget(key)
            return None
        if self._awaits_poll(key, observed):
            return self._polls.patience_s + 1  # earlier, as soon as it has answered
        with about(attempt=observed.run.status.attempt):
            observed, plan = await self._planned(key, observed)
            if plan.confirm:
                await self._cluster.confirm(*key)
                again = await self._cluster.observe(*key)
                if again is None:
                    return 0.0
                observed, plan = await self._planned(
                    key, dataclasses.replace(again, confirmed=True)
                )
            wait_s = self._wait_s(key, observed, plan)
            if wait_s > 0:
                self._follow(key, observed, plan)
                return min(wait_s, plan.requeue_after_s or wait_s)
            if not await self._publish(key, observed, plan):
                return self._retries_of(key, observed).due_in_s([STATUS])
            self._follow(key, observed, plan)
            requeue_after_s = await self._act(key, observed, plan)
            self._schedule_support_check(key, observed, plan)
            await self._emit(key, _ref(observed), plan.events)
            await self._renew_token(key, observed)
        return requeue_after_s

    async def _planned(self, key: Key, observed: Observed) -> tuple[Observed, Plan]:
        """The plan, and what was observed with all that it rests on."""
        observed = self._with_failures(key, self._with_progress(key, observed))
        observed = await self._with_lease_ages(observed)
        observed = await self._with_support(key, observed)
        observed = await self._with_queue_wait(key, observed)
        return observed, self._decide(key, observed)

    def _decide(self, key: Key, observed: Observed) -> Plan:
        """The plan. An error of ours is in the status of the run that it is about, and stops no
        other one.
        """
        rendering, now = self._rendering(), self._now()
        try:
            plan = decide(observed, rendering, self._settings, now)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._count_error(type(error).__name__)
            if self._plan_errors.get(key) != text:  # at each event it is the same again
                log.exception("no plan for this run")
            self._plan_errors[key] = text
            plan = failing_actions.after_error(observed.run, now, text)
            return dataclasses.replace(plan, requeue_after_s=ERROR_RETRY_S)
        self._plan_errors.pop(key, None)
        return plan

    def _rendering(self) -> RenderSettings:
        """The settings, with the key of now; where they leave KubeRay's namespaces open, those
        that were found.
        """
        namespaces = self._render.kuberay_namespaces or self._cluster.kuberay_namespaces
        return dataclasses.replace(
            self._render, kuberay_namespaces=namespaces, token_key=self._tokens().keys[0]
        )

    def _awaits_poll(self, key: Key, observed: Observed) -> bool:
        """Whether to wait for the head's answer before anything is decided about the run.

        After a start of this process no progress of a running attempt is known: the status would
        show such a run as Starting for a moment. When the RayJob has ended, the head may have
        written its final progress since the last poll, and is deleted with the job. No worker
        waits.
        """
        uid, known = observed.run.metadata.uid, observed.run.status.running_attempt
        if known is None:
            return False
        attempt = known.number
        job = next((j for j in observed.ray_jobs if j["metadata"]["name"] == known.ray_job), None)
        status = (job or {}).get("status") or {}
        if job is not None and status.get("jobDeploymentStatus") in TERMINAL_DEPLOYMENTS:
            last = self._polls.snapshot(key, uid).progress
            if last is not None and last.attempt == attempt and last.state.final:
                return False  # its final progress is here already
            return self._polls.poll_once(key, uid, attempt, f"end of {job['metadata']['uid']}")
        if self._polls.follows(key, uid, attempt):
            return False
        return self._polls.poll_once(key, uid, attempt, "start")

    def _with_progress(self, key: Key, observed: Observed) -> Observed:
        snapshot = self._polls.snapshot(key, observed.run.metadata.uid)
        return dataclasses.replace(
            observed,
            progress=snapshot.progress,
            progress_age_s=snapshot.progress_age_s,
            progress_failing_s=snapshot.progress_failing_s,
            progress_error=snapshot.progress_error,
            progress_polled_s=snapshot.progress_polled_s,
            deliveries=self._notifier.deliveries(key),
        )

    async def _with_lease_ages(self, observed: Observed) -> Observed:
        """With the age of the Leases of those nodes with another sign of failure."""
        names = suspect_nodes(observed, self._render, self._settings, self._now())
        if not names:
            return observed
        ages = await self._cluster.lease_ages(names)
        nodes = {
            name: dataclasses.replace(node, lease_age_s=ages.get(name))
            for name, node in observed.nodes.items()
        }
        return dataclasses.replace(observed, nodes=nodes)

    def _with_failures(self, key: Key, observed: Observed) -> Observed:
        retries = self._known_retries(key, observed)
        if retries is None:
            return dataclasses.replace(observed, acted=False)
        return dataclasses.replace(observed, failing=retries.failing(), acted=retries.acted)

    async def _with_support(self, key: Key, observed: Observed) -> Observed:
        """With what a running attempt needs beside its pods, where it was not read for a while.

        It is not watched: a watch of it would have every one of the cluster's runs in memory.
        """
        if observed.run.status.running_attempt is None:
            return observed
        rendering, now = self._rendering(), self._clock()
        namespaces, due_at = self._support_due.get(key, ((), 0.0))
        if namespaces == rendering.kuberay_namespaces and now < due_at:
            return observed
        found = []
        try:
            for manifest in support_objects(observed.run, rendering):
                found.append(await self._cluster.find(manifest))
        except ClusterError as error:
            log.info("not read: %s", text_of(error))
            return observed
        return dataclasses.replace(observed, support=tuple(known for known in found if known))

    async def _with_queue_wait(self, key: Key, observed: Observed) -> Observed:
        """With what Kueue says of a run that it has not admitted."""
        known = observed.run.status.running_attempt
        name = known.ray_job if known else None
        job = next((one for one in observed.ray_jobs if one["metadata"]["name"] == name), None)
        queued = job is not None and KUEUE_QUEUE in (job["metadata"].get("labels") or {})
        if job is None or not queued or not (job.get("spec") or {}).get("suspend"):
            self._queue_waits.pop(key, None)
            return observed
        read_at, wait = self._queue_waits.get(key, (-QUEUE_S, QueueWait()))
        if self._clock() - read_at >= QUEUE_S:
            wait = await self._cluster.queue_wait(job)
            self._queue_waits[key] = (self._clock(), wait)
        return dataclasses.replace(observed, queue_wait=wait.message, queued_since=wait.since)

    def _schedule_support_check(self, key: Key, observed: Observed, plan: Plan) -> None:
        """When it is read again: soon after a repair, at once while that fails."""
        if observed.support is None:
            return
        repairs = {key_of(action) for action in plan.actions if isinstance(action, Apply | Restore)}
        retries = self._known_retries(key, observed)
        failing = {one.key for one in retries.failing()} if retries else set()
        wait_s = 0.0 if repairs & failing else REPAIRED_S if repairs else SUPPORT_S
        self._support_due[key] = (self._rendering().kuberay_namespaces, self._clock() + wait_s)

    async def _act(self, key: Key, observed: Observed, plan: Plan) -> float | None:
        """Carries the plan out; seconds until the next reconcile.

        An action that fails is tried again by itself, see `ActionRetries`, and keeps no other from
        being carried out; but what begins an attempt is made in its order or not at all.
        """
        if not plan.actions and self._known_retries(key, observed) is None:
            return plan.requeue_after_s
        retries = self._retries_of(key, observed)
        retries.keep(plan.actions)
        waits = [] if plan.requeue_after_s is None else [plan.requeue_after_s]
        until, creates, tried = self._clock() + ACT_S, True, set()
        for action in plan.actions:
            is_creation = isinstance(action, Apply | EnsureToken)
            if is_creation and not creates:
                continue
            if not is_creation and self._clock() > until:
                waits.append(0.0)
                break
            tried.add(key_of(action))
            if not retries.due(key_of(action)) or not await self._try(action, observed, retries):
                creates = creates and not is_creation
        if retries.failing() != observed.failing:
            waits.append(0.0)  # the status is to say so
        due_in_s = retries.due_in_s(tried)
        if due_in_s is not None:
            waits.append(due_in_s)
        if not plan.actions and not retries:
            self._retries.pop(key, None)
        return min(waits, default=None)

    async def _try(self, action: Action, observed: Observed, retries: ActionRetries) -> bool:
        """Whether it has worked."""
        about_what = key_of(action)
        try:
            await self._carry_out(action, observed)
        except NotLeading:
            raise
        except Exception as error:
            if about_what is None:
                raise
            self._record_failure(about_what, error, retries)
            return False
        retries.worked(about_what)
        return True

    def _record_failure(self, what: ActionKey, error: Exception, retries: ActionRetries) -> None:
        """An action that failed: counted, remembered, and logged unless it only repeats.

        A conflict is no fault: the cache was out of date.
        """
        self._count_error(type(error).__name__)
        is_new = retries.failed(what, error, self._now())
        if not is_new or isinstance(error, Conflict):
            return
        if isinstance(error, ClusterError):
            log.warning("%s %s %s: %s", *what, text_of(error))
        else:
            log.exception("%s %s %s", *what)

    async def _carry_out(self, action: Action, observed: Observed) -> None:
        metadata = observed.run.metadata
        match action:
            case Apply(manifest):
                await self._cluster.apply(manifest)
            case Restore(manifest, uid):
                await self._cluster.restore(manifest, uid)
            case EnsureToken(secret):
                token = self._tokens().of(metadata.uid)
                await self._cluster.create(with_token(secret, token))
            case Delete(ref, grace_s, unchanged_since):
                await self._cluster.delete(ref, grace_s, unchanged_since)
            case ExcludeNodes(ray_cluster, nodes):
                await self._cluster.exclude_nodes(ray_cluster, nodes)
            case PlaceWorkers(ray_cluster, template):
                await self._cluster.place_workers(ray_cluster, template)
            case ScaleWorkers(ray_cluster, pods, removed, version):
                await self._cluster.scale_workers(ray_cluster, pods, removed, version)
            case RequestSuspend(attempt):
                # The head is not awaited: the deadline after which the pods are freed anyway is
                # counted from the status, which is written now.
                key = (metadata.namespace, metadata.name)
                self._polls.post_suspend(key, metadata.uid, attempt)

    def _wait_s(self, key: Key, observed: Observed, plan: Plan) -> float:
        """How long a status waits in which nothing but measurements has changed."""
        if plan.actions or plan.events or plan.status.completion_time:
            return 0.0
        former, status = observed.run.status.to_dict(), plan.status.to_dict()
        return self._pace.wait_s(key, former, status) if status != former else 0.0

    async def _publish(self, key: Key, observed: Observed, plan: Plan) -> bool:
        """The only place that writes a status; whether the plan may be carried out.

        A status that the API server does not take is said in the former one, else by an event.
        Without it nothing may be done, for it is the operator's memory.
        """
        ref = _ref(observed)
        refused = {one.key for one in observed.failing}
        deleted = any(
            isinstance(a, Delete) and a.ref.uid == ref.uid and key_of(a) not in refused
            for a in plan.actions
        )
        if deleted or plan.status.to_dict() == observed.run.status.to_dict():
            return True
        known = self._known_retries(key, observed)
        if known is not None and not known.due(STATUS):
            return False
        version = observed.run.metadata.resource_version
        try:
            await self._cluster.write_status(ref, plan.status, version)
        except Rejected as error:
            retries = self._retries_of(key, observed)
            self._record_failure(STATUS, error, retries)
            await self._publish_refusal(key, observed, str(error))
            if isinstance(error, Unusable) and not error.fits:
                await self._end_without_status(key, observed, plan, retries)
            return False
        self._pace.wrote(key)
        if known is not None:
            known.worked(STATUS)
        return True

    async def _publish_refusal(self, key: Key, observed: Observed, message: str) -> None:
        """Says in the former status, else in an event, that the next one is refused."""
        plan = failing_actions.without_status(observed.run, self._now(), message)
        if plan.status.to_dict() == observed.run.status.to_dict():
            return
        try:
            version = observed.run.metadata.resource_version
            await self._cluster.write_status(_ref(observed), plan.status, version)
        except Rejected:
            await self._emit(key, _ref(observed), plan.events)

    async def _end_without_status(
        self, key: Key, observed: Observed, plan: Plan, retries: ActionRetries
    ) -> None:
        """Deletes what runs on although the next status, which does not fit into the run, has no
        running attempt or a spent budget: whoever may fill the run up would escape its limits.
        """
        for ref in _runs_on(observed, plan):
            if await self._try(Delete(ref), observed, retries):
                message = (
                    f"The run is too large for the status that says why RayJob {ref.name} is "
                    "deleted; take labels, annotations and other metadata off the run"
                )
                events = (RunEvent("Warning", EventReason.STATUS_REFUSED, message),)
                await self._emit(key, _ref(observed), events)

    async def _emit(self, key: Key, ref: Ref, events: tuple[RunEvent, ...]) -> None:
        """Best effort: a slow webhook on events must not hold up the run."""
        admitted = self._events.admit(key, events)
        for event in admitted:
            log.info("%s: %s", event.reason, event.message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EMIT_S):
                for event in admitted:
                    await self._cluster.emit(ref, event.type, event.reason, event.message)

    def _follow(self, key: Key, observed: Observed, plan: Plan) -> None:
        attempt = plan.status.running_attempt
        if attempt is not None:
            self._polls.follow(key, observed.run.metadata.uid, attempt.number)
        else:
            self._polls.unfollow(key)
        left = observed.ray_jobs or observed.ray_clusters or observed.pods
        if plan.status.has_ended and not left:
            # It may stay for months: a sweep's last document has over a megabyte in memory.
            self._polls.forget(key)
            self._pace.forget(key)
        if plan.notices is not None:
            self._notifier.want(key, plan.notices)

    async def _renew_token(self, key: Key, observed: Observed) -> None:
        """Makes a valid token for a head that accepts none of ours; the kubelet mounts it.

        Its own Secret is gone, or has one of a key that is lost. Created, never changed: the right
        to change Secrets would be one to read them all.
        """
        uid = observed.run.metadata.uid
        began_with = self._polls.snapshot(key, uid).refused_key
        now = self._now()
        if not began_with or self._renewed.get(uid, now) > now:
            return
        # Those whose wait is over go, or runs that are long gone would be kept for ever.
        self._renewed = {each: until for each, until in self._renewed.items() if until > now}
        self._renewed[uid] = now + timedelta(seconds=RENEW_S)
        tokens = self._tokens()
        if began_with in tokens.keys:
            secret = token_secret(observed.run, began_with)
        else:
            log.warning("the head's token is of key %s, which is lost", began_with)
            secret = renewed_token_secret(observed.run, began_with)
        token = tokens.of(uid, began_with)
        try:
            await self._cluster.create(with_token(secret, token))
        except ClusterError as error:
            log.warning("no token was made for the head: %s", error)

    def _forget(self, key: Key) -> None:
        self._polls.forget(key)
        self._notifier.forget(key)
        self._events.forget(key)
        self._pace.forget(key)
        self._retries.pop(key, None)
        self._plan_errors.pop(key, None)
        self._support_due.pop(key, None)
        self._queue_waits.pop(key, None)

    def _known_retries(self, key: Key, observed: Observed) -> ActionRetries | None:
        """Of this run and this spec: after an edit everything is tried anew."""
        metadata = observed.run.metadata
        version, retries = self._retries.get(key, (None, None))
        return retries if version == (metadata.uid, metadata.generation) else None

    def _retries_of(self, key: Key, observed: Observed) -> ActionRetries:
        known = self._known_retries(key, observed)
        if known is not None:
            return known
        metadata, retries = observed.run.metadata, ActionRetries(self._clock)
        self._retries[key] = ((metadata.uid, metadata.generation), retries)
        return retries


def _ref(observed: Observed) -> Ref:
    metadata = observed.run.metadata
    return Ref(API_VERSION, KIND, metadata.namespace, metadata.name, metadata.uid)


def _runs_on(observed: Observed, plan: Plan) -> list[Ref]:
    """The run's own RayJobs that are to end by its next status, and that KubeRay does not end."""
    budget, status = observed.run.spec.budget, plan.status
    if status.running_attempt is not None:
        spent = Bookkeeping.read(status.seen).meter.spent
        if budget is None or budget.action != "Suspend" or spent < budget.amount:
            return []
    uid = observed.run.metadata.uid
    return [
        pod_status.ref(job, RAY_API, "RayJob")
        for job in observed.ray_jobs
        if pod_status.controller_uid(job, "TrainingRun") == uid
        and (job.get("status") or {}).get("jobDeploymentStatus") not in TERMINAL_DEPLOYMENTS
    ]
