"""Fetches the progress documents of running attempts from their head pods, and posts /suspend.

Pulled, not pushed: training pods need no way into the cluster's API. The rate is bounded for the
whole cluster, so that a thousand runs cost no more than fifty; each is then polled less often.
Namespaces share it, see `poll_turns`.

A run's head is the pod that KubeRay's status names and whose chain of owners leads to the run.
Labels and owner references alone decide nothing: whoever creates a pod writes them. The head's
document is read with bounded cost, since the pod runs the user's code: what a healthy runtime could
exceed is cut (see `trainingrun_protocol.wire`), and what it never sends is refused.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import aiohttp
from pydantic import ValidationError

from trainingrun_protocol.contract import PROGRESS_PORT
from trainingrun_protocol.progress import Progress

from ..cluster.api_client import text_of
from ..cluster.object_store import Object
from ..reconciling import pod_status
from ..reconciling.pod_status import controller_uid
from ..rendering.names import ATTEMPT_LABEL, HEAD, ROLE_LABEL, RUN_UID_LABEL, TOKEN_KEY_LABEL
from .poll_turns import PollTurns
from .work_queue import Key

log = logging.getLogger(__name__)

SLOW_S = 0.5
"""A head that takes longer to answer is slow."""
PAUSE_FOR = 5.0
"""A head is asked again after so many times what its answer took, at the earliest."""

MAX_BYTES = 2**18
"""A longer document is refused. 100 records of 1,000 characters fit; parsing one that is as long
takes a few milliseconds of the event loop."""


@dataclass(frozen=True, slots=True)
class Target:
    """A head pod to poll."""

    pod_uid: str
    url: str
    """Such as `http://10.0.0.7:8484`."""
    token_key: str = ""
    """Name of the operator's key that its token is of."""


Outcome = Literal["ok", "none-yet", "unreachable", "refused", "unusable"]
"""No answer; 401 to every token; an answer that cannot be used."""

Resolve = Callable[[Key, str, int], Target | None]
"""(run, its UID, attempt) -> where its head listens; None: there is no head pod with an address."""


@dataclass(frozen=True, slots=True)
class _Answer:
    outcome: Outcome
    document: Progress | None = None
    error: str | None = None


@dataclass(slots=True)
class _Followed:
    """What is known of one run."""

    uid: str
    attempt: int
    task: asyncio.Task[None] | None = None
    document: Progress | None = None
    fetched_at: float | None = None
    failing_since: float | None = None
    polled_since: float | None = None
    """Since when this pod is polled."""
    answer: _Answer | None = None
    """The last one of this pod."""
    took_s: float = 0.0
    """How long that one took."""
    pod_uid: str = ""
    token_key: str = ""
    token: int = 0
    """Which of the run's tokens its head took last."""
    occasions: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    suspending: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def tasks(self) -> list[asyncio.Task[None]]:
        own = [self.task, self.suspending, *self.occasions.values()]
        return [task for task in own if task is not None]


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """The last document and how old it is; see the fields of the same names in `Observed`."""

    progress: Progress | None = None
    progress_age_s: float | None = None
    progress_failing_s: float | None = None
    progress_error: str | None = None
    refused_key: str | None = None
    """Where the head answers 401 to every token: the name of the key that its own token is of."""
    progress_polled_s: float | None = None


