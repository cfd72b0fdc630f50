"""A value that cannot work is refused before anything is installed, and the text names it."""

import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest

from support.peer_rows import RIGHT, WRONG

CHART = Path(__file__).parents[2] / "charts" / "trainingrun-operator"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param('platfrom="gke"', "platfrom", id="unknown value"),
        pytest.param(
            'platform="ibm"',
            "/platform.*'generic', 'gke', 'eks', 'karpenter', 'aks'",
            id="unknown platform",
        ),
        pytest.param('watchNamespaces=["Team A"]', "/watchNamespaces/0", id="invalid namespace"),
        pytest.param(
            'watchNamespaces="team-a"', "/watchNamespaces.*array", id="namespaces as a string"
        ),
        pytest.param(
            'watchNamespaces=["a", "a"]', "/watchNamespaces.*equal", id="a namespace twice"
        ),
        pytest.param("operator.pollSeconds=0", "/operator/pollSeconds", id="poll without pause"),
        pytest.param(
            "operator.leaseStaleSeconds=5",
            "/operator/leaseStaleSeconds.*12",
            id="lease shorter than a kubelet's",
        ),
        pytest.param(
            'operator.logLevel="LOUD"', "/operator/logLevel.*'DEBUG'", id="unknown log level"
        ),
        pytest.param(
            'image.pullPolicy="Sometimes"', "/image/pullPolicy.*'Always'", id="unknown pull policy"
        ),
        pytest.param('crds.keep="yes"', "/crds/keep.*boolean", id="flag as a string"),
        pytest.param(
            'training.rayVersion="latest"', "/training/rayVersion", id="Ray without a version"
        ),
        pytest.param(
            'training.rayAuth="none"',
            "/training/rayAuth.*'token', 'disabled'",
            id="unknown authentication",
        ),
        pytest.param(
            'kuberayNamespaces=["Ray System"]',
            "/kuberayNamespaces/0",
            id="invalid namespace of KubeRay",
        ),
        pytest.param(
            'training.metricsFrom=[{"app": "prometheus"}]', "/training/metricsFrom/0", id="no peer"
        ),
        pytest.param("training.metricsFrom=[{}]", "/training/metricsFrom/0", id="an empty peer"),
        pytest.param(
            'training.historyCollector={"env": [{"name": "A"}]}',
            "/training/historyCollector.*image",
            id="a collector without an image",
        ),
        pytest.param(
            'training.historyCollector={"image": "a", "envFrom": []}',
            "/training/historyCollector.*envFrom",
            id="what KubeRay's collector has not",
        ),
        pytest.param('image.digest="latest"', "/image/digest", id="no digest"),
        pytest.param(
            'extraEnv=[{"name": "TRAININGRUN_OPERATOR_WORKERS", "value": "1"}]',
            "/extraEnv/0/name",
            id="a setting that has a value of its own",
        ),
        pytest.param(
            'extraEnv=[{"name": "TrainingRun_Operator_Workers", "value": "1"}]',
            "/extraEnv/0/name",
            id="one in other letters, which the operator reads as well",
        ),
        *(
            pytest.param(
                f'{value}={{"app.kubernetes.io/{label}": "other"}}',
                f"/{value}/app.kubernetes.io~1{label}",
                id=f"{value} with the {label} by which the pod is selected",
            )
            for value in ("commonLabels", "podLabels")
            for label in ("name", "instance", "component")
        ),
        pytest.param(
            "operator.kuberayCheckSeconds=601",
            "/operator/kuberayCheckSeconds.*600",
            id="checks so seldom that the operator seems to hang",
        ),
        pytest.param(
            'topologySpreadConstraints=[{"maxSkew": 1}]',
            "/topologySpreadConstraints/0.*topologyKey",
            id="half a constraint",
        ),
        pytest.param(
            'notifications.allowedHosts=["*"]', "/notifications/allowedHosts/0", id="every host"
        ),
        pytest.param(
            'notifications.allowedHosts=["https://hooks.example.com/a"]',
            "/notifications/allowedHosts/0",
            id="an address as a host",
        ),
        pytest.param(
            "notifications.secretNames=[]", "/notifications/secretNames", id="no Secret's name"
        ),
        pytest.param('prices.nodes=[{"perHour": 1}]', "/prices/nodes/0.*labels", id="any node"),
        pytest.param(
            'prices.nodes=[{"labels": {"a": "b"}, "perHour": -1}]',
            "/prices/nodes/0/perHour",
            id="negative price",
        ),
        pytest.param('prices.currency="dollars"', "/prices/currency", id="no currency"),
        pytest.param(
            'metrics.podMonitor.interval="soon"', "/metrics/podMonitor/interval", id="no interval"
        ),
        pytest.param(
            'metrics.prometheusRule.runbookUrl="https://example.com/runbook#top"',
            "/metrics/prometheusRule/runbookUrl",
            id="a runbook's address with a section",
        ),
        pytest.param(
            "metrics.dashboards.labels.grafana_dashboard=null",
            "/metrics/dashboards/labels",
            id="dashboards that no sidecar finds",
        ),
        pytest.param(
            "metrics.podMonitor.enabled=true",
            "metrics.podMonitor.enabled needs training.metricsFrom",
            id="a monitor of pods that let nobody in",
        ),
        pytest.param("replicas=0", "/replicas.*1", id="no replica"),
        pytest.param(
            "serviceAccount.create=false",
            "name an existing account in serviceAccount.name",
            id="no service account",
        ),
    ],
)
def test_a_bad_value_is_refused_by_name(render, refused, value, message):
    with pytest.raises(refused) as caught:
        render(value)
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("value", ["training", "networkPolicy"])
def test_a_peer_that_the_api_server_refuses_is_refused_by_name(render, refused, value):
    for peer, path in WRONG:
        with pytest.raises(refused) as caught:
            render(f"{value}.metricsFrom={json.dumps([peer])}")
        assert f"/{value}/metricsFrom/0{path}'" in str(caught.value), peer


