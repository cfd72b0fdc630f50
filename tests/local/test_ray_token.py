"""Ray's own token, set as by KubeRay's `authOptions`: what it shuts out, and that ours all works.

A real head and a real worker, started by the image's own command with the variables that KubeRay
puts into the pods.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_ports
from trainingrun.cli.dashboard_proxy import Proxy
from trainingrun.cli.local_server import serving

ROOT = Path(__file__).parents[2]
NODE = ROOT / "training_images" / "bin" / "trainingrun-node"
SHIM = ROOT / "training_images" / "path" / "ray"
TOKEN = "c2VjcmV0IHRoYXQgS3ViZVJheSBtYWRlIGZvciB0aGlzIGNsdXN0ZXI="
PATIENCE_S = 120.0

DRIVER = """
import ray
ray.init(address="auto", configure_logging=False)

@ray.remote(num_cpus=1)
def where():
    return ray.util.get_node_ip_address()

print("a worker answers:", ray.get(where.remote(), timeout=60))
"""


@dataclass
class Head:
    dashboard: int
    agent: int
    gcs: int
    home: Path
    start: Callable[..., "subprocess.Popen[bytes]"]

    def ask(self, path: str, token: str | None = None, body: Any = None) -> tuple[int, Any]:
        """Status and answer of Ray's API; the token goes as KubeRay sends it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.dashboard}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"X-Ray-Authorization": f"Bearer {token}"} if token else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def nodes(self) -> int:
        _, found = self.ask("/nodes?view=summary", TOKEN)
        return sum(node["raylet"].get("state") == "ALIVE" for node in found["data"]["summary"])


def eventually(probe: Callable[[], Any], process: "subprocess.Popen[bytes] | None" = None) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            if found := probe():
                return found
        assert process is None or process.poll() is None, "Ray ended"
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    home = Path(tempfile.mkdtemp(prefix="tr-", dir="/tmp"))  # a socket's path has to be short
    dashboard, agent, gcs, client, progress = free_ports(5)
    started: list[subprocess.Popen[bytes]] = []

    def start(role: str, name: str, token: str, *arguments: str) -> "subprocess.Popen[bytes]":
        folder = home / name
        folder.mkdir()
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *arguments]
        command += ["--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
        command += ["--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "KUBERAY_GEN_RAY_START_CMD": " ".join(command),
            "TRAININGRUN_STATE_DIRECTORY": str(folder / "state"),
            "TRAININGRUN_PROGRESS_PORT": str(progress),
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "operator"), str(ROOT / "training_images"), *sys.path]
            ),
        }
        with (home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(NODE), role], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        return process

    try:
        process = start(
            "head", "head", TOKEN, "--head", f"--port={gcs}", "--num-cpus=0",
            "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
            f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}",
        )  # fmt: skip
        found = Head(dashboard, agent, gcs, home, start)
        eventually(lambda: found.ask("/api/version", TOKEN)[0] == 200, process)
        yield found
    finally:
        for process in started:  # each leads a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("path", ["/api/jobs/", "/api/version", "/nodes?view=summary", "/logs"])
def test_without_the_token_rays_api_answers_401_and_with_a_wrong_one_403(head: Head, path: str):
    assert head.ask(path)[0] == 401
    assert head.ask(path, "wrong")[0] == 403


def test_without_the_token_nobody_submits_a_job(head: Head):
    job = {"entrypoint": "true", "submission_id": "foreign"}
    assert head.ask("/api/jobs/", None, job)[0] == 401
    assert [one["submission_id"] for one in head.ask("/api/jobs/", TOKEN)[1]] == []


def test_a_browser_that_has_opened_the_link_sees_the_dashboard_and_nobody_else(head: Head):
    proxy = Proxy(0, head.dashboard, TOKEN)
    with serving(proxy):
        port = proxy.server_port

        def ask(path: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            with contextlib.closing(connection):
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode(), answer.headers

        assert ask("/api/version")[0] == 403
        assert ask("/api/version", Cookie="trainingrun-1=a; é")[0] == 403
        link = proxy.link().removeprefix(f"http://127.0.0.1:{port}")
        status, page, headers = ask(link)
        assert status == 200
        assert "url=/" in page
        cookie = headers["Set-Cookie"].split(";")[0]
        assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
        assert ask(link)[0] == 403, "it was opened before"
        assert ask(link, Cookie=cookie)[0] == 403

        browser = {"Cookie": f"other=1; {cookie}", "User-Agent": "Mozilla/5.0"}
        assert json.loads(ask("/nodes?view=summary", **browser)[1])["result"]
        assert ask("/api/jobs/", "HEAD", **browser)[:2] == (200, "")
        assert ask("/api/jobs/", "POST", **browser)[0] == 501
        index = ask("/", **browser)[1]
        script = re.findall(r'src="(?:\.)?(/static/js/[^"]+)"', index)[0]
        assert len(ask(script, **browser)[1]) > 100_000
        seen = "".join(str(ask(path, **browser)) for path in ("/", "/api/version", "/logs", link))
        assert TOKEN not in seen


def test_the_kubelets_probe_and_the_init_container_need_no_token(head: Head):
    def probe() -> bool:
        url = f"http://127.0.0.1:{head.agent}/api/healthz"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return bool(answer.status == 200)

    assert eventually(probe)
    address = f"127.0.0.1:{head.gcs}"
    subprocess.run([str(SHIM), "health-check", "--address", address], check=True, timeout=60)


def test_a_worker_joins_with_the_token_and_not_without_and_a_driver_trains_on_it(head: Head):
    address = f"--address=127.0.0.1:{head.gcs}"
    foreign = head.start("worker", "foreign", "wrong", address, "--num-cpus=8")
    assert foreign.wait(PATIENCE_S) != 0
    eventually(lambda: head.nodes() == 1)  # the dashboard may not list the head at once
    head.start("worker", "worker", TOKEN, address, "--num-cpus=1")
    eventually(lambda: head.nodes() == 2)

    script = head.home / "driver.py"
    script.write_text(DRIVER)
    job = {"entrypoint": f"{sys.executable} {script}", "submission_id": "ours"}
    assert head.ask("/api/jobs/", TOKEN, job)[0] == 200
    ended = ("SUCCEEDED", "FAILED", "STOPPED")
    final = eventually(
        lambda: (found := head.ask("/api/jobs/ours", TOKEN)[1])["status"] in ended and found
    )
    said = head.ask("/api/jobs/ours/logs", TOKEN)[1]["logs"]
    assert final["status"] == "SUCCEEDED", said
    assert "a worker answers:" in said
