"""A real Prometheus scrapes a real operator and a real head: what alerts and dashboards ask for is
there, under those names and labels.
"""

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.apiserver import ApiServer
from support.binaries import skipping_unavailable
from support.full_progress import full_progress
from support.operators import (
    PlaysKubeRay,
    a_run,
    credentials_of,
    eventually,
    settings_for,
)
from support.operators import running as running_operator
from support.ports import free_ports
from support.processes import wait_for
from support.prometheus import Prometheus
from support.prometheus import running as running_prometheus
from trainingrun.api.status import AcceleratorSeconds, Cost, Phase, RunStatus
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.controller import handlers
from trainingrun.controller.operator import Operator
from trainingrun.controller.progress_polling import Target
from trainingrun.reconciling.texts import from_unix, written
from trainingrun_protocol.contract import PROGRESS_FILE
from trainingrun_runtime.progress import document
from trainingrun_runtime.progress.server import ProgressServer

FILES = Path(__file__).parents[2] / "charts" / "trainingrun-operator" / "files"
RULES = FILES / "alerts.yaml"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in FILES.glob("dashboards/*.json")}
ALERTS = {
    rule["alert"]: rule["expr"]
    for group in yaml.load(RULES.read_text(), yaml.CSafeLoader)["groups"]
    for rule in group["rules"]
}
SCRAPED_OFTEN = """
sum(up) == 2
and on () count(count_over_time(trainingrun_step[1m]) >= 3)
and on () count(count_over_time(trainingrun_queue_depth[1m]) >= 3)
"""
"""So that each rate is known."""
RUN = "digits"
COST = Cost(
    unit="accelerator",
    seconds=AcceleratorSeconds(training=60.0, lost=4.0),
    currency="USD",
    at_least=9.5,
    amount=9.5,
)


class Query(NamedTuple):
    """A query of a panel."""

    dashboard: str
    panel: str
    expr: str
    legend: str


QUERIES = [
    Query(name, panel["title"], target["expr"], target.get("legendFormat", ""))
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
]


