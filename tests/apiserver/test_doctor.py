"""`trainingrun version` and `trainingrun doctor` against a real API server."""

import copy
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.apiserver import MERGE, ApiServer
from support.cli_server import call
from trainingrun.api.crd import crd
from trainingrun.client import checks

INSTALL = Path(__file__).parents[2] / "manifests" / "install.yaml"
LOCATION = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"


@pytest.fixture
def operators(apiserver: ApiServer) -> Iterator[dict[str, dict[str, Any]]]:
    """The Deployments of both operators, ready; changes to them are to be replaced."""
    namespace = apiserver.new_namespace()
    ours = next(
        found for found in yaml.safe_load_all(INSTALL.read_text()) if found["kind"] == "Deployment"
    )
    ours["metadata"]["namespace"] = namespace
    container = {"name": "kuberay-operator", "image": "quay.io/kuberay/operator:v1.6.0"}
    labels = {"app.kubernetes.io/name": "kuberay-operator"}
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kuberay-operator", "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    made = {"ours": apiserver.create(ours), "theirs": apiserver.create(theirs)}
    for name, found in made.items():
        made[name] = apiserver.replace(
            {**found, "status": {"replicas": 1, "readyReplicas": 1}}, "status"
        )
    yield made
    for found in made.values():
        apiserver.request("DELETE", apiserver.path(found))


@pytest.fixture
def as_admin(apiserver: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOCATION, str(apiserver.kubeconfig))


def doctor(namespace: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """The exit code and, by what it is about, verdicts and sentences."""
    code, output, errors = call("doctor", "--namespace", namespace)
    assert errors == ""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in output.splitlines():
        verdict, what = line[:7].strip(), line[9:].partition(": ")
        found.setdefault(what[0], []).append((verdict, what[2]))
    return code, found


@pytest.mark.usefixtures("as_admin", "operators")
def test_nothing_is_wrong_in_a_cluster_with_both_operators(namespace: str) -> None:
    code, found = doctor(namespace)
    verdicts = [verdict for sentences in found.values() for verdict, _ in sentences]
    assert (code, "wrong" in verdicts) == (0, False), found
    assert "answers at https://127.0.0.1" in found["cluster"][0][1]
    assert "has the fields that this command knows" in found["CRD"][0][1]
    assert "quay.io/kuberay/operator:v1.6.0" in found["KubeRay"][0][1]
    assert "is ready and watches every namespace" in found["KubeRay"][0][1]
    assert f"of version {version('trainingrun')} is ready" in found["operator"][0][1]
    image = f"registry.example.com/trainingrun-torch:{version('trainingrun')}"
    assert found["operator"][1] == ("ok", f"runs that name no image train in {image}")
    assert [verdict for verdict, _ in found["rights"]] == ["ok"]
    assert found["quota"] == [("ok", f"no ResourceQuota limits namespace {namespace}")]
    assert found["bucket"][0][0] == "unknown"
    assert "--storage s3://bucket/folder" in found["bucket"][0][1]


@pytest.mark.usefixtures("as_admin")
def test_what_is_wrong_is_said_with_what_to_do(
    apiserver: ApiServer, namespace: str, operators: dict[str, dict[str, Any]]
) -> None:
    ours, theirs = copy.deepcopy(operators["ours"]), copy.deepcopy(operators["theirs"])
    container = ours["spec"]["template"]["spec"]["containers"][0]
    for setting in container["env"]:
        if setting["name"] == "TRAININGRUN_OPERATOR_IMAGE":
            setting["value"] = "trainingrun-torch:dev"
    apiserver.replace(apiserver.replace(ours) | {"status": {}}, "status")
    arguments = ["--watch-namespace", "a,b"]
    theirs["spec"]["template"]["spec"]["containers"][0]["args"] = arguments
    apiserver.replace(theirs)
    spec = {"hard": {"pods": "4", "requests.nvidia.com/gpu": "8", "count/rayjobs.ray.io": "0"}}
    metadata = {"name": "team", "namespace": namespace}
    quota = apiserver.create(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}
    )
    used = {"pods": "3", "requests.nvidia.com/gpu": "8", "count/rayjobs.ray.io": "0"}
    apiserver.replace({**quota, "status": {**spec, "used": used}}, "status")
    code, found = doctor(namespace)
    assert code == 1
    name = f"{ours['metadata']['namespace']}/trainingrun-operator"
    assert found["operator"][0][0] == "wrong"
    image = f"registry.example.com/trainingrun-operator:{version('trainingrun')}"
    assert f"{name} (image {image})" in found["operator"][0][1]
    assert "has no pod that is ready" in found["operator"][0][1]
    assert found["operator"][1][0] == "unknown"
    assert "train in trainingrun-torch:dev, which names no registry" in found["operator"][1][1]
    assert "set training.image of the chart" in found["operator"][1][1]
    assert found["KubeRay"][0][1].endswith("is ready and watches namespaces a, b")
    assert found["KubeRay"][1][0] == "wrong"
    assert f"none watches namespace {namespace}" in found["KubeRay"][1][1]
    (quota_verdict,) = found["quota"]
    assert quota_verdict[0] == "wrong"
    assert "is used up: requests.nvidia.com/gpu (" in quota_verdict[1]
    assert "pods 3 of 4" in quota_verdict[1]