class Poller:
    """Follows runs; a task for each, all within one rate."""

    def __init__(
        self,
        resolve: Resolve,
        tokens_of: Callable[[str], Sequence[str]],
        *,
        every_s: float,
        per_second: float = 50.0,
        concurrency: int = 32,
        timeout_s: float = 2.0,
        on_change: Callable[[str, str], None] = lambda namespace, name: None,
        count: Callable[[str], None] = lambda outcome: None,
        may_act: Callable[[], bool] = lambda: True,
    ):
        """Polls nothing until `follow`. Made inside a running event loop; `close` it.

        Args:
            resolve: Where to fetch it.
            tokens_of: The bearer tokens of a run's UID, newest first.
            every_s: Seconds between two polls of one run.
            per_second: Polls per second over all runs.
            concurrency: Polls at the same time; a quarter as many to heads that were slow, or did
                not answer the last one, so that they cannot keep the others waiting.
            timeout_s: Longest wait for an answer.
            on_change: Called for a run whose document changed, whose polls begin to fail or work,
                or for which `poll_once` is done.
            count: Called with each outcome.
            may_act: Called before /suspend is posted.
        """
        # Of a head nothing but the document is accepted: no cookies, no redirects to
        # other runs, no compression, which would make a megabyte of a kilobyte.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )
        self._resolve, self._tokens_of = resolve, tokens_of
        self._every_s, self._timeout_s = every_s, timeout_s
        self._turns = PollTurns(per_second, concurrency)
        self._on_change, self._count, self._may_act = on_change, count, may_act
        self._runs: dict[Key, _Followed] = {}

    @property
    def patience_s(self) -> float:
        """Longest time that `poll_once` takes."""
        return 2 * self._timeout_s

    def follows(self, key: Key, uid: str, attempt: int) -> bool:
        """Whether this attempt is being followed."""
        run = self._runs.get(key)
        return bool(run and run.task and (run.uid, run.attempt) == (uid, attempt))

    def follow(self, key: Key, uid: str, attempt: int) -> None:
        """Polls this attempt until `unfollow`; the same again changes nothing."""
        run = self._known(key, uid, attempt)
        if run.task is None or run.task.done():
            run.task = asyncio.create_task(self._keep_polling(key, run), name=f"poll {key}")

    def unfollow(self, key: Key) -> None:
        """Stops polling; the last document is kept."""
        run = self._runs.get(key)
        if run is not None:
            for task in run.tasks():
                task.cancel()
            run.task = run.suspending = None
            self._nothing_failed(run)

    def forget(self, key: Key) -> None:
        """Stops polling, and drops the document."""
        self.unfollow(key)
        self._runs.pop(key, None)

    def snapshot(self, key: Key, uid: str) -> ProgressSnapshot:
        """The last document of the run with this UID."""
        run = self._runs.get(key)
        if run is None or run.uid != uid:
            return ProgressSnapshot()
        now = time.monotonic()
        return ProgressSnapshot(
            run.document,
            None if run.fetched_at is None else now - run.fetched_at,
            None if run.failing_since is None else now - run.failing_since,
            run.answer.error if run.answer else None,
            run.token_key if run.answer and run.answer.outcome == "refused" else None,
            None if run.polled_since is None else now - run.polled_since,
        )

    def poll_once(self, key: Key, uid: str, attempt: int, occasion: str) -> bool:
        """One poll outside the turn, once per occasion; whether its answer is still awaited.

        It is not awaited here: `on_change` is called once it is answered, or has taken too long.
        """
        if self._resolve(key, uid, attempt) is None:
            return False
        run = self._known(key, uid, attempt)
        task = run.occasions.get(occasion)
        if task is None:
            task = asyncio.create_task(self._poll_now(key, run), name=f"poll {key}: {occasion}")
            run.occasions[occasion] = task
        return not task.done()

    def post_suspend(self, key: Key, uid: str, attempt: int) -> None:
        """POST /suspend, in the background, unless that is under way."""
        run = self._known(key, uid, attempt)
        if run.suspending is None or run.suspending.done():
            name = f"suspend {key}"
            run.suspending = asyncio.create_task(self._suspend(key, run, attempt), name=name)

    async def close(self) -> None:
        """Ends every task and connection."""
        tasks = [task for run in self._runs.values() for task in run.tasks()]
        for key in list(self._runs):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._turns.close()
        await self._session.close()

    def _known(self, key: Key, uid: str, attempt: int) -> _Followed:
        run = self._runs.get(key)
        if run is None or run.uid != uid:
            self.forget(key)
            run = self._runs[key] = _Followed(uid, attempt)
        if run.attempt != attempt:
            run.attempt, run.pod_uid, run.occasions = attempt, "", {}
            self._nothing_failed(run)
        return run

    @staticmethod
    def _nothing_failed(run: _Followed) -> None:
        run.failing_since, run.answer, run.took_s = None, None, 0.0

    async def _keep_polling(self, key: Key, run: _Followed) -> None:
        while True:
            silent = run.answer is not None and run.answer.error is not None
            async with self._turns.turn(key[0], slow=silent or run.took_s > SLOW_S):
                changed = await self._poll(key, run)
            if changed:
                self._on_change(*key)
            # Of a silent head the next answer is awaited: how long it is silent is a sign.
            silent = run.answer is not None and run.answer.error is not None
            pause_s = self._every_s if silent else max(self._every_s, PAUSE_FOR * run.took_s)
            # Jittered, so that runs that started together do not stay together.
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311

    async def _poll_now(self, key: Key, run: _Followed) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience_s), self._turns.at_once(key[0]):
                await self._poll(key, run)
        # After this task has ended: whoever reconciles then finds it done.
        asyncio.get_running_loop().call_soon(self._on_change, *key)

    async def _poll(self, key: Key, run: _Followed) -> bool:
        """One poll; whether there is something new."""
        async with run.lock:
            target = self._resolve(key, run.uid, run.attempt)
            if target is None or target.pod_uid != run.pod_uid:
                # Another pod's silence says nothing about this one.
                self._nothing_failed(run)
                run.pod_uid = target.pod_uid if target else ""
                run.polled_since = None
                run.token_key = target.token_key if target else ""
            if target is None:
                return False
            run.polled_since = run.polled_since or time.monotonic()
            before = run.answer
            failing = before is not None and before.error is not None
            asked_at = time.monotonic()
            answer = await self._fetch(target, run)
            run.took_s = time.monotonic() - asked_at
            self._count(answer.outcome)
            run.answer = answer
            if answer.error is not None:
                run.failing_since = run.failing_since or time.monotonic()
                return before is None or before.error != answer.error
            run.failing_since = None
            if answer.document is None:
                return failing
            run.fetched_at = time.monotonic()
            changed = _without_time(answer.document) != _without_time(run.document)
            run.document = answer.document
            return changed or failing

    async def _fetch(self, target: Target, run: _Followed) -> _Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._get(target, run)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("progress not read: %s", text_of(error))
            return _Answer("unreachable", error=f"the head does not answer ({_cause(error)})")
        except DocumentError as error:
            log.warning("progress not taken: %s", error)
            return _Answer("unusable", error=f"the head's document cannot be used: {error}")

    async def _get(self, target: Target, run: _Followed) -> _Answer:
        async with self._request("GET", f"{target.url}/progress", run) as answer:
            if answer is None:
                error = (
                    "the head answers 401: it accepts none of the tokens of this operator's keys"
                )
                return _Answer("refused", error=error)
            if answer.status == 503:
                return _Answer("none-yet")
            if answer.status != 200:
                error = f"the head answers {answer.status} to GET /progress"
                return _Answer("unusable", error=error)
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise DocumentError("it is compressed")
            return _Answer("ok", read_document(await _body(answer)))

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, url: str, run: _Followed
    ) -> AsyncIterator[aiohttp.ClientResponse | None]:
        """The answer to the first token that the head accepts; None: it accepts none."""
        tokens = self._tokens_of(run.uid)  # one for each of the operator's few keys
        for turn in range(len(tokens)):
            number = (run.token + turn) % len(tokens)
            headers = {"Authorization": f"Bearer {tokens[number]}"}
            async with self._session.request(
                method, url, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status != 401:
                    run.token = number
                    yield answer
                    return
        yield None

    async def _suspend(self, key: Key, run: _Followed, attempt: int) -> None:
        target = self._resolve(key, run.uid, attempt)
        if target is None or not self._may_act():
            return
        # It ends while this process still holds the Lease: writes are allowed for 7 s after a
        # renewal, no other operator takes the Lease within 10 s, and by default a request ends
        # after 2 s (`leadership.WRITE_S`, `leadership.LEASE_S`, `poll_timeout_s`).
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._request("POST", f"{target.url}/suspend", run) as answer,
            ):
                if answer is not None:
                    log.info("the head answers %d to POST /suspend", answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("/suspend was not posted: %s", text_of(error))


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The body, or a little more than what is taken of one."""
    content = b""
    while len(content) <= MAX_BYTES and not answer.content.at_eof():
        content += await answer.content.read(MAX_BYTES)
    return content


def _cause(error: Exception) -> str:
    """Without what the head answered, and the same for the same cause."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number).lower() if number else "no connection"
    return type(error).__name__


def _without_time(document: Progress | None) -> Progress | None:
    return document.model_copy(update={"time": 0.0}) if document else None


def head_of(
    pods: Iterable[Object],
    ray_clusters: Iterable[Object],
    ray_jobs: Iterable[Object],
    uid: str,
    attempt: int,
) -> Target | None:
    """The attempt's head among a run's pods, if it runs, has an address and is the run's own.

    Its controller is a RayCluster, whose controller is a RayJob, whose controller is the run `uid`,
    and that RayCluster's status names it: the run's token is sent to no other pod. One that is
    terminating is polled as well, while there is no other: it may have final progress.
    """
    jobs = {job["metadata"]["uid"] for job in ray_jobs if controller_uid(job, "TrainingRun") == uid}
    clusters = {
        cluster["metadata"]["uid"]: pod_status.named_head(cluster)
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
        named = clusters.get(controller_uid(pod, "RayCluster") or "")
        if named is None or not named.is_of(metadata["name"], address):
            continue
        host = f"[{address}]" if ":" in address else address
        key = metadata["labels"].get(TOKEN_KEY_LABEL, "")
        target = Target(metadata["uid"], f"http://{host}:{PROGRESS_PORT}", key)
        if not metadata.get("deletionTimestamp"):
            return target
        found = target
    return found


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
