"""A run without a bucket: its folder is on a claim that pods on both nodes mount.

The volume is a folder of this machine that is in each node, as the journals are, so that all pods
see one file system. It is no NFS: what the cache of another machine does is tried by
tests/stores/test_nfs.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import JOURNALS, TestCluster, journals_of
from e2e.command_line import trainingrun
from e2e.kube import Kubectl, wait_for
from e2e.report import seconds_without_training
from e2e.scenario import ONE_WORKER_PER_NODE, WELL_UNDER_WAY, Scenario
from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV

CLAIM = "e2e-claim"
SIZE = {"storage": "1Gi"}


@pytest.fixture
def volume(operated: TestCluster, kubectl: Kubectl) -> Iterator[Path]:
    """The folder of this machine that is the claim's volume."""
    folder = journals_of(operated.name) / CLAIM
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # the kubelet applies no fsGroup to a hostPath
    kubectl.apply(*objects(kubectl.namespace))
    yield folder
    kubectl.delete("pvc", CLAIM, wait=True)
    kubectl.delete("pv", CLAIM, wait=True)


def objects(namespace: str) -> list[dict[str, Any]]:
    """The volume and the claim, bound to each other."""
    both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": CLAIM},
            "spec": {
                **both,
                "capacity": SIZE,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"{JOURNALS}/{CLAIM}", "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": CLAIM},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": {**both, "resources": {"requests": SIZE}, "volumeName": CLAIM},
        },
    ]


def test_worker_deleted_with_storage_on_a_claim(scenario: Scenario, volume: Path):
    run = scenario.run
    scenario.spec["storage"] = {"uri": f"pvc://{CLAIM}/e2e"}
    scenario.spec["workers"] |= {"capacity": {"type": "PreferSpot"}, "placement": "Spread"}
    scenario.spec["podTemplate"] = {"spec": {"topologySpreadConstraints": [ONE_WORKER_PER_NODE]}}
    scenario.start_and_reach(WELL_UNDER_WAY)
    assert sorted(run.workers().values()) == sorted(run.cluster.workers), "on both nodes"
    since = scenario.disturb(run.kubectl.delete, "pod", run.trainer())
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(x) worker pod deleted, storage on a claim", 17, lost_at_most=0)
    assert status["attempt"] == 1, "the head was there all the time"
    assert status["disruptions"]["preemptions"] == 1
    folder = volume / "e2e" / run.folder()
    assert status["checkpoint"]["uri"].startswith(f"pvc://{CLAIM}/e2e/{run.folder()}/checkpoints/")
    assert [path.name for path in (folder / "lease").iterdir()] == ["000001.json"]
    assert not list(folder.rglob(".staged-*")), "all that was begun is written"

    env = {CLAIM_FOLDERS_ENV: f"{CLAIM}={volume}"}
    trainingrun(run.kubectl, "checkpoints", "verify", run.name, **env)
    assert trainingrun(run.kubectl, "metrics", run.name, "--csv", **env)
    assert "step" in trainingrun(run.kubectl, "checkpoints", "list", run.name, **env)


def test_a_claim_that_does_not_exist_is_said_and_waited_for(
    scenario: Scenario, kubectl: Kubectl, volume: Path
):
    """The pods are made before their claim, as when both are applied at once."""
    run = scenario.run
    kubectl.delete("pvc", CLAIM, wait=True)
    kubectl.delete("pv", CLAIM, wait=True)
    scenario.spec["storage"] = {"uri": f"pvc://{CLAIM}/e2e"}
    run.start(scenario.spec)
    wait_for(
        "the missing claim in the status",
        lambda: CLAIM in run.conditions().get("Waiting", {}).get("message", ""),
        120,
        run.sentence,
    )
    kubectl.apply(*objects(kubectl.namespace))
    run.wait_for_step(1)
    run.succeed()
    assert (volume / "e2e" / run.folder() / "lease" / "000001.json").exists()
