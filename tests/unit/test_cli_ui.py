"""`trainingrun ui` over HTTP, against an HTTP server that answers as an API server would."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.cli_server import RUNS, Server, call, running_server
from support.ui_server import Asking, served
from trainingrun.cli.ui import shared
from trainingrun.client.errors import UnreachableError
from trainingrun.rendering import names

EVERYWHERE = "/apis/trainingrun.dev/v1alpha1/trainingruns"
PODS = "/api/v1/namespaces/team-a/pods"
PATIENCE_S = 60.0
"""Of a machine that is busy with other things."""


def a_run(name: str = "digits", phase: str = "Running", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team-a", "uid": f"1a2b3c4d-{name}"}
    spec = {"storage": {"uri": "file:///data"}, "workers": {"count": 2}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "attempt": 1, **status}}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(shared, "_WAIT_S", 5.0)
    with running_server(tmp_path, monkeypatch) as found:
        found.answers[RUNS] = [(200, {"items": [a_run()]})]
        found.answers[f"{RUNS}/digits"] = [(200, a_run())]
        yield found


@pytest.fixture
def asking(server: Server) -> Iterator[Asking]:
    with served() as found:
        yield found


@pytest.fixture
def always_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was read is fresh any more when it is asked for again."""
    monkeypatch.setattr(shared, "_SHARE", 0.0)
    monkeypatch.setattr("trainingrun.cli.ui.pages._FRESH_S", 0.0)


def test_only_the_browser_that_opened_the_link_is_answered(asking: Asking) -> None:
    for headers in ({}, {"Cookie": f"trainingrun-{asking.ui.server_port}=guessed"}):
        status, text, _ = asking.ask("/", **headers)
        assert status == 403
        assert text == "Open the address that `trainingrun ui` prints; each one opens once.\n"
    status, text, headers = asking.ask("/", Cookie=f"other=1; {asking.cookie}")
    assert (status, "digits" in text) == (200, True)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "localhost:{port}", ""])
def test_another_name_that_leads_here_is_refused(asking: Asking, host: str) -> None:
    named = host.format(port=asking.ui.server_port)
    for path in ("/", "/renew.js", asking.ui.link().partition(asking.ui.host)[2]):
        status, text, headers = asking.ask(path, Host=named, Cookie=asking.cookie)
        assert status == 421
        assert text == f"This server is http://{asking.ui.host} and answers to no other name.\n"
        assert "Set-Cookie" not in headers


def test_it_reads_alone(server: Server, asking: Asking) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert asking.ask("/", method, Cookie=asking.cookie)[0] == 501
    assert asking.ask("/", "HEAD", Cookie=asking.cookie)[:2] == (200, "")
    assert (server.applied, server.created, server.deleted) == ([], [], [])


