"""The operator's parts put together: cluster, poller, queue and workers; fed by `handlers`."""

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Callable

from ..cluster.api_client import ClusterError, Conflict, Connection, NotLeading
from ..cluster.credentials import Credentials
from ..cluster.live_cluster import KubernetesCluster
from .leadership import REQUEST_S, Leadership
from .logs import about
from .notifier import Notifier
from .operator_metrics import Metrics
from .progress_polling import Poller, Resolve, Target, head_of
from .reconcile import Reconciler
from .settings import Settings
from .tokens import Keyring
from .work_queue import MOST_BESIDE, Key, WorkQueue

log = logging.getLogger(__name__)

WATCH_STUCK_S = 900.0
"""A watch that did nothing for so long hangs: each is opened anew every few seconds, and a missing
kind is checked more often than that."""
KEY_RETRY_S = 2.0
"""Between tries to read the operator's keys while the API server cannot be reached."""
KEY_REFRESH_S = 60.0
"""Between reads of the operator's keys: how long a rotated or lost one takes to be noticed."""


class Operator:
    """One operator process. `run` it; it ends only when cancelled, or by a bug."""

    def __init__(
        self,
        settings: Settings,
        credentials: Credentials,
        resolve: Callable[["Operator", Key, str, int], Target | None] | None = None,
    ):
        """Made inside the event loop that will run it.

        Args:
            settings: From the environment.
            credentials: The API server's address and credentials.
            resolve: Where the progress of a run is fetched; default: its head pod's IP.
        """
        self.settings = settings
        own = settings.operator
        self.queue = self._new_queue()
        self.queue.close()  # of whoever stands by, nothing waits; each term has a queue of its own
        self.leadership = Leadership(
            Connection(credentials, timeout_s=REQUEST_S),
            settings.render.operator_namespace,
            own.lease_name,
            f"{socket.gethostname()}_{uuid.uuid4()}",
        )
        self.metrics = Metrics(
            lambda: self.cluster.stores.runs.store.summaries,
            lambda: len(self.queue),
            lambda: self.cluster.watches.count_stale(),
            lambda: self.leadership.leads,
        )
        self._connection = Connection(
            credentials,
            timeout_s=own.request_timeout_s,
            count=self.metrics.count_call,
            may_write_s=self.leadership.may_write_s,
        )
        self.cluster = KubernetesCluster(
            self._connection,
            own.namespaces,
            kuberay_check_s=own.kuberay_check_s,
            count_unreadable=lambda kind: self.metrics.unreadable.labels(kind).inc(),
            node_labels={label for price in settings.reconcile.prices for label in price.labels},
        )
        self._keyring = Keyring(self.cluster, settings.render.operator_namespace)
        self._resolve: Resolve = self.head_of
        if resolve is not None:
            self._resolve = lambda key, uid, attempt: resolve(self, key, uid, attempt)
        self._working_since: dict[Key, float] = {}

    @property
    def ready(self) -> bool:
        """Whether absence in the caches means absence."""
        return self.cluster.watches.synced

    @property
    def liveness_error(self) -> str | None:
        """Why this process should be restarted; None: it works. An API server that is away is no
        reason, for a restart would not bring it back.
        """
        now = time.monotonic()
        for key, since in self._working_since.items():
            if now - since > self.settings.operator.stuck_s:
                return f"the reconcile of {'/'.join(key)} takes {now - since:.0f} s"
        if now - self.cluster.alive_at > WATCH_STUCK_S:
            return f"a watch did nothing for {now - self.cluster.alive_at:.0f} s"
        return None

    async def run(self) -> None:
        """Works while it leads, until cancelled; kopf, meanwhile, keeps the stores up."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.cluster.run(), name="cluster")
                # Not before everything is listed: what a reconcile does not see counts as absent.
                await self.cluster.wait_synced()
                log.info("watching %d runs", len(self.cluster.stores.run_keys()))
                # Events go to the queue of whoever leads; standing by, only the stores follow them.
                self.cluster.stores.subscribe(
                    lambda namespace, name: self.queue.add((namespace, name))
                )
                await self.leadership.run(self._lead)
        finally:
            await self.leadership.close()
            await self._connection.close()

    async def _lead(self) -> None:
        """Works until cancelled. Every term begins with nothing remembered, as a new process."""
        with contextlib.closing(self._new_queue()) as self.queue:
            await self._work_through_a_term()

    async def _work_through_a_term(self) -> None:
        while not await self._load_keys():  # noqa: ASYNC110 - it reads the API server
            await asyncio.sleep(KEY_RETRY_S)
        await self.cluster.catch_up()
        poller, notifier = self._poller(), self._notifier()
        reconciler = Reconciler(
            self.cluster,
            poller,
            notifier,
            lambda: self._keyring.tokens,
            self.settings.render,
            self.settings.reconcile,
            now=self._connection.clock.now,
            count_error=lambda reason: self.metrics.reconcile_errors.labels(reason).inc(),
        )
        for key in self.cluster.stores.run_keys():
            self.queue.add(key)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._resync(), name="resync")
                tasks.create_task(self._refresh_keys(), name="refresh keys")
                for number in range(self.settings.operator.workers + MOST_BESIDE):
                    tasks.create_task(self._work(reconciler), name=f"worker {number}")
        finally:
            await poller.close()
            await notifier.close()

    def _new_queue(self) -> WorkQueue:
        own = self.settings.operator
        return WorkQueue(own.retry_initial_s, own.retry_max_s, parallel=own.workers)

    async def _work(self, reconciler: Reconciler) -> None:
        while True:
            key = await self.queue.get()
            self._working_since[key] = time.monotonic()
            try:
                with about(namespace=key[0], run=key[1]):
                    await self._reconcile(reconciler, key)
            finally:
                seconds = time.monotonic() - self._working_since.pop(key)
                self.metrics.reconcile_seconds.observe(seconds)
                if key not in self.cluster.stores.runs.store:
                    self.queue.forget(key)

    async def _reconcile(self, reconciler: Reconciler, key: Key) -> None:
        try:
            requeue_after_s = await reconciler.reconcile(key)
        except (Conflict, NotLeading) as error:
            # The cache was out of date. That is no fault, but with the API server's own event
            # on their way a short wait saves a second conflict. Or the right to write has ended,
            # which says nothing of another that leads: this process may itself lead on.
            self._failed(key, type(error).__name__)
        except ClusterError as error:
            wait_s = self._failed(key, type(error).__name__)
            log.warning("reconciling again in %.1f s: %s", wait_s, error)
        except Exception as error:
            # One run that we stumble over must never stop the others.
            wait_s = self._failed(key, type(error).__name__)
            log.exception("reconciling again in %.1f s", wait_s)
        else:
            self.queue.done(key, requeue_after_s)

    def _failed(self, key: Key, reason: str) -> float:
        self.metrics.reconcile_errors.labels(reason).inc()
        return self.queue.failed(key)

    async def _resync(self) -> None:
        """Queues every run that is not done in turn, evenly over the time: all at once would hold
        up the events of others.
        """
        while True:
            keys = self.cluster.stores.unfinished()
            pause_s = self.settings.operator.resync_s / max(len(keys), 1)
            for key in keys:
                await asyncio.sleep(pause_s)
                self.queue.add(key)
            if not keys:
                await asyncio.sleep(pause_s)

    async def _refresh_keys(self) -> None:
        while True:
            await asyncio.sleep(KEY_REFRESH_S)
            await self._load_keys()

    async def _load_keys(self) -> bool:
        try:
            await self._keyring.load()
        except ClusterError as error:
            log.warning("the operator's keys: %s", error)
            return False
        return True

    def _poller(self) -> Poller:
        own = self.settings.operator
        return Poller(
            self._resolve,
            lambda uid: self._keyring.tokens.all_of(uid),
            every_s=self.settings.reconcile.poll_s,
            per_second=own.polls_per_second,
            concurrency=own.poll_concurrency,
            timeout_s=own.poll_timeout_s,
            on_change=lambda namespace, name: self.queue.add((namespace, name)),
            count=lambda outcome: self.metrics.polls.labels(outcome).inc(),
            may_act=lambda: self.leadership.leads,
        )

    def _notifier(self) -> Notifier:
        return Notifier(
            self.cluster.secret,
            self.settings.reconcile.notification_hosts,
            on_change=lambda namespace, name: self.queue.add((namespace, name)),
            may_act=lambda: self.leadership.leads,
        )

    def head_of(self, key: Key, uid: str, attempt: int) -> Target | None:
        """Where the head of that attempt of the run with this UID listens; None: it does not."""
        stores = self.cluster.stores
        clusters, jobs = stores.ray_clusters.of_run(key), stores.ray_jobs.of_run(key)
        return head_of(stores.pods.of_run(key), clusters, jobs, uid, attempt)
