"""Promises that hold for every manifest: no credential, no Kubernetes token, no privilege."""

import json
from typing import Any

import pytest

from support.goldens import a_run, cases, rendered
from trainingrun.rendering import names

CASES = cases()


def pods(name: str) -> list[dict[str, Any]]:
    cluster = CASES[name][-1]["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]]


def env(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    variables = template["spec"]["containers"][0]["env"]
    found = {variable["name"]: variable for variable in variables}
    assert len(found) == len(variables), "the API server refuses two variables of one name"
    return found


everywhere = pytest.mark.parametrize("name", CASES)


@everywhere
def test_training_pods_get_no_kubernetes_token(name: str):
    assert [pod["spec"]["automountServiceAccountToken"] for pod in pods(name)] == [False, False]


@everywhere
def test_pods_keep_to_the_restricted_standard(name: str):
    for pod in pods(name):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


@everywhere
def test_the_token_is_only_ever_a_reference_and_only_on_the_head(name: str):
    head, worker = pods(name)
    reference = env(head)["TRAININGRUN_TOKEN"]
    assert set(reference) == {"name", "valueFrom"}
    assert reference["valueFrom"]["secretKeyRef"]["key"] == names.TOKEN_KEY
    assert "TRAININGRUN_TOKEN" not in env(worker)


@everywhere
def test_the_secret_is_rendered_without_data(name: str):
    (secret,) = [manifest for manifest in CASES[name] if manifest["kind"] == "Secret"]
    assert not {"data", "stringData"} & set(secret)


@everywhere
def test_no_variable_that_sounds_secret_has_a_value(name: str):
    for pod in pods(name):
        for variable in env(pod).values():
            if any(word in variable["name"] for word in ("KEY", "SECRET", "TOKEN", "PASSWORD")):
                assert "value" not in variable


@everywhere
def test_everything_belongs_to_the_run_and_carries_its_labels(name: str):
    for manifest in CASES[name]:
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"]) == ("TrainingRun", True)
        assert manifest["metadata"]["labels"][names.RUN_UID_LABEL] == owner["uid"]


def test_credentials_come_by_reference_to_the_users_secret():
    ray_job = rendered(
        a_run(storage={"uri": "s3://runs", "credentialsSecret": "s3-credentials"}, head={})
    )[-1]
    cluster = ray_job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]):
        assert group["template"]["spec"]["containers"][0]["envFrom"] == [
            {"secretRef": {"name": "s3-credentials", "optional": False}}
        ]


def test_only_the_run_the_operator_and_kuberay_get_in():
    policy = rendered(a_run())[0]
    own, operator, kuberay = policy["spec"]["ingress"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert "ports" not in own
    assert own["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
    assert [port["port"] for port in operator["ports"]] == [8265, 8484]
    assert [port["port"] for port in kuberay["ports"]] == [8265]


def test_the_policy_does_not_mistake_other_ray_pods_for_kuberays_operator():
    # KubeRay gives these to every pod of every RayCluster.
    somebodys = {
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    kuberay = rendered(a_run())[0]["spec"]["ingress"][2]["from"][0]["podSelector"]["matchLabels"]
    assert not kuberay.items() <= somebodys.items()


def test_a_pod_template_cannot_take_a_pod_out_of_the_operators_sight():
    run = a_run(
        workers={"podTemplate": {"metadata": {"labels": {names.RUN_LABEL: "other", "team": "a"}}}}
    )
    group = rendered(run)[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    labels = group["template"]["metadata"]["labels"]
    assert (labels[names.RUN_LABEL], labels["team"]) == ("digits", "a")


def test_a_config_reaches_the_runtime_letter_for_letter():
    """The kubelet replaces $(NAME) and $$; YAML knows no surrogate pairs."""
    config = {"a": "$(HOME) $$ $x", "b": "\U0001f600 \\ud83d\\ude00 \u2028 \x7f", "c": 1e-05}
    run = a_run(training={"function": "a:b", "config": config})
    head = rendered(run)[-1]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    as_the_kubelet_does = env(head)["TRAININGRUN_CONTRACT"]["value"].replace("$$", "$")
    assert json.loads(as_the_kubelet_does)["config"] == config
    as_the_kubelet_does = env(head)["TRAININGRUN_CONFIG"]["value"].replace("$$", "$")
    assert json.loads(as_the_kubelet_does) == config
