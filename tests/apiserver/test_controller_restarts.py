"""An operator that dies or is replaced, against a real API server: what was begun continues."""

import asyncio

from support.operators import a_run, document, eventually, running, settled
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster.live_cluster import KubernetesCluster


async def test_an_operator_that_dies_before_the_status_has_the_attempt_starts_no_second_one(
    apiserver, namespace, kuberay, new_operator, status, monkeypatch
):
    died, real = asyncio.Event(), KubernetesCluster.write_status

    async def dies(self, run, status, version):
        if status.attempt:
            died.set()
            await asyncio.Event().wait()  # as if the process were gone: it never comes back
        await real(self, run, status, version)

    with monkeypatch.context() as patched:
        patched.setattr(KubernetesCluster, "write_status", dies)
        async with running(await new_operator()):
            apiserver.create(a_run(namespace))
            async with asyncio.timeout(30):
                await died.wait()
    first = kuberay.job("digits-1")
    assert (status()["phase"], status()["attempts"]) == ("Pending", [])
    async with running(await new_operator()) as operator:
        await eventually(lambda: status().get("attempt") == 1)
        await settled(operator, (namespace, "digits"))
    assert kuberay.jobs() == ["digits-1"]
    assert kuberay.job("digits-1")["metadata"]["uid"] == first["metadata"]["uid"]
    assert len(status()["attempts"]) == 1


async def test_a_restart_takes_nothing_back_in_the_status_of_a_running_attempt(
    apiserver, namespace, kuberay, head, new_operator, status
):
    """The head is polled before the first decision: the phase does not flap."""
    run = apiserver.create(a_run(namespace))
    async with running(await new_operator()) as operator:
        await eventually(lambda: status().get("attempt") == 1)
        kuberay.starts(run)
        head.document = document(step=3)
        await eventually(lambda: status().get("phase") == "Running")
        await settled(operator, (namespace, "digits"))
    before = apiserver.get(API_VERSION, KIND, "digits", namespace)
    async with running(await new_operator()) as operator:
        value, answered = operator.metrics.registry.get_sample_value, {"outcome": "ok"}
        await eventually(lambda: value("trainingrun_progress_polls_total", answered))
        await settled(operator, (namespace, "digits"))
    assert apiserver.get(API_VERSION, KIND, "digits", namespace) == before
