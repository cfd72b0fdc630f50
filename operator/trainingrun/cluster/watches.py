"""Which collections kopf watches to keep the stores up, and what is known to be out of date.

kopf lists, watches and reconnects. It passes objects to its handlers, and nothing else: whether it
is refused, cut off or listing anew shows in its requests, which `Watches.observe` gets with their
answers. Unknown is not absent: what is known stays known when the API server refuses a watch, and
`Watch.stale` then has the reason why it may be out of date. Only a kind that is confirmed not to be
installed has no objects.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal, cast

import aiohttp

from ..rendering.names import RUN_LABEL
from . import kuberay
from .api_client import (
    ClusterError,
    Connection,
    Forbidden,
    Gone,
    NotFound,
    NotServed,
    Unauthorized,
    error_of,
    text_of,
)
from .bounded_json import ShallowContent
from .object_store import Key, Store
from .resources import PLURALS, RAY_API, path
from .run_stores import Kind, Stores

log = logging.getLogger(__name__)

PAGE, PAGE_OF_NODES = 5, 500
"""Objects whose metadata is requested at once: labels and owners that a tenant writes may take 1.5
MB, and nodes are not a tenant's."""
RETRY_S = (0.5, 8.0)
"""First and longest wait before a broken or refused request is tried again."""
STALE_AFTER_S = 10.0
"""A collection whose watch has failed for so long, or was not opened anew so long after its end,
may have changed: the server's own ends, every few seconds, are made up for within milliseconds."""
HANDLED_CHECK_S = 0.02
"""Between checks whether kopf has reported every listed object."""
RELIST_S = 1.0
"""Between two lists of whoever waits for the events of the first."""
CHECK_S = 0.5
"""Between checks whether a watch is stale or fresh again."""
REWATCH_S = 1.0
"""From one request of kopf's to watch a collection until the next."""
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


