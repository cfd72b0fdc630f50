"""`python -m trainingrun.controller` as a process: probes, metrics, logs, signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.operators import a_run
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.controller.settings import PREFIX

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def wait_for(look, seconds: float = 90):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)
    return found


class Process:
    def __init__(self, kubeconfig: Path, log: Path, **settings: str):
        self.probe_port, self.metrics_port, self.log = free_port(), free_port(), log
        wanted = {
            "PROBE_PORT": str(self.probe_port),
            "METRICS_PORT": str(self.metrics_port),
            **settings,
        }
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(kubeconfig),
            **{PREFIX + name: value for name, value in wanted.items()},
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainingrun.controller"],
                env=environment,
                stderr=output,
                start_new_session=True,
            )

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line]


@pytest.fixture
def start(apiserver, namespace, tmp_path):
    started = []

    def begin(**settings: str) -> Process:
        fixed = {"NAMESPACES": namespace, "OPERATOR_NAMESPACE": namespace, **settings}
        started.append(
            Process(apiserver.kubeconfig, tmp_path / f"log-{len(started)}.json", **fixed)
        )
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()


def test_it_serves_probes_and_metrics_logs_json_and_ends_on_sigterm(apiserver, namespace, start):
    operator = start()
    wait_for(lambda: get(operator.probe_port, "/readyz")[0] == 200)
    assert get(operator.probe_port, "/healthz") == (200, "ok\n")
    apiserver.create(a_run(namespace))
    wait_for(
        lambda: (
            apiserver.get(API_VERSION, KIND, "digits", namespace).get("status", {}).get("phase")
            == "Starting"
        )
    )
    text = get(operator.metrics_port, "/metrics")[1]
    assert f'trainingrun_runs{{namespace="{namespace}",phase="Starting"}} 1.0' in text
    assert 'trainingrun_api_requests_total{code="201",method="POST"}' in text
    wait_for(lambda: [line for line in operator.lines() if line.get("run") == "digits"])
    operator.process.send_signal(signal.SIGTERM)
    assert operator.process.wait(timeout=30) == 0, operator.log.read_text()[-2000:]


def test_a_wrong_setting_is_one_sentence_and_ends_it(start):
    operator = start(WORKERS="many")
    assert operator.process.wait(timeout=30) == 2
    assert operator.log.read_text() == (
        "TRAININGRUN_OPERATOR_WORKERS is 'many'; it needs a whole number\n"
    )
