"""One look at one run: observe, plan, act, publish. Whatever woke us, everything is read anew.

A crash between any two lines is repaired by the next look: actions are idempotent, and the status
is written only after them, so it never claims what was not done.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from ..api.v1alpha1 import API_VERSION, KIND
from ..cluster.port import Cluster, Rejected
from ..reconciling import plan as decide
from ..reconciling.model import (
    Action,
    Apply,
    AskToSuspend,
    AvoidNodes,
    Delete,
    EnsureToken,
    Observed,
    Plan,
    Ref,
)
from ..reconciling.settings import ReconcileSettings
from ..rendering.names import TOKEN_KEY
from ..rendering.settings import RenderSettings
from .logs import about
from .progress import Poller
from .queue import Key
from .tokens import Tokens, with_token

log = logging.getLogger(__name__)

TERMINAL_DEPLOYMENTS = ("Complete", "Failed")
"""RayJob's status.jobDeploymentStatus once it does nothing more."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Rejection:
    """The API server refused a run's RayJob."""

    uid: str
    generation: int
    words: str
    at: datetime


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class Reconciler:
    """Looks at runs. Remembers only what a restart may forget."""

    def __init__(
        self,
        cluster: Cluster,
        polls: Poller,
        tokens: Tokens,
        render: RenderSettings,
        settings: ReconcileSettings,
        now: Callable[[], datetime] = utc_now,
    ):
        """With everything that it acts through."""
        self._cluster, self._polls, self._tokens = cluster, polls, tokens
        self._render, self._settings, self._now = render, settings, now
        self._rejections: dict[Key, _Rejection] = {}

    async def reconcile(self, key: Key) -> float | None:
        """One look; seconds until the next one, None: when something happens.

        Raises:
            ClusterError: try again; nothing is lost.
        """
        seen = await self._observe(key)
        if seen is None:
            self._forget(key)
            return None
        with about(attempt=seen.run.status.attempt):
            plan = decide(seen, self._render, self._settings, self._now())
            await self._act(seen, plan)
            await self._publish(seen, plan)
            self._follow(key, seen, plan)
        return plan.look_again_s

    async def _observe(self, key: Key) -> Observed | None:
        seen = await self._cluster.observe(*key)
        if seen is None:
            return None
        uid, attempt = seen.run.metadata.uid, seen.run.status.attempt
        if self._has_ended(seen, attempt):
            # The head may have written its last word since the last poll, and goes with the job.
            await self._polls.ask_now(key, uid, attempt)
        sight = self._polls.sight(key, uid)
        return dataclasses.replace(
            seen,
            progress=sight.progress,
            progress_age_s=sight.progress_age_s,
            progress_failing_s=sight.progress_failing_s,
            rejected=self._rejected(key, seen),
        )

    async def _act(self, seen: Observed, plan: Plan) -> None:
        for action in plan.actions:
            try:
                await self._carry_out(action, seen)
            except Rejected as error:
                if not (isinstance(action, Apply) and action.manifest["kind"] == "RayJob"):
                    raise
                # The next look, which is at once, puts the API server's words into the status.
                metadata = seen.run.metadata
                key = (metadata.namespace, metadata.name)
                self._rejections[key] = _Rejection(
                    metadata.uid, metadata.generation, str(error), self._now()
                )
                raise

    async def _carry_out(self, action: Action, seen: Observed) -> None:
        metadata = seen.run.metadata
        match action:
            case Apply(manifest):
                await self._cluster.apply(manifest)
            case EnsureToken(secret):
                token = self._tokens.of(metadata.uid)
                await self._cluster.create(with_token(secret, TOKEN_KEY, token))
            case Delete(ref, grace_s):
                await self._cluster.delete(ref, grace_s)
            case AvoidNodes(ray_cluster, nodes):
                await self._cluster.avoid_nodes(ray_cluster, nodes)
            case AskToSuspend(attempt):
                # A head that does not answer must not keep the status from being written: the
                # deadline after which the pods are freed anyway is counted from there.
                key = (metadata.namespace, metadata.name)
                await self._polls.ask_to_suspend(key, metadata.uid, attempt)

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
        attempt = plan.status.attempt
        running = next((a for a in plan.status.attempts if a.number == attempt), None)
        if running is not None and running.outcome == "Running":
            self._polls.follow(key, seen.run.metadata.uid, attempt)
        else:
            self._polls.unfollow(key)

    def _forget(self, key: Key) -> None:
        self._polls.forget(key)
        self._rejections.pop(key, None)

    def _rejected(self, key: Key, seen: Observed) -> str | None:
        last, metadata = self._rejections.get(key), seen.run.metadata
        if last is None or (last.uid, last.generation) != (metadata.uid, metadata.generation):
            return None
        # After a while it is tried again: a quota may have room, a webhook may be back.
        age_s = (self._now() - last.at).total_seconds()
        return last.words if age_s < self._settings.kuberay_retry_s * 0.9 else None

    def _has_ended(self, seen: Observed, attempt: int) -> bool:
        last = self._polls.sight(self._key(seen), seen.run.metadata.uid).progress
        if last is not None and last.attempt == attempt and last.state.final:
            return False  # its last word is here already
        known = next((a for a in seen.run.status.attempts if a.number == attempt), None)
        if known is None or known.outcome != "Running":
            return False
        return any(
            job["metadata"]["name"] == known.ray_job and _is_terminal(job) for job in seen.ray_jobs
        )

    @staticmethod
    def _key(seen: Observed) -> Key:
        return seen.run.metadata.namespace, seen.run.metadata.name


def _is_terminal(ray_job: Mapping[str, Any]) -> bool:
    status = ray_job.get("status", {})
    return status.get("jobDeploymentStatus") in TERMINAL_DEPLOYMENTS
