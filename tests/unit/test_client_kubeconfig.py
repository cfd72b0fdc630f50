"""What a kubeconfig says of the user and the connection is kept, as kubectl keeps it."""

import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import Configuration

from support.cli_server import RUNS, Server, call, running_server
from trainingrun import Client, RunError
from trainingrun.client.errors import ForbiddenError
from trainingrun.client.kube import Kube, _plugin_errors


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def refused() -> set[str | None]:
    """Values of the header Authorization that the API server of `asked` answers with 401."""
    return set()


@pytest.fixture
def asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: set[str | None]
) -> Iterator[list[Any]]:
    """The headers of each request to the API server of a kubeconfig."""
    headers: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers.append(self.headers)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(401 if self.headers["Authorization"] in refused else 200)
            self.end_headers()
            self.wfile.write(b'{"items": [], "status": {"allowed": true}}')

        def do_POST(self) -> None:
            self.do_GET()

        def do_PATCH(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    with running_server(tmp_path, monkeypatch) as other:
        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        file = tmp_path / "kubeconfig"
        file.write_text(file.read_text().replace(f":{other.port}", f":{http.server_port}"))
        yield headers
        http.shutdown()
        http.server_close()


def set_user(folder: Path, **user: Any) -> None:
    file = folder / "kubeconfig"
    config = yaml.safe_load(file.read_text())
    config["users"] = [{"name": "u", "user": user}]
    file.write_text(yaml.safe_dump(config))


def test_other_clients_of_the_process_keep_their_cluster(server: Server) -> None:
    theirs = Configuration(host="https://elsewhere:6443")
    Configuration.set_default(theirs)
    try:
        assert Kube(None, None).url == f"http://127.0.0.1:{server.port}"
        assert Configuration.get_default_copy().host == "https://elsewhere:6443"
    finally:
        Configuration.set_default(None)


def test_a_connection_that_a_load_balancer_has_forgotten_is_found_dead(server: Server) -> None:
    pool = Kube(None, None)._connection.login.client.rest_client.pool_manager
    options = pool.connection_pool_kw["socket_options"]
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in options


def test_a_user_acts_as_another_one_in_every_request(asked: list[Any], tmp_path: Path) -> None:
    extra = {"example.org/reason": ["on call", "night"]}
    acts_as = {"as": "jane", "as-uid": "7", "as-groups": ["ä-team", "ops"], "as-user-extra": extra}
    set_user(tmp_path, token="t", **acts_as)
    kube = Kube(None, None).within("team-b")
    kube.runs(everywhere=True)
    kube.may("get", "", "pods")
    kube.set_suspend("digits", True)
    assert len(asked) == 3
    for headers in asked:
        assert headers["Authorization"] == "Bearer t"
        assert headers.get_all("Impersonate-User") == ["jane"]
        assert headers.get_all("Impersonate-Uid") == ["7"]
        groups = [each.encode("latin-1").decode() for each in headers.get_all("Impersonate-Group")]
        assert groups == ["ä-team", "ops"]
        assert headers.get_all("Impersonate-Extra-example.org%2Freason") == ["on call", "night"]


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ({"as-groups": ["ops"]}, "has as-uid, as-groups or as-user-extra without as; name in as"),
        ({"as": 7}, "is no kubeconfig (ValueError: Impersonate-User would be [7]); correct it"),
        ({"as": "a\nX: b"}, "(ValueError: Impersonate-User would be ['a\\nX: b']); correct it"),
        ({"as": "a", "as-groups": "ops"}, "(ValueError: Impersonate-Group would be 'ops')"),
    ],
    ids=str,
)
def test_a_user_that_cannot_be_acted_as_is_refused_in_a_sentence(
    asked: list[Any], tmp_path: Path, user: dict[str, Any], sentence: str
) -> None:
    set_user(tmp_path, **user)
    with pytest.raises(RunError) as refused:
        Kube(None, None)
    assert sentence in str(refused.value)
    assert asked == []