class Seen(NamedTuple):
    """What Prometheus has said."""

    namespace: str
    names: set[str]
    targets: dict[str, str]
    panels: dict[str, list[dict[str, str]]]
    """Labels of the series of each query, by its text."""
    variables: dict[str, list[str]]
    """Values of each variable's query, by its text."""
    alerts: dict[str, list[dict[str, str]]]
    firing: list[dict[str, str]]
    rules: list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen(
    apiserver: ApiServer, render: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Seen:
    peers = 'training.metricsFrom=[{"podSelector": {}}]'
    objects = render(
        "metrics.podMonitor.enabled=true", "metrics.serviceMonitor.enabled=true", peers
    )
    monitors = {found["kind"]: found["spec"] for found in objects if "Monitor" in found["kind"]}
    with skipping_unavailable():
        return asyncio.run(_see(apiserver, monitors, tmp_path_factory.mktemp("prometheus")))


async def _see(apiserver: ApiServer, monitors: dict[str, Any], folder: Path) -> Seen:
    namespace, (ready, metrics) = apiserver.new_namespace(), free_ports(2)
    now = written(from_unix(time.time()))
    run = _with_status(apiserver, a_run(namespace, RUN, budget={"amount": 10}), cost=COST)
    _with_status(apiserver, a_run(namespace, "bad"), phase=Phase.FAILED, completion_time=now)
    settings = settings_for(namespace, ready_port=ready, metrics_port=metrics)
    with _head(folder) as head:

        def resolve(operator: Operator, key: Any, uid: str, attempt: int) -> Target | None:
            found = operator.head_of(key, uid, attempt)
            url = f"http://127.0.0.1:{head.server_port}"
            return found and Target(found.pod_uid, url, found.token_key)

        operator = Operator(settings, credentials_of(apiserver), resolve)
        async with contextlib.AsyncExitStack() as closing:
            for server in await handlers.serve(operator):
                closing.push_async_callback(server.cleanup)
            await closing.enter_async_context(running_operator(operator))
            status = _reader(apiserver, namespace)
            await eventually(lambda: status().get("attempt") == 1)
            token = operator._keyring.tokens.of(run["metadata"]["uid"])
            (folder / "tokens" / "token").write_text(token)
            document.write(folder / PROGRESS_FILE, full_progress(time.time(), ranks=2, metrics=1))
            PlaysKubeRay(apiserver, namespace).starts(run)
            await eventually(lambda: status().get("hang"))
            # What seldom happens, counted as the operator does.
            operator.metrics.reconcile_errors.labels("Conflict").inc()
            operator.metrics.unreadable.labels("Pod").inc()
            jobs = [
                _job("operator", metrics, monitors["ServiceMonitor"], namespace="system", pod="a"),
                _job("runs", head.server_port, monitors["PodMonitor"], namespace=namespace),
            ]
            return await asyncio.to_thread(_ask, folder, jobs, namespace)


def _with_status(apiserver: ApiServer, run: dict[str, Any], **status: Any) -> dict[str, Any]:
    made = apiserver.create(run)
    return apiserver.replace({**made, "status": RunStatus(**status).to_dict()}, "status")


def _reader(apiserver: ApiServer, namespace: str) -> Callable[[], dict[str, Any]]:
    return lambda: apiserver.get(API_VERSION, KIND, RUN, namespace).get("status") or {}


@contextlib.contextmanager
def _head(folder: Path) -> Iterator[ProgressServer]:
    """The process of the head pod that serves progress and metrics, in a thread."""
    (folder / "tokens").mkdir()
    labels = {"run": RUN, "namespace": "says-so-itself", "attempt": "1"}
    server = ProgressServer(0, folder, folder / "tokens", labels)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _job(name: str, port: int, monitor: dict[str, Any], **labels: str) -> dict[str, Any]:
    """What the Prometheus operator makes of a ServiceMonitor or PodMonitor, as far as ours go."""
    (endpoint,) = monitor.get("endpoints") or monitor["podMetricsEndpoints"]
    relabelings = [
        {
            re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", key): value
            for key, value in each.items()
        }
        for each in endpoint.get("metricRelabelings", ())
    ]
    return {
        "job_name": name,
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint["honorLabels"],
        "sample_limit": monitor.get("sampleLimit", 0),
        "metric_relabel_configs": relabelings,
        "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}],
    }


def _ask(folder: Path, jobs: list[dict[str, Any]], namespace: str) -> Seen:
    with running_prometheus(folder, jobs, RULES) as prometheus:
        wait_for(lambda: prometheus.query(SCRAPED_OFTEN))
        wait_for(lambda: "TrainingRunFailed" in str(prometheus.alerts()))
        rules = prometheus.get("rules")["groups"]
        return Seen(
            namespace,
            set(prometheus.get("label/__name__/values")),
            prometheus.targets(),
            {one.expr: prometheus.query(_filled(one, namespace)) for one in QUERIES},
            dict(_values(prometheus, namespace)),
            {name: prometheus.query(expr) for name, expr in ALERTS.items()},
            prometheus.alerts(),
            [rule for group in rules for rule in group["rules"]],
        )


def _filled(query: Query, namespace: str) -> str:
    """A query as Grafana sends it: with All for a variable of several values."""
    wanted = {"namespace": namespace, "run": RUN, "__rate_interval": "1m"}
    text = query.expr.replace('=~"$namespace"', '=~".*"')
    return re.sub(r"\$(\w+)", lambda found: wanted[found[1]], text)


def _values(prometheus: Prometheus, namespace: str) -> Iterator[tuple[str, list[str]]]:
    for dashboard in DASHBOARDS.values():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                text = variable["query"]["query"]
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", text)
                assert found, text
                series = found[1].replace("$namespace", namespace)
                yield text, prometheus.get(f"label/{found[2]}/values", **{"match[]": series})


def test_both_are_scraped_as_the_monitors_of_the_chart_say(seen: Seen) -> None:
    assert seen.targets == {"operator": "up", "runs": "up"}


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.dashboard}: {query.panel}")
def test_each_query_of_a_panel_finds_series_with_the_labels_that_it_shows(
    seen: Seen, query: Query
) -> None:
    found = seen.panels[query.expr]
    assert found
    shown = set(re.findall(r"{{(\w+)}}", query.legend))
    assert [labels for labels in found if not shown <= labels.keys()] == []


def test_each_variable_has_values(seen: Seen) -> None:
    assert [text for text, values in seen.variables.items() if not values] == []
    assert seen.variables['label_values(trainingrun_run_phase{namespace="$namespace"}, run)'] == [
        "bad",
        RUN,
    ]


def test_prometheus_evaluates_each_alert_and_each_metric_in_one_is_there(seen: Seen) -> None:
    assert {rule["name"] for rule in seen.rules} == ALERTS.keys()
    assert [rule["lastError"] for rule in seen.rules if rule["health"] != "ok"] == []
    texts = [*ALERTS.values(), *(query.expr for query in QUERIES)]
    named = {name for text in texts for name in re.findall(r"trainingrun_\w+", text)}
    assert named - seen.names == set()


def test_what_holds_of_the_run_is_what_alerts_wait_for_and_carries_its_name(seen: Seen) -> None:
    held = {name: found for name, found in seen.alerts.items() if found}
    bad, digits = ({"namespace": seen.namespace, "run": run} for run in ("bad", RUN))
    assert held == {
        "TrainingRunStandsStill": [digits],  # for some seconds as yet
        "TrainingRunHangs": [digits],
        "TrainingRunFailed": [bad],
        "TrainingRunBudgetNearlySpent": [digits],
    }


def test_what_a_run_has_met_fires_at_once_with_its_name(seen: Seen) -> None:
    firing = {(found["alertname"], found["namespace"], found["run"]) for found in seen.firing}
    assert ("TrainingRunFailed", seen.namespace, "bad") in firing


def test_a_head_speaks_for_no_other_namespace(seen: Seen) -> None:
    """Ours says that it is of another one, as users' code in a head could."""
    (step,) = seen.panels[next(q.expr for q in QUERIES if "trainingrun_total_steps" in q.expr)]
    assert step == {}  # it was found under the namespace of its pod
    assert "says-so-itself" not in str(seen)
