"""`python -m trainingrun.controller` as a process: probes, metrics, logs, signals."""

import signal
from pathlib import Path

import pytest

from support.http_proxy import http_proxy
from support.operators import a_lease, a_run, eventually
from support.processes import Process, wait_for
from support.webhooks import HeldWebhook
from trainingrun.api.v1alpha1 import API_VERSION, KIND


@pytest.fixture
def start(apiserver, namespace, tmp_path):
    started = []
    system = apiserver.new_namespace()
    apiserver.create(a_lease(system))

    def begin(kubeconfig: Path = apiserver.kubeconfig, **settings: str) -> Process:
        fixed = {"NAMESPACES": namespace, "OPERATOR_NAMESPACE": system, **settings}
        started.append(Process(kubeconfig, tmp_path / f"log-{len(started)}.json", **fixed))
        return started[-1]

    yield begin
    for one in started:
        one.end()


def test_it_serves_probes_and_metrics_logs_json_and_ends_on_sigterm(apiserver, namespace, start):
    operator = start()
    wait_for(lambda: operator.get("/readyz")[0] == 200)
    assert operator.get("/healthz") == (200, '{"healthy": "ok"}')
    apiserver.create(a_run(namespace))
    wait_for(
        lambda: (
            apiserver.get(API_VERSION, KIND, "digits", namespace).get("status", {}).get("phase")
            == "Starting"
        )
    )
    text = operator.metrics()
    assert f'trainingrun_runs{{namespace="{namespace}",phase="Starting"}} 1.0' in text
    assert 'trainingrun_api_requests_total{code="201",method="POST"}' in text
    wait_for(lambda: [line for line in operator.lines() if line.get("run") == "digits"])
    operator.process.send_signal(signal.SIGTERM)
    assert operator.process.wait(timeout=30) == 0, operator.log.read_text()[-2000:]


def test_a_wrong_setting_is_one_sentence_and_ends_it(start):
    operator = start(WORKERS="many")
    assert operator.process.wait(timeout=30) == 2
    assert operator.log.read_text() == (
        "TRAININGRUN_OPERATOR_WORKERS is 'many'; it should be a valid integer\n"
    )


async def test_a_line_of_a_watch_that_is_not_json_does_not_end_it(
    apiserver, namespace, start, tmp_path
):
    """A proxy in between says once what proxies say when what is behind them is away."""

    def begun(name: str) -> bool:
        found = apiserver.get(API_VERSION, KIND, name, namespace)
        return found.get("status", {}).get("attempt") == 1

    async with http_proxy(apiserver, tmp_path / "by-way-of-the-proxy") as proxy:
        operator = start(proxy.kubeconfig)
        await eventually(lambda: operator.get("/readyz")[0] == 200)
        apiserver.create(a_run(namespace, "before"))
        await eventually(lambda: begun("before"))
        assert await proxy.say("trainingruns", b"<html>502 Bad Gateway</html>")
        count = 'unreadable_objects_total{kind="TrainingRun"} 1.0'
        ended = operator.process.poll
        await eventually(lambda: count in operator.metrics() or ended() is not None)
        assert ended() is None, operator.log.read_text()[-2000:]
        apiserver.create(a_run(namespace, "after"))
        await eventually(lambda: begun("after"))
        assert operator.get("/healthz")[0] == 200
        operator.end()


async def test_a_reconcile_that_hangs_fails_the_liveness_probe_until_it_ends(
    apiserver, namespace, start, tmp_path
):
    """It waits for a webhook."""
    operator = start(STUCK_S="1")
    await eventually(lambda: operator.get("/readyz")[0] == 200)
    async with HeldWebhook().listening(apiserver, namespace, tmp_path) as webhook:
        apiserver.create(a_run(namespace))
        await eventually(lambda: webhook.held_for_s() > 1)
        await eventually(lambda: operator.get("/healthz")[0] == 500)
        webhook.released.set()
        await eventually(lambda: operator.get("/healthz")[0] == 200)
    operator.end()
