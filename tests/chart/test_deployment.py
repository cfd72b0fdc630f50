"""How the operator runs: one leads, restricted, watched by probes, with settings that it knows."""

import dataclasses
import json
from importlib import metadata

import pytest

from support.goldens import a_run
from trainingrun import rendering
from trainingrun.controller import settings

COLLECTOR = {"image": "collector", "env": [{"name": "A", "value": "b"}]}
"""Of KubeRay's history server."""


def deployment(objects):
    return next(found["spec"] for found in objects if found["kind"] == "Deployment")


def container(objects):
    return deployment(objects)["template"]["spec"]["containers"][0]


def environment(objects):
    return {one["name"]: one.get("value", "from the pod") for one in container(objects)["env"]}


@pytest.fixture
def read(monkeypatch):
    """The settings of an operator with this environment."""

    def given(environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return settings.from_environment()

    return given


def test_one_of_the_replicas_leads_by_a_lease_that_the_role_names(render):
    objects = render("replicas=2", 'fullnameOverride="ours"')
    spec = deployment(objects)
    assert spec["replicas"] == 2
    lease = environment(objects)["TRAININGRUN_OPERATOR_LEASE_NAME"]
    role = next(found for found in objects if found["metadata"]["name"] == "ours-key")
    named = [rule for rule in role["rules"] if "leases" in rule["resources"]]
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in named] == [
        ([lease], ["get", "update"]),
        (None, ["create"]),
    ]


def test_a_rollout_begins_the_new_operator_before_it_ends_the_former(render):
    """Without a gap: the new one stands by, is ready, and leads as soon as the former one goes."""
    for replicas in (1, 2):
        assert deployment(render(f"replicas={replicas}"))["strategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
        }


