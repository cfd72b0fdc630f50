"""The operator's parts put together: cluster, poller, queue and workers. Knows nothing of kopf."""

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp
from kubernetes.aio.client import Configuration

from ..cluster.connection import Connection
from ..cluster.live import KubernetesCluster
from ..cluster.port import ClusterError, Conflict
from .logs import about
from .metrics import Metrics
from .progress import Poller, Resolve, Target, head_of
from .queue import Key, WorkQueue
from .reconcile import Reconciler
from .settings import Settings
from .tokens import Tokens, load_tokens

log = logging.getLogger(__name__)

WATCH_STUCK_S = 900.0
"""A watch that did nothing for so long hangs: each is opened anew every 300 s, and a missing kind
is looked for more often than that."""
KEY_RETRY_S = 2.0
"""Between tries to read the operator's key while the API server cannot be asked."""


class Operator:
    """One operator process. `run` it; it ends only when cancelled, or by a bug."""

    def __init__(
        self,
        settings: Settings,
        configuration: Configuration,
        resolve: Callable[["Operator", Key, str, int], Target | None] | None = None,
    ):
        """Made inside the event loop that will run it.

        Args:
            settings: From the environment.
            configuration: The API server's address and credentials.
            resolve: Where the progress of a run is asked; default: its head pod's IP.
        """
        self.settings = settings
        own = settings.operator
        self.queue = WorkQueue(own.retry_initial_s, own.retry_max_s)
        self.metrics = Metrics(lambda: self.cluster.raw_runs(), lambda: len(self.queue))
        self._connection = Connection(
            configuration, timeout_s=own.request_timeout_s, count=self.metrics.count_call
        )
        self.cluster = KubernetesCluster(
            self._connection, own.namespaces, look_for_kuberay_s=own.look_for_kuberay_s
        )
        self._resolve: Resolve = self._head_of
        if resolve is not None:
            self._resolve = lambda key, uid, attempt: resolve(self, key, uid, attempt)
        self._working_since: dict[Key, float] = {}

    @property
    def ready(self) -> bool:
        """Whether absence in the caches means absence."""
        return self.cluster.synced

    @property
    def complaint(self) -> str | None:
        """Why this process should be restarted; None: it works. An API server that is away is no
        reason, for a restart would not bring it back.
        """
        now = time.monotonic()
        for key, since in self._working_since.items():
            if now - since > self.settings.operator.stuck_s:
                return f"the look at {'/'.join(key)} takes {now - since:.0f} s"
        if now - self.cluster.alive_at > WATCH_STUCK_S:
            return f"a watch did nothing for {now - self.cluster.alive_at:.0f} s"
        return None

    async def run(self) -> None:
        """Watches and works until cancelled."""
        session = aiohttp.ClientSession()
        poller: Poller | None = None
        try:
            tokens = await self._load_tokens()
            poller = self._poller(session, tokens)
            reconciler = Reconciler(
                self.cluster, poller, tokens, self.settings.render, self.settings.reconcile
            )
            self.cluster.subscribe(lambda namespace, name: self.queue.add((namespace, name)))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.cluster.run(), name="cluster")
                tasks.create_task(self._resync(), name="resync")
                # A look before everything is listed would take what it does not see for absent.
                await self.cluster.wait_synced()
                log.info("watching %d runs", len(self.cluster.run_keys()))
                for number in range(self.settings.operator.workers):
                    tasks.create_task(self._work(reconciler), name=f"worker {number}")
        finally:
            if poller is not None:
                await poller.close()
            await session.close()
            await self._connection.close()

    async def _work(self, reconciler: Reconciler) -> None:
        while True:
            key = await self.queue.get()
            self._working_since[key] = time.monotonic()
            try:
                with about(namespace=key[0], run=key[1]):
                    await self._look(reconciler, key)
            finally:
                seconds = time.monotonic() - self._working_since.pop(key)
                self.metrics.reconcile_seconds.observe(seconds)

    async def _look(self, reconciler: Reconciler, key: Key) -> None:
        try:
            look_again_s = await reconciler.reconcile(key)
        except Conflict:
            # The cache was a moment behind. That is no fault, but with the API server's own news
            # on their way a short wait saves a second conflict.
            self._failed(key, "Conflict")
        except ClusterError as error:
            wait_s = self._failed(key, type(error).__name__)
            log.warning("looking again in %.1f s: %s", wait_s, error)
        except Exception as error:
            # One run that we stumble over must never stop the others.
            wait_s = self._failed(key, type(error).__name__)
            log.exception("looking again in %.1f s", wait_s)
        else:
            self.queue.done(key, look_again_s)

    def _failed(self, key: Key, reason: str) -> float:
        self.metrics.reconcile_errors.labels(reason).inc()
        return self.queue.failed(key)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self.settings.operator.resync_s)
            for key in self.cluster.run_keys():
                self.queue.add(key)

    async def _load_tokens(self) -> Tokens:
        while True:
            try:
                return await load_tokens(self.cluster, self.settings.render.operator_namespace)
            except ClusterError as error:
                log.warning("the operator's key: %s", error)
                await asyncio.sleep(KEY_RETRY_S)

    def _poller(self, session: aiohttp.ClientSession, tokens: Tokens) -> Poller:
        own = self.settings.operator
        return Poller(
            session,
            self._resolve,
            tokens.of,
            every_s=self.settings.reconcile.poll_s,
            per_second=own.polls_per_second,
            concurrency=own.poll_concurrency,
            timeout_s=own.poll_timeout_s,
            on_change=lambda namespace, name: self.queue.add((namespace, name)),
            count=lambda outcome: self.metrics.polls.labels(outcome).inc(),
        )

    def _head_of(self, key: Key, uid: str, attempt: int) -> Target | None:
        return head_of(self.cluster.pods_of(*key), uid, attempt)
