"""What the chart brings for Prometheus' operator and for Grafana, as it is in the chart's files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.full_progress import full_progress
from support.goldens import a_run
from trainingrun import rendering
from trainingrun_runtime.progress.prometheus_metrics import exposition

FILES = Path(__file__).parents[2] / "charts" / "trainingrun-operator" / "files"
PEERS = 'training.metricsFrom=[{"podSelector": {}}]'
PANELS = 24
"""Columns of a dashboard."""

Objects = list[dict[str, Any]]


def of_kind(objects: Objects, kind: str) -> Objects:
    return [found for found in objects if found["kind"] == kind]


def test_the_pod_monitor_finds_the_heads_of_runs_and_their_port(render):
    (monitor,) = of_kind(render("metrics.podMonitor.enabled=true", PEERS), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    job = rendering.attempt(a_run(), 1, rendering.RenderSettings())
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    worker = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    assert selector <= head["metadata"]["labels"].items()
    assert not selector <= worker["metadata"]["labels"].items()
    ports = [port for one in head["spec"]["containers"] for port in one.get("ports", ())]
    assert endpoint["port"] in [port["name"] for port in ports]


@pytest.mark.parametrize(
    ("values", "selector"),
    [
        pytest.param((), {"any": True}, id="everywhere"),
        pytest.param(
            ('watchNamespaces=["team-a", "team-b"]',),
            {"matchNames": ["team-a", "team-b"]},
            id="in some namespaces",
        ),
    ],
)
def test_the_pod_monitor_looks_where_the_operator_does(render, values, selector):
    objects = render("metrics.podMonitor.enabled=true", PEERS, *values)
    assert of_kind(objects, "PodMonitor")[0]["spec"]["namespaceSelector"] == selector


def test_a_head_is_heard_for_its_own_metrics_alone_and_for_a_bounded_number_of_series(render):
    """All that a head can show is taken, and a head that shows twice as much is not scraped."""
    (monitor,) = of_kind(render("metrics.podMonitor.enabled=true", PEERS), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (kept,) = (one["regex"] for one in endpoint["metricRelabelings"] if one["action"] == "keep")
    labels = {"run": "a", "namespace": "b", "attempt": "1"}
    # More ranks and metrics than a document holds.
    text = exposition(full_progress(1.0, ranks=100, metrics=1000).to_dict(), labels)
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert {sample.name for sample in samples} == set(kept.split("|"))
    assert len(samples) == 200 == monitor["spec"]["sampleLimit"] * 2 // 5


def test_the_operators_own_monitor_leaves_a_run_its_namespace(render):
    (monitor,) = of_kind(render("metrics.serviceMonitor.enabled=true"), "ServiceMonitor")
    assert [one["honorLabels"] for one in monitor["spec"]["endpoints"]] == [True]


def test_the_rules_are_those_of_the_file_with_the_runbooks_address(render):
    url = "https://wiki.example.com/runbook"
    objects = render(
        "metrics.prometheusRule.enabled=true",
        f'metrics.prometheusRule.runbookUrl="{url}"',
        'metrics.prometheusRule.labels={"release": "prometheus"}',
    )
    (found,) = of_kind(objects, "PrometheusRule")
    assert found["metadata"]["labels"]["release"] == "prometheus"
    text = (FILES / "alerts.yaml").read_text().replace("docs/runbook.md#", f"{url}#")
    own = '(trainingrun_operator_leader{namespace="trainingrun-system"})'
    text = text.replace("absent(trainingrun_operator_leader)", f"absent{own}")
    assert found["spec"] == yaml.load(text, yaml.CSafeLoader)
    for group in found["spec"]["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["runbook_url"] == f"{url}#{rule['alert'].lower()}"


def test_each_dashboard_is_a_config_map_that_the_sidecar_finds(render):
    objects = render(
        "metrics.dashboards.enabled=true",
        'metrics.dashboards.annotations={"grafana_folder": "Training"}',
    )
    found = of_kind(objects, "ConfigMap")
    assert sorted(one["metadata"]["name"] for one in found) == [
        f"trainingrun-operator-dashboard-{name}" for name in ("fleet", "operator", "run")
    ]
    for one in found:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Training"}
        ((name, text),) = one["data"].items()
        file = FILES / "dashboards" / name.removeprefix("trainingrun-")
        assert json.loads(text) == json.loads(file.read_text())


@pytest.mark.parametrize(
    "file", sorted(FILES.glob("dashboards/*.json")), ids=lambda file: file.stem
)
def test_panels_of_a_dashboard_lie_beside_one_another_and_ask_for_its_variables(file):
    dashboard = json.loads(file.read_text())
    assert dashboard["uid"] == f"trainingrun-{file.stem}"
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (column, row)
            for column in range(place["x"], place["x"] + place["w"])
            for row in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= PANELS
        taken |= cells
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
    assert used - {"__rate_interval"} == variables
