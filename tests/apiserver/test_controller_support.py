"""What a running attempt needs beside its pods is put right by a real operator."""

import asyncio

import pytest

from support.operators import a_run, document, eventually, running, settled, watching
from support.peer_rows import RIGHT, WRONG, WRONG_IN_NUMBERS
from trainingrun.cluster.api_client import Unusable
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller import reconcile
from trainingrun.rendering.objects import peer_as_stored

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


@pytest.fixture
def with_peer(apiserver, namespace):
    """A NetworkPolicy, and the same with a peer that is let in."""
    metadata = {"name": "digits", "namespace": namespace}
    spec = {"podSelector": {"matchLabels": {"app": "digits"}}, "policyTypes": ["Ingress"]}
    api = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata}
    made = apiserver.create({**api, "spec": spec})
    return made, lambda peer: {**api, "spec": {**spec, "ingress": [{"from": [peer]}]}}


async def test_a_peer_is_given_back_as_it_is_rendered(apiserver, namespace, policy, with_peer):
    made, manifest = with_peer
    async with watching(apiserver, namespace) as cluster:
        for written, _ in RIGHT:
            rendered = peer_as_stored(written)
            await cluster.restore(manifest(rendered), made["metadata"]["uid"])
            (rule,) = policy()["spec"]["ingress"]
            assert rule["from"] == [rendered]


async def test_a_policy_is_not_restored_with_a_peer_that_the_api_server_does_not_take_in_full(
    apiserver, namespace, policy, with_peer
):
    made, manifest = with_peer
    async with watching(apiserver, namespace) as cluster:
        for peer in (*(row[0] for row in WRONG), *WRONG_IN_NUMBERS):
            with pytest.raises(Unusable):
                await cluster.restore(manifest(peer), made["metadata"]["uid"])
    assert policy()["spec"] == made["spec"]
