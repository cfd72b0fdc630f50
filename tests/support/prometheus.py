"""A real Prometheus on this machine: it scrapes what a test names, and answers queries."""

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from support.ports import free_port
from support.tools import prometheus

START_S = 60.0


class Prometheus:
    """One that runs at an address such as `http://127.0.0.1:9090`."""

    def __init__(self, url: str):
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its API; an error of the query fails the test."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, str]]:
        """Labels of each series of the result."""
        return [found["metric"] for found in self.get("query", query=expression)["result"]]

    def targets(self) -> dict[str, str]:
        """What the last scrape of each job said: `up`, or its error."""
        return {
            target["labels"]["job"]: target["lastError"] or target["health"]
            for target in self.get("targets")["activeTargets"]
        }

    def alerts(self) -> list[dict[str, str]]:
        """Labels of the alerts that fire."""
        found = self.get("alerts")["alerts"]
        return [alert["labels"] for alert in found if alert["state"] == "firing"]


@contextlib.contextmanager
def running(
    folder: Path, jobs: Sequence[Mapping[str, Any]], rules: Path | None = None
) -> Iterator[Prometheus]:
    """Scrapes these jobs, as in its `scrape_configs`, and evaluates the rules, each second.

    Raises:
        support.binaries.Unavailable: there is no Prometheus here.
    """
    binary, port = prometheus(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)] if rules else [],
        "scrape_configs": list(jobs),
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    command = [
        str(binary),
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + START_S
        while not _ready(found.url):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield found
    finally:
        process.terminate()
        process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False
