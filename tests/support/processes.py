"""The operator as a process of its own, against a real API server."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.ports import free_ports
from trainingrun.controller.settings import PREFIX

ROOT = Path(__file__).parents[2]


def wait_for(probe: Callable[[], Any], seconds: float = 90) -> Any:
    """What `probe` returns, as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)
    return found


class Process:
    """`python -m trainingrun.controller`; `end` it."""

    def __init__(self, kubeconfig: Path, log: Path, **settings: str):
        """Starts it, with settings by the names of their variables without the prefix."""
        self.probe_port, self.ready_port, self.metrics_port = free_ports(3)
        self.log = log
        wanted = {
            "READY_PORT": str(self.ready_port),
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

    def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        """Status and text of a GET of its probes; 0 without an answer."""
        port = port or (self.ready_port if path == "/readyz" else self.probe_port)
        url = f"http://127.0.0.1:{port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metrics(self) -> str:
        """What Prometheus would read."""
        return self.get("/metrics", self.metrics_port)[1]

    def busy(self) -> bool:
        """Whether runs wait to be reconciled."""
        return "trainingrun_queue_depth 0.0" not in self.metrics()

    def lines(self) -> list[dict[str, Any]]:
        """Its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line]

    def end(self) -> None:
        """Kills it, whatever it does, and waits for its end."""
        self.process.kill()
        self.process.wait()
