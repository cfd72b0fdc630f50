"""The head pod's endpoint: who gets what, before, while and after a driver runs."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ports import free_port
from trainingrun_protocol.contract import SUSPEND_FILE
from trainingrun_protocol.progress import (
    LastCheckpoint,
    Progress,
    RankRow,
    RunState,
    Seconds,
    SlowestRank,
)
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.progress.server import ProgressServer

TOKEN = "a-token"
LABELS = {"run": "digits", "namespace": 'team "a"', "attempt": "2"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ProgressServer]:
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "first").write_text(TOKEN)
    server = ProgressServer(0, tmp_path, tokens, LABELS)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, path: str, token: str | None = TOKEN, method: str = "GET") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers=headers, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_before_the_driver_wrote_anything_it_says_so(server: ProgressServer) -> None:
    status, text = ask(server.server_port, "/progress")
    assert status == 503
    assert "has not started yet" in text


def test_the_document_is_handed_out_as_written(server: ProgressServer) -> None:
    progress = Progress(attempt=2, state=RunState.TRAINING, step=10, total_steps=20)
    progress_document.write(server.state / "progress.json", progress)
    status, text = ask(server.server_port, "/progress")
    assert status == 200
    assert Progress.model_validate_json(text) == progress


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param("wrong", id="wrong"),
        pytest.param("a-token-and-more", id="longer"),
        pytest.param("ä", id="not ASCII"),
    ],
)
def test_without_the_token_nobody_reads_or_suspends(
    server: ProgressServer, token: str | None
) -> None:
    progress_document.write(server.state / "progress.json", Progress(attempt=2))
    for path, method in (("/progress", "GET"), ("/suspend", "POST")):
        status, text = ask(server.server_port, path, token, method)
        assert status == 401
        assert TOKEN not in text
    assert not (server.state / "suspend").exists()


def test_a_token_that_comes_while_the_server_runs_is_taken_beside_the_first(
    server: ProgressServer,
) -> None:
    """The operator's key was lost: the first token is one that no operator has any more."""
    assert ask(server.server_port, "/progress", "another")[0] == 401
    # As the kubelet writes a mounted Secret: files in a hidden folder, and links to them.
    hidden = server.tokens / "..2026"
    hidden.mkdir()
    (hidden / "renewed").write_text("another\n")
    (server.tokens / "renewed").symlink_to(hidden / "renewed")
    for token in ("another", TOKEN):
        assert ask(server.server_port, "/progress", token)[0] == 503
    (server.tokens / "renewed").write_text("")
    assert ask(server.server_port, "/progress", "")[0] == 401


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_without_a_token_of_its_own_the_server_lets_nobody_in(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    server = ProgressServer(0, tmp_path, tmp_path / folder, {})
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    assert ask(server.server_port, "/progress", token="")[0] == 401
    thread.join()
    server.server_close()


def test_suspend_leaves_the_file_that_the_driver_reads(server: ProgressServer) -> None:
    assert ask(server.server_port, "/suspend", method="POST")[0] == 202
    assert (server.state / SUSPEND_FILE).exists()
    assert ask(server.server_port, "/suspend", method="POST")[0] == 202


def test_health_needs_no_token(server: ProgressServer) -> None:
    assert ask(server.server_port, "/healthz", token=None) == (200, "ok\n")


def test_other_paths_are_not_found(server: ProgressServer) -> None:
    assert ask(server.server_port, "/../etc/passwd")[0] == 404
    assert ask(server.server_port, "/progress", method="POST")[0] == 404


def test_metrics_are_prometheus_text(server: ProgressServer) -> None:
    assert ask(server.server_port, "/metrics", token=None) == (200, "")
    progress = Progress(
        attempt=2,
        fencing_token=3,
        step=10,
        data_wait_share=0.25,
        slowest_rank=SlowestRank(rank=1, own_seconds=0.5, median_seconds=0.25),
        ranks=[RankRow(rank=0, used_bytes=1000), RankRow(rank=7, accelerator_share=0.5)],
        metrics={"loss": 0.25, "note": "text", "gone": "NaN", "good": True},
        seconds=Seconds(productive=12.5, lost_work=2),
        checkpoint=LastCheckpoint(uri="s3://x", step=8, time=100),
    )
    progress_document.write(server.state / "progress.json", progress)
    status, text = ask(server.server_port, "/metrics", token=None)
    assert status == 200
    of_rank = r'attempt="2",namespace="team \"a\"",rank="{}",run="digits"'
    labels = r'attempt="2",{}namespace="team \"a\"",run="digits"'
    for line in (
        f"trainingrun_step{{{labels.format('')}}} 10.0",
        f"trainingrun_data_wait_ratio{{{labels.format('')}}} 0.25",
        f"trainingrun_slowest_rank_seconds{{{labels.format('')}}} 0.5",
        f"trainingrun_other_ranks_seconds{{{labels.format('')}}} 0.25",
        f"trainingrun_fencing_token{{{labels.format('')}}} 3.0",
        f"trainingrun_checkpoint_step{{{labels.format('')}}} 8.0",
        "trainingrun_seconds_total{" + labels.format('cause="lostWork",') + "} 2.0",
        "trainingrun_seconds_total{" + labels.format('cause="steps",') + "} 14.5",
        f"trainingrun_rank_memory_bytes{{{of_rank.format(0)}}} 1000.0",
        f"trainingrun_rank_accelerator_ratio{{{of_rank.format(7)}}} 0.5",
        "trainingrun_metric{" + labels.format('name="loss",') + "} 0.25",
    ):
        assert line in text.splitlines()
    assert "note" not in text
    assert "gone" not in text
    assert "total_steps" not in text, "what is not known is left out, not 0"
    sample = re.compile(r'[a-z_]+\{([a-z]+="(\\.|[^"\\])*",?)*\} [-+0-9.e]+')
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line)


def test_the_process_starts_without_ray_and_ends_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    roots = [str(Path(__file__).parents[2] / root) for root in ("operator", "training_images")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(roots),
        "TRAININGRUN_PROGRESS_PORT": str(port),
        "TRAININGRUN_STATE_DIRECTORY": str(tmp_path),
        "TRAININGRUN_TOKEN_FOLDER": str(tmp_path / "tokens"),
        "TRAININGRUN_CONTRACT": "not JSON",
    }
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "first").write_text(TOKEN)
    command = [sys.executable, "-X", "importtime", "-m", "trainingrun_runtime.progress.server"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        _wait_until_healthy(port, process)
        assert ask(port, "/progress")[0] == 503
        process.send_signal(signal.SIGTERM)
        _, imports = process.communicate(timeout=20)
    assert process.returncode == 0
    names = {line.rpartition("|")[2].strip() for line in imports.splitlines()}
    assert not names & {"ray", "torch", "numpy", "pyarrow", "obstore"}


def _wait_until_healthy(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if ask(port, "/healthz")[0] == 200:
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail("the progress server did not answer")