class HistoryRewound(Exception):
    """The cluster's own store went back, as when etcd is restored from a backup.

    What this process has read may never have happened, and resource versions are given anew: it
    has to begin again, with nothing remembered.
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
        self._of_kind: dict[str, dict[str, Watch]] = {
            kind.name: {
                namespace: self._watch(kind, namespace) for namespace in sorted(namespaces) or [""]
            }
            for kind in stores.of_runs
        }
        self.nodes = self._watch(stores.nodes, "", optional=True)
        self._of_kind["Node"] = {"": self.nodes}
        self._by_path = {watch.path: watch for watch in self.all()}
        self._next_watch_at: dict[str, float] = {}

    async def run(self) -> None:
        """Checks the watches and the kinds until cancelled.

        Raises:
            ExceptionGroup: of `KindInstalledLater` or `HistoryRewound`; of anything else by a bug.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_reporting(), name="report watches")
            tasks.create_task(self._watch_kinds(), name="check kinds")
            for watch in self.all():
                tasks.create_task(watch.keep_comparing(), name=f"compare {watch.path}")

    async def observe(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """A middleware of kopf's session: notes what becomes of each request.

        What is refused, or answered as no API server does, becomes an
        aiohttp.ClientConnectionError, after which kopf tries again later: of any other it ends, or
        lists anew at once.
        """
        path, watches = request.url.path, "watch" in request.url.query
        watch = self._by_path.get(path)
        method = "WATCH" if watches else "GET"
        if watch is not None:
            if watch.given_up:
                await asyncio.sleep(OPTIONAL_RETRY_S)
            watch.began(watches)
        try:
            if watches:
                await self._wait_to_watch(path)
                answer = await self._answer(request, send, watch)
            else:
                async with self._connection.lists:
                    answer = await self._answer(request, send, watch)
        except (aiohttp.ClientError, TimeoutError) as problem:
            self._connection.count(method, "error")
            log.info("%s %s: %s", method, path, text_of(problem))
            if watch is not None:
                watch.failed()
            if isinstance(problem, aiohttp.ClientConnectionError | TimeoutError):
                raise
            raise aiohttp.ClientConnectionError(text_of(problem)) from problem
        self._connection.count(method, str(answer.status))
        if answer.status < 400:
            if watch is not None and watches:
                watch.opened(float(request.url.query.get("timeoutSeconds", 0)))
            return answer
        if answer.status == 404 and _field_of(path) == "resources" and path != "/api/v1":
            return answer  # to kopf, an API group without any kinds
        error = error_of(answer.status, method, path, await answer.read())
        if watch is not None:
            watch.failed(error)
        if isinstance(error, Gone):
            raise aiohttp.ClientPayloadError(str(error))  # kopf lists from the beginning
        raise aiohttp.ClientConnectionError(str(error))

    async def _wait_to_watch(self, path: str) -> None:
        """Because kopf opens a watch that has ended anew at once, also one that has just begun."""
        now = time.monotonic()
        due = max(now, self._next_watch_at.get(path, now))
        self._next_watch_at[path] = due + REWATCH_S
        await asyncio.sleep(due - now)

    async def _answer(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType, watch: "Watch | None"
    ) -> aiohttp.ClientResponse:
        """The answer, such that kopf can parse it whatever somebody has put into an object.

        Raises:
            aiohttp.ClientError: there is none, or it is not what an API server answers.
        """
        answer = await send(request)
        kind = watch.kind if watch else "other"
        content = ShallowContent(answer.content, lambda: self._count_unreadable(kind))
        answer.content = cast("aiohttp.StreamReader", content)
        if answer.status >= 400:
            await answer.read()
        elif "watch" in request.url.query:
            if not answer.content_type.endswith("json"):
                answer.close()
                raise aiohttp.ClientConnectionError(f"the answer is {answer.content_type}")
        else:
            await _check(answer, _field_of(request.url.path))
        return answer

    def all(self) -> Iterator["Watch"]:
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

    def of(self, kind: str, namespace: str) -> "Watch":
        """The watch of this kind that has the objects of that namespace."""
        watches = self._of_kind[kind]
        return watches.get(namespace) or watches[""]

    def stale_kinds(self, namespace: str) -> dict[str, str]:
        """The kinds that decide on a run of this namespace and that are stale, with the reason.

        Nodes too, but where the operator was never allowed to see them and works without.
        """
        watches = {kind.name: self.of(kind.name, namespace) for kind in self._stores.of_runs}
        if not self.nodes.given_up:
            watches["Node"] = self.nodes
        return {
            kind: reason for kind, watch in watches.items() if (reason := watch.stale) is not None
        }

    def count_stale(self) -> Mapping[str, int]:
        """How many watches of each kind are stale; what the operator was never
        allowed to see and works without is not counted.
        """
        return {
            kind: sum(watch.stale is not None and not watch.given_up for watch in watches.values())
            for kind, watches in self._of_kind.items()
        }

    def _watch(self, kind: Kind, namespace: str, *, optional: bool = False) -> "Watch":
        return Watch(
            self._connection,
            path(kind.api_version, kind.name, namespace or None),
            kind.store,
            kind=kind.name,
            namespace=namespace,
            label_selector=RUN_LABEL if kind in self._stores.owned_by_runs else "",
            optional=optional,
        )

    async def _keep_reporting(self) -> None:
        """Notifies the runs whose watches went stale or are fresh again, or are of a kind that is
        missing or no longer so.
        """
        reported: dict[str, tuple[str, str | None]] = {}
        while True:
            await asyncio.sleep(CHECK_S)
            for watch in self.all():
                now = (watch.state, watch.stale)
                if reported.get(watch.path) == now:
                    continue
                reported[watch.path] = now
                if watch.path.startswith("/apis/"):
                    self._check_kinds.set()  # is its CRD still there?
                if self.synced:
                    self._stores.notify(*self._stores.unfinished(watch.namespace))
            if self.kuberay is not None and all(watch.answered for watch in self.all()):
                self._synced.set()

    # Which kinds are installed

    async def _watch_kinds(self) -> None:
        while True:
            self._check_kinds.clear()
            known = True
            for kind in self._stores.of_runs:
                if kind.api_version != "v1":  # Pods are always there
                    known &= await self._check_kind(kind)
            found = await self._read_kuberay()
            if found is not None and found != self.kuberay:
                level = logging.INFO if found == "ok" else logging.WARNING
                log.log(level, "KubeRay's RayJob CRD: %s", found)
                self.kuberay = found
                self._stores.notify(*self._stores.unfinished())
            await asyncio.sleep(CHECK_S)
            try:
                wait_s = None if known and found == "ok" else self._kuberay_check_s
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
            elif served != "yes" and watch.unwatched_s:  # and kopf may not request it again
                if served == "no":
                    error = f"its CRD is there, and {kind.api_version} is not served"
                    watch.failed(NotServed(error))
                watch.excuse()
        unwatched_s = max(watch.unwatched_s for watch in watches)
        if served == "yes" and unwatched_s > UNWATCHED_S:
            raise KindInstalledLater(f"{kind.name} was installed after the operator began")
        return served == "yes" and not unwatched_s

    async def _is_served(self, kind: Kind) -> Literal["yes", "no", "missing", "unknown"]:
        """Whether the API server serves a kind."""
        try:
            found = await self._connection.request("GET", f"/apis/{kind.api_version}")
            plural = PLURALS[kind.api_version, kind.name]
            if any(resource["name"] == plural for resource in found.get("resources") or ()):
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
        if not any(watch.answered for watch in watches):
            return None  # the first list requests it again
        try:
            crd = await self._connection.request("GET", kuberay.crd_path(RAY_API, "RayJob"))
        except Forbidden:
            return "ok"  # confined to namespaces; the list that has just worked has to do
        except ClusterError as error:
            log.warning("KubeRay's CRD: %s", error)
            return self.kuberay
        try:
            return kuberay.crd_verdict(crd)
        except (LookupError, TypeError, AttributeError):
            log.warning("KubeRay's CRD: the answer is no CustomResourceDefinition")
            return self.kuberay


def _field_of(path: str) -> str:
    """The field that kopf reads in the answer to a GET: each of them is a list."""
    match path.split("/")[1:]:
        case ["api"]:
            return "versions"
        case ["apis"]:
            return "groups"
        case ["api", _] | ["apis", _, _]:
            return "resources"
    return "items"


async def _check(answer: aiohttp.ClientResponse, field: str) -> None:
    try:
        found = await answer.json()
    except ValueError:
        raise aiohttp.ClientConnectionError("the answer is not JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get(field), list):
        raise aiohttp.ClientConnectionError(f"the answer has no list {field}")


class Watch:
    """One collection, in all namespaces or in one, and whether its events arrive."""

    def __init__(
        self,
        connection: Connection,
        path: str,
        store: Store,
        *,
        kind: str,
        namespace: str = "",
        label_selector: str = "",
        optional: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        """Nothing is known yet of the collection at `path`.

        It may be confined to a namespace or a label selector, and `optional`: the operator works
        without.
        """
        self.path, self.store, self.kind, self.namespace = path, store, kind, namespace
        self.state: Literal["starting", "synced", "missing"] = "starting"
        self.connected_since: float | None = None
        """Monotonic time since when no request has failed; None: the last one has."""
        self.alive_at = monotonic()
        """Monotonic time of kopf's last request, or at which it was found to have no reason for
        one: the kind was not known to be served."""
        self._connection, self._optional, self._monotonic = connection, optional, monotonic
        self._what = f"{kind}s of namespace {namespace}" if namespace else f"{kind}s"
        self._query = {"labelSelector": label_selector} if label_selector else {}
        self._problem: str | None = None
        self._fresh_until = monotonic()
        self._caught_up = False
        self._listed = self._requested = False
        self._compare_due = asyncio.Event()

    @property
    def answered(self) -> bool:
        """Whether the start need not wait for it: it was listed, is missing, or was refused."""
        return self.state != "starting" or self._problem is not None

    @property
    def given_up(self) -> bool:
        """Whether it was refused from the start and the operator works without."""
        return self._optional and self.state == "starting" and self._problem is not None

    @property
    def stale(self) -> str | None:
        """Why what the store has may be out of date, to continue a sentence; None: it is not."""
        if self.state == "missing":
            return None
        if self._problem is not None:
            return self._problem
        if self.state == "starting":
            return f"the {self._what} have not been listed yet"
        if self._caught_up and self._monotonic() <= self._fresh_until:
            return None
        return f"the API server sends no news of the {self._what}"

    @property
    def unwatched_s(self) -> float:
        """For how many seconds kopf has had no watch open and requested none; 0: it does."""
        if self._requested:
            return 0.0
        return max(0.0, self._monotonic() - max(self.alive_at, self._fresh_until))

    def set_missing(self) -> None:
        """The kind is confirmed not to be installed."""
        if self.state != "missing":
            log.info("not installed", extra={"path": self.path})
        self.state, self._problem = "missing", None
        self.excuse()
        self.store.clear(self.namespace)

    def excuse(self) -> None:
        """That kopf does not request the kind is no sign that it hangs: it has no reason to now."""
        self.alive_at = self._monotonic()

    # What kopf's requests show

    def began(self, watches: bool) -> None:
        """A request of kopf's begins: for a list, or (`watches`) for what happens from now on."""
        self.alive_at, self._requested = self._monotonic(), True
        self._listed = self._listed or not watches

    def opened(self, lasts_s: float) -> None:
        """The API server answers a watch and ends it after so many seconds: silence until then
        means that nothing happens.
        """
        now = self._monotonic()
        if now > self._fresh_until:
            self._caught_up = False
        if self.connected_since is None:
            self.connected_since = now
        # After a long gap all is compared: the API server may have come back with an older state.
        if self._listed or self.state != "synced" or not self._caught_up:
            self._compare_due.set()
        self._listed, self._requested, self._problem = False, False, None
        self._fresh_until = now + lasts_s + STALE_AFTER_S

    def failed(self, error: ClusterError | None = None) -> None:
        """A request of kopf's has not been answered, or (`error`) was refused; a kind that is
        missing stays missing.
        """
        now = self._monotonic()
        self._requested, self.connected_since = False, None
        self._fresh_until = min(self._fresh_until, now + STALE_AFTER_S)
        if isinstance(error, NotServed):
            problem = f"the API server does not know the {self._what} ({error})"
        elif isinstance(error, Forbidden | Unauthorized):
            problem = (
                f"the API server does not let the operator watch the {self._what} ({error}); "
                "restore the roles and the credentials of the operator"
            )
        else:
            return
        if self._problem is None:
            level = logging.INFO if self._optional else logging.WARNING
            log.log(level, "refused: %s", error, extra={"path": self.path})
        self._problem, self._fresh_until = problem, now

    # The store against what is really there

    async def catch_up(self) -> None:
        """Waits until the store has all that there is now, however late the events are.

        Not while nothing can be known of it: `stale` says so. Listed anew, for of what is deleted
        while no watch is open no event may come.
        """
        until, wait = 0.0, RELIST_S

        def is_over() -> bool:
            return self._monotonic() > until

        while self.state == "synced" and self.stale is None:
            listed, until = await self._list(), self._monotonic() + wait
            wait *= 2  # events may be later than that, while more objects come
            if await self._follow(*listed, give_up=is_over):
                return

    async def keep_comparing(self) -> None:
        """After each list of kopf's, and each long gap, until cancelled: see `_compare`."""
        while True:
            await self._compare_due.wait()
            self._compare_due.clear()
            await self._compare()

    async def _compare(self) -> None:
        """Waits until the store has what is there, and takes out the rest.

        kopf reports each listed object by itself, and does not report those that vanished while no
        watch was open, as after a watch that expired (410 Gone).

        Raises:
            HistoryRewound: What is there is older than what was seen.
        """
        newest = self.store.newest
        listed, version = await self._list()
        if version < newest or self.store.is_ahead_of(listed, version):
            raise HistoryRewound(
                f"the {self._what} are older than what was read before: the cluster's etcd was "
                "restored from a backup; the operator begins anew"
            )
        if await self._follow(listed, version, give_up=self._compare_due.is_set):
            self.state, self._caught_up = "synced", True

    async def _follow(
        self, listed: dict[Key, tuple[str, int]], version: int, *, give_up: Callable[[], bool]
    ) -> bool:
        """Waits for the events of a list; False: it was given up before."""
        awaited = listed
        while awaited := {
            key: seen for key, seen in awaited.items() if not self.store.has_received(key, *seen)
        }:
            if give_up():
                return False
            await asyncio.sleep(HANDLED_CHECK_S)
        self.store.keep_listed(listed, version, self.namespace)
        return True

    async def _list(self) -> tuple[dict[Key, tuple[str, int]], int]:
        """UID and version of every object, and of the list; waits until the API server answers."""
        wait = RETRY_S[0]
        while True:
            try:
                page = PAGE_OF_NODES if self.kind == "Node" else PAGE
                return await self._connection.list_versions(self.path, self._query, page)
            except ClusterError as error:
                log.info("%s", error, extra={"path": self.path})
                await asyncio.sleep(wait * random.uniform(0.7, 1.3))  # noqa: S311
                wait = min(wait * 2, RETRY_S[1])
