"""A real operator against a real API server, in this process; the tests play what is not there."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import kopf
from aiohttp import web

from support.apiserver import ApiError, ApiServer
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster.api_client import ClusterError, Connection
from trainingrun.cluster.credentials import Credentials
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller import handlers as handlers  # registers them with kopf
from trainingrun.controller import leadership
from trainingrun.controller.login import load_credentials
from trainingrun.controller.operator import Operator
from trainingrun.controller.progress_polling import Target
from trainingrun.controller.settings import OperatorSettings, Settings
from trainingrun.reconciling.model import ReconcileSettings
from trainingrun.rendering.platforms import PlatformName, RenderSettings

OPERATOR_NAMESPACE = "default"
"""Where the operator's key is. No run is begun there, so no test has its runs in it."""
RAY_API = "ray.io/v1"
PATIENCE_S = 90.0  # of a machine that is busy with other things; hardly ever needed


def credentials_of(server: ApiServer, port: int | None = None) -> Credentials:
    """As the operator loads them; `port` goes by way of a proxy."""
    with mock.patch.dict(os.environ, KUBECONFIG=str(server.kubeconfig)):
        credentials = load_credentials()
    if port is not None:
        credentials.server = f"https://127.0.0.1:{port}"
    return credentials


def settings_for(
    *namespaces: str,
    poll_s: float = 0.2,
    operator_namespace: str = OPERATOR_NAMESPACE,
    platform: PlatformName = "generic",
    **operator: Any,
) -> Settings:
    """An operator that watches these namespaces, with short intervals."""
    lease = f"lease-of-{'-'.join(namespaces) or 'all'}"
    own = OperatorSettings(namespaces=namespaces, kuberay_check_s=0.3, lease_name=lease)
    return Settings(
        dataclasses.replace(own, **operator),
        RenderSettings(operator_namespace=operator_namespace, platform=platform),
        ReconcileSettings(poll_s=poll_s),
    )


class _All(frozenset[asyncio.Task[Any]]):
    """What kopf is not to end with itself: the tasks of the test."""

    def __contains__(self, task: object) -> bool:
        return True


class WatchOnly:
    """What the handlers keep up where no operator works on it."""

    def __init__(self, cluster: KubernetesCluster):
        self.cluster, self.settings, self.liveness_error = cluster, Settings(), None

    async def run(self) -> None:
        """As `Operator.run`."""
        await self.cluster.run()


@contextlib.asynccontextmanager
async def kopf_running(
    operator: Operator | WatchOnly, *namespaces: str
) -> AsyncIterator[kopf.Memo]:
    """kopf with the operator's handlers; in the result `crashed` tells whether it gave up."""
    memo = kopf.Memo(operator=operator, stop=asyncio.Event(), crashed=asyncio.Event())
    tasks = await kopf.spawn_tasks(
        registry=kopf.get_default_registry(),
        memo=memo,
        namespaces=namespaces,
        clusterwide=not namespaces,
        standalone=True,
        stop_flag=memo.stop,
    )
    ended = asyncio.create_task(kopf.run_tasks(tasks, ignored=_All()))
    try:
        yield memo
        if ended.done():
            ended.result()
        await watches_are_open(operator.cluster)
    finally:
        memo.stop.set()
        await ended


def a_lease(namespace: str, name: str = "trainingrun-operator") -> dict[str, Any]:
    """A Lease that its last leader has given back: an absent one would be waited out."""
    return {
        "apiVersion": leadership.API_VERSION,
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": leadership.given_back(),
    }


@contextlib.asynccontextmanager
async def running(operator: Operator) -> AsyncIterator[Operator]:
    """Runs it; a part of it that ends by itself fails the test."""
    lease = a_lease(
        operator.settings.render.operator_namespace, operator.settings.operator.lease_name
    )
    with contextlib.suppress(ClusterError):  # of an earlier operator, or not allowed
        await operator.leadership._connection.create(operator.leadership._collection, lease)
    async with kopf_running(operator, *operator.settings.operator.namespaces) as memo:
        yield operator
        if memo.task.done():
            memo.task.result()


