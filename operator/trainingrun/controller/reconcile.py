"""One reconcile of one run: observe, plan, act, publish. Whatever enqueued it, all is read anew.

A crash between any two lines is repaired by the next reconcile: actions are idempotent, and the
status is written only after them, so it never claims what was not done.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ..api.v1alpha1 import API_VERSION, KIND
from ..cluster.api_client import Forbidden
from ..cluster.interface import Cluster, ClusterError, Rejected
from ..reconciling import plan as decide
from ..reconciling.attempts import running
from ..reconciling.lease_reads import suspects
from ..reconciling.model import (
    Action,
    Apply,
    Delete,
    EnsureToken,
    ExcludeNodes,
    Observed,
    Plan,
    Ref,
    Rejection,
    RequestSuspend,
    object_of,
)
from ..reconciling.reconcile_settings import ReconcileSettings
from ..rendering import renewed_token_secret, token_secret
from ..rendering.render_settings import RenderSettings
from .logs import about
from .progress_polling import Poller
from .tokens import Tokens, with_token
from .work_queue import Key

log = logging.getLogger(__name__)

TERMINAL_DEPLOYMENTS = ("Complete", "Failed")
"""RayJob's status.jobDeploymentStatus once it does nothing more."""
RENEW_S = 60.0
"""Between two tokens made for one head: about as long as the kubelet takes to mount one."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Rejection:
    """The API server refused an object of a run."""

    uid: str
    generation: int
    rejection: Rejection
    at: datetime


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class Reconciler:
    """Reconciles runs. Keeps only what a restart may lose."""

    def __init__(
        self,
        cluster: Cluster,
        polls: Poller,
        tokens: Callable[[], Tokens],
        render: RenderSettings,
        settings: ReconcileSettings,
        now: Callable[[], datetime] = utc_now,
    ):
        """With everything that it acts through."""
        self._cluster, self._polls, self._tokens = cluster, polls, tokens
        self._render, self._settings, self._now = render, settings, now
        self._rejections: dict[Key, _Rejection] = {}
        self._renewed: dict[str, datetime] = {}

    async def reconcile(self, key: Key) -> float | None:
        """One reconcile; seconds until the next one, None: when something happens.

        Raises:
            ClusterError: try again; nothing is lost.
        """
        seen = await self._cluster.observe(*key)
        if seen is None:
            self._forget(key)
            return None
        if self._awaits_poll(key, seen):
            return self._polls.patience_s + 1  # earlier, as soon as it has answered
        seen = self._with_progress(key, seen)
        with about(attempt=seen.run.status.attempt):
            seen = await self._with_lease_ages(seen)
            plan = decide(seen, self._rendering(), self._settings, self._now())
            await self._act(seen, plan)
            await self._publish(seen, plan)
            self._follow(key, seen, plan)
            await self._renew_token(key, seen)
        return plan.requeue_after_s

    def _rendering(self) -> RenderSettings:
        """The settings, with the key of now; where they leave KubeRay's namespaces open, those
        that were found.
        """
        namespaces = self._render.kuberay_namespaces or self._cluster.kuberay_namespaces
        return dataclasses.replace(
            self._render, kuberay_namespaces=namespaces, token_key=self._tokens().keys[0]
        )

    def _awaits_poll(self, key: Key, seen: Observed) -> bool:
        """Whether to wait for the head's answer before anything is decided about the run.

        After a start of this process no progress of a running attempt is known: the status would
        show such a run as Starting for a moment. When the RayJob has ended, the head may have
        written its final progress since the last poll, and is deleted with the job. No worker
        waits.
        """
        uid, known = seen.run.metadata.uid, running(seen.run.status)
        if known is None:
            return False
        attempt = known.number
        job = next((j for j in seen.ray_jobs if j["metadata"]["name"] == known.ray_job), None)
        if job is not None and _is_terminal(job):
            last = self._polls.snapshot(key, uid).progress
            if last is not None and last.attempt == attempt and last.state.final:
                return False  # its final progress is here already
            return self._polls.poll_once(key, uid, attempt, f"end of {job['metadata']['uid']}")
        if self._polls.follows(key, uid, attempt):
            return False
        return self._polls.poll_once(key, uid, attempt, "start")

    def _with_progress(self, key: Key, seen: Observed) -> Observed:
        snapshot = self._polls.snapshot(key, seen.run.metadata.uid)
        return dataclasses.replace(
            seen,
            progress=snapshot.progress,
            progress_age_s=snapshot.progress_age_s,
            progress_failing_s=snapshot.progress_failing_s,
            progress_error=snapshot.progress_error,
            progress_polled_s=snapshot.progress_polled_s,
            rejected=self._rejected(key, seen),
        )

    async def _with_lease_ages(self, seen: Observed) -> Observed:
        """With the age of the Leases of those nodes with another sign of failure."""
        names = suspects(seen, self._render, self._settings, self._now())
        if not names:
            return seen
        ages = await self._cluster.lease_ages(names)
        nodes = {
            name: dataclasses.replace(node, lease_age_s=ages.get(name))
            for name, node in seen.nodes.items()
        }
        return dataclasses.replace(seen, nodes=nodes)

    async def _act(self, seen: Observed, plan: Plan) -> None:
        for action in plan.actions:
            try:
                await self._carry_out(action, seen)
            except ClusterError as error:
                refused = object_of(action)
                if refused is None or not _is_refusal(error):
                    raise
                # The next reconcile, at once, writes the API server's message to the status.
                metadata = seen.run.metadata
                key = (metadata.namespace, metadata.name)
                self._rejections[key] = _Rejection(
                    metadata.uid,
                    metadata.generation,
                    Rejection(*refused, str(error)),
                    self._now(),
                )
                raise

    async def _carry_out(self, action: Action, seen: Observed) -> None:
        metadata = seen.run.metadata
        match action:
            case Apply(manifest):
                await self._cluster.apply(manifest)
            case EnsureToken(secret):
                token = self._tokens().of(metadata.uid)
                await self._cluster.create(with_token(secret, token))
            case Delete(ref, grace_s):
                await self._cluster.delete(ref, grace_s)
            case ExcludeNodes(ray_cluster, nodes):
                await self._cluster.exclude_nodes(ray_cluster, nodes)
            case RequestSuspend(attempt):
                # The head is not awaited: the deadline after which the pods are freed anyway is
                # counted from the status, which is written now.
                key = (metadata.namespace, metadata.name)
                self._polls.post_suspend(key, metadata.uid, attempt)

    async def _publish(self, seen: Observed, plan: Plan) -> None:
        """The only place that writes a status."""
        run = seen.run
        ref = Ref(API_VERSION, KIND, run.metadata.namespace, run.metadata.name, run.metadata.uid)
        deleted = any(isinstance(a, Delete) and a.ref.uid == ref.uid for a in plan.actions)
        if not deleted and plan.status.to_dict() != run.status.to_dict():
            await self._cluster.write_status(ref, plan.status, run.metadata.resource_version)
        for event in plan.events:
            log.info("%s: %s", event.reason, event.message)
            await self._cluster.emit(ref, event.type, event.reason, event.message)

    def _follow(self, key: Key, seen: Observed, plan: Plan) -> None:
        attempt = running(plan.status)
        if attempt is not None:
            self._polls.follow(key, seen.run.metadata.uid, attempt.number)
        else:
            self._polls.unfollow(key)

    async def _renew_token(self, key: Key, seen: Observed) -> None:
        """Makes a valid token for a head that accepts none of ours; the kubelet mounts it.

        Its own Secret is gone, or has one of a key that is lost. Created, never changed: the right
        to change Secrets would be one to read them all.
        """
        uid = seen.run.metadata.uid
        began_with = self._polls.snapshot(key, uid).refused_key
        now = self._now()
        if not began_with or self._renewed.get(uid, now) > now:
            return
        # Those whose wait is over go, or runs that are long gone would be kept for ever.
        self._renewed = {each: until for each, until in self._renewed.items() if until > now}
        self._renewed[uid] = now + timedelta(seconds=RENEW_S)
        tokens = self._tokens()
        if began_with in tokens.keys:
            secret = token_secret(seen.run, began_with)
        else:
            log.warning("the head's token is of key %s, which is lost", began_with)
            secret = renewed_token_secret(seen.run, began_with)
        token = tokens.of(uid, began_with)
        try:
            await self._cluster.create(with_token(secret, token))
        except ClusterError as error:
            log.warning("no token was made for the head: %s", error)

    def _forget(self, key: Key) -> None:
        self._polls.forget(key)
        self._rejections.pop(key, None)

    def _rejected(self, key: Key, seen: Observed) -> Rejection | None:
        last, metadata = self._rejections.get(key), seen.run.metadata
        if last is None or (last.uid, last.generation) != (metadata.uid, metadata.generation):
            return None
        # After a while it is tried again: a quota may have free capacity, a webhook may be back.
        age_s = (self._now() - last.at).total_seconds()
        return last.rejection if age_s < self._settings.kuberay_retry_s * 0.9 else None


def _is_terminal(ray_job: Mapping[str, Any]) -> bool:
    status = ray_job.get("status", {})
    return status.get("jobDeploymentStatus") in TERMINAL_DEPLOYMENTS


def _is_refusal(error: ClusterError) -> bool:
    """Whether the API server answered about the object, and not merely failed to answer.

    A webhook that is down makes it answer 500, for as long as the webhook is down.
    """
    return isinstance(error, (Rejected, Forbidden)) or "failed calling webhook" in str(error)
