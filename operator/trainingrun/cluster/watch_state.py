"""What is known of one collection that kopf lists and watches: whether its events arrive.

kopf passes objects to its handlers, and nothing else. Whether it is refused, cut off or listing
anew shows in its requests, see `kopf_watches`. Unknown is not absent: what is known stays known
when the API server refuses the watch, and `stale` then has the reason why it may be out of date.
Only a kind that is confirmed not to be installed has no objects.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import aiohttp

from .api_client import Connection, Forbidden, NotServed
from .interface import ClusterError
from .object_store import Key, Store, key_of

log = logging.getLogger(__name__)

State = Literal["starting", "synced", "missing"]

PAGE = 500
"""Objects whose metadata is requested at once."""
RETRY_S = (0.5, 8.0)
"""First and longest wait before a broken or refused request is tried again."""
RECONNECT_GRACE_S = 2.0
"""A gap between two watches that is shorter than this shows nothing about the API server."""
STALE_AFTER_S = 10.0
"""A collection without an open watch for so long may have changed: the server's own ends of a
watch, every few seconds, are made up for within milliseconds."""
CATCH_UP_S = 1.0
"""After a longer gap: how long the events that were missed may take to arrive."""
HANDLED_CHECK_S = 0.02
"""Between checks whether kopf has reported every listed object."""


class HistoryRewound(Exception):
    """The cluster's own store went back, as when etcd is restored from a backup.

    What this process has read may never have happened, and resource versions are given anew: it
    has to begin again, with nothing remembered.
    """


class Watch:
    """One collection, in all namespaces or in one."""

    def __init__(
        self,
        connection: Connection,
        path: str,
        store: Store,
        *,
        what: str = "objects",
        namespace: str = "",
        label_selector: str = "",
        optional: bool = False,
        on_state: Callable[["Watch"], None] = lambda watch: None,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"] = asyncio.create_task,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        """Nothing is known yet of the collection at `path`; messages call its objects `what`.

        It may be confined to a namespace or a label selector, and `optional`: the operator works
        without. `on_state` is called when `state` or `stale` may have changed; `spawn` runs a
        coroutine in the background.
        """
        self.path, self.store, self.namespace = path, store, namespace
        self.state: State = "starting"
        self.connected_since: float | None = None
        """Monotonic time since when events arrive without a gap; None: they do not."""
        self.alive_at = monotonic()
        """Monotonic time of kopf's last request, or at which the kind was found to be missing."""
        self.requested = False
        """Whether kopf waits for an answer of the API server."""
        self._connection, self._what = connection, what
        self._query = {"labelSelector": label_selector} if label_selector else {}
        self._optional, self._on_state = optional, on_state
        self._spawn, self._monotonic = spawn, monotonic
        self._problem: str | None = None
        self._answer: aiohttp.ClientResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._fresh_at = monotonic()
        self._reported_stale: str | None = None
        self._listed = False
        self._comparing: asyncio.Task[None] | None = None

    @property
    def settled(self) -> bool:
        """Whether the start need not wait for it: it was listed, is missing, or was refused."""
        return self.state != "starting" or self._problem is not None

    @property
    def given_up(self) -> bool:
        """Whether it was refused from the start and the operator works without."""
        return self._optional and self.state == "starting" and self._problem is not None

    @property
    def stale(self) -> str | None:
        """Why what the store has may be out of date, to go on a sentence; None: it is not."""
        if self.state == "missing":
            return None
        if self._problem is not None:
            return self._problem
        if self.state == "starting":
            return f"the {self._what}{self._where} have not been listed yet"
        now = self._monotonic()
        closed = self._answer is None and now - self._fresh_at > STALE_AFTER_S
        if now < self._fresh_at or closed:
            return f"the API server sends no news of the {self._what}{self._where}"
        return None

    @property
    def unwatched_s(self) -> float:
        """For how many seconds kopf has had no watch open and requested none; 0: it does."""
        if self._answer is not None or self.requested:
            return 0.0
        return self._monotonic() - max(self.alive_at, self._fresh_at)

    # What kopf's requests show

    def began(self, watches: bool) -> None:
        """A request of kopf's begins: for a list, or (`watches`) for what happens from now on."""
        self.alive_at, self.requested = self._monotonic(), True
        self._closed()
        if not watches:
            self._listed = True

    def opened(self, answer: aiohttp.ClientResponse) -> None:
        """The API server answers a watch: silence from here on means that nothing happens."""
        now = self._monotonic()
        gap_s = now - self._fresh_at
        if self.connected_since is None or gap_s > RECONNECT_GRACE_S:
            self.connected_since = now
        self._answer, self._problem, self._fresh_at = answer, None, now
        self.requested = False
        self._transport = answer.connection.transport if answer.connection is not None else None
        if self._reported_stale is not None or gap_s > STALE_AFTER_S:
            self._fresh_at = now + CATCH_UP_S
            asyncio.get_running_loop().call_later(CATCH_UP_S + 0.1, self._report)
        # After a long gap all is compared: the API server may have come back with an older state.
        if self._listed or self.state != "synced" or gap_s > STALE_AFTER_S:
            self._listed = False
            if self._comparing is not None:
                self._comparing.cancel()
            self._comparing = self._spawn(self._compare())

    def disconnected(self) -> None:
        """A request has failed, or has not been answered as it should."""
        self.requested = False
        self._closed()
        self.connected_since = None
        self._report()

    def refused(self, error: ClusterError) -> None:
        """The API server refuses kopf's request; a kind that is missing stays missing."""
        before, about = self._problem, f"{self._what}{self._where} ({error})"
        if isinstance(error, NotServed):
            self._problem = f"the API server does not know the {about}"
        elif isinstance(error, Forbidden):
            self._problem = (
                f"the API server does not let the operator watch the {about}; restore the roles "
                "and the credentials of the operator"
            )
        if before is None and self._problem is not None:
            level = logging.INFO if self._optional else logging.WARNING
            log.log(level, "refused: %s", error, extra={"path": self.path})
            self._on_state(self)
        self.disconnected()

    def check(self) -> None:
        """Finds what no request shows: that the answer to a watch has ended."""
        if self._answer is not None and self._answer.closed:
            self._closed()
        self._report()

    def set_missing(self) -> None:
        """The kind is confirmed not to be installed."""
        if self.state != "missing":
            log.info("not installed", extra={"path": self.path})
        self.state, self._problem = "missing", None
        self.alive_at = self._monotonic()
        self.store.clear(self.namespace)
        self._on_state(self)

    # The store against what is really there

    async def catch_up(self) -> None:
        """Waits until the store has all that there is now, however late the events are.

        Not while nothing can be known of it: `stale` says so.
        """
        if self.state == "synced":
            await self._follow(*await self._list(), patient=False)

    async def _compare(self) -> None:
        """After a list of kopf's: waits until the store has what is there, and takes out the rest.

        kopf reports each listed object by itself, and does not report those that vanished while no
        watch was open, as after a watch that expired (410 Gone).

        Raises:
            HistoryRewound: What is there is older than what was seen.
        """
        newest = self.store.newest
        listed, version = await self._list()
        if version < newest or self.store.is_ahead_of(listed, version):
            raise HistoryRewound(
                f"the {self._what}{self._where} are older than what was read before: the cluster's "
                "etcd was restored from a backup; the operator begins anew"
            )
        await self._follow(listed, version, patient=True)
        if self.state != "synced":
            self.state, self._reported_stale = "synced", None
            self._fresh_at = self._monotonic()
        self._on_state(self)

    async def _follow(
        self, listed: dict[Key, tuple[str, int]], version: int, *, patient: bool
    ) -> None:
        """Waits for the events of a list, `patient` also while the watch is stale."""
        awaited = listed
        while awaited := {
            key: seen for key, seen in awaited.items() if not self.store.has_seen(key, *seen)
        }:
            if not patient and self.stale:
                return
            await asyncio.sleep(HANDLED_CHECK_S)
        self.store.keep_listed(listed, version, self.namespace)

    async def _list(self) -> tuple[dict[Key, tuple[str, int]], int]:
        """As `_list_metadata`, until the API server answers."""
        wait = RETRY_S[0]
        while True:
            try:
                return await self._list_metadata()
            except ClusterError as error:
                log.info("%s", error, extra={"path": self.path})
                await asyncio.sleep(wait * random.uniform(0.7, 1.3))  # noqa: S311
                wait = min(wait * 2, RETRY_S[1])

    async def _list_metadata(self) -> tuple[dict[Key, tuple[str, int]], int]:
        """UID and version of every object, and the version of the list."""
        listed: dict[Key, tuple[str, int]] = {}
        query = {**self._query, "limit": str(PAGE)}
        while True:
            page = await self._connection.list_metadata(self.path, query)
            for item in page["items"] or ():
                metadata = item["metadata"]
                listed[key_of(item)] = metadata["uid"], int(metadata["resourceVersion"])
            if not page["metadata"].get("continue"):
                return listed, int(page["metadata"]["resourceVersion"])
            query["continue"] = page["metadata"]["continue"]

    @property
    def _where(self) -> str:
        return f" of namespace {self.namespace}" if self.namespace else ""

    def _closed(self) -> None:
        if self._transport is not None and self._transport.is_closing():
            # A TLS close handshake would wait until the server has sent everything, and nothing
            # would close that socket any more.
            self._transport.abort()
        self._transport = None
        if self._answer is not None:
            self._answer, self._fresh_at = None, max(self._fresh_at, self._monotonic())

    def _report(self) -> None:
        stale = self.stale
        if stale != self._reported_stale:
            self._reported_stale = stale
            self._on_state(self)
