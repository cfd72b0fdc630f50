"""Keeps a store up with one collection of the API server, by list and watch.

Unknown is not absent: what is known stays known when the API server refuses to tell more, and
`stale` then says why it may be out of date. Only a kind that is confirmed not to be installed has
no objects.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from .connection import OPENED, Connection, Forbidden, Gone, NotServed
from .port import ClusterError
from .store import Key, Store, key_of

log = logging.getLogger(__name__)

State = Literal["starting", "synced", "missing"]

FIRST_PAGE = 20
PAGES = (5, 500)
"""Fewest and most objects asked for at once."""
PAGE_BYTES = 2**21
"""What a page should have: many small objects, or few large ones. Else 500 objects of 1 MB, which
users can create, would be read at once."""
RETRY_S = (0.5, 8.0)
"""First and longest wait before a broken or refused list or watch is tried again."""
OPTIONAL_RETRY_S = 60.0
"""Between tries of what the operator works without and has never been allowed to see."""
RECONNECT_GRACE_S = 2.0
"""A gap between two watches that is shorter than this tells nothing about the API server."""
STALE_AFTER_S = 10.0
"""A collection whose news did not arrive for so long may have changed: the server's own ends of a
watch, every 300 s, are made up for within milliseconds."""
CATCH_UP_S = 1.0
"""After a longer gap: how long the news that were missed may take to arrive."""


class Watch:
    """One collection, in all namespaces or in one. `run` keeps its store up."""

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
        is_missing: Callable[["Watch"], Awaitable[bool]] | None = None,
        missing_retry_s: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        """Nothing is read until `run`.

        Args:
            connection: To the API server.
            path: Of the collection.
            store: Takes its objects.
            what: Its objects, in messages.
            namespace: Which the path is confined to; empty: none.
            label_selector: Which of its objects; empty: all.
            optional: The operator works without; then it is asked for seldom.
            on_state: Called when `state` or `stale` may have changed.
            is_missing: Asked after a 404 whether the kind is really not installed.
            missing_retry_s: Seconds between looks for a kind that is not installed.
            monotonic: The clock.
        """
        self.path, self.store, self.namespace = path, store, namespace
        self.state: State = "starting"
        self.connected_since: float | None = None
        """Monotonic time since when news arrive without a gap; None: they do not."""
        self.alive_at = monotonic()
        """Monotonic time at which `run` last did anything."""
        self._connection, self._what = connection, what
        self._query = {"labelSelector": label_selector} if label_selector else {}
        self._optional, self._on_state, self._is_missing = optional, on_state, is_missing
        self._missing_retry_s, self._monotonic = missing_retry_s, monotonic
        self._problem: str | None = None
        self._open = False
        self._fresh_at = monotonic()
        self._told_stale: str | None = None
        self._page = FIRST_PAGE

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
        if now < self._fresh_at or (not self._open and now - self._fresh_at > STALE_AFTER_S):
            return f"the API server sends no news of the {self._what}{self._where}"
        return None

    async def run(self) -> None:
        """Lists and watches until cancelled; every failure is tried again."""
        wait = RETRY_S[0]
        while True:
            try:
                version = await self._list()
                wait = RETRY_S[0]
                await self._watch_from(version)
            except Gone:
                log.info("watch expired, listing again", extra={"path": self.path})
                pause = RETRY_S[0]
            except NotServed as error:
                if await self._confirmed_missing():
                    self._set_missing()
                    pause = self._missing_retry_s
                else:
                    self._refused(error, f"does not know the {self._what}{self._where} ({error})")
                    pause, wait = wait, min(wait * 2, RETRY_S[1])
            except Forbidden as error:
                self._refused(
                    error,
                    f"does not let the operator watch the {self._what}{self._where} ({error}); "
                    "restore the roles and the credentials of the operator",
                )
                pause, wait = wait, min(wait * 2, RETRY_S[1])
                if self.given_up:
                    pause = OPTIONAL_RETRY_S
            except ClusterError as error:
                log.warning("%s", error, extra={"path": self.path})
                pause, wait = wait, min(wait * 2, RETRY_S[1])
            self._disconnected()
            # Jittered, so that all watches do not come back to a restarted API server at once.
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))  # noqa: S311

    @property
    def _where(self) -> str:
        return f" of namespace {self.namespace}" if self.namespace else ""

    async def _list(self) -> str:
        listed: set[Key] = set()
        query = dict(self._query)
        while True:
            query["limit"] = str(self._page)
            page, size = await self._connection.list_page(self.path, query)
            kind = page["kind"].removesuffix("List")
            for item in page["items"]:
                found = {"apiVersion": page["apiVersion"], "kind": kind, **item}
                listed.add(key_of(found))
                self.store.saw(found)
            self.alive_at = self._monotonic()
            version: str = page["metadata"]["resourceVersion"]
            if not page["metadata"].get("continue"):
                break
            query["continue"] = page["metadata"]["continue"]
            self._page = page_size(len(page["items"]), size)
        self.store.keep_listed(listed, int(version), self.namespace)
        self.state, self._problem, self._fresh_at = "synced", None, self._monotonic()
        self._told_stale = None
        self._on_state(self)
        return version

    async def _watch_from(self, version: str) -> None:
        wait = RETRY_S[0]
        while True:
            query = {**self._query, "resourceVersion": version}
            try:
                async for event in self._connection.watch(self.path, query):
                    wait = RETRY_S[0]
                    self.alive_at = self._monotonic()
                    if event is OPENED:
                        self._connected()
                        continue
                    seen = event["object"]
                    version = seen["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        self.store.forget(*key_of(seen), seen["metadata"]["uid"])
                    elif event["type"] != "BOOKMARK":
                        self.store.saw(seen)
                self._closed()
            except (Gone, NotServed, Forbidden):
                raise
            except ClusterError as error:
                # Going on from the same version spares the API server a list per lost connection.
                log.info("%s", error, extra={"path": self.path})
                self._disconnected()
                await asyncio.sleep(wait * random.uniform(0.7, 1.3))  # noqa: S311
                wait = min(wait * 2, RETRY_S[1])

    def _connected(self) -> None:
        now = self._monotonic()
        gap_s = now - self._fresh_at
        if self.connected_since is None or gap_s > RECONNECT_GRACE_S:
            self.connected_since = now
        self._open, self._fresh_at = True, now
        if self._told_stale is not None or gap_s > STALE_AFTER_S:
            self._fresh_at = now + CATCH_UP_S
            asyncio.get_running_loop().call_later(CATCH_UP_S + 0.1, self._tell)

    def _closed(self) -> None:
        if self._open:
            self._open, self._fresh_at = False, max(self._fresh_at, self._monotonic())

    def _disconnected(self) -> None:
        self._closed()
        self.connected_since = None
        self.alive_at = self._monotonic()
        self._tell()

    def _refused(self, error: ClusterError, sentence: str) -> None:
        if self._problem is None:
            level = logging.INFO if self._optional else logging.WARNING
            log.log(level, "refused: %s", error, extra={"path": self.path})
        self._problem = f"the API server {sentence}"

    async def _confirmed_missing(self) -> bool:
        return self._is_missing is not None and await self._is_missing(self)

    def _set_missing(self) -> None:
        if self.state != "missing":
            log.info("not installed", extra={"path": self.path})
        self.state, self._problem = "missing", None
        self.store.clear(self.namespace)
        self._on_state(self)

    def _tell(self) -> None:
        stale = self.stale
        if stale != self._told_stale:
            self._told_stale = stale
            self._on_state(self)


def page_size(objects: int, size: int) -> int:
    """How many objects to ask for next, after a page of so many objects and bytes."""
    if not objects:
        return PAGES[1]
    return min(PAGES[1], max(PAGES[0], PAGE_BYTES * objects // max(size, 1)))