@pytest.mark.usefixtures("operators")
def test_a_user_without_rights_learns_which_and_the_rest_is_unknown(
    namespace: str, as_user
) -> None:
    read = {
        "apiGroups": ["trainingrun.dev"],
        "resources": ["trainingruns"],
        "verbs": ["get", "list"],
    }
    as_user([read])
    code, found = doctor(namespace)
    assert code == 0, "who only looks at runs needs no more"
    ((verdict, sentence),) = found["rights"]
    assert verdict == "unknown"
    assert "create trainingruns (for submit, retry)" in sentence
    assert "get trainingruns" not in sentence
    for what in ("CRD", "KubeRay's CRDs", "KubeRay", "operator", "namespace", "quota"):
        assert [verdict for verdict, _ in found[what]] == ["unknown"], what
    assert "trainingrun.dev/v1alpha1 is served" in found["CRD"][0][1]
    code, output, errors = call("version")
    assert (code, errors) == (0, "")
    assert "CRD          unknown (" in output


def test_the_rights_that_are_asked_for_suffice(namespace: str, as_user) -> None:
    as_user(
        [
            {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
            for verb, group, resource in checks._RIGHTS
        ]
    )
    where = f"in namespace {namespace}"
    assert doctor(namespace)[1]["rights"] == [
        ("ok", f"this user may do {where} what every command needs")
    ]


def test_a_right_that_runs_do_not_need_is_said_and_nothing_is_wrong_with_it(
    namespace: str, as_user
) -> None:
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for verb, group, resource in checks._RIGHTS
        if resource != "secrets"
    ]
    as_user(rules)
    where = f"in namespace {namespace}"
    assert doctor(namespace)[1]["rights"] == [
        (
            "ok",
            f"this user may submit and follow runs {where}, but not: get secrets (for dashboard)",
        )
    ]


@pytest.mark.usefixtures("as_admin")
def test_what_is_not_there_is_wrong(apiserver: ApiServer) -> None:
    code, found = doctor("nowhere")
    assert code == 1
    assert found["namespace"][0][0] == "wrong"
    assert "kubectl create namespace nowhere" in found["namespace"][0][1]
    assert found["operator"] == [
        ("wrong", "no Deployment of the operator is there; install its chart")
    ]
    assert found["KubeRay"][0][0] == "unknown"


@pytest.mark.usefixtures("as_admin", "operators")
def test_a_crd_of_another_version_is_named_with_the_field_that_it_lacks(
    apiserver: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A command that is newer, or older, than the CRD that is there, which other tests use too.
    path = apiserver.path({**crd(), "metadata": {"name": crd()["metadata"]["name"]}})
    label = {"metadata": {"labels": {"app.kubernetes.io/version": "0.0.9"}}}
    apiserver.request("PATCH", path, label, MERGE)
    newer, older = copy.deepcopy(crd()), copy.deepcopy(crd())
    fields = [
        each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        for each in (newer, older)
    ]
    fields[0]["new"] = {"type": "object", "properties": {"below": {"type": "string"}}}
    del fields[1]["tracking"]
    for known, sentence in (
        (newer, "and lacks spec.new, which"),
        (older, "and has spec.tracking, which"),
    ):
        monkeypatch.setattr(checks, "crd", lambda known=known: known)
        code, found = doctor(namespace)
        assert code == 1
        assert found["CRD"][0][0] == "wrong"
        assert f"TrainingRun is of version 0.0.9 {sentence}" in found["CRD"][0][1]
    lines = call("version")[1].splitlines()
    own = version("trainingrun")
    assert [line.split()[:2] for line in lines[:2]] == [["trainingrun", own], ["CRD", "0.0.9"]]
    assert lines[2].startswith(f"operator     {own}, Deployment")
