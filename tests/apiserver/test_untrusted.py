"""What one tenant writes into an object stops neither the operator nor another tenant's run."""

import contextlib
import itertools
import os
import random
import re

import pytest

from support.apiserver import ApiError
from support.hostile_objects import PLACES, hostile_values, nested, run_with
from support.operators import PlaysKubeRay, a_lease, a_run
from support.processes import Process, wait_for
from trainingrun.api.v1alpha1 import API_VERSION, KIND

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

    def start(self) -> Process:
        """An operator that is ready."""
        log = self.folder / f"log-{len(self.processes)}.json"
        settings = {"NAMESPACES": f"{self.theirs},{self.ours}", "OPERATOR_NAMESPACE": self.system}
        self.processes.append(Process(self.apiserver.kubeconfig, log, **settings))
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


@pytest.fixture
def cluster(apiserver, tmp_path):
    found = Cluster(apiserver, tmp_path)
    yield found
    for process in found.processes:
        process.end()


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
    for levels in (33, 300, 1200, 3000):
        cluster.submit(run_with("config", nested(levels), cluster.theirs, f"deep-{levels}"))
        wait_for(lambda levels=levels: cluster.accepted(f"deep-{levels}"))
        accepted = cluster.accepted(f"deep-{levels}")
        assert accepted["status"] == "False"
        says = "spec.training.config: must be nested at most 32 levels deep; flatten it"
        assert says in accepted["message"]
    cluster.begins("after")
    assert unreadable(operator) >= 2
    operator.end()
    again = cluster.start()
    cluster.begins("after-a-restart")
    assert unreadable(again) >= 1
    assert "trainingrun_operator_watch_stale" in again.metrics()
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
