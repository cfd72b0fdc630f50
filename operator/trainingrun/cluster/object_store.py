"""The objects of one kind in memory, with indices and with our own writes in them.

Two things make it fit to decide by: a write of our own is in it at once (`update`, `forget`), so
that the next reconcile does not repeat it; and it never goes back, because resource versions only
grow. To a watch by a label an object without it is deleted, and returns with it, under its UID and
with a newer version. Who feeds the store is not its concern.
"""

import json
import math
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace ("" for cluster-wide kinds) and name."""
Index = Callable[[Object], Hashable | None]
OnChange = Callable[[Object | None, Object | None], None]

REMEMBERED_UIDS = 20_000
"""Deleted UIDs kept to refuse late events of them; far more than are deleted within one watch."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One object."""

    uid: str
    version: int
    content: Object | bytes
    index_keys: tuple[Hashable | None, ...]
    summary: Hashable


class Store:
    """Objects by namespace and name. Single event loop only."""

    def __init__(
        self,
        *,
        indices: Mapping[str, Index] | None = None,
        project: Callable[[Object], Object] = lambda found: found,
        summarize: Callable[[Object], Hashable] = lambda found: None,
        packed: bool = False,
        on_change: OnChange = lambda old, new: None,
    ):
        """An empty store.

        Args:
            indices: Names and key functions of `by`.
            project: What is kept of an object; see `run_stores.FIELDS`.
            summarize: What is counted in `summaries` and can be read without unpacking.
            packed: Keep objects as compressed JSON, a tenth of the memory; each read then costs
                some 50 microseconds.
            on_change: Called with the former and the new object (None: absent), synchronously.
        """
        self._index_functions = tuple((indices or {}).values())
        self._indices: dict[str, dict[Hashable, set[Key]]] = {name: {} for name in indices or {}}
        self._sorted: dict[tuple[str, Hashable], tuple[Object, ...]] = {}
        self.project, self._summarize, self._packed = project, summarize, packed
        self._on_change = on_change
        self._entries: dict[Key, _Entry] = {}
        self._gone: OrderedDict[str, float] = OrderedDict()  # by UID: as of which version
        self._skipped: dict[Key, int] = {}
        self.newest = 0
        """The highest resource version that was ever seen of an object."""
        self.summaries: Counter[Any] = Counter()
        """How many objects have each summary."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def keys(self) -> list[Key]:
        """Namespace and name of every object."""
        return list(self._entries)

    def get(self, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        entry = self._entries.get((namespace, name))
        return None if entry is None else _content(entry)

    def summary(self, key: Key) -> Any:
        """The object's summary; None: it is absent."""
        entry = self._entries.get(key)
        return None if entry is None else entry.summary

    def by(self, index: str, key: Hashable) -> tuple[Object, ...]:
        """The objects of one index key, by name."""
        known = self._sorted.get((index, key))
        if known is None:
            keys = sorted(self._indices[index].get(key, ()))
            known = tuple(_content(self._entries[at]) for at in keys)
            if known and not self._packed:
                self._sorted[index, key] = known
        return known

    def has(self, index: str, key: Hashable) -> bool:
        """Whether there is an object of that index key."""
        return key in self._indices[index]

    def update(self, obj: Object) -> None:
        """Takes in an object, unless a newer one is here or it is known to be deleted."""
        metadata, version = obj["metadata"], int(obj["metadata"]["resourceVersion"])
        if version <= self._gone.get(metadata["uid"], -1):
            return
        key = key_of(obj)
        old = self._entries.get(key)
        if old is not None and old.version >= version:
            return
        if old is not None and old.uid != metadata["uid"]:
            self._remember_gone(old.uid, math.inf)
        self.newest = max(self.newest, version)
        kept = self.project(obj)
        new = _Entry(
            metadata["uid"],
            version,
            _pack(kept) if self._packed else kept,
            tuple(function(kept) for function in self._index_functions),
            self._summarize(kept),
        )
        self._put(key, old, new, kept)

    def skip(self, obj: Object) -> None:
        """Notes that this version of an object has come in and cannot be read."""
        self._skipped[key_of(obj)] = int(obj["metadata"]["resourceVersion"])

    def forget(self, namespace: str, name: str, uid: str, version: float = math.inf) -> None:
        """Takes out an object that is deleted.

        Args:
            namespace: Its namespace.
            name: Its name.
            uid: Its UID.
            version: As of which it is: what comes later of an older one is refused. Infinite: it is
                deleted for good.
        """
        self._remember_gone(uid, version)
        self._skipped.pop((namespace, name), None)
        old = self._entries.get((namespace, name))
        if old is not None and old.uid == uid and old.version <= version:
            self._put((namespace, name), old, None, None)

    def has_received(self, key: Key, uid: str, version: int) -> bool:
        """Whether that version of an object, or anything later about its name, has come in."""
        entry = self._entries.get(key)
        newest = max(entry.version if entry else 0, self._skipped.get(key, 0))
        return max(newest, self._gone.get(uid, -1)) >= version

    def is_ahead_of(self, listed: Mapping[Key, tuple[str, int]], version: int) -> bool:
        """Whether an object was seen newer than a complete list as of `version` has it, with its
        UID and version, though not newer than the list: then the list is of another history.
        """
        return any(
            entry.uid == uid and known < entry.version <= version
            for key, (uid, known) in listed.items()
            if (entry := self._entries.get(key)) is not None
        )

    def keep_listed(self, listed: Collection[Key], version: int, namespace: str = "") -> None:
        """Takes out what a complete list as of `version` does not name.

        Args:
            listed: Keys of all objects that the list named; each was in `update` before.
            version: The list's resource version. What we wrote after it is newer, and stays.
            namespace: The list's; empty: of all namespaces.
        """
        keys = [key for key in self._entries if not namespace or key[0] == namespace]
        self._keep(keys, listed, version)

    def keep_listed_of(
        self, index: str, at: Hashable, listed: Collection[Key], version: int
    ) -> None:
        """The same for a complete list of the objects of one index key."""
        self._keep(list(self._indices[index].get(at, ())), listed, version)

    def _keep(self, keys: Iterable[Key], listed: Collection[Key], version: int) -> None:
        for key in keys:
            entry = self._entries[key]
            if key not in listed and entry.version <= version:
                self.forget(*key, entry.uid, version)

    def clear(self, namespace: str = "") -> None:
        """Takes out everything of a namespace (empty: of all): the kind itself is gone."""
        for key, entry in list(self._entries.items()):
            if not namespace or key[0] == namespace:
                self._put(key, entry, None, None)

    def _remember_gone(self, uid: str, version: float) -> None:
        self._gone[uid] = max(version, self._gone.get(uid, -1))
        if len(self._gone) > REMEMBERED_UIDS:
            self._gone.popitem(last=False)

    def _put(self, key: Key, old: _Entry | None, new: _Entry | None, kept: Object | None) -> None:
        for position, (name, index) in enumerate(self._indices.items()):
            if old is not None and (at := old.index_keys[position]) is not None:
                self._sorted.pop((name, at), None)
                index[at].discard(key)
                if not index[at]:
                    del index[at]
            if new is not None and (at := new.index_keys[position]) is not None:
                self._sorted.pop((name, at), None)
                index.setdefault(at, set()).add(key)
        if old is not None:
            self.summaries[old.summary] -= 1
            if not self.summaries[old.summary]:
                del self.summaries[old.summary]
        if new is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = new
            self.summaries[new.summary] += 1
        self._on_change(None if old is None else _content(old), kept)


def key_of(obj: Object) -> Key:
    """Namespace ("" for cluster-wide kinds) and name."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def encoded(value: Any) -> bytes:
    """Compact UTF-8 encoded JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _pack(obj: Object) -> bytes:
    return zlib.compress(encoded(obj), level=1)


def _content(entry: _Entry) -> Object:
    content = entry.content
    if isinstance(content, bytes):
        obj: Object = json.loads(zlib.decompress(content))
        return obj
    return content
