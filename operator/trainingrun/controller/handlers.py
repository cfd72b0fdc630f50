"""What the operator watches, and what each event does: nothing but keep the stores up.

A store that changes enqueues the run that the change is about, see `run_stores`; workers then
reconcile it, see `operator`. kopf lists, watches, reconnects and serves the liveness probe. Its
retries, annotations and finalizers are not used: the work queue retries, and all that is remembered
is in the status.

`python -m trainingrun.controller` runs these handlers, and so does
`kopf run -m trainingrun.controller.handlers --all-namespaces`.
"""

import asyncio
import contextlib
import ctypes
import gc
import itertools
import logging
import math
import signal
from collections.abc import Iterator
from typing import Any

import kopf
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ..api.v1alpha1 import GROUP, PLURAL, VERSION
from ..cluster.api_client import allow_many_connections
from ..cluster.watches import RETRY_S
from ..rendering.names import RUN_LABEL
from .login import NoCredentials, load_credentials
from .operator import Operator
from .settings import OperatorSettings, SettingsError, from_environment

log = logging.getLogger(__name__)

CRDS = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
KINDS_IN_NAMESPACES = 4
"""TrainingRuns, RayJobs, RayClusters and pods."""
KINDS_OF_CLUSTER = 2
"""Nodes and CRDs."""
CHUNK = 5
"""Objects that are listed at once: users may create TrainingRuns of 1.4 MB, each of which is 34 MB
while it is read."""
WATCH_S = 8
"""The server ends a watch after so long, and kopf opens it again where it stopped; two seconds
before, it sends a bookmark. So a watch that is silent for longer is broken."""
WATCH_LATE_S = 2
"""How long a bookmark may take."""
KEPT = 5.0
"""Metrics are kept this many times as long as they took: so scrapes take a sixth of a core at most,
however many there are."""
WATCHES_PER_S = 25
"""Watches that are opened at most: with very many namespaces each lasts longer."""