def exec_user(folder: Path, script: str) -> dict[str, Any]:
    plugin = folder / "log-in"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o700)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo Traceback: >&2; echo no token >&2; exit 3", " (no token)"),
        ("exit 3", " (exec: process returned 3)"),
        ('echo \'{"token": "secret"\'', " (exec: failed to decode process output: "),
    ],
)
def test_a_command_that_does_not_log_in_is_named_before_any_request(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str, reason: str
) -> None:
    server.answers[RUNS] = [(200, {"items": []})]
    set_user(tmp_path, **exec_user(tmp_path, script))
    code, output, errors = call("list")
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith(
        f"the command {tmp_path}/log-in, by which user u of {tmp_path}/kubeconfig logs in, gives "
        f"no credentials{reason}"
    )
    assert errors.endswith("; log in again as that user\n")
    assert "secret" not in errors
    assert caplog.records == []
    logging.error("of the program itself")
    assert caplog.messages == ["of the program itself"]


def test_what_others_log_while_a_user_logs_in_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    with _plugin_errors() as errors:
        logging.error("of the program itself")
    assert (caplog.messages, errors) == (["of the program itself"], [])


def test_a_command_that_says_in_the_terminal_why_it_fails_is_named_alone(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    set_user(tmp_path, **exec_user(tmp_path, "echo no token >&2; exit 3"))
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(RunError, match=r"logs in, gives no credentials; log in again"):
            Kube(None, None)
    assert capfd.readouterr() == ("", "no token\n")


def test_a_command_that_is_not_installed_is_named(server: Server, tmp_path: Path) -> None:
    set_user(tmp_path, **exec_user(tmp_path, ""))
    (tmp_path / "log-in").unlink()
    code, _, errors = call("list")
    assert code == 1
    assert f"no credentials ([Errno 2] No such file or directory: '{tmp_path}/log-in')" in errors


def test_a_command_that_logs_in_gives_the_token(asked: list[Any], tmp_path: Path) -> None:
    answer = (
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", '
        '"status": {"token": "t"}}'
    )
    set_user(tmp_path, **exec_user(tmp_path, f"echo '{answer}'"))
    Kube(None, None).runs(everywhere=True)
    assert asked[0]["Authorization"] == "Bearer t"


def logs_in(folder: Path, **status: str) -> dict[str, Any]:
    """A user whose command gives these credentials and, as many do, not when they expire."""
    api = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    (folder / "credentials").write_text(json.dumps({**api, "status": status}))
    return exec_user(folder, f"echo x >> {folder}/logins; cat {folder}/credentials")


def of_a_file(folder: Path, token: str) -> dict[str, Any]:
    (folder / "token").write_text(token)
    return {"tokenFile": str(folder / "token")}


def of_a_command(folder: Path, token: str) -> dict[str, Any]:
    return logs_in(folder, token=token)


@pytest.mark.parametrize("user", [of_a_file, of_a_command])
def test_credentials_that_expire_are_renewed_for_whoever_waits(
    asked: list[Any], refused: set[str | None], tmp_path: Path, user: Any
) -> None:
    set_user(tmp_path, **user(tmp_path, "old"))
    kube = Kube(None, None)
    others = [kube.within("team-b"), kube.within("team-c")]
    kube.runs(everywhere=True)
    user(tmp_path, "new")
    refused.add("Bearer old")
    for each in (*others, kube, kube.within("team-d")):
        each.runs(everywhere=True)
        each.set_suspend("digits", True)
    assert [headers["Authorization"] for headers in asked] == [
        *2 * ["Bearer old"],
        *8 * ["Bearer new"],
    ]
    refused.add("Bearer new")
    with pytest.raises(ForbiddenError) as ended:
        kube.runs(everywhere=True)
    assert str(ended.value) == "TrainingRuns: 401 Unauthorized; log in to the cluster again"


def test_a_certificate_that_a_command_gives_is_renewed_as_well(
    asked: list[Any], refused: set[str | None], tmp_path: Path
) -> None:
    set_user(tmp_path, **logs_in(tmp_path, clientCertificateData="old", clientKeyData="key"))
    kube = Kube(None, None)
    logs_in(tmp_path, clientCertificateData="new", clientKeyData="key of new")
    refused.add(None)
    with pytest.raises(ForbiddenError):  # as of this server, which speaks no TLS
        kube.runs(everywhere=True)
    settings = kube._connection.login.client.configuration
    assert Path(settings.cert_file).read_text() == "new"
    assert Path(settings.key_file).read_text() == "key of new"


def test_of_several_requests_at_once_one_logs_in_again(
    asked: list[Any], refused: set[str | None], tmp_path: Path
) -> None:
    """As of the logs of many pods: some commands open a browser."""
    set_user(tmp_path, **logs_in(tmp_path, token="old"))
    kube = Kube(None, None)
    others = [kube.within(f"team-{number}") for number in range(7)]
    logs_in(tmp_path, token="new")
    refused.add("Bearer old")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: each.runs(True), [kube, *others]))
    assert (tmp_path / "logins").read_text() == "x\n" * 2


