"""One collection of the API server, kept in memory by list and watch.

Two things make it fit to decide by: a write of our own is in it at once (`saw`, `forget`), so that
the next look does not repeat it; and it never goes back, because resource versions only grow and
the UID of a deleted object never returns.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal

from .connection import OPENED, Connection, Forbidden, Gone, NotFound
from .port import ClusterError

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace ("" for cluster-wide kinds) and name."""
State = Literal["starting", "synced", "missing", "forbidden"]
Index = Callable[[Object], Hashable | None]

PAGE = 500
REMEMBERED_UIDS = 20_000
"""Deleted UIDs kept to refuse late news of them; far more than are deleted within one watch."""
RETRY_S = (0.5, 30.0)
"""First and longest wait before a broken list or watch is tried again."""
FORBIDDEN_RETRY_S = 300.0
"""Between looks at what the operator's roles do not allow."""
RECONNECT_GRACE_S = 2.0
"""A gap between two watches that is shorter than this tells nothing about the API server."""


class WatchCache:
    """The objects of one path. `run` keeps it up; everything else reads or notes our own writes."""

    def __init__(
        self,
        connection: Connection,
        path: str,
        *,
        label_selector: str = "",
        indices: Mapping[str, Index] | None = None,
        on_change: Callable[[Object | None, Object | None], None] = lambda old, new: None,
        on_list: Callable[[], None] = lambda: None,
        missing_retry_s: float = 30.0,
    ):
        """A cache that is empty until `run`.

        Args:
            connection: To the API server.
            path: Of the collection.
            label_selector: Which of its objects; empty: all.
            indices: Names and key functions of `by`.
            on_change: Called with the former and the new object (None: absent), synchronously.
            on_list: Called after each full list, and when the kind is found to be missing.
            missing_retry_s: Seconds between looks for a kind that is not installed.
        """
        self.path = path
        self.state: State = "starting"
        self.connected_since: float | None = None
        """Monotonic time since when news arrive without a gap; None: they do not."""
        self.alive_at = time.monotonic()
        """Monotonic time at which `run` last did anything."""
        self._connection = connection
        self._query = {"labelSelector": label_selector} if label_selector else {}
        self._on_change, self.on_list = on_change, on_list
        self._objects: dict[Key, Object] = {}
        self._index_functions = dict(indices or {})
        self._indices: dict[str, dict[Hashable, dict[Key, Object]]] = {
            name: {} for name in self._index_functions
        }
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._ended_at = 0.0
        self._missing_retry_s = missing_retry_s

    @property
    def settled(self) -> bool:
        """Whether absence means something: listed once, or known to be missing or forbidden."""
        return self.state != "starting"

    def get(self, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        return self._objects.get((namespace, name))

    def all(self) -> list[Object]:
        """Every object, in no order."""
        return list(self._objects.values())

    def by(self, index: str, key: Hashable) -> list[Object]:
        """The objects of one index key, by name."""
        found = self._indices[index].get(key, {})
        return [found[at] for at in sorted(found)]

    def saw(self, seen: Object) -> None:
        """Takes in an object, unless a newer one is here or it is known to be deleted."""
        metadata = seen["metadata"]
        if metadata["uid"] in self._gone:
            return
        key = _key(seen)
        old = self._objects.get(key)
        if old is not None and _version(old) >= _version(seen):
            return
        slim = {k: v for k, v in metadata.items() if k != "managedFields"}
        self._put(key, old, {**seen, "metadata": slim})

    def forget(self, namespace: str, name: str, uid: str) -> None:
        """Takes out an object that is deleted for good; later news of this UID are refused."""
        self._gone[uid] = None
        if len(self._gone) > REMEMBERED_UIDS:
            self._gone.popitem(last=False)
        old = self._objects.get((namespace, name))
        if old is not None and old["metadata"]["uid"] == uid:
            self._put((namespace, name), old, None)

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
            except NotFound:
                self._clear("missing")
                pause = self._missing_retry_s
            except Forbidden as error:
                if self.state != "forbidden":
                    log.warning("not allowed to watch: %s", error, extra={"path": self.path})
                self._clear("forbidden")
                pause = FORBIDDEN_RETRY_S
            except ClusterError as error:
                log.warning("%s", error, extra={"path": self.path})
                pause, wait = wait, min(wait * 2, RETRY_S[1])
            self.connected_since = None
            self.alive_at = time.monotonic()
            # Jittered, so that all caches do not come back to a restarted API server at once.
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))  # noqa: S311

    async def _list(self) -> str:
        found: list[Object] = []
        query = {**self._query, "limit": str(PAGE)}
        while True:
            page = await self._connection.request("GET", self.path, query=query)
            kind = page["kind"].removesuffix("List")
            found += [
                {"apiVersion": page["apiVersion"], "kind": kind, **item} for item in page["items"]
            ]
            version: str = page["metadata"]["resourceVersion"]
            if not page["metadata"].get("continue"):
                break
            query["continue"] = page["metadata"]["continue"]
        self.alive_at = time.monotonic()
        self.state = "synced"
        self._replace(found, version)
        self.on_list()
        return version

    async def _watch_from(self, version: str) -> None:
        wait = RETRY_S[0]
        while True:
            query = {**self._query, "resourceVersion": version}
            try:
                async for event in self._connection.watch(self.path, query):
                    wait = RETRY_S[0]
                    self.alive_at = time.monotonic()
                    if event is OPENED:
                        self._connected()
                        continue
                    seen = event["object"]
                    version = seen["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        self.forget(*_key(seen), seen["metadata"]["uid"])
                    elif event["type"] != "BOOKMARK":
                        self.saw(seen)
                self._ended_at = time.monotonic()
            except (Gone, NotFound, Forbidden):
                raise
            except ClusterError as error:
                # Going on from the same version spares the API server a list per lost connection.
                log.info("%s", error, extra={"path": self.path})
                self.connected_since = None
                self.alive_at = time.monotonic()
                await asyncio.sleep(wait * random.uniform(0.7, 1.3))  # noqa: S311
                wait = min(wait * 2, RETRY_S[1])

    def _connected(self) -> None:
        now = time.monotonic()
        if self.connected_since is None or now - self._ended_at > RECONNECT_GRACE_S:
            self.connected_since = now

    def _replace(self, found: Iterable[Object], version: str) -> None:
        listed = {_key(item): item for item in found}
        for key, old in list(self._objects.items()):
            # What we wrote after the list was taken is newer than it, and not missing from it.
            vanished = key not in listed or listed[key]["metadata"]["uid"] != old["metadata"]["uid"]
            if vanished and _version(old) <= int(version):
                self.forget(*key, old["metadata"]["uid"])
        for item in listed.values():
            self.saw(item)

    def _clear(self, state: State) -> None:
        changed = self.state != state
        self.state = state
        for key, old in list(self._objects.items()):
            self._put(key, old, None)
        if changed:
            self.on_list()

    def _put(self, key: Key, old: Object | None, new: Object | None) -> None:
        for name, function in self._index_functions.items():
            index = self._indices[name]
            if old is not None and (at := function(old)) is not None:
                index[at].pop(key, None)
                if not index[at]:
                    del index[at]
            if new is not None and (at := function(new)) is not None:
                index.setdefault(at, {})[key] = new
        if new is None:
            self._objects.pop(key, None)
        else:
            self._objects[key] = new
        self._on_change(old, new)


def _key(found: Object) -> Key:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def _version(found: Object) -> int:
    """Resource versions of one kind are numbers that grow."""
    return int(found["metadata"]["resourceVersion"])
