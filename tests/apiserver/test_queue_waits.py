"""What Kueue says of a RayJob is read from its Workload, and unknown where it cannot be read.

No Kueue runs here: the CRD and the Workloads are the test's own.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from support.apiserver import ApiServer, running_apiserver
from support.operators import a_ray_job, a_run, credentials_of, eventually, running
from support.permissions import QUEUE_RULES
from trainingrun.cluster.api_client import Connection
from trainingrun.cluster.kueue import QueueWait, what_it_waits_for

MESSAGE = "insufficient quota for cpu in flavor default"
SINCE = datetime(2026, 11, 21, 12, tzinfo=UTC)
UNKNOWN = QueueWait()


def simulated_crd() -> dict[str, Any]:
    """Of Workloads, which may hold anything."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta2", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "workloads.kueue.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": "kueue.x-k8s.io",
            "names": {"kind": "Workload", "plural": "workloads"},
            "scope": "Namespaced",
            "versions": [version | {"schema": {"openAPIV3Schema": schema}}],
        },
    }


def a_workload(job: dict[str, Any]) -> dict[str, Any]:
    metadata = job["metadata"]
    waits = {"type": "QuotaReserved", "status": "False", "message": MESSAGE}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"rayjob-{metadata['name']}",
            "namespace": metadata["namespace"],
            "labels": {"kueue.x-k8s.io/job-uid": metadata["uid"]},
        },
        "status": {"conditions": [waits | {"lastTransitionTime": "2026-11-21T12:00:00Z"}]},
    }


@pytest.fixture
def with_kueues_crd(apiserver: ApiServer) -> ApiServer:
    apiserver.install_crd(simulated_crd())
    return apiserver


async def asked(server: ApiServer, job: dict[str, Any]) -> QueueWait:
    connection = Connection(credentials_of(server))
    try:
        return await what_it_waits_for(connection, job)
    finally:
        await connection.close()


async def test_where_kueue_is_not_installed_nothing_is_known(apiserver, namespace):
    job = apiserver.create(a_ray_job(apiserver.create(a_run(namespace))))
    with running_apiserver() as bare:
        assert await asked(bare, job) == UNKNOWN


async def test_it_is_what_the_workload_of_this_ray_job_says(with_kueues_crd, namespace):
    server = with_kueues_crd
    run = server.create(a_run(namespace))
    first, second = (server.create(a_ray_job(run, name)) for name in ("digits-1", "digits-2"))
    server.create(a_workload(first))
    assert await asked(server, first) == QueueWait(MESSAGE, SINCE)
    assert await asked(server, second) == QueueWait("")


async def test_a_workload_that_is_not_as_kueue_writes_it_says_nothing(with_kueues_crd, namespace):
    server = with_kueues_crd
    job = server.create(a_ray_job(server.create(a_run(namespace))))
    strange = a_workload(job) | {"status": {"conditions": [{"message": MESSAGE}, "False"]}}
    server.create(strange)
    assert await asked(server, job) == UNKNOWN


async def test_the_right_to_list_workloads_is_enough_and_without_it_nothing_is_known(
    with_kueues_crd, namespace, grant
):
    server = with_kueues_crd
    job = server.create(a_ray_job(server.create(a_run(namespace))))
    server.create(a_workload(job))
    assert await asked(server, job) == UNKNOWN
    revoke = grant(QUEUE_RULES, namespace)
    assert (await asked(server, job)).message == MESSAGE
    revoke()


async def test_a_queued_run_says_what_it_waits_for(
    with_kueues_crd, namespace, kuberay, new_operator, status
):
    server = with_kueues_crd
    async with running(await new_operator()):
        server.create(a_run(namespace, scheduling={"queue": {"kind": "Kueue", "name": "gpus"}}))
        (name,) = await eventually(kuberay.jobs)
        job = kuberay.job(name)
        assert job["spec"]["suspend"] is True
        server.create(a_workload(job))
        (waiting,) = await eventually(
            lambda: [
                c
                for c in status().get("conditions", [])
                if c["type"] == "Waiting" and MESSAGE in c.get("message", "")
            ]
        )
    assert waiting["reason"] == "Queued"
    assert waiting["message"] == (f"Kueue has not admitted RayJob {name} to queue gpus: {MESSAGE}")