def make_another_context_current(folder: Path) -> None:
    """As `kubectl config use-context` does; nothing answers in its cluster."""
    file = folder / "kubeconfig"
    config = yaml.safe_load(file.read_text())
    elsewhere = {"cluster": {"server": "http://127.0.0.1:1"}, "name": "elsewhere"}
    other = {"name": "other", "context": {"cluster": "elsewhere", "user": "u"}}
    config["clusters"].append(elsewhere)
    config["contexts"].append(other)
    file.write_text(yaml.safe_dump({**config, "current-context": "other"}))


def test_whoever_logs_in_again_stays_in_the_cluster_that_was_chosen(
    asked: list[Any], refused: set[str | None], tmp_path: Path
) -> None:
    set_user(tmp_path, **of_a_file(tmp_path, "old"))
    kube = Kube(None, None)
    make_another_context_current(tmp_path)
    of_a_file(tmp_path, "new")
    refused.add("Bearer old")
    kube.runs(everywhere=True)
    assert asked[-1]["Authorization"] == "Bearer new"


def test_a_run_of_another_namespace_is_submitted_in_the_cluster_of_its_client(
    server: Server, tmp_path: Path
) -> None:
    path = f"{RUNS.replace('team-a', 'team-b')}/digits"
    server.answers[path] = [(404, {}), (200, {})]
    found = Client()
    make_another_context_current(tmp_path)
    manifest = {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "digits", "namespace": "team-b"},
        "spec": {
            "training": {"function": "a.b:c"},
            "workers": {"count": 1},
            "storage": {"uri": "s3://runs/x"},
        },
    }
    run = found.submit(manifest)
    assert [body["metadata"] for _, body in server.applied] == [manifest["metadata"]]
    server.answers[path] = [(200, {"metadata": {"name": "digits", "namespace": "team-b"}})]
    assert run.object["metadata"]["namespace"] == "team-b"


def test_a_command_that_gives_no_more_credentials_is_named_to_whoever_waits(
    asked: list[Any], refused: set[str | None], tmp_path: Path
) -> None:
    set_user(tmp_path, **logs_in(tmp_path, token="old"))
    kube = Kube(None, None)
    exec_user(tmp_path, "echo the session has ended >&2; exit 1")
    refused.add("Bearer old")
    said = r"gives no credentials \(.*the session has ended\); log in again as that user$"
    with pytest.raises(RunError, match=said):
        kube.runs(everywhere=True)


def test_credentials_that_are_no_longer_accepted_are_said_to_be_renewed(server: Server) -> None:
    server.answers[RUNS] = [(401, {"message": "Unauthorized"})]
    assert call("list") == (1, "", "TrainingRuns: Unauthorized; log in to the cluster again\n")