@contextlib.asynccontextmanager
async def watching(
    server: ApiServer, *namespaces: str, port: int | None = None, deaf: bool = False
) -> AsyncIterator[KubernetesCluster]:
    """The cluster as an operator of these namespaces sees it; `deaf`: without any further news."""
    connection = Connection(credentials_of(server, port))
    cluster = KubernetesCluster(connection, namespaces, kuberay_check_s=0.3)
    try:
        async with kopf_running(WatchOnly(cluster), *namespaces) as memo:
            async with asyncio.timeout(PATIENCE_S):
                await cluster.wait_synced()
            await watches_are_open(cluster)
            if not deaf:
                yield cluster
                assert not memo.crashed.is_set(), "a part of the operator ended"
        if deaf:
            yield cluster
    finally:
        await connection.close()


async def watches_are_open(cluster: KubernetesCluster) -> None:
    """A connection cancelled in the midst of being made leaks its socket, which fails the test.

    Where a request has failed, none is being made until kopf tries again.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while any(  # noqa: ASYNC110 - a watch tells runs, not tests
                watch.state == "synced" and watch.connected_since is None and watch._problem is None
                for watch in cluster.watches.all()
            ):
                await asyncio.sleep(0.05)


async def eventually(probe: Callable[[], Any], what: str = "") -> Any:
    """What `probe` returns, as soon as it is true; absent objects (404) count as not yet."""
    found = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(ApiError):
                    found = await asyncio.to_thread(probe)
                if found:
                    return found
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(what) from None


def _reconciles(operator: Operator) -> float:
    count = "trainingrun_reconcile_seconds_count"
    return operator.metrics.registry.get_sample_value(count) or 0.0


def _writes(operator: Operator) -> float:
    (calls,) = operator.metrics.api_calls.collect()
    return sum(
        sample.value
        for sample in calls.samples
        if sample.name.endswith("_total") and sample.labels["method"] not in ("GET", "WATCH")
    )


async def reconciled_again(operator: Operator, key: tuple[str, str]) -> None:
    """Reconciles the run, which is the only one, or waits until one underway has ended."""
    before = _reconciles(operator)
    operator.queue.add(key)
    await eventually(lambda: _reconciles(operator) > before)


async def settled(operator: Operator, key: tuple[str, str]) -> None:
    """Reconciles the run, which is the only one, until a reconcile writes nothing."""
    async with asyncio.timeout(PATIENCE_S):
        writes = None
        while writes != (writes := _writes(operator)):
            await reconciled_again(operator, key)  # perhaps the end of one that was underway
            await reconciled_again(operator, key)


def a_run(namespace: str, name: str = "digits", **spec: Any) -> dict[str, Any]:
    """A valid TrainingRun; `spec` replaces parts of it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "training": {"function": "trainingrun_runtime.examples.linear:train"},
            "storage": {"uri": "s3://runs/tests"},
            **spec,
        },
    }


def owned_by(run: dict[str, Any], name: str, **labels: str) -> dict[str, Any]:
    """Metadata of an object of the run, with the labels that the operator selects by."""
    metadata = run["metadata"]
    return {
        "name": name,
        "namespace": metadata["namespace"],
        "labels": {
            "trainingrun.dev/run": metadata["name"],
            "trainingrun.dev/run-uid": metadata["uid"],
            **{f"trainingrun.dev/{key}": value for key, value in labels.items()},
        },
    }


def a_ray_job(
    run: dict[str, Any], name: str = "digits-1", entrypoint: str = "true"
) -> dict[str, Any]:
    """The RayJob of the run's first attempt, for tests that run nothing in it."""
    return {
        "apiVersion": RAY_API,
        "kind": "RayJob",
        "metadata": owned_by(run, name, attempt="1") | {"ownerReferences": [controlled_by(run)]},
        "spec": {"entrypoint": entrypoint},
    }