class Decisions:
    """A lock of shared readings; `made` is released with it: a request has decided by then whether
    to read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made = threading.Semaphore(0)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self.made.release()


def test_ten_tabs_ask_the_cluster_once(
    server: Server, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ten while the first one's question is without an answer."""
    asked, waits, gate = list[str](), threading.Event(), threading.Event()
    answer, decisions = server.answer, Decisions()

    def counting(path: str) -> tuple[int, Any]:
        asked.append(path)
        waits.set()
        assert gate.wait(PATIENCE_S)
        return answer(path)

    server.answer = counting  # type: ignore[method-assign]
    monkeypatch.setattr(shared, "_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(asking.ui.shown._shared, "_lock", decisions)
    with ThreadPoolExecutor(10) as tabs:
        pages = [tabs.submit(asking.page) for _ in range(10)]
        try:
            assert waits.wait(PATIENCE_S)
            assert all(decisions.made.acquire(timeout=PATIENCE_S) for _ in pages)
        finally:
            gate.set()
        assert all("digits" in page.result() for page in pages)
    assert asked == [RUNS]


@pytest.mark.usefixtures("always_anew")
def test_while_the_api_server_is_away_the_page_has_what_it_had(
    server: Server, asking: Asking
) -> None:
    for path in ("/", "/runs/team-a/digits"):
        assert "Running" in asking.page(path)
    for key in (RUNS, f"{RUNS}/digits"):
        server.answers[key] = [(503, {"message": "etcd has no leader"})]
    for path in ("/", "/runs/team-a/digits"):
        page = asking.page(path)
        assert "etcd has no leader. What follows is of " in page
        assert "Running" in page
    server.answers[RUNS] = [(200, {"items": [a_run("back")]})]
    assert "back" in asking.page()


@pytest.mark.usefixtures("always_anew")
def test_what_may_not_be_read_any_more_is_not_shown_any_more(
    server: Server, asking: Asking
) -> None:
    assert "Running" in asking.page()
    server.answers[RUNS] = [(403, {"message": 'User "eve" cannot list resource "trainingruns"'})]
    page = asking.page()
    assert 'TrainingRuns: User "eve" cannot list resource "trainingruns"' in page
    assert "Running" not in page


def test_with_one_namespace_alone_that_one_is_shown_and_why(server: Server) -> None:
    server.answers[EVERYWHERE] = [(403, {"message": "forbidden at the cluster scope"})]
    other = RUNS.replace("team-a", "team-b")
    theirs = a_run("theirs")
    theirs["metadata"]["namespace"] = "team-b"
    server.answers[other] = [(200, {"items": [theirs]})]
    with served(everywhere=True) as asking:
        page = asking.page()
        assert "forbidden at the cluster scope. So the runs of one namespace are shown" in page
        assert "digits" in page
        assert "1 run in namespace team-a" in page
        assert "theirs" in asking.page("/?namespace=team-b")
        status, text, _ = asking.ask("/?namespace=../secrets", Cookie=asking.cookie)
        assert (status, "is no name of a namespace" in text) == (400, True)


@pytest.mark.usefixtures("always_anew")
def test_a_run_that_is_deleted_meanwhile_is_a_sentence(server: Server, asking: Asking) -> None:
    assert "Running" in asking.page("/runs/team-a/digits")
    del server.answers[f"{RUNS}/digits"]
    page = asking.page("/runs/team-a/digits")
    assert "TrainingRun digits in namespace team-a: not found" in page
    assert "Running" not in page


@pytest.mark.usefixtures("always_anew")
def test_a_malformed_run_and_a_lying_server_end_nothing(server: Server, asking: Asking) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, {"metadata": {"name": "digits"}, "status": [1]})]
    assert "cannot be shown" in asking.page("/runs/team-a/digits")
    for answer, sentence in (
        ({"items": 7}, "the answer has no items; does the address in the kubeconfig lead to the"),
        (b"<html>", "the answer is not JSON; does the address in the kubeconfig lead to the API"),
        ({"kind": "Status"}, "the answer has no items; does the address in the kubeconfig lead to"),
        ({"items": [7]}, "cannot be shown"),
    ):
        server.answers[RUNS] = [(200, answer)]
        assert sentence in asking.page()
    server.answers[RUNS] = [(200, {"items": [{"metadata": {"name": "odd"}}, a_run()]})]
    assert "digits" in asking.page()


def test_a_long_list_is_read_in_parts(server: Server, asking: Asking) -> None:
    first = {"items": [a_run("one")], "metadata": {"continue": "more"}}
    server.answers[RUNS] = [(200, first), (200, {"items": [a_run("two")], "metadata": {}})]
    page = asking.page()
    assert "one" in page
    assert "two" in page
    assert "2 runs" in page


def test_a_run_whose_bucket_cannot_be_read_has_its_status(asking: Asking) -> None:
    page = asking.page("/runs/team-a/digits")
    assert "digits Running" in page
    assert "Nothing of the bucket is on this page: storage.uri is file:///data" in page


def a_pod(name: str, role: str) -> dict[str, Any]:
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "x", "uid": "c1"}
    metadata = {"name": name, "uid": name, "labels": {names.ROLE_LABEL: role}}
    return {
        "metadata": {**metadata, "ownerReferences": [{**owner, "controller": True}]},
        "status": {"phase": "Running"},
    }


