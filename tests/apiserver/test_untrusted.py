"""What one tenant writes into an object stops neither the operator nor another tenant's run."""

import contextlib
import itertools
import json
import os
import random
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from support.apiserver import MERGE, ApiError
from support.hostile_objects import PLACES, hostile_values, nested, run_with
from support.operators import PlaysKubeRay, a_lease, a_run, document
from support.processes import Process, wait_for
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster.bounded_json import MOST_LEFT_OUT
from trainingrun_protocol.contract import PROGRESS_PORT

SEED = random.randrange(10**6) if os.environ.get("TRAININGRUN_FUZZ_RANDOM") == "1" else 7
EACH = 4
"""Objects for each place that takes free-form JSON."""


class Cluster:
    """Two tenants, and operator processes that serve both."""

    def __init__(self, apiserver, folder):
        self.apiserver, self.folder = apiserver, folder
        self.system, self.theirs, self.ours = (apiserver.new_namespace() for _ in range(3))
        apiserver.create(a_lease(self.system))
        self.processes: list[Process] = []

    def start(self, **more: str) -> Process:
        """An operator that is ready, with more settings."""
        log = self.folder / f"log-{len(self.processes)}.json"
        settings = {"NAMESPACES": f"{self.theirs},{self.ours}", "OPERATOR_NAMESPACE": self.system}
        self.processes.append(Process(self.apiserver.kubeconfig, log, **settings, **more))
        wait_for(lambda: self.processes[-1].get("/readyz")[0] == 200)
        return self.processes[-1]

    def submit(self, manifest: str) -> None:
        """Creates a TrainingRun of theirs, without strict validation."""
        path = f"/apis/{API_VERSION}/namespaces/{self.theirs}/trainingruns"
        self.apiserver.request("POST", path, manifest)

    def status(self, name: str, namespace: str) -> dict:
        return self.apiserver.get(API_VERSION, KIND, name, namespace).get("status") or {}

    def accepted(self, name: str) -> dict:
        """The condition of a run of theirs; {}: there is none yet."""
        found = self.status(name, self.theirs).get("conditions", ())
        return next((one for one in found if one["type"] == "Accepted"), {})

    def begins(self, name: str) -> None:
        """A new run of ours gets its first attempt."""
        self.apiserver.create(a_run(self.ours, name))
        wait_for(lambda: self.status(name, self.ours).get("attempt") == 1)

    def trains(self, namespace: str, name: str, address: str) -> None:
        """A run gets its first attempt, whose head has this IP address."""
        run = self.apiserver.create(a_run(namespace, name))
        wait_for(lambda: self.status(name, namespace).get("attempt") == 1)
        PlaysKubeRay(self.apiserver, namespace, address).starts(run)


@pytest.fixture
def cluster(apiserver, tmp_path):
    found = Cluster(apiserver, tmp_path)
    yield found
    for process in found.processes:
        process.end()


FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"
"""The one that other operators written with kopf have on their objects, unless told another."""


def test_the_finalizers_of_another_operator_stay_and_hold_up_nothing(cluster):
    """kopf takes the one that it believes to be its own off each object that it watches."""
    cluster.start()
    run = a_run(cluster.theirs, "marked")
    run["metadata"]["finalizers"] = [FINALIZER]
    run = cluster.apiserver.create(run)
    wait_for(lambda: cluster.status("marked", cluster.theirs).get("attempt") == 1)
    job = cluster.apiserver.get("ray.io/v1", "RayJob", "marked-1", cluster.theirs)
    path = cluster.apiserver.path(job)
    cluster.apiserver.request("PATCH", path, {"metadata": {"finalizers": [FINALIZER]}}, MERGE)
    path = cluster.apiserver.path(run)
    cluster.apiserver.request("PATCH", path, {"spec": {"suspend": True}}, MERGE)

    def metadata(found):
        return cluster.apiserver.request("GET", cluster.apiserver.path(found))["metadata"]

    wait_for(lambda: "deletionTimestamp" in metadata(job))
    cluster.processes[-1].end()
    cluster.start()
    cluster.begins("plain")
    for found in (run, job):
        assert metadata(found)["finalizers"] == [FINALIZER]
        path = cluster.apiserver.path(found)
        cluster.apiserver.request("PATCH", path, {"metadata": {"finalizers": []}}, MERGE)


