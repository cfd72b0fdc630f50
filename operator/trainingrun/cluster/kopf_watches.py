"""Which collections kopf watches to keep the stores up, and what is known to be out of date.

kopf lists, watches and reconnects; `observe` gets each of its requests and the answer, the only
sign of whether events arrive. This notifies the runs when a watch goes stale or is fresh again,
and finds out whether KubeRay is installed.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any, Literal, cast

import aiohttp

from ..rendering.names import RUN_LABEL
from . import kuberay
from .api_client import Connection, Forbidden, Gone, NotFound, NotServed, error_of
from .bounded_json import ShallowContent
from .interface import ClusterError, text_of
from .resources import PLURALS, RAY_API, path
from .run_stores import Kind, Stores
from .watch_state import Watch

log = logging.getLogger(__name__)

CHECK_S = 0.5
"""Between checks whether a watch has ended without a new one."""
OPTIONAL_RETRY_S = 6.0
"""Between tries of what the operator works without and has never been allowed to see; shorter than
a watch may be silent, for kopf's request waits as long."""
UNWATCHED_S = 15.0
"""A kind that is served for so long and not requested by kopf was installed after kopf began; kopf
waits shorter before it requests again what was refused."""


class KindInstalledLater(Exception):
    """kopf has to be started anew, because it does not watch a kind that is installed by now.

    It reads at its start which kinds there are, and later by KubeRay's CRD of RayJobs, unless the
    operator is confined to namespaces and may not watch CRDs. It requests the kinds as soon as the
    CRD changes, which may be shortly before the API server serves them.
    """