@kopf.on.event(GROUP, VERSION, PLURAL)
@kopf.on.event("ray.io", "v1", "rayjobs")
@kopf.on.event("ray.io", "v1", "rayclusters")
@kopf.on.event("", "v1", "pods")
@kopf.on.event("", "v1", "nodes")
async def changed(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Updates the store, which enqueues the run."""
    memo.operator.cluster.handle(event)


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Settings of kopf; then the operator, which works as soon as everything is listed."""
    if "operator" not in memo:
        allow_many_connections()
        try:
            memo.operator = Operator(from_environment(), load_credentials())
            memo.servers = await serve(memo.operator)
            memo.exemption = asyncio.create_task(_exempt_from_collection(memo.operator))
        except (SettingsError, NoCredentials, OSError) as error:
            raise kopf.PermanentError(str(error)) from error
    configure(settings, memo.operator.settings.operator)
    memo.task = asyncio.create_task(memo.operator.run(), name="operator")
    memo.task.add_done_callback(lambda task: _ended(task, memo))
    await asyncio.sleep(0)


@kopf.on.cleanup()
async def clean_up(memo: kopf.Memo, **_: Any) -> None:
    """Gives the Lease back and ends every connection."""
    tasks = [memo.task, *filter(None, [memo.get("exemption")])]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for server in memo.get("servers", ()):
        await server.cleanup()


@kopf.on.login()
async def log_in(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
    """The credentials of the operator itself, read anew for each request."""
    cluster = memo.operator.cluster
    return kopf.AiohttpSession(server=cluster.server, aiohttp_session=cluster.session())


@kopf.on.probe()
async def healthy(memo: kopf.Memo, **_: Any) -> str:
    """Fails where a restart would help."""
    error: str | None = memo.operator.liveness_error
    if error is not None:
        raise kopf.PermanentError(error)
    return "ok"


async def _exempt_from_collection(operator: Operator) -> None:
    """Leaves out what was listed when cyclic garbage is collected; it is freed by its reference
    count. With 10,000 runs, collections took more of a core than all polls did.
    """
    await operator.cluster.wait_synced()
    gc.collect()
    gc.freeze()
    # What the lists took is given back: 8 MB with 2,000 runs. glibc alone can do that.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def configure(settings: kopf.OperatorSettings, own: OperatorSettings) -> None:
    """Settings of kopf; all kinds but TrainingRuns and Nodes are filtered by the API server."""
    settings.peering.standalone = True
    settings.posting.enabled = False  # events about runs are written after their status
    # KubeRay may be installed later, which its CRD shows. Confined to namespaces the operator may
    # not watch CRDs, see `KindInstalledLater`.
    settings.scanning.disabled = settings.peering.namespaced
    settings.watching.field_selectors[CRDS] = "metadata.name=rayjobs.ray.io"
    # kopf takes its finalizer off every object that it sees with it, with or without the Lease; the
    # default is that of each other kopf operator. A name that the API server refuses is on none.
    settings.persistence.finalizer = "no finalizer"
    settings.persistence.diffbase_storage = _NoDiffs()  # four fifths of the time of each event
    settings.queueing.idle_timeout = 0.05  # an object that was listed stays in memory for so long
    settings.networking.request_timeout = own.request_timeout_s
    settings.networking.error_backoffs = _Backoffs()
    settings.watching.chunk_size = CHUNK
    watches = KINDS_IN_NAMESPACES * max(len(own.namespaces), 1) + KINDS_OF_CLUSTER
    settings.watching.server_timeout = max(WATCH_S, math.ceil(watches / WATCHES_PER_S))
    settings.watching.inactivity_timeout = settings.watching.server_timeout + WATCH_LATE_S
    settings.watching.connect_timeout = 10
    for group, plural in (("ray.io", "rayjobs"), ("ray.io", "rayclusters"), ("", "pods")):
        settings.watching.label_selectors[group, "v1", plural] = RUN_LABEL


class _NoDiffs(kopf.DiffBaseStorage):
    """What kopf's handlers of changes compare with; there are none here."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None: ...

    def store(self, **_: Any) -> None: ...


class _Backoffs:
    """Waits in seconds between tries of a request, without an end."""

    def __iter__(self) -> Iterator[float]:
        first, last = RETRY_S
        return (min(last, first * 2.0 ** min(tries, 30)) for tries in itertools.count())


def _ended(task: "asyncio.Task[None]", memo: kopf.Memo) -> None:
    """A part of the operator ended by itself: kopf ends too, and the kubelet starts it afresh."""
    if task.cancelled():
        return
    log.critical("a part of the operator ended", exc_info=task.exception())
    if "stop" in memo:
        memo.crashed.set()
        memo.stop.set()
    else:
        signal.raise_signal(signal.SIGTERM)


async def serve(operator: Operator) -> list[web.AppRunner]:
    """Listens on every address; `cleanup` each of the result.

    GET /readyz is 200 once everything is listed. An operator that stands by is ready: it would lead
    at once, and a rollout must not wait for it to do so while the former one leads. GET /metrics is
    in Prometheus' text format, on a port of its own, which a NetworkPolicy can close.

    Raises:
        OSError: a port is taken.
    """

    async def readyz(_: web.Request) -> web.Response:
        if operator.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not everything is listed yet\n")

    own = operator.settings.operator
    return [
        await _listen(web.get("/readyz", readyz), own.ready_port),
        await _listen(web.get("/metrics", _Scrapes(operator).answer), own.metrics_port),
    ]


class _Scrapes:
    """Answers with the metrics, which are made for one scrape at a time."""

    def __init__(self, operator: Operator) -> None:
        self._registry = operator.metrics.registry
        self._making, self._kept = asyncio.Lock(), b""

    async def answer(self, _: web.Request) -> web.Response:
        async with self._making:
            if not self._kept:
                loop = asyncio.get_running_loop()
                begun = loop.time()
                # With 10,000 runs it takes a second: no reconcile waits for it.
                self._kept = await asyncio.to_thread(generate_latest, self._registry)
                loop.call_later(KEPT * (loop.time() - begun), self._forget)
            content = self._kept
        return web.Response(body=content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _forget(self) -> None:
        self._kept = b""  # of 10,000 runs it is megabytes


async def _listen(route: web.RouteDef, port: int) -> web.AppRunner:
    application = web.Application()
    application.add_routes([route])
    runner = web.AppRunner(application, handle_signals=False, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
