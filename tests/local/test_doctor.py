"""`trainingrun doctor` with a real S3 server."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli_server import Server, call, running_server
from support.s3 import S3Server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


@pytest.mark.usefixtures("server")
def test_the_bucket_is_tried_and_left_as_it_was(s3: S3Server, tmp_path: Path) -> None:
    folder = f"s3://runs/{tmp_path.name}"
    _, output, _ = call("doctor", "--storage", folder, "--endpoint", s3.url)
    (line,) = (line for line in output.splitlines() if "bucket: " in line)
    assert line.startswith(f"ok       bucket: {folder} can be written")
    assert "honors conditional writes" in line
    assert not list(s3.file(tmp_path.name).glob("**/*probe*"))
    code, output, _ = call("doctor", "--storage", "s3://none/here", "--endpoint", s3.url)
    assert code == 1
    assert "wrong    bucket: " in output
    code, output, _ = call("doctor", "--storage", folder, "--endpoint", "127.0.0.1:9000")
    assert code == 1
    assert "wrong    bucket: the endpoint is '127.0.0.1:9000', which is no address" in output
    code, output, _ = call("doctor", "--storage", "here")
    assert (code, "which is no bucket" in output) == (1, True)


def test_without_a_cluster_the_rest_is_checked_all_the_same(
    server: Server, s3: S3Server, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "kubeconfig").write_text(
            (tmp_path / "kubeconfig")
            .read_text()
            .replace(str(server.port), str(taken.getsockname()[1]))
        )
    folder = f"s3://runs/{tmp_path.name}"
    code, output, _ = call("doctor", "--storage", folder, "--endpoint", s3.url)
    assert code == 1
    first, second = output.splitlines()
    assert first.startswith("wrong    cluster: the cluster does not answer: ")
    assert second.startswith("ok       bucket: ")
    code, output, errors = call("version")
    assert (code, output.split()[0]) == (0, "trainingrun")
    assert errors.startswith("the cluster does not answer: ")
    assert call("version", "--client")[2] == ""
