"""`trainingrun shell` and `dashboard`, with a stand-in for kubectl: no kubelet runs here."""

import base64
import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.cli_server import RUNS, Server, call, running_server
from support.deadlines import ends_within
from trainingrun.api.errors import RunError
from trainingrun.cli import pod_commands
from trainingrun.client.kube import Kube
from trainingrun.reconciling.bookkeeping import Bookkeeping

PODS = "/api/v1/namespaces/team-a/pods"
SECRET = "/api/v1/namespaces/team-a/secrets/digits-1-x"
TOKEN = "the-token-of-ray"
KUBECTL = """#!/bin/sh
printf '%s\\n' "$@" > "$SAID"
[ "$1" = --namespace=team-a ] || exit 9
case "$*" in
*"/rank-pods.json") echo "$RANK_PODS"; exit 0;;
esac
case "$2" in
port-forward) echo "Forwarding from 127.0.0.1:$UPSTREAM -> 8265"; exec sleep 600;;
esac
exit 3
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        kubectl = tmp_path / "kubectl"
        kubectl.write_text(KUBECTL)
        kubectl.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setenv("SAID", str(tmp_path / "said"))
        yield found


def a_pod(name: str, **spec: Any) -> dict[str, Any]:
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "digits-1-x", "uid": "c1"}
    metadata: dict[str, Any] = {"name": name, "uid": f"uid of {name}"}
    metadata["ownerReferences"] = [{**owner, "controller": True}]
    return {"metadata": metadata, "spec": {"containers": [{"name": "ray-head"}], **spec}}


def answer(server: Server, *pods: dict[str, Any], **progress: Any) -> None:
    run = {
        "metadata": {"name": "digits", "namespace": "team-a", "uid": "u1"},
        "spec": {"workers": {"count": 4}},
        "status": {
            "phase": "Running",
            "seen": Bookkeeping(ray_cluster="c1", head="uid of digits-1-head").to_dict(),
            "progress": progress,
        },
    }
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    server.answers[PODS] = [(200, {"items": list(pods)})]


def as_a_process(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "trainingrun", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_runs_in_the_pod_of_the_rank(server: Server, tmp_path: Path) -> None:
    answer(server, a_pod("digits-1-w-0"), ranks=[{"rank": 3, "pod": "digits-1-w-0"}])
    command = as_a_process("shell", "digits", "--rank", "3", "--", "ls", "-la")
    command.communicate(timeout=60)
    assert command.returncode == 3, "that of kubectl"
    assert (tmp_path / "said").read_text().splitlines() == [
        "--namespace=team-a", "exec", "-i", "digits-1-w-0", "--container=ray-worker", "--",
        "ls", "-la",
    ]  # fmt: skip


def test_of_many_ranks_the_head_knows_the_pods_that_the_status_has_not(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_PODS", '{"0": "digits-1-w-0", "3": "digits-1-w-1"}')
    head = a_pod("digits-1-head")
    head["metadata"]["labels"] = {"ray.io/node-type": "head"}
    answer(server, head, a_pod("digits-1-w-1"), ranks=[{"rank": 0, "pod": "digits-1-w-0"}])
    command = as_a_process("shell", "digits", "--rank", "3", "--", "id")
    command.communicate(timeout=60)
    assert (tmp_path / "said").read_text().splitlines() == [
        "--namespace=team-a", "exec", "-i", "digits-1-w-1", "--container=ray-worker", "--", "id",
    ]  # fmt: skip


ROW = {"rank": 0, "pod": "digits-1-w-0"}


@pytest.mark.parametrize(
    ("rank", "rows", "sentence"),
    [
        pytest.param("0", [], "No rank of digits has reported yet; each", id="none"),
        pytest.param("4", [ROW], "digits has no rank 4: it has 4 ranks, from 0", id="too-high"),
        pytest.param(
            "1",
            [ROW],
            "the status does not have the pod of rank 1: 1 of 4 ranks have reported",
            id="absent",
        ),
        pytest.param("1", [{"rank": 1}], "rank 1 of digits does not say in which", id="no-pod"),
        pytest.param(
            "0",
            [ROW],
            "rank 0 of digits ran in pod digits-1-w-0, which is gone; digits is Running: try again",
            id="gone",
        ),
    ],
)
def test_where_a_rank_has_no_pod_it_is_said(
    server: Server, rank: str, rows: list[dict[str, Any]], sentence: str
) -> None:
    foreign = a_pod("digits-1-w-0")
    foreign["metadata"]["ownerReferences"][0]["uid"] = "of another cluster"
    answer(server, foreign, ranks=rows)
    code, output, errors = call("shell", "digits", "--rank", rank)
    assert (code, output) == (1, "")
    assert errors.startswith(sentence)
    assert errors.count("\n") == 1


def test_a_head_that_never_answers_is_waited_for_no_longer_than_it_may_take(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(pod_commands, "_ANSWER_S", 0.2)
    answer(server, a_pod("digits-1-head"))
    run = server.answers[f"{RUNS}/digits"][0][1]
    with (
        ends_within(30),
        pytest.raises(RunError, match="has not answered kubectl exec within"),
    ):
        pod_commands.request_stacks(Kube(None, None), run)


def test_without_kubectl_it_is_said(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(server, a_pod("digits-1-head"))
    monkeypatch.setenv("PATH", "/nowhere")
    said = "kubectl is not found on PATH; this command needs it\n"
    assert call("shell", "digits") == (1, "", said)
    assert call("dashboard", "digits") == (1, "", said)


def with_token(head: str) -> dict[str, Any]:
    reference = {"secretKeyRef": {"name": "digits-1-x", "key": "auth_token"}}
    env = [{"name": "RAY_AUTH_TOKEN", "valueFrom": reference}]
    return a_pod(head, containers=[{"name": "ray-head", "env": env}])


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """What takes the place of Ray's dashboard: the token of each request."""
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            assert "Cookie" not in self.headers
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"a page")

        def log_message(self, *_: Any) -> None:
            pass

    http_server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("UPSTREAM", str(http_server.server_port))
    yield asked
    http_server.shutdown()
    http_server.server_close()


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_the_dashboard_has_the_token_and_ends_with_its_kubectl(
    server: Server, upstream: list[str | None], tmp_path: Path, ended_by: signal.Signals
) -> None:
    answer(server, with_token("digits-1-head"))
    value = base64.b64encode(TOKEN.encode()).decode()
    server.answers[SECRET] = [(200, {"data": {"auth_token": value}})]
    with as_a_process("dashboard", "digits", "--no-browser") as command:
        assert command.stdout is not None
        line = command.stdout.readline()
        assert line.startswith("Ray's dashboard of digits: http://127.0.0.1:")
        address, _, path = line.split("http://")[1].strip().partition("/")
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", f"/{path}")
        answered = connection.getresponse()
        answered.read()
        cookie = str(answered.headers["Set-Cookie"]).split(";")[0]
        connection.request("GET", "/", headers={"Cookie": cookie, "Authorization": "Bearer own"})
        assert connection.getresponse().read() == b"a page"
        connection.close()
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        command.send_signal(ended_by)
        rest, errors = command.communicate(timeout=60)
    assert upstream == [f"Bearer {TOKEN}"]
    assert command.returncode == (0 if ended_by is signal.SIGINT else 128 + signal.SIGTERM)
    assert errors == "One browser can open it, once; Ctrl-C ends it.\n"
    assert len(children) == 1
    assert not Path(f"/proc/{children[0]}").exists()
    said = (tmp_path / "said").read_text()
    assert said.split() == [
        "--namespace=team-a", "port-forward", "--address=127.0.0.1", "pod/digits-1-head", ":8265",
    ]  # fmt: skip
    assert TOKEN not in line + rest + errors + said