def test_logs_are_the_last_lines_of_each_rank_or_of_one(server: Server, asking: Asking) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run(seen={"rayCluster": "c1"}))]
    pods = [a_pod("head", names.HEAD), a_pod("w0", names.WORKER)]
    server.answers[PODS] = [(200, {"items": pods})]
    lines = ["[rank 0] one", "[rank 0] <script>alert(1)</script>", "[rank 1] two \x1b[31mred"]
    stamp = "2026-01-01T00:00:01.1"
    text = "".join(f"{stamp}{number}Z {line}\n" for number, line in enumerate(lines))
    server.answers[f"{PODS}/w0/log"] = [(200, text.encode())]
    server.answers[f"{PODS}/head/log"] = [(200, f"{stamp}Z [driver] begins\n".encode())]
    path = "/runs/team-a/digits/logs"
    _, whole, _ = asking.ask(path, Cookie=asking.cookie)
    assert "[rank 0] &lt;script&gt;alert(1)&lt;/script&gt;\n" in whole
    assert "[rank 1] two red\n" in whole
    assert "[driver] begins" in whole
    of_one = asking.page(f"{path}?rank=1")
    assert "two red" in of_one
    assert "one" not in of_one.replace("last one", "")
    assert "[rank 0] one" not in asking.page(f"{path}?lines=1")
    assert "[driver] begins" in asking.page(f"{path}?rank=driver")
    for query, said in (
        ("rank=7", "the run has 2 ranks, 0 to 1, so there is no rank 7"),
        ("rank=first", "rank is first; write driver, a number from 0, or nothing"),
        ("lines=0", "lines is 0; write a number from 1, or nothing"),
        ("attempt=%C2%B2", "attempt is ²; write a number from 1, or nothing"),
    ):
        assert said in asking.page(f"{path}?{query}")


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "/runs/team-a",
        "/runs/team-a/..%2F..",
        "/runs/A/b",
        "/runs//b",
        "/runs/team.a/b",
        "/runs/team-a/b..c",
    ],
)
def test_there_is_no_other_page(asking: Asking, path: str) -> None:
    status, text, _ = asking.ask(path, Cookie=asking.cookie)
    assert (status, "there is no page" in text) == (404, True)


def test_what_takes_long_is_read_more_seldom_and_shown_meanwhile_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "_WAIT_S", 0.05)
    monkeypatch.setattr(shared, "_WAIT_AGAIN_S", 0.05)
    gate, found = threading.Event(), shared.Shared()

    def slow() -> int:
        gate.wait(60)
        return 7

    first = found.get("slow", slow, 0.0)
    assert first.value is None
    assert str(first.problem) == "there is no answer after 0 s; it is waited for"
    gate.set()
    monkeypatch.setattr(shared, "_WAIT_S", 60)
    read = found.get("slow", slow, 0.0)
    assert (read.value, read.problem) == (7, None)
    assert read.every_s >= 0.5, "ten times what it took"
    assert found.get("slow", lambda: 8, 0.0).value == 7, "it is not read again so soon"


@pytest.mark.parametrize(("took_s", "every_s"), [(0, 1), (3, 30), (30, 60)])
def test_what_fails_after_long_is_tried_again_as_seldom_and_within_a_minute(
    took_s: float, every_s: float
) -> None:
    """Ten times what it took, which a busy machine makes longer."""

    def fails() -> int:
        raise UnreachableError("no")

    entry = shared._Entry[int](began=time.monotonic() - took_s)
    entry.renew(fails, 1.0, threading.Event())
    assert every_s <= entry.reading.every_s <= (60 if took_s else 10)


def test_until_a_further_reading_is_there_the_former_one_is_shown_without_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "_WAIT_AGAIN_S", 0.0)
    monkeypatch.setattr(shared, "_SHARE", 0.0)
    gate, found = threading.Event(), shared.Shared()
    assert found.get("runs", lambda: 1, 0.0).value == 1

    def slow() -> int:
        gate.wait(60)
        return 2

    meanwhile = found.get("runs", slow, 0.0)
    assert (meanwhile.value, meanwhile.problem, meanwhile.every_s) == (1, None, 2.0)
    monkeypatch.setattr(shared, "_WAIT_S", 0.0)
    late = found.get("runs", slow, 0.0)
    assert (late.value, "it is waited for" in str(late.problem)) == (1, True)
    gate.set()
    monkeypatch.setattr(shared, "_WAIT_AGAIN_S", 60.0)
    assert found.get("runs", slow, 0.0)[0::2] == (2, None)


def test_the_command_prints_its_address_and_ends_well_by_ctrl_c(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    command = subprocess.Popen(
        [sys.executable, "-m", "trainingrun", "ui"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with command:
        assert command.stdout is not None
        line = command.stdout.readline()
        assert line.startswith("TrainingRuns in namespace team-a: http://127.0.0.1:")
        assert command.stderr is not None
        assert command.stderr.readline() == "One browser can open it, once; Ctrl-C ends it.\n"
        command.send_signal(signal.SIGINT)
        assert (command.wait(60), command.stderr.read()) == (0, "")
    assert call("ui", "--port", str(server.port)) == (
        1,
        "",
        f"port {server.port} of this machine cannot be used (Address already in use); name "
        "another --port\n",
    )
