"""A real API server with KubeRay's CRDs takes what is rendered, to the last field."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.apiserver import ApiError, ApiServer
from support.goldens import BATCH_INFERENCE, CASES, SAMPLES, a_run, rendered
from support.operators import PlaysKubeRay, eventually, running
from support.operators import a_run as unparsed_run
from trainingrun.api.pods_spec import RAY_CONTAINERS


def in_namespace(manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    moved = copy.deepcopy(manifest)
    moved["metadata"]["namespace"] = namespace
    return moved


def as_pod(template: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The pod that KubeRay makes of a template: only here does the API server check its rules."""
    metadata = {**template["metadata"], "name": "pod", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def templates(ray_job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = ray_job["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]]


@pytest.mark.parametrize("name", CASES)
def test_golden_manifests_are_accepted(apiserver: ApiServer, namespace: str, name: str):
    for manifest in CASES[name]:
        apiserver.apply(in_namespace(manifest, namespace), dry_run=True)


@pytest.fixture(scope="module")
def research(apiserver: ApiServer) -> None:
    """The PriorityClass that the platforms' cases name."""
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 100}
    apiserver.apply({**priority, "metadata": {"name": "research"}})


@pytest.fixture
def restricted(apiserver: ApiServer, namespace: str) -> str:
    """A namespace that takes pods under the restricted Pod Security Standard only."""
    apiserver.create(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        }
    )
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    apiserver.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    )
    return namespace


@pytest.mark.usefixtures("research")
@pytest.mark.parametrize("name", CASES)
def test_pods_are_accepted_under_the_restricted_standard(
    apiserver: ApiServer, restricted: str, name: str
):
    for template in templates(CASES[name][-1]):
        apiserver.create(as_pod(template, restricted), dry_run=True)


def test_a_privileged_pod_is_refused_there(apiserver: ApiServer, restricted: str):
    pod_template = {
        "spec": {"containers": [{"name": "ray-worker", "securityContext": {"privileged": True}}]}
    }
    run = a_run(workers={"podTemplate": pod_template})
    worker = templates(rendered(run)[-1])[1]
    with pytest.raises(ApiError, match="privileged"):
        apiserver.create(as_pod(worker, restricted), dry_run=True)


@pytest.mark.parametrize(
    "hook",
    [
        pytest.param({"sleep": {"seconds": 10}}, id="sleep"),
        pytest.param({"exec": {"command": ["sh", "-c", "curl -s localhost/quit"]}}, id="exec"),
    ],
)
def test_a_pod_with_a_users_own_pre_stop_hook_is_accepted(
    apiserver: ApiServer, restricted: str, hook: dict[str, Any]
):
    """It takes one handler per hook."""
    containers = [{"name": name, "lifecycle": {"preStop": hook}} for name in RAY_CONTAINERS]
    run = a_run(
        podTemplate={"spec": {"terminationGracePeriodSeconds": 60, "containers": containers}}
    )
    for template in templates(rendered(run)[-1]):
        apiserver.create(as_pod(template, restricted), dry_run=True)


def test_a_misspelled_field_in_a_pod_template_is_refused_by_name(
    apiserver: ApiServer, namespace: str
):
    ray_job = in_namespace(rendered(a_run())[-1], namespace)
    templates(ray_job)[1]["spec"]["nodeSelektor"] = {"a": "b"}
    with pytest.raises(ApiError, match="nodeSelektor"):
        apiserver.apply(ray_job, dry_run=True)


@pytest.mark.parametrize("file", [*SAMPLES, BATCH_INFERENCE], ids=lambda file: file.stem)
def test_samples_are_accepted_as_they_are(apiserver: ApiServer, namespace: str, file: Path):
    for manifest in yaml.safe_load_all(file.read_text()):
        apiserver.apply(in_namespace(manifest, namespace), dry_run=True)


EXTENDED = "nvidia.com/gpu"
BY_CLAIM: dict[str, Any] = {
    "count": 2,
    "accelerator": {"kind": "nvidia", "count": 4},
    "podTemplate": {
        "spec": {
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "four-gpus"}],
            "containers": [
                {
                    "name": "ray-worker",
                    "resources": {
                        "claims": [{"name": "gpus"}],
                        "requests": {EXTENDED: None},
                        "limits": {EXTENDED: None},
                    },
                }
            ],
        }
    },
}
"""The example of docs/capacity.md: GPUs that a driver of dynamic resource allocation hands out."""


@pytest.mark.kubernetes(34)
async def test_gpus_by_resource_claim_reach_the_pod_and_ray(
    apiserver: ApiServer, namespace: str, kuberay: PlaysKubeRay, new_operator: Any
):
    """The nulls are still there in what the API server has stored, and take the device plugin's
    resource away. Ray counts the GPUs as before.
    """
    async with running(await new_operator()):
        apiserver.create(unparsed_run(namespace, workers=BY_CLAIM))
        (name,) = await eventually(kuberay.jobs)
    ray_job = kuberay.job(name)
    pod = apiserver.create(as_pod(templates(ray_job)[1], namespace), dry_run=True)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": "gpus"}]
    assert EXTENDED not in container["resources"]["limits"] | container["resources"]["requests"]
    assert pod["spec"]["resourceClaims"] == BY_CLAIM["podTemplate"]["spec"]["resourceClaims"]
    (group,) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["rayStartParams"]["num-gpus"] == "4"


@pytest.mark.kubernetes(34)
def test_resources_of_the_whole_pod_are_accepted(apiserver: ApiServer, namespace: str):
    """Such as for a sidecar that shares what Ray's container leaves."""
    whole = {"spec": {"resources": {"limits": {"cpu": "4", "memory": "16Gi"}}}}
    ray_job = rendered(a_run(workers={"podTemplate": whole}))[-1]
    pod = apiserver.create(as_pod(templates(ray_job)[1], namespace), dry_run=True)
    assert pod["spec"]["resources"]["limits"] == {"cpu": "4", "memory": "16Gi"}
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1", "Ray's own"


@pytest.mark.kubernetes(34)
def test_a_pod_may_not_be_smaller_than_rays_container(apiserver: ApiServer, namespace: str):
    whole = {"spec": {"resources": {"limits": {"cpu": "500m"}}}}
    ray_job = rendered(a_run(workers={"podTemplate": whole}))[-1]
    with pytest.raises(ApiError, match="must be less than or equal to pod limits"):
        apiserver.create(as_pod(templates(ray_job)[1], namespace), dry_run=True)
