"""Asks the head pods of running attempts how far they are, and asks them to suspend.

Pulled, not pushed: training pods need no way into the cluster's API. The rate is bounded for the
whole cluster, so that a thousand runs cost no more than fifty; each is then asked less often.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import aiohttp
from pydantic import ValidationError

from ..api.contract import PROGRESS_PORT, Progress
from ..cluster.cache import Object
from ..rendering.names import ATTEMPT_LABEL, HEAD, ROLE_LABEL, RUN_UID_LABEL
from .queue import Key

log = logging.getLogger(__name__)

MAX_DOCUMENT_BYTES = 2**20
"""A longer document is refused: the pod that sends it runs the user's code."""

Outcome = Literal["ok", "none-yet", "failed"]


@dataclass(frozen=True, slots=True)
class Target:
    """A head pod to ask."""

    pod_uid: str
    url: str
    """Such as `http://10.0.0.7:8484`."""


Resolve = Callable[[Key, str, int], Target | None]
"""(run, its UID, attempt) -> where its head listens; None: there is no head pod with an address."""


@dataclass(slots=True)
class _Followed:
    """What is known of one run."""

    uid: str
    attempt: int
    task: asyncio.Task[None] | None = None
    document: Progress | None = None
    fetched_at: float | None = None
    failing_since: float | None = None
    pod_uid: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Sight:
    """The last document and how old it is; see the fields of the same names in `Observed`."""

    progress: Progress | None = None
    progress_age_s: float | None = None
    progress_failing_s: float | None = None