class Watches:
    """Keeps `Stores` up with one cluster, in all namespaces or in some."""

    def __init__(
        self,
        connection: Connection,
        stores: Stores,
        namespaces: Collection[str] = (),
        *,
        kuberay_check_s: float = 30.0,
        count_unreadable: Callable[[str], None] = lambda kind: None,
    ):
        """Nothing is watched until `run`.

        Args:
            connection: To the API server.
            stores: Where the objects go.
            namespaces: Only these are watched; empty: all.
            kuberay_check_s: Seconds between checks for a KubeRay that is missing or too old.
            count_unreadable: Called with the kind for each page of a list, and each event, of which
                something is left out: it is nested too deeply.
        """
        self._connection, self._stores = connection, stores
        self._count_unreadable = count_unreadable
        self._kuberay_check_s = kuberay_check_s
        self.kuberay: kuberay.KubeRay | None = None
        """Whether KubeRay is installed; None: that was not found out yet."""
        self._check_kinds = asyncio.Event()
        self._synced = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._of_kind: dict[str, dict[str, Watch]] = {
            kind.name: {
                namespace: self._watch(kind, namespace) for namespace in sorted(namespaces) or [""]
            }
            for kind in stores.of_runs
        }
        self.nodes = self._watch(stores.nodes, "", optional=True)
        self._of_kind["Node"] = {"": self.nodes}
        self._by_path = {watch.path: watch for watch in self.all()}
        self._kind_at = {
            watch.path: kind for kind, each in self._of_kind.items() for watch in each.values()
        }
        self._reported: dict[str, tuple[str, str | None]] = {}

    async def run(self) -> None:
        """Checks the watches and the kinds until cancelled.

        Raises:
            ExceptionGroup: of `KindInstalledLater` or `HistoryRewound`; of anything else by a bug.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._keep_checking(), name="check watches")
                tasks.create_task(self._watch_kinds(), name="check kinds")
        finally:
            for watch in self.all():
                watch.check()

    async def observe(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """A middleware of kopf's session: notes what becomes of each request.

        A refusal becomes an aiohttp.ClientError, after which kopf tries again: a 404 would end it.
        """
        watch = self._by_path.get(request.url.path)
        watches = "watch" in request.url.query
        method = "WATCH" if watches else "GET"
        if watch is not None:
            if watch.given_up:
                await asyncio.sleep(OPTIONAL_RETRY_S)
            watch.began(watches)
        try:
            if watches:
                answer = self._readable(await send(request), request.url.path)
            else:
                async with self._connection.lists:
                    answer = self._readable(await send(request), request.url.path)
                    await answer.read()
        except (aiohttp.ClientError, TimeoutError) as problem:
            self._connection.count(method, "error")
            log.info("%s %s: %s", method, request.url.path, text_of(problem))
            if watch is not None:
                watch.disconnected()
            raise
        self._connection.count(method, str(answer.status))
        if answer.status < 400:
            if watch is not None and watches:
                watch.opened(answer)
            return answer
        if watch is None and answer.status == 404:
            return answer  # to kopf, an API group without any kinds
        error = error_of(answer.status, method, request.url.path, await answer.read())
        if watch is not None:
            watch.refused(error)
        if isinstance(error, Gone):
            raise aiohttp.ClientPayloadError(str(error))  # kopf lists from the beginning
        raise aiohttp.ClientConnectionError(str(error))

    def _readable(self, answer: aiohttp.ClientResponse, path: str) -> aiohttp.ClientResponse:
        """The answer, such that kopf can parse it whatever somebody has put into an object."""
        kind = self._kind_at.get(path, "other")
        content = ShallowContent(answer.content, lambda: self._count_unreadable(kind))
        answer.content = cast("aiohttp.StreamReader", content)
        return answer

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

    async def catch_up_with_runs(self) -> None:
        """Waits until every TrainingRun is as it is now, where that can be known."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self._of_kind[self._stores.runs.name].values():
                tasks.create_task(watch.catch_up())

    def of(self, kind: str, namespace: str) -> Watch:
        """The watch of this kind that has the objects of that namespace."""
        watches = self._of_kind[kind]
        return watches.get(namespace) or watches[""]

    def stale(self, kind: str, namespace: str) -> str | None:
        """Why what the store has of this kind and namespace may be out of date; None: it is not."""
        return self.of(kind, namespace).stale

    def stale_kinds(self, namespace: str) -> dict[str, str]:
        """The kinds that a run of this namespace is made of and that are stale, with the reason."""
        return {
            kind.name: reason
            for kind in self._stores.of_runs
            if (reason := self.stale(kind.name, namespace)) is not None
        }

    def count_stale(self) -> Mapping[str, int]:
        """How many watches of each kind are stale; what the operator was never
        allowed to see and works without is not counted.
        """
        return {
            kind: sum(watch.stale is not None and not watch.given_up for watch in watches.values())
            for kind, watches in self._of_kind.items()
        }

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        if self._tasks is None:
            raise RuntimeError("kopf began before `run`")
        return self._tasks.create_task(work)

    def _watch(self, kind: Kind, namespace: str, *, optional: bool = False) -> Watch:
        return Watch(
            self._connection,
            path(kind.api_version, kind.name, namespace or None),
            kind.store,
            what=f"{kind.name}s",
            namespace=namespace,
            label_selector=RUN_LABEL if kind in self._stores.owned_by_runs else "",
            optional=optional,
            on_state=self._changed,
            spawn=self._spawn,
        )

    def _changed(self, watch: Watch) -> None:
        """A watch was listed, went stale or is fresh again, or its kind is not installed."""
        if watch.path.startswith("/apis/"):
            self._check_kinds.set()  # is its CRD still there?
        if not self.synced:
            self._note_synced()
            return
        now = (watch.state, watch.stale)
        if self._reported.get(watch.path, ("synced", None)) != now:
            self._reported[watch.path] = now
            self._stores.notify(*self._stores.unfinished(watch.namespace))

    def _note_synced(self) -> None:
        if self.kuberay is not None and all(watch.settled for watch in self.all()):
            self._reported = {watch.path: (watch.state, watch.stale) for watch in self.all()}
            self._synced.set()

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            for watch in self.all():
                watch.check()

    # Which kinds are installed

    async def _watch_kinds(self) -> None:
        while True:
            self._check_kinds.clear()
            settled = True
            for kind in self._stores.of_runs:
                if kind.api_version != "v1":  # Pods are always there
                    settled &= await self._check_kind(kind)
            found = await self._read_kuberay()
            if found is not None and found != self.kuberay:
                level = logging.INFO if found == "ok" else logging.WARNING
                log.log(level, "KubeRay's RayJob CRD: %s", found)
                self.kuberay = found
                self._note_synced()
                self._stores.notify(*self._stores.unfinished())
            await asyncio.sleep(CHECK_S)
            try:
                wait_s = None if settled and found == "ok" else self._kuberay_check_s
                await asyncio.wait_for(self._check_kinds.wait(), wait_s)
            except TimeoutError:
                continue

    async def _check_kind(self, kind: Kind) -> bool:
        """Whether kopf watches it. Marks what is not installed as missing."""
        watches = self._of_kind[kind.name].values()
        served = await self._is_served(kind)
        for watch in watches:
            if served == "missing":
                watch.set_missing()
            elif served == "no" and watch.unwatched_s:  # and kopf may not request it again
                watch.refused(NotServed(f"its CRD is there, and {kind.api_version} is not served"))
        unwatched_s = max(watch.unwatched_s for watch in watches)
        if served == "yes" and unwatched_s > UNWATCHED_S:
            raise KindInstalledLater(f"{kind.name} was installed after the operator began")
        return served == "yes" and not unwatched_s

    async def _is_served(self, kind: Kind) -> Literal["yes", "no", "missing", "unknown"]:
        """Whether the API server serves a kind."""
        try:
            found = await self._connection.request("GET", f"/apis/{kind.api_version}")
            plural = PLURALS[kind.api_version, kind.name]
            if any(resource["name"] == plural for resource in found["resources"]):
                return "yes"
        except NotServed:
            pass
        except ClusterError:
            return "unknown"
        # Its CRD decides, where it may be read: a server that is just starting may answer 404.
        try:
            await self._connection.request("GET", kuberay.crd_path(kind.api_version, kind.name))
        except NotFound:
            return "missing"
        except Forbidden:
            known = any(watch.state == "synced" for watch in self._of_kind[kind.name].values())
            return "no" if known else "missing"  # as far as this process has read
        except ClusterError:
            return "unknown"
        return "no"

    async def _read_kuberay(self) -> kuberay.KubeRay | None:
        """None: not known at present."""
        watches = self._of_kind["RayJob"].values()
        if any(watch.state == "missing" for watch in watches):
            return "missing"
        if not any(watch.settled for watch in watches):
            return None  # the first list requests it again
        try:
            crd = await self._connection.request("GET", kuberay.crd_path(RAY_API, "RayJob"))
        except Forbidden:
            return "ok"  # confined to namespaces; the list that has just worked has to do
        except ClusterError as error:
            log.warning("KubeRay's CRD: %s", error)
            return self.kuberay
        return kuberay.crd_verdict(crd)
