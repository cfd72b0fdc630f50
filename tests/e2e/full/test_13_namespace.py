"""What a team does with Kubernetes' own means while a run trains: it gives a worker more CPU in
place, and deletes the whole namespace.
"""

import json
import time
from collections.abc import Iterator

import pytest

from e2e.cluster import SYSTEM, TestCluster, namespace
from e2e.kube import wait_for
from e2e.long_run import LongRun
from e2e.runs import Run, specification

LEAVES = "e2e-leaves"
LEFT_S = 180
"""In which the namespace is gone, with the pods' grace period and KubeRay's finalizers."""


@pytest.fixture(scope="module")
def leaving(operated: TestCluster) -> Iterator[LongRun]:
    """A run that trains in a namespace of its own."""
    kubectl = namespace(operated, LEAVES)
    one = LongRun(Run(operated, kubectl, "leaves"))
    one.start(specification())
    yield one
    kubectl.delete("namespace", LEAVES)


def test_a_worker_gets_more_cpu_in_place(leaving: LongRun):
    """No pod ends for it, and the operator counts no loss."""
    run = leaving.run
    pod = next(iter(run.workers()))
    with leaving.in_the_same_pods():
        before = container(run, pod)["resources"]
        larger = {"limits": {"cpu": "3"}}
        patch = {"spec": {"containers": [{"name": "ray-worker", "resources": larger}]}}
        run.kubectl("patch", "pod", pod, "--subresource=resize", f"--patch={json.dumps(patch)}")
        wait_for(
            f"the kubelet has given {pod} 3 CPUs instead of {before}",
            lambda: container(run, pod)["resources"].get("limits", {}).get("cpu") == "3",
            timeout=60,
        )
    status = leaving.reports_again()
    assert not status.get("disruptions", {}).get("history"), status["disruptions"]


def container(run: Run, pod: str) -> dict:
    """What the kubelet says of Ray's container."""
    statuses = run.kubectl.get("pod", pod)["status"]["containerStatuses"]
    return next(status for status in statuses if status["name"] == "ray-worker")


def test_a_namespace_is_deleted_under_a_run(leaving: LongRun, operated: TestCluster):
    """Nothing of the run keeps it, and what the operator may ask for in it meanwhile, which is
    refused, is no error of the operator's.
    """
    kubectl = leaving.run.kubectl
    began = time.time()
    kubectl.delete("namespace", LEAVES)
    wait_for(
        f"namespace {LEAVES} is gone",
        lambda: not kubectl.find("namespace", LEAVES),
        timeout=LEFT_S,
        instead=lambda: str(kubectl.get("namespace", LEAVES)["status"]),
    )
    took = time.time() - began
    since = f"--since={int(took) + 1}s"
    logs = ("logs", "deployment/trainingrun-operator")
    assert operated.kubectl.within(SYSTEM)(*logs), "what the operator logs is read"
    lines = operated.kubectl.within(SYSTEM)(*logs, since).splitlines()
    refused = [line for line in lines if "being terminated" in line or "forbidden" in line]
    print(f"\n  gone after {took:.0f} s; {len(lines)} lines of the operator, refused: {refused}")
    assert [line for line in lines if "error" in line.lower() or "Traceback" in line] == []