def test_a_newer_pod_that_claims_to_be_the_head_gets_no_token_and_names_no_secret(
    server: Server, upstream: list[str | None], tmp_path: Path
) -> None:
    """Whoever creates it chooses its owner, its labels and the Secret in its environment."""
    forged = with_token("forged-head")
    forged["metadata"]["creationTimestamp"] = "2999-01-01T00:00:00Z"
    forged["spec"]["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"] = "another"
    answer(server, forged)
    code, _, errors = call("dashboard", "digits", "--no-browser")
    assert code == 1
    assert errors.startswith("digits has no head pod now")
    answer(server, forged, a_pod("digits-1-head"))
    (tmp_path / "kubectl").write_text('#!/bin/sh\necho "error: $*" >&2; exit 1\n')
    _, _, errors = call("dashboard", "digits", "--no-browser")
    assert "kubectl cannot reach pod digits-1-head" in errors


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        pytest.param(
            "echo 'Error from server (Forbidden): pods is forbidden' >&2; exit 1",
            "kubectl cannot reach pod digits-1-head: Error from server (Forbidden): pods is "
            "forbidden\n",
            id="refused",
        ),
        pytest.param(
            "echo 'Forwarding from 127.0.0.1:9 -> 8265'; echo 'error: lost connection to pod' >&2; "
            "echo 'Handling connection for 9'",
            "the connection to pod digits-1-head has ended: error: lost connection to pod; run "
            "this again when digits has a head\n",
            id="lost",
        ),
    ],
)
def test_what_kubectl_says_is_said(
    server: Server, tmp_path: Path, script: str, sentence: str
) -> None:
    answer(server, a_pod("digits-1-head"))
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
    code, _, errors = call("dashboard", "digits", "--no-browser")
    assert code == 1
    assert errors.splitlines(keepends=True)[-1] == sentence


def test_a_port_that_is_taken_is_named(server: Server, upstream: list[str | None]) -> None:
    answer(server, a_pod("digits-1-head"))
    code, _, errors = call("dashboard", "digits", "--port", str(server.port))
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith(f"port {server.port} of this machine cannot be used (Address already")