def test_peers_that_the_api_server_takes_are_taken(render):
    peers = json.dumps([peer for peer, _ in RIGHT])
    render(f"training.metricsFrom={peers}", f"networkPolicy.metricsFrom={peers}")


def test_a_monitor_without_its_service_is_refused(render, refused):
    with pytest.raises(refused, match=r"needs metrics\.service\.enabled"):
        render("metrics.service.enabled=false", "metrics.serviceMonitor.enabled=true")


def test_an_existing_account_is_used_and_none_created(render):
    objects = render("serviceAccount.create=false", 'serviceAccount.name="ours"')
    assert "ServiceAccount" not in {found["kind"] for found in objects}
    pod = next(found for found in objects if found["kind"] == "Deployment")["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == "ours"


def test_helm_lint_finds_nothing(helm):
    done = subprocess.run(
        [str(helm), "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_value_is_described():
    lines = (CHART / "values.yaml").read_text().splitlines()
    bare = [
        line
        for above, line in itertools.pairwise(lines)
        # a key with a value on its own line
        if re.match(r"^ *[a-zA-Z]+: \S", line) and not above.lstrip().startswith("#")
        # the lists under `resources` are one value
        if not line.strip().startswith(("requests:", "limits:"))
    ]
    assert bare == []


def test_the_crd_can_be_left_to_others_and_outlives_the_chart(render):
    def crds(*values):
        return [f for f in render(*values) if f["kind"] == "CustomResourceDefinition"]

    assert crds("crds.enabled=false") == []
    keep = "helm.sh/resource-policy"
    assert [crd["metadata"]["annotations"] for crd in crds()] == [{keep: "keep"}] * 3
    for crd in crds("crds.keep=false"):
        assert keep not in crd["metadata"].get("annotations", {})


def test_each_crd_has_the_charts_labels(render):
    """Which the template puts in the place of the file's own, if it finds these."""
    objects = render('commonLabels={"team": "ml"}')
    (labels,) = (one["metadata"]["labels"] for one in objects if one["kind"] == "ServiceAccount")
    crds = [one for one in objects if one["kind"] == "CustomResourceDefinition"]
    assert labels["team"] == "ml"
    assert [crd["metadata"]["labels"] for crd in crds] == [labels] * 3
