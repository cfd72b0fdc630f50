"""Kueue's own controller admits and preempts runs, beside KubeRay's operator and ours.

No kubelet and no garbage collector run: the tests play them.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import yaml

from support.apiserver import ApiError, ApiServer
from support.benchmark_page import ROOT
from support.neighbors import running_kuberay, running_kueue
from support.operators import (
    RAY_API,
    PlaysHead,
    credentials_of,
    eventually,
    running,
    settings_for,
)
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.controller.operator import Operator

KUEUE_API = "kueue.x-k8s.io/v1beta2"
PODS = 3  # of the sample: a head and two workers, with a CPU each
SAMPLE = yaml.safe_load((ROOT / "manifests" / "samples" / "kueue.yaml").read_text())
NO_QUOTA = "insufficient unused quota for cpu in flavor default, 2 more needed"
"""Kueue's words where 4 CPUs are the quota, and one run has 3 of them."""


@pytest.fixture(scope="module")
def neighbors(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """KubeRay's operator and Kueue's controller run."""
    folders = (tmp_path_factory.mktemp(name) for name in ("kuberay", "kueue"))
    with running_kuberay(apiserver, next(folders)), running_kueue(apiserver, next(folders)):
        apiserver.apply(kueues("ResourceFlavor", "default", {}))
        for name, value in (("low", 10), ("high", 1000)):
            priority = kueues("WorkloadPriorityClass", name, {})
            apiserver.apply({**priority, "value": value})
        yield


def kueues(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    """One of Kueue's objects."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    made: dict[str, Any] = {"apiVersion": KUEUE_API, "kind": kind, "metadata": metadata}
    return made | ({"spec": spec} if spec else {})


class Queue:
    """The namespace's queue `team-a`, with quota for one run, and the runs that are in it."""

    def __init__(self, server: ApiServer, namespace: str):
        self._server, self._namespace = server, namespace
        quota = [
            {"name": "cpu", "nominalQuota": 4},
            {"name": "memory", "nominalQuota": "32Gi"},
        ]
        flavor = {"name": "default", "resources": quota}
        groups = [{"coveredResources": ["cpu", "memory"], "flavors": [flavor]}]
        spec = {
            "namespaceSelector": {},
            "resourceGroups": groups,
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        server.apply(kueues("ClusterQueue", namespace, spec))
        server.apply(kueues("LocalQueue", "team-a", {"clusterQueue": namespace}, namespace))

    def submit(self, name: str, priority: str = "low") -> None:
        """Creates the sample under this name and with this label of Kueue's."""
        labels = {"kueue.x-k8s.io/priority-class": priority}
        metadata = {"name": name, "namespace": self._namespace, "labels": labels}
        self._server.create(SAMPLE | {"metadata": metadata})

    def suspend(self, name: str) -> None:
        """Sets the run's own `suspend`, which takes it out of the queue."""
        run = self._server.get(API_VERSION, KIND, name, self._namespace)
        run["spec"]["suspend"] = True
        self._server.replace(run)

    def status(self, name: str) -> dict[str, Any]:
        """The run's."""
        found = self._server.get(API_VERSION, KIND, name, self._namespace)
        return found.get("status") or {}

    def waiting(self, name: str) -> dict[str, Any]:
        """The run's condition Waiting; empty: it has none yet."""
        conditions = self.status(name).get("conditions") or ()
        return next((one for one in conditions if one["type"] == "Waiting"), {})

    def suspended(self, name: str) -> bool:
        """Whether Kueue, which alone changes that, keeps the first attempt waiting."""
        job = self._server.get(RAY_API, "RayJob", f"{name}-1", self._namespace)
        return bool(job["spec"].get("suspend"))

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The run's."""
        every = self._items("/api/v1", "pods")
        return [
            pod for pod in every if pod["metadata"]["labels"].get("trainingrun.dev/run") == name
        ]

    def runs(self, name: str) -> bool:
        """Whether the run has its pods, of which each is Running from then on: the kubelet."""
        pods = self.pods(name)
        for pod in pods:
            if pod.get("status", {}).get("phase") == "Running":
                continue
            begun = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}
            container = {"name": pod["spec"]["containers"][0]["name"], "image": "none"}
            container |= {"imageID": "", "ready": True, "restartCount": 0, "state": begun}
            pod["status"] = {
                "phase": "Running",
                "podIP": "127.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [container],
            }
            self._server.replace(pod, "status")
        return len(pods) == PODS

    def collected(self, probe: Callable[[], Any]) -> Callable[[], Any]:
        """The probe, before which what nobody owns any more is deleted: the garbage collector."""

        def collect() -> Any:
            owned = [
                *self._items("/api/v1", "pods"),
                *self._items(f"/apis/{RAY_API}", "rayclusters"),
                *self._items(f"/apis/{KUEUE_API}", "workloads"),
            ]
            owners = owned + self._items(f"/apis/{RAY_API}", "rayjobs")
            known = {one["metadata"]["uid"] for one in owners}
            for one in owned:
                if not any(
                    owner["uid"] in known for owner in one["metadata"].get("ownerReferences", ())
                ):
                    self._delete(one)
            return probe()

        return collect

    def _delete(self, item: dict[str, Any]) -> None:
        try:
            self._server.request("DELETE", self._server.path(item) + "?gracePeriodSeconds=0")
        except ApiError as error:
            if error.code != 404:
                raise

    def _items(self, root: str, plural: str) -> list[dict[str, Any]]:
        path = f"{root}/namespaces/{self._namespace}/{plural}"
        found = self._server.request("GET", path)
        names = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [names | one for one in found["items"]]


@pytest.fixture
async def queue(apiserver: ApiServer, namespace: str, neighbors: None) -> AsyncIterator[Queue]:
    """With an operator of ours, whose runs' drivers have nothing to say."""
    async with PlaysHead().listening() as head:
        credentials = credentials_of(apiserver)
        async with running(Operator(settings_for(namespace), credentials, head.target)):
            yield Queue(apiserver, namespace)


async def test_a_run_within_the_quota_is_admitted_and_its_pods_are_made(queue: Queue):
    queue.submit("first")
    await eventually(lambda: queue.runs("first"), "a pod is missing")
    assert not queue.suspended("first")
    await eventually(lambda: queue.waiting("first").get("status") == "False")
    assert queue.status("first")["disruptions"]["preemptions"] == 0


async def test_one_beyond_it_says_in_kueues_words_what_it_waits_for_until_there_is_room(
    queue: Queue, apiserver: ApiServer, namespace: str
):
    queue.submit("first")
    await eventually(lambda: queue.runs("first"), "a pod is missing")
    queue.submit("second")
    await eventually(lambda: NO_QUOTA in queue.waiting("second").get("message", ""))
    waiting = queue.waiting("second")
    assert (waiting["status"], waiting["reason"]) == ("True", "Queued")
    assert waiting["message"].startswith("Kueue has not admitted RayJob second-1 to queue team-a: ")
    assert (queue.suspended("second"), queue.pods("second")) == (True, [])
    events = apiserver.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    known = {(one["involvedObject"]["name"], one["reason"]) for one in events}
    assert ("first-1", "Started") in known
    assert ("second-1", "Stopped") not in known, "it did not begin suspended"

    queue.suspend("first")
    await eventually(queue.collected(lambda: queue.runs("second")), "the second is not admitted")
    await eventually(lambda: queue.waiting("second")["status"] == "False")
    status = queue.status("second")
    assert status["queuedSeconds"] > 0
    assert (status["attempt"], status["disruptions"]["preemptions"]) == (1, 0)


async def test_what_a_higher_priority_takes_is_one_preemption_and_comes_back(queue: Queue):
    queue.submit("lower")
    await eventually(lambda: queue.runs("lower"), "a pod is missing")
    before = {pod["metadata"]["uid"] for pod in queue.pods("lower")}

    queue.submit("higher", priority="high")
    await eventually(queue.collected(lambda: queue.runs("higher")), "the higher is not admitted")
    assert queue.suspended("lower")
    await eventually(queue.collected(lambda: not queue.pods("lower")), "the lower keeps pods")
    await eventually(lambda: NO_QUOTA in queue.waiting("lower").get("message", ""))
    assert queue.status("lower")["disruptions"]["preemptions"] == 1

    queue.suspend("higher")
    await eventually(queue.collected(lambda: queue.runs("lower")), "the lower does not come back")
    assert not before & {pod["metadata"]["uid"] for pod in queue.pods("lower")}
    await eventually(lambda: queue.waiting("lower")["status"] == "False")
    status = queue.status("lower")
    assert status["attempt"] == 1
    losses = {name: count for name, count in status["disruptions"].items() if name != "history"}
    assert {name: count for name, count in losses.items() if count} == {"preemptions": 1}
    assert status["queuedSeconds"] > 0
    assert queue.status("higher")["disruptions"]["preemptions"] == 0
