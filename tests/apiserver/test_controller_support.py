"""What a running attempt needs beside its pods is put right by a real operator."""

import asyncio

import pytest

from support.operators import a_run, document, eventually, running, settled
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller import reconcile

MERGE = "application/merge-patch+json"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"


@pytest.fixture
def policy(apiserver, namespace):
    """Reads the run's NetworkPolicy."""

    def read() -> dict | None:
        items = apiserver.request("GET", POLICIES.format(namespace))["items"]
        return items[0] if items else None

    return read


async def test_a_network_policy_that_is_deleted_or_edited_is_put_right_while_the_run_trains(
    apiserver, namespace, kuberay, head, new_operator, status, policy, monkeypatch
):
    monkeypatch.setattr(reconcile, "SUPPORT_S", 0.2)
    monkeypatch.setattr(reconcile, "REPAIRED_S", 0.2)
    async with running(operator := await new_operator(resync_s=0.5)):
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: kuberay.jobs() == ["digits-1"])
        kuberay.starts(run)
        head.document = document(step=5, totalSteps=100, resumedFromStep=0)
        await eventually(lambda: status().get("phase") == "Running")
        rendered = policy()
        path = f"{POLICIES.format(namespace)}/{rendered['metadata']['name']}"

        await asyncio.to_thread(apiserver.request, "DELETE", path)
        again = await eventually(policy)
        assert again["spec"] == rendered["spec"]
        assert again["metadata"]["uid"] != rendered["metadata"]["uid"]

        labels = {"matchLabels": {"no": "pod"}}
        edits = {"spec": {"podSelector": labels, "egress": [], "ingress": [{}]}}
        await asyncio.to_thread(apiserver.request, "PATCH", path, edits, MERGE)
        await eventually(lambda: policy()["spec"] == rendered["spec"])

        moved = property(lambda _: ("elsewhere",))
        monkeypatch.setattr(KubernetesCluster, "kuberay_namespaces", moved)
        await eventually(lambda: "elsewhere" in str(policy()["spec"]))
        await settled(operator, (namespace, "digits"))
        assert status()["phase"] == "Running"