class Poller:
    """Follows runs; a task for each, all within one rate."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        resolve: Resolve,
        token_of: Callable[[str], str],
        *,
        every_s: float,
        per_second: float = 50.0,
        concurrency: int = 32,
        timeout_s: float = 2.0,
        on_change: Callable[[str, str], None] = lambda namespace, name: None,
        count: Callable[[str], None] = lambda outcome: None,
    ):
        """Asks nobody until `follow`.

        Args:
            session: For requests to head pods; closed by its owner.
            resolve: Where to ask.
            token_of: The bearer token of a run's UID.
            every_s: Seconds between two questions to one run.
            per_second: Questions per second over all runs.
            concurrency: Questions at the same time.
            timeout_s: Longest wait for an answer.
            on_change: Told of a run whose document changed, or whose polls begin to fail or work.
            count: Told of each outcome.
        """
        self._session, self._resolve, self._token_of = session, resolve, token_of
        self._every_s = every_s
        self._spacing_s = 1.0 / per_second
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._on_change, self._count = on_change, count
        self._runs: dict[Key, _Followed] = {}
        self._next_turn = 0.0

    def follow(self, key: Key, uid: str, attempt: int) -> None:
        """Keeps asking this attempt until told otherwise; the same again changes nothing."""
        run = self._runs.get(key)
        if run is None or run.uid != uid:
            self.forget(key)
            run = self._runs[key] = _Followed(uid, attempt)
        if run.attempt != attempt:
            run.attempt, run.failing_since, run.pod_uid = attempt, None, ""
        if run.task is None or run.task.done():
            run.task = asyncio.create_task(self._keep_asking(key, run), name=f"poll {key}")

    def unfollow(self, key: Key) -> None:
        """Stops asking; the last document is kept."""
        run = self._runs.get(key)
        if run is not None and run.task is not None:
            run.task.cancel()
            run.task = None
            run.failing_since = None

    def forget(self, key: Key) -> None:
        """Stops asking, and drops the document."""
        self.unfollow(key)
        self._runs.pop(key, None)

    def sight(self, key: Key, uid: str) -> Sight:
        """The last document of the run with this UID."""
        run = self._runs.get(key)
        if run is None or run.uid != uid:
            return Sight()
        now = time.monotonic()
        return Sight(
            run.document,
            None if run.fetched_at is None else now - run.fetched_at,
            None if run.failing_since is None else now - run.failing_since,
        )

    async def ask_now(self, key: Key, uid: str, attempt: int) -> None:
        """One question outside the turn: the last look at an attempt that has ended."""
        run = self._runs.get(key)
        if run is None or run.uid != uid:
            run = self._runs[key] = _Followed(uid, attempt)
        await self._ask(key, run)

    async def ask_to_suspend(self, key: Key, uid: str, attempt: int) -> bool:
        """POST /suspend; whether the head took it."""
        target = self._resolve(key, uid, attempt)
        if target is None:
            return False
        try:
            async with self._session.post(
                f"{target.url}/suspend", headers=self._headers(uid), timeout=self._timeout
            ) as answer:
                return answer.status < 300
        except (aiohttp.ClientError, TimeoutError) as error:
            log.info("head not asked to suspend: %s", error or type(error).__name__)
            return False

    async def close(self) -> None:
        """Ends every task."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for key in list(self._runs):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_asking(self, key: Key, run: _Followed) -> None:
        while True:
            await self._turn()
            async with self._slots:
                changed = await self._ask(key, run)
            if changed:
                self._on_change(*key)
            # Jittered, so that runs that started together do not stay together.
            await asyncio.sleep(self._every_s * random.uniform(0.8, 1.2))  # noqa: S311

    async def _turn(self) -> None:
        """Waits for this question's place in the cluster's rate."""
        now = time.monotonic()
        self._next_turn = max(self._next_turn + self._spacing_s, now)
        await asyncio.sleep(self._next_turn - now)

    async def _ask(self, key: Key, run: _Followed) -> bool:
        """One question; whether there is something new."""
        async with run.lock:
            target = self._resolve(key, run.uid, run.attempt)
            if target is None or target.pod_uid != run.pod_uid:
                # Another pod's silence says nothing about this one.
                run.failing_since, run.pod_uid = None, target.pod_uid if target else ""
            if target is None:
                return False
            failed_before = run.failing_since is not None
            outcome, document = await self._fetch(target, run.uid)
            self._count(outcome)
            if outcome == "failed":
                run.failing_since = run.failing_since or time.monotonic()
                return not failed_before
            run.failing_since = None
            if document is None:
                return failed_before
            run.fetched_at = time.monotonic()
            news = _without_time(document) != _without_time(run.document)
            run.document = document
            return news or failed_before

    async def _fetch(self, target: Target, uid: str) -> tuple[Outcome, Progress | None]:
        try:
            async with self._session.get(
                f"{target.url}/progress", headers=self._headers(uid), timeout=self._timeout
            ) as answer:
                content = await answer.content.read(MAX_DOCUMENT_BYTES)
                if answer.status == 503:
                    return "none-yet", None
                if answer.status != 200:
                    log.warning("progress refused with %d", answer.status)
                    return "failed", None
                while not answer.content.at_eof() and len(content) < MAX_DOCUMENT_BYTES:
                    content += await answer.content.read(MAX_DOCUMENT_BYTES)
                return "ok", Progress.model_validate_json(content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("progress not read: %s", error or type(error).__name__)
        except ValidationError as error:
            log.warning("progress not understood: %d faults", error.error_count())
        return "failed", None

    def _headers(self, uid: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token_of(uid)}"}


def _without_time(document: Progress | None) -> Progress | None:
    return document.model_copy(update={"time": 0.0}) if document else None


def head_of(pods: list[Object], uid: str, attempt: int) -> Target | None:
    """The attempt's head among a run's pods, if it runs and has an address.

    One that is leaving is asked as well, while there is no other: it may still have a last word.
    """
    wanted = {RUN_UID_LABEL: uid, ATTEMPT_LABEL: str(attempt), ROLE_LABEL: HEAD}
    found = None
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        address = status.get("podIP")
        if not address or status.get("phase") != "Running":
            continue
        if not wanted.items() <= metadata.get("labels", {}).items():
            continue
        host = f"[{address}]" if ":" in address else address
        target = Target(metadata["uid"], f"http://{host}:{PROGRESS_PORT}")
        if not metadata.get("deletionTimestamp"):
            return target
        found = target
    return found
