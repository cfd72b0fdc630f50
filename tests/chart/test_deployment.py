"""How the operator runs: alone, restricted, watched by probes, with settings that it knows."""

import dataclasses

import pytest

from trainingrun.controller import settings


def deployment(objects):
    return next(found["spec"] for found in objects if found["kind"] == "Deployment")


def container(objects):
    return deployment(objects)["template"]["spec"]["containers"][0]


def environment(objects):
    return {one["name"]: one.get("value", "from the pod") for one in container(objects)["env"]}


def test_two_operators_never_run_at_once(render):
    spec = deployment(render())
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


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
    assert ports == {"metrics": defaults.metrics_port, "probes": defaults.probe_port}
    assert container(render())["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probes"}
    assert container(render())["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}


def test_the_charts_defaults_are_the_operators_own(render):
    found = environment(render())
    found["TRAININGRUN_OPERATOR_OPERATOR_NAMESPACE"] = "trainingrun-system"
    assert settings.from_environment(found) == settings.Settings()


def test_every_setting_but_the_ports_can_be_given(render):
    unset = set(settings.variables()) - set(environment(render()))
    prefix = settings.PREFIX
    assert unset == {f"{prefix}METRICS_PORT", f"{prefix}PROBE_PORT"}


def test_values_arrive_as_settings(render):
    found = environment(
        render(
            'watchNamespaces=["team-a", "team-b"]',
            'platform="gke"',
            "operator.pollSeconds=0.5",
            "operator.resyncSeconds=86400",
            "operator.pollConcurrency=10000",
            'operator.logLevel="DEBUG"',
        )
    )
    read = settings.from_environment(found)
    assert read.operator.namespaces == ("team-a", "team-b")
    assert read.render.platform == "gke"
    assert read.reconcile.poll_s == 0.5
    changed = dataclasses.replace(
        settings.OperatorSettings(),
        namespaces=("team-a", "team-b"),
        resync_s=86400.0,
        poll_concurrency=10000,
        log_level="DEBUG",
    )
    assert read.operator == changed


def test_kubernetes_service_variables_do_not_pose_as_settings(render):
    # The metrics Service would put TRAININGRUN_OPERATOR_METRICS_PORT=tcp://… into the pod.
    assert deployment(render())["template"]["spec"]["enableServiceLinks"] is False


def test_an_empty_tag_is_the_charts_version(render):
    assert container(render('image.tag=""'))["image"] == "trainingrun-operator:0.1.0"


@pytest.mark.parametrize("kind", ["PodDisruptionBudget", "ServiceMonitor", "NetworkPolicy"])
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
