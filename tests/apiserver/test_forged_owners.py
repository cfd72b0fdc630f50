"""What somebody cannot do who may only create and delete pods in a run's namespace.

A real API server with its real RBAC, and a real operator process. The status of a pod is written as
its kubelet would write it.
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.apiserver import ApiError, ApiServer
from support.operators import PlaysKubeRay, a_lease, a_run, owned_by
from support.processes import Process, wait_for
from trainingrun.api.v1alpha1 import API_VERSION, KIND

RAY_API = "ray.io/v1"
ENDED = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z"}


class Namespace:
    """A run's namespace, an operator process, and somebody who may create pods."""

    def __init__(self, apiserver: ApiServer, folder: Path):
        self.apiserver, self._numbers = apiserver, itertools.count()
        self.system, self.name = apiserver.new_namespace(), apiserver.new_namespace()
        apiserver.create(a_lease(self.system))
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
        rules = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "delete"]},
            {"apiGroups": ["ray.io"], "resources": ["*"], "verbs": ["get", "list"]},
        ]
        metadata = {"name": "pods", "namespace": self.name}
        apiserver.create(role | {"metadata": metadata, "rules": rules})
        subject = {"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"kind": "Role", "name": "pods", "apiGroup": "rbac.authorization.k8s.io"}
        binding = role | {"kind": "RoleBinding", "metadata": metadata}
        apiserver.create(binding | {"subjects": [subject], "roleRef": reference})
        settings = {"NAMESPACES": self.name, "OPERATOR_NAMESPACE": self.system}
        self.operator = Process(apiserver.kubeconfig, folder / "log.json", **settings)
        wait_for(lambda: self.operator.get("/readyz")[0] == 200)
        self.kuberay = PlaysKubeRay(apiserver, self.name)
        self.run = apiserver.create(a_run(self.name, failures={"maxPreemptions": 0}))
        wait_for(lambda: self.status.get("attempt") == 1)
        self.kuberay.starts(self.run)
        wait_for(lambda: self.status["attempts"][0]["outcome"] == "Running")
        wait_for(lambda: "head" in self.status["seen"])

    @property
    def status(self) -> dict[str, Any]:
        return self.apiserver.get(API_VERSION, KIND, "digits", self.name).get("status") or {}

    def forge(self, name: str, role: str, cluster: tuple[str, str], number: int = 1) -> None:
        """A pod with the run's labels whose owner is this RayCluster, and which has ended."""
        metadata = owned_by(self.run, name, attempt=str(number), role=role)
        owner = {"apiVersion": RAY_API, "kind": "RayCluster", "controller": True}
        metadata["ownerReferences"] = [owner | {"name": cluster[0], "uid": cluster[1]}]
        container = {"name": f"ray-{role}", "image": "x"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        pod["spec"] = {"restartPolicy": "Never", "containers": [container]}
        path = f"/api/v1/namespaces/{self.name}/pods"
        made = self.apiserver.request("POST", path, pod, as_user="mallory")
        told = {**container, "imageID": "", "ready": False, "restartCount": 0}
        made["status"] = {
            "phase": "Failed",
            "containerStatuses": [told | {"state": {"terminated": ENDED}}],
        }
        self.apiserver.replace(made, "status")

    def delete(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.name}/pods/{name}?gracePeriodSeconds=0"
        with contextlib.suppress(ApiError):
            self.apiserver.request("DELETE", path, as_user="mallory")

    def reconciles(self) -> None:
        """The operator has seen all that is there: it starts a run that is created now."""
        other = f"after-{next(self._numbers)}"
        self.apiserver.create(a_run(self.name, other))
        path = (API_VERSION, KIND, other, self.name)
        wait_for(lambda: (self.apiserver.get(*path).get("status") or {}).get("attempt") == 1)


@pytest.fixture
def namespace(apiserver: ApiServer, tmp_path: Path) -> Iterator[Namespace]:
    found = Namespace(apiserver, tmp_path)
    yield found
    found.operator.end()


def test_pods_that_name_the_live_ray_cluster_as_their_owner_cost_a_run_nothing(
    namespace: Namespace,
) -> None:
    metadata = namespace.apiserver.get(RAY_API, "RayCluster", "digits-1-abcde", namespace.name)
    cluster = (metadata["metadata"]["name"], metadata["metadata"]["uid"])
    for number in range(4):
        namespace.forge(f"forged-head-{number}", "head", cluster)
        namespace.forge(f"forged-worker-{number}", "worker", cluster)
        namespace.reconciles()
    status = namespace.status
    assert [(one["number"], one["outcome"]) for one in status["attempts"]] == [(1, "Running")], (
        status["attempts"],
        status["disruptions"],
    )
    assert not any(count for name, count in status["disruptions"].items() if name != "history")
    assert "deletionTimestamp" not in namespace.kuberay.job("digits-1")["metadata"]


def test_pods_of_ray_clusters_that_are_not_there_end_no_attempts_of_a_suspended_run(
    namespace: Namespace,
) -> None:
    namespace.kuberay.says("digits-1", "PENDING", "Initializing")  # no driver has anything to save
    path = f"/apis/{API_VERSION}/namespaces/{namespace.name}/trainingruns/digits"
    patch = {"spec": {"suspend": True}}
    namespace.apiserver.request("PATCH", path, patch, "application/merge-patch+json")
    wait_for(lambda: namespace.kuberay.jobs() == [])
    namespace.kuberay.takes_the_pods_away(namespace.run)
    wait_for(lambda: namespace.status.get("phase") == "Suspended")
    for number in range(2, 5):
        nobody = (f"digits-{number}-abcde", f"00000000-0000-0000-0000-{number:012d}")
        namespace.forge(f"forged-{number}", "worker", nobody, number)
        namespace.reconciles()
        namespace.delete(f"forged-{number}")
        namespace.reconciles()
    status = namespace.status
    assert status["phase"] == "Suspended"
    assert [one["number"] for one in status["attempts"]] == [1]
