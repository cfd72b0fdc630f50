"""KubeRay's own operator makes the pods of what is rendered: on an API server without kubelets."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.apiserver import ApiServer
from support.goldens import CASES
from support.neighbors import running_kuberay
from support.operators import RAY_API

PATIENCE_S = 120


@pytest.fixture(scope="module")
def operator_log(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What KubeRay's operator, which runs meanwhile, writes."""
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 100}
    apiserver.apply({**priority, "metadata": {"name": "research"}})
    with running_kuberay(apiserver, tmp_path_factory.mktemp("kuberay")) as log:
        yield log


def items(apiserver: ApiServer, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = apiserver.request("GET", path)["items"]
    return found


@pytest.mark.parametrize("name", CASES)
def test_it_makes_every_pod_of_an_attempt_with_what_its_template_says(
    apiserver: ApiServer, namespace: str, operator_log: Path, name: str
):
    manifests = copy.deepcopy(CASES[name])
    for manifest in manifests:
        manifest["metadata"]["namespace"] = namespace
        apiserver.apply(manifest)
    if manifests[-1]["spec"].get("suspend"):  # until Kueue admits it, which is done here by hand
        manifests[-1]["spec"]["suspend"] = False
        apiserver.apply(manifests[-1])
    cluster = manifests[-1]["spec"]["rayClusterSpec"]
    groups = {"headgroup": cluster["headGroupSpec"]}
    groups |= {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    expected = 1 + sum(group["replicas"] for group in cluster["workerGroupSpecs"])

    deadline = time.monotonic() + PATIENCE_S
    while len(pods := items(apiserver, f"/api/v1/namespaces/{namespace}/pods")) < expected:
        job = apiserver.get(RAY_API, "RayJob", manifests[-1]["metadata"]["name"], namespace)
        evidence = f"{len(pods)} of {expected} pods; {job.get('status')}"
        assert time.monotonic() < deadline, f"{evidence}\n{operator_log.read_text()[-3000:]}"
        time.sleep(0.2)

    assert len(pods) == expected
    for pod in pods:
        template = groups[pod["metadata"]["labels"]["ray.io/group"]]["template"]
        assert template["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
        annotations = template["metadata"].get("annotations", {})
        assert annotations.items() <= pod["metadata"].get("annotations", {}).items()
        wanted, made = template["spec"]["containers"][0], pod["spec"]["containers"][0]
        assert made["image"] == wanted["image"]
        assert (made["command"], made["args"]) == (wanted["command"], wanted["args"])
        values = {variable["name"]: variable.get("value") for variable in made["env"]}
        assert all(values[one["name"]] == one.get("value") for one in wanted["env"])
        assert "ray start" in values["KUBERAY_GEN_RAY_START_CMD"]