@contextlib.contextmanager
def heads_at(address: str, asked: list[str], takes_s: float) -> Iterator[None]:
    """All heads of a tenant: each answers after so many seconds, and notes that it was asked."""

    class Head(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(address)
            threading.Event().wait(takes_s)
            content = json.dumps(document(step=len(asked))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            # The operator may have given up; a traceback would be in a later test's output.
            with contextlib.suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((address, PROGRESS_PORT), Head)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield
    server.shutdown()
    server.server_close()


def unreadable(operator: Process) -> float:
    found = re.findall(
        r'^trainingrun_operator_unreadable_objects_total\{kind="TrainingRun"\} (\S+)$',
        operator.metrics(),
        re.MULTILINE,
    )
    return float(found[0]) if found else 0.0


def faults(operator: Process) -> list[dict]:
    """What it has logged that nobody should have to read."""
    return [line for line in operator.lines() if line["level"] in ("ERROR", "CRITICAL")]


def test_a_run_that_is_nested_too_deeply_is_refused_and_nobody_else_notices(cluster):
    operator = cluster.start()
    cluster.begins("before")
    # The writer of pydantic ends at 255 levels, Python's reader below 1,000.
    values = {f"deep-{levels}": nested(levels) for levels in (33, 300, 1200, 3000)}
    # A text stands for what is around so many, and would be a valid value.
    places = ",".join([nested(120)] * (MOST_LEFT_OUT + 1))
    values["deep-in-many-places"] = f'{{"a":[{places}]}}'
    for name, value in values.items():
        cluster.submit(run_with("config", value, cluster.theirs, name))
        wait_for(lambda name=name: cluster.accepted(name))
        accepted = cluster.accepted(name)
        assert accepted["status"] == "False"
        says = "spec.training.config: must be nested at most 32 levels deep; flatten it"
        assert says in accepted["message"]
    cluster.begins("after")
    assert unreadable(operator) >= 2
    operator.end()
    again = cluster.start()
    cluster.begins("after-a-restart")
    assert unreadable(again) >= 1
    fresh = 'trainingrun_operator_watch_stale{kind="TrainingRun"} 0.0'
    wait_for(lambda: fresh in again.metrics())
    assert faults(operator) + faults(again) == []


def test_a_healthy_run_does_not_notice_whatever_others_write(cluster):
    """A fuzzer of depth, size and types, through the real API server."""
    print("seed", SEED)  # seen where it fails
    operator = cluster.start()
    kuberay = PlaysKubeRay(cluster.apiserver, cluster.ours)
    run = cluster.apiserver.create(a_run(cluster.ours, "healthy"))
    wait_for(lambda: cluster.status("healthy", cluster.ours).get("attempt") == 1)
    kuberay.starts(run)
    uid = kuberay.job("healthy-1")["metadata"]["uid"]

    values, submitted = hostile_values(SEED), []
    for number, place in itertools.product(range(EACH), PLACES):
        name = f"{place}-{number}"
        with contextlib.suppress(ApiError):
            cluster.submit(run_with(place, next(values), cluster.theirs, name))
            submitted.append(name)
    assert len(submitted) > 5 * EACH, "the API server takes most of them"
    assert not any(name.startswith("sweep-value") for name in submitted), "its schema is bounded"
    for name in submitted:
        wait_for(lambda name=name: cluster.accepted(name))

    cluster.begins("after")
    status = cluster.status("healthy", cluster.ours)
    assert (status["attempt"], status["attempts"][0]["outcome"]) == (1, "Running")
    assert kuberay.job("healthy-1")["metadata"]["uid"] == uid
    assert operator.process.poll() is None
    assert operator.get("/healthz")[0] == 200
    assert faults(operator) == []


def test_heads_of_another_tenant_that_answer_slowly_delay_no_view_of_a_run(cluster):
    """12 of them, each in time, and places for two polls at once."""
    operator, asked = cluster.start(POLL_CONCURRENCY="2"), []
    theirs, ours = (f"127.84.{os.getpid() % 250}.{number}" for number in (1, 2))
    with heads_at(theirs, asked, 1.0), heads_at(ours, asked, 0.0):
        for number in range(12):
            cluster.trains(cluster.theirs, f"slow-{number}", theirs)
        for number in range(12):  # from its first answer on each is known to be slow
            name = f"slow-{number}"
            wait_for(lambda name=name: cluster.status(name, cluster.theirs).get("progress"))
        cluster.trains(cluster.ours, "quick", ours)
        wait_for(lambda: ours in asked)
        del asked[:]
        wait_for(lambda: asked.count(ours) >= 5)
        order = list(asked)
    # In one queue for all of them each of ours would come after twelve of theirs.
    assert order.count(theirs) <= 35, order
    assert faults(operator) == []