def test_two_operators_are_kept_apart_and_one_blocks_no_drain(render):
    several, one = render("replicas=2"), render("replicas=1")
    budget = next(found for found in several if found["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert "PodDisruptionBudget" not in {found["kind"] for found in one}
    (spread,) = deployment(several)["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"


def test_the_pod_meets_the_restricted_standard_and_writes_only_to_tmp(render):
    pod = deployment(render())["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["containers"][0]["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]


def test_the_probes_ask_the_ports_that_the_operator_serves(render):
    ports = {one["name"]: one["containerPort"] for one in container(render())["ports"]}
    defaults = settings.OperatorSettings()
    assert ports == {
        "metrics": defaults.metrics_port,
        "probes": defaults.probe_port,
        "ready": defaults.ready_port,
    }
    assert container(render())["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probes"}
    assert container(render())["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "ready"}


def test_the_charts_defaults_are_the_operators_own(render, read):
    found = environment(render())
    found["TRAININGRUN_OPERATOR_OPERATOR_NAMESPACE"] = "trainingrun-system"
    assert read(found) == settings.Settings()


def test_every_setting_but_the_ports_can_be_given(render):
    unset = set(settings.variables()) - set(environment(render()))
    prefix = settings.PREFIX
    assert unset == {f"{prefix}{name}_PORT" for name in ("METRICS", "PROBE", "READY")}


def test_values_arrive_as_settings(render, read):
    found = environment(
        render(
            'watchNamespaces=["team-a", "team-b"]',
            'platform="gke"',
            "operator.pollSeconds=0.5",
            "operator.resyncSeconds=86400",
            "operator.pollConcurrency=10000",
            'operator.logLevel="DEBUG"',
            'kuberayNamespaces=["ray-system"]',
            'training.rayAuth="disabled"',
            'training.metricsFrom=[{"podSelector": {"matchLabels": {"app": "prometheus"}}}]',
            f"training.historyCollector={json.dumps(COLLECTOR)}",
            'notifications.allowedHosts=["*.example.com:8443", "http://hooks.svc"]',
            'notifications.secretNames=["a", "b"]',
            'prices.currency="EUR"',
            'prices.nodes=[{"labels": {"a/b": "c"}, "perHour": 2.5, "onDemandPerHour": 5}]',
        )
    )
    arrived = read(found)
    assert arrived.operator.namespaces == ("team-a", "team-b")
    assert arrived.render.platform == "gke"
    assert arrived.render.kuberay_namespaces == ("ray-system",)
    assert arrived.render.ray_auth == "disabled"
    assert arrived.render.metrics_from == ({"podSelector": {"matchLabels": {"app": "prometheus"}}},)
    assert arrived.render.history_collector == COLLECTOR
    assert arrived.reconcile.notification_hosts == ("*.example.com:8443", "http://hooks.svc")
    assert arrived.reconcile.notification_secret_names == ("a", "b")
    assert arrived.reconcile.poll_s == 0.5
    assert arrived.reconcile.currency == "EUR"
    (price,) = arrived.reconcile.prices
    assert (price.labels, price.per_hour, price.on_demand_per_hour) == ({"a/b": "c"}, 2.5, 5)
    changed = dataclasses.replace(
        settings.OperatorSettings(),
        namespaces=("team-a", "team-b"),
        resync_s=86400.0,
        poll_concurrency=10000,
        log_level="DEBUG",
    )
    assert arrived.operator == changed


def test_kubernetes_service_variables_do_not_pose_as_settings(render):
    # The metrics Service would put TRAININGRUN_OPERATOR_METRICS_PORT=tcp://… into the pod.
    assert deployment(render())["template"]["spec"]["enableServiceLinks"] is False


SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
"""Without a user, as OpenShift's restricted-v2 asks for it, which chooses one."""


def test_the_user_of_the_pods_can_be_left_to_the_cluster(render, read):
    objects = render(
        f"podSecurityContext={json.dumps(SECURITY)}",
        f"training.podSecurityContext={json.dumps(SECURITY)}",
    )
    assert deployment(objects)["template"]["spec"]["securityContext"] == SECURITY
    found = environment(objects) | {"TRAININGRUN_OPERATOR_OPERATOR_NAMESPACE": "a"}
    job = rendering.attempt(a_run(), 1, read(found).render)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["spec"]["securityContext"] == SECURITY


def test_a_digest_names_the_image_in_place_of_the_tag(render):
    digest = "sha256:" + "0" * 64
    assert container(render(f'image.digest="{digest}"'))["image"] == (
        f"registry.example.com/trainingrun-operator@{digest}"
    )


def test_a_proxy_and_certificates_reach_the_operators_container(render):
    env = [
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
        {"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"},
    ]
    volume = {"name": "ca", "configMap": {"name": "ca"}}
    mount = {"name": "ca", "mountPath": "/ca"}
    objects = render(
        f"extraEnv={json.dumps(env)}",
        f"extraVolumes={json.dumps([volume])}",
        f"extraVolumeMounts={json.dumps([mount])}",
    )
    assert container(objects)["env"][-2:] == env
    assert mount in container(objects)["volumeMounts"]
    assert volume in deployment(objects)["template"]["spec"]["volumes"]


def test_the_spread_of_operators_can_be_chosen(render):
    zones = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    objects = render("replicas=2", f"topologySpreadConstraints={json.dumps([zones])}")
    assert deployment(objects)["template"]["spec"]["topologySpreadConstraints"] == [zones]


def test_common_labels_are_on_every_object_and_on_the_pod_and_select_nothing(render):
    objects = render('commonLabels={"cost-center": "ml"}', "replicas=2")
    assert [
        one["kind"] for one in objects if one["metadata"]["labels"]["cost-center"] != "ml"
    ] == []
    spec = deployment(objects)
    assert spec["template"]["metadata"]["labels"]["cost-center"] == "ml"
    assert "cost-center" not in spec["selector"]["matchLabels"]


def images(objects):
    """The operator's own, and that of runs which name none."""
    return container(objects)["image"], environment(objects)["TRAININGRUN_OPERATOR_IMAGE"]


def test_the_images_are_the_releases_own_unless_others_are_named(render):
    version = metadata.version("trainingrun")
    operator, training = f"trainingrun-operator:{version}", f"trainingrun-torch:{version}"
    released = "registry.example.com"
    assert images(render()) == (f"{released}/{operator}", f"{released}/{training}")
    mirror = "10.0.0.1:5000/copies"
    copied = render(f'registry="{mirror}"')
    assert images(copied) == (f"{mirror}/{operator}", f"{mirror}/{training}")
    own = render(
        'image.repository="trainingrun-operator"', 'image.tag="dev"', 'training.image="mine:1"'
    )
    assert images(own) == ("trainingrun-operator:dev", "mine:1")


@pytest.mark.parametrize(
    "kind",
    [
        "ConfigMap",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "PodMonitor",
        "PrometheusRule",
        "ServiceMonitor",
    ],
)
def test_extras_come_only_when_asked_for(render, everything, kind):
    assert kind not in {found["kind"] for found in render()}
    assert kind in {found["kind"] for found in everything}


def test_the_selectors_find_the_pod(everything):
    labels = deployment(everything)["template"]["metadata"]["labels"]
    by_kind = {found["kind"]: found["spec"] for found in everything if "spec" in found}
    for selector in (
        by_kind["Service"]["selector"],
        by_kind["PodDisruptionBudget"]["selector"]["matchLabels"],
        by_kind["NetworkPolicy"]["podSelector"]["matchLabels"],
        by_kind["Deployment"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()


def test_the_runs_network_policies_know_the_pod(render):
    labels = deployment(render('podLabels={"team": "ml"}'))["template"]["metadata"]["labels"]
    run = a_run()
    _, operator, _ = rendering.support_objects(run, rendering.RenderSettings())[0]["spec"][
        "ingress"
    ]
    (peer,) = operator["from"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
