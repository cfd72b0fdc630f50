"""Guarantees for every manifest: no credential, no Kubernetes token, no privilege."""

import json
from typing import Any

import pytest

from support.goldens import a_run, cases, rendered
from support.peer_rows import RIGHT
from trainingrun import rendering
from trainingrun.api.v1alpha1 import TrainingRun
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
    volumes = {volume["name"]: volume for volume in head["spec"]["volumes"]}
    sources = volumes["tokens"]["projected"]["sources"]
    (secret,) = [manifest for manifest in CASES[name] if manifest["kind"] == "Secret"]
    own = secret["metadata"]["name"]
    assert [source["secret"]["name"] for source in sources] == [own, f"{own}-renewed"]
    # A Secret that is gone, or comes later, keeps no head from starting.
    assert all(source["secret"]["optional"] for source in sources)
    assert "tokens" not in {volume["name"] for volume in worker["spec"]["volumes"]}


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


def policy(run: TrainingRun | None = None, **settings: Any) -> dict[str, Any]:
    (found,) = rendering.support_objects(run or a_run(), rendering.RenderSettings(**settings))
    return found


def lets_in(rule: dict[str, Any], namespace: str, labels: dict[str, str]) -> bool:
    """What a network plugin says of a pod: the rule's selectors as Kubernetes defines them."""

    def matches(selector: dict[str, Any] | None, found: dict[str, str]) -> bool:
        if selector is None:
            return namespace == "team-a"  # without a namespaceSelector: the policy's own
        wanted = [(key, [value]) for key, value in selector.get("matchLabels", {}).items()]
        for expression in selector.get("matchExpressions", []):
            assert expression["operator"] == "In"
            wanted.append((expression["key"], expression["values"]))
        return all(found.get(key) in values for key, values in wanted)

    return any(
        matches(peer.get("namespaceSelector"), {"kubernetes.io/metadata.name": namespace})
        and matches(peer.get("podSelector", {}), labels)
        for peer in rule["from"]
    )


def open_ports(found: dict[str, Any], namespace: str, labels: dict[str, str]) -> set[int]:
    """The ports that a pod reaches; -1 stands for all."""
    return {
        port
        for rule in found["spec"]["ingress"]
        if lets_in(rule, namespace, labels)
        for port in ([one["port"] for one in rule["ports"]] if "ports" in rule else [-1])
    }


KUBERAY = {"app.kubernetes.io/component": "kuberay-operator"}
OPERATOR = {"app.kubernetes.io/component": "trainingrun-operator"}
ANYBODY = {"app.kubernetes.io/name": "kuberay", "app.kubernetes.io/created-by": "kuberay-operator"}


@pytest.mark.parametrize(
    ("namespace", "labels", "ports"),
    [
        pytest.param("team-a", names.selector(a_run()), {-1}, id="the run's own pods"),
        pytest.param("team-b", names.selector(a_run()), set(), id="same labels elsewhere"),
        pytest.param("trainingrun-system", OPERATOR, {8484}, id="operator"),
        pytest.param("trainingrun-system", {"app": "a neighbor"}, set(), id="operator's neighbor"),
        pytest.param("team-b", OPERATOR, set(), id="operator's labels elsewhere"),
        pytest.param("ray-system", KUBERAY, {8265}, id="KubeRay"),
        pytest.param("ray-system", ANYBODY, set(), id="KubeRay's neighbor"),
        pytest.param("team-b", KUBERAY, set(), id="KubeRay's labels in team-b"),
        pytest.param("default", KUBERAY, set(), id="KubeRay's labels in default"),
        pytest.param(
            "trainingrun-system", KUBERAY, set(), id="KubeRay's labels beside the operator"
        ),
    ],
)
def test_nobody_gets_in_by_a_label_alone(namespace: str, labels: dict[str, str], ports: set[int]):
    found = policy(kuberay_namespaces=("ray-system",))
    assert found["spec"]["policyTypes"] == ["Ingress"]
    assert open_ports(found, namespace, labels) == ports


PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
SCRAPER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": PROMETHEUS},
}


def test_a_prometheus_reaches_the_metrics_where_it_is_let_in_and_nothing_else():
    assert open_ports(policy(), "monitoring", PROMETHEUS) == set()
    found = policy(metrics_from=(SCRAPER,))
    assert open_ports(found, "monitoring", PROMETHEUS) == {8484}
    assert open_ports(found, "team-b", PROMETHEUS) == set()
    assert open_ports(found, "monitoring", {"app": "a neighbor"}) == set()


@pytest.mark.parametrize(("written", "given_back"), RIGHT, ids=json.dumps)
def test_a_peer_is_rendered_as_the_api_server_gives_it_back(written: Any, given_back: Any):
    """Else the NetworkPolicy of each run would differ for ever, and be restored for ever."""
    (rule,) = (
        rule
        for rule in policy(metrics_from=(written,))["spec"]["ingress"]
        if rule["from"] == [given_back]
    )
    assert [port["port"] for port in rule["ports"]] == [8484]


def test_kuberay_is_taken_to_be_where_its_own_manifests_put_it_unless_it_is_known_better():
    assert open_ports(policy(), "default", KUBERAY) == {8265}
    assert open_ports(policy(), "team-b", KUBERAY) == set()


@everywhere
def test_rays_token_is_the_second_lock(name: str):
    cluster = CASES[name][-1]["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    # KubeRay adds mode and token where they are not set; a value of ours would win over it.
    assert not [variable for pod in pods(name) for variable in env(pod) if "AUTH" in variable]


def test_rays_token_can_be_turned_off_on_every_pod_at_once():
    settings = rendering.RenderSettings(ray_auth="disabled")
    cluster = rendering.attempt(a_run(), 1, settings)["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "disabled"}
    for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]):
        variables = env(group["template"])
        assert variables["RAY_AUTH_MODE"] == {"name": "RAY_AUTH_MODE", "value": "disabled"}


def test_no_object_of_ours_can_have_the_name_of_a_users():
    for run in (a_run("default-deny"), a_run("s3-credentials")):
        for manifest in rendered(run):
            assert manifest["metadata"]["name"] != run.metadata.name
            if manifest["kind"] != "RayJob":  # a foreign RayJob of that name is left alone
                assert run.metadata.uid[:8] in manifest["metadata"]["name"]


def test_a_pod_template_cannot_take_a_pod_out_of_the_operators_watch():
    run = a_run(
        workers={"podTemplate": {"metadata": {"labels": {names.RUN_LABEL: "other", "team": "a"}}}}
    )
    group = rendered(run)[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    labels = group["template"]["metadata"]["labels"]
    assert (labels[names.RUN_LABEL], labels["team"]) == ("digits", "a")


def test_a_config_reaches_the_runtime_letter_for_letter():
    """The kubelet replaces $(NAME) and $$; YAML has no surrogate pairs."""
    config = {"a": "$(HOME) $$ $x", "b": "\U0001f600 \\ud83d\\ude00 \u2028 \x7f", "c": 1e-05}
    run = a_run(training={"function": "a:b", "config": config})
    head = rendered(run)[-1]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    as_the_kubelet_does = env(head)["TRAININGRUN_CONTRACT"]["value"].replace("$$", "$")
    assert json.loads(as_the_kubelet_does)["config"] == config
    as_the_kubelet_does = env(head)["TRAININGRUN_CONFIG"]["value"].replace("$$", "$")
    assert json.loads(as_the_kubelet_does) == config
