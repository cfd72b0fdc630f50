"""Which collections are watched to keep the stores up, and what is known to be out of date.

Lists, watches and retries are `watching`'s; this decides what is watched, tells the runs when a
watch goes stale or is fresh again, and looks whether KubeRay is installed.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping

from ..rendering.names import RUN_LABEL
from . import kuberay
from .connection import Connection, Forbidden, NotFound
from .port import ClusterError
from .resources import RAY_API, path
from .stores import Kind, Stores
from .watching import Watch

log = logging.getLogger(__name__)


class Watches:
    """Keeps `Stores` up with one cluster, in all namespaces or in some."""

    def __init__(
        self,
        connection: Connection,
        stores: Stores,
        namespaces: Collection[str] = (),
        *,
        look_for_kuberay_s: float = 30.0,
    ):
        """Nothing is watched until `run`.

        Args:
            connection: To the API server.
            stores: Where the objects go.
            namespaces: Only these are looked at; empty: all.
            look_for_kuberay_s: Seconds between looks for a KubeRay that is missing or too old.
        """
        self._connection, self._stores = connection, stores
        self._look_for_kuberay_s = look_for_kuberay_s
        self.kuberay: kuberay.KubeRay | None = None
        """Whether KubeRay is installed; None: that was not found out yet."""
        self._check_kuberay = asyncio.Event()
        self._synced = asyncio.Event()
        self._of_kind: dict[str, dict[str, Watch]] = {
            kind.name: {
                namespace: self._watch(kind, namespace) for namespace in sorted(namespaces) or [""]
            }
            for kind in stores.of_runs
        }
        self.nodes = Watch(
            connection,
            path("v1", "Node"),
            stores.nodes.store,
            what="Nodes",
            optional=True,
            on_state=self._changed,
        )
        self._of_kind["Node"] = {"": self.nodes}
        self._told: dict[str, tuple[str, str | None]] = {}

    async def run(self) -> None:
        """Keeps the stores up until cancelled; raises if a watch ends, which is a bug."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self.all():
                tasks.create_task(watch.run(), name=f"watch {watch.path}")
            tasks.create_task(self._watch_kuberay(), name="check KubeRay")

    def all(self) -> Iterator[Watch]:
        """Every watch."""
        for watches in self._of_kind.values():
            yield from watches.values()

    @property
    def synced(self) -> bool:
        """Whether every store was filled once, or is known to be stale."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Waits until `synced`."""
        await self._synced.wait()

    def stale(self, kind: str, namespace: str) -> str | None:
        """Why what the store has of this kind and namespace may be out of date; None: it is not."""
        watches = self._of_kind.get(kind, {})
        watch = watches.get(namespace) or watches.get("")
        return watch.stale if watch else None

    def stale_kinds(self, namespace: str) -> dict[str, str]:
        """The kinds that a run of this namespace is made of and that are stale, with the reason."""
        return {
            kind.name: reason
            for kind in self._stores.of_runs
            if (reason := self.stale(kind.name, namespace)) is not None
        }

    def count_stale(self) -> Mapping[str, int]:
        """How many watches of each kind tell nothing at the moment; what the operator was never
        allowed to see and works without is not counted.
        """
        return {
            kind: sum(watch.stale is not None and not watch.given_up for watch in watches.values())
            for kind, watches in self._of_kind.items()
        }

    def _watch(self, kind: Kind, namespace: str) -> Watch:
        async def is_missing(watch: Watch) -> bool:
            return await self._is_missing(kind, watch)

        return Watch(
            self._connection,
            path(kind.api_version, kind.name, namespace or None),
            kind.store,
            what=f"{kind.name}s",
            namespace=namespace,
            label_selector="" if kind is self._stores.runs else RUN_LABEL,
            on_state=self._changed,
            is_missing=None if kind.name == "Pod" else is_missing,
            missing_retry_s=self._look_for_kuberay_s,
        )

    def _changed(self, watch: Watch) -> None:
        """A watch was listed, went stale or is fresh again, or its kind is not installed."""
        if watch in self._of_kind["RayJob"].values():
            self._check_kuberay.set()
        if not self.synced:
            self._note_synced()
            return
        now = (watch.state, watch.stale)
        if self._told.get(watch.path, ("synced", None)) != now:
            self._told[watch.path] = now
            self._stores.tell(*self._stores.unfinished(watch.namespace))

    def _note_synced(self) -> None:
        if self.kuberay is not None and all(watch.settled for watch in self.all()):
            self._told = {watch.path: (watch.state, watch.stale) for watch in self.all()}
            self._synced.set()

    async def _is_missing(self, kind: Kind, watch: Watch) -> bool:
        """Whether a 404 means that the kind is not installed: its CRD decides, where it may be
        read; a server that is just starting may not know it yet.
        """
        try:
            await self._connection.request("GET", kuberay.crd_path(kind.api_version, kind.name))
        except NotFound:
            return True
        except Forbidden:
            return watch.state != "synced"  # as far as this process knows it was never there
        except ClusterError:
            return False
        return False

    # KubeRay

    async def _watch_kuberay(self) -> None:
        while True:
            self._check_kuberay.clear()
            found = await self._look_at_kuberay()
            if found is not None and found != self.kuberay:
                level = logging.INFO if found == "ok" else logging.WARNING
                log.log(level, "KubeRay's RayJob CRD: %s", found)
                self.kuberay = found
                self._note_synced()
                self._stores.tell(*self._stores.unfinished())
            try:
                wait_s = None if found == "ok" else self._look_for_kuberay_s
                await asyncio.wait_for(self._check_kuberay.wait(), wait_s)
            except TimeoutError:
                continue

    async def _look_at_kuberay(self) -> kuberay.KubeRay | None:
        """None: nobody knows at the moment."""
        watches = self._of_kind["RayJob"].values()
        if any(watch.state == "missing" for watch in watches):
            return "missing"
        if not any(watch.settled for watch in watches):
            return None  # the first list asks again
        try:
            crd = await self._connection.request("GET", kuberay.crd_path(RAY_API, "RayJob"))
        except Forbidden:
            return "ok"  # confined to namespaces; the list that has just worked has to do
        except ClusterError as error:
            log.warning("KubeRay's CRD: %s", error)
            return self.kuberay
        return kuberay.verdict(crd)