def controlled_by(owner: dict[str, Any]) -> dict[str, Any]:
    """The owner reference by which a controller finds what it made."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


class Proxy:
    """TCP to the API server that can be cut, as when the server restarts."""

    def __init__(self, target_port: int):
        self.port = 0
        self._target = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()

    def silence(self) -> None:
        """From now on nothing comes through the connections that are open; they stay open."""
        self._silent |= self._writers

    async def up(self) -> None:
        """Listens; after the first time on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Refuses new connections and cuts those that are open."""
        assert self._server is not None, "it is up first"
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        self._writers -= {writer, there_writer}
        self._silent -= {writer, there_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if writer not in self._silent:
                    writer.write(chunk)
                    await writer.drain()
        writer.transport.abort()


class PlaysKubeRay:
    """Does by hand what KubeRay would: the RayJob's status and the pods. No KubeRay runs here."""

    def __init__(self, server: ApiServer, namespace: str, address: str = "127.0.0.1"):
        """Its pods get this IP address."""
        self._server, self._namespace, self._address = server, namespace, address

    def job(self, name: str) -> dict[str, Any]:
        """The RayJob that the operator made."""
        return self._server.get(RAY_API, "RayJob", name, self._namespace)

    def jobs(self) -> list[str]:
        """Names of all RayJobs."""
        path = f"/apis/{RAY_API}/namespaces/{self._namespace}/rayjobs"
        return sorted(
            item["metadata"]["name"] for item in self._server.request("GET", path)["items"]
        )

    def starts(self, run: dict[str, Any], number: int = 1) -> None:
        """Makes a RayCluster with head and worker that run, and the job with them."""
        name = f"{run['metadata']['name']}-{number}"
        template = {"spec": {"containers": [{"name": "ray", "image": "none"}]}}
        cluster = self._server.create(
            {
                "apiVersion": RAY_API,
                "kind": "RayCluster",
                "metadata": owned_by(run, f"{name}-abcde", attempt=str(number))
                | {"ownerReferences": [controlled_by(self.job(name))]},
                "spec": {"headGroupSpec": {"rayStartParams": {}, "template": template}},
            }
        )
        spec = self.job(name)["spec"]["rayClusterSpec"]
        labels = spec["headGroupSpec"]["template"]["metadata"]["labels"]
        for role in ("head", "worker"):
            metadata = owned_by(run, f"{name}-{role}", attempt=str(number), role=role)
            pod: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata | {"ownerReferences": [controlled_by(cluster)]},
                "spec": {
                    "containers": [{"name": f"ray-{role}", "image": "none"}],
                    "terminationGracePeriodSeconds": 0,
                },
            }
            pod["metadata"]["labels"]["ray.io/node-type"] = role
            if role == "head":
                pod["metadata"]["labels"] |= labels
            made = self._server.create(pod)
            made["status"] = {
                "phase": "Running",
                "podIP": self._address,
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {
                        "name": f"ray-{role}",
                        "image": "none",
                        "imageID": "",
                        "ready": True,
                        "restartCount": 0,
                        "state": {"running": {"startedAt": made["metadata"]["creationTimestamp"]}},
                    }
                ],
            }
            self._server.replace(made, "status")
        self.names_the_head(cluster, f"{name}-head")
        self.says(name, "RUNNING", "Running")

    def names_the_head(self, cluster: dict[str, Any], pod: str) -> None:
        """Sets the RayCluster's status."""
        cluster["status"] = {"head": {"podName": pod}}
        self._server.replace(cluster, "status")

    def says(self, name: str, job: str, deployment: str, **status: Any) -> None:
        """Sets the RayJob's status."""
        made = self.job(name)
        made["status"] = {"jobStatus": job, "jobDeploymentStatus": deployment, **status}
        self._server.replace(made, "status")

    def takes_the_pods_away(self, run: dict[str, Any], number: int = 1) -> None:
        """What follows the deletion of a RayJob."""
        name = f"{run['metadata']['name']}-{number}"
        clusters = f"/apis/{RAY_API}/namespaces/{self._namespace}/rayclusters"
        pods = f"/api/v1/namespaces/{self._namespace}/pods"
        for path in (f"{clusters}/{name}-abcde", f"{pods}/{name}-head", f"{pods}/{name}-worker"):
            with contextlib.suppress(ApiError):
                self._server.request("DELETE", path)


def document(**fields: Any) -> dict[str, Any]:
    """A progress document of a driver that trains."""
    return {
        "attempt": 1,
        "fencingToken": 1,
        "state": "Training",
        "worldSize": 1,
        "time": 1.0,
        **fields,
    }


class PlaysHead:
    """The head pod's progress endpoint, over real HTTP: serves what the test sets."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self.tokens: set[str] = set()
        self.polls = self.suspends = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["PlaysHead"]:
        """On a free port of this machine."""
        application = web.Application()
        application.add_routes(
            [web.get("/progress", self._progress), web.post("/suspend", self._suspend)]
        )
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def target(self, operator: Operator, key: tuple[str, str], uid: str, attempt: int) -> Any:
        """Resolves a run's head as the operator does, but to this port."""
        found = operator.head_of(key, uid, attempt)
        return found and Target(found.pod_uid, self.url, found.token_key)

    async def _progress(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers["Authorization"])
        self.polls += 1
        if self.document is None:
            return web.Response(status=503)
        return web.json_response(self.document)

    async def _suspend(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers["Authorization"])
        self.suspends += 1
        return web.Response(status=202)
