"""The `ray` that KubeRay's init container finds: quick about the head, Ray's own for all else."""

import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

RAY = Path(__file__).parents[2] / "training_images" / "path" / "ray"


@pytest.fixture
def real_ray(tmp_path: Path) -> Path:
    """A folder with a `ray` that says how it was called."""
    script = tmp_path / "ray"
    script.write_text('#!/bin/sh\necho "real: $*"\n')
    script.chmod(0o755)
    return tmp_path


def ray(*arguments: str, path: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PATH": f"{RAY.parent}:{path}:/usr/bin:/bin"}
    return subprocess.run(
        ["bash", "-c", 'ray "$@"', "ray", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_head_that_listens_is_healthy(real_ray: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert ray("health-check", "--address", address, path=real_ray).returncode == 0


def test_a_head_that_is_late_is_waited_for(real_ray: Path) -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))  # refuses connections until it listens
        address = f"127.0.0.1:{head.getsockname()[1]}"
        late = threading.Timer(1.0, head.listen)
        late.start()
        assert ray("health-check", "--address", address, path=real_ray).returncode == 0
        late.join()


def test_a_head_that_does_not_come_is_not_healthy(real_ray: Path) -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert ray("health-check", "--address", address, path=real_ray).returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("start", "--head"), id="start"),
        pytest.param(("health-check",), id="health-check"),
        pytest.param(("--version",), id="version"),
    ],
)
def test_everything_else_is_rays_own(real_ray: Path, arguments: tuple[str, ...]) -> None:
    assert ray(*arguments, path=real_ray).stdout == f"real: {' '.join(arguments)}\n"


def test_without_ray_it_says_so_instead_of_calling_itself(tmp_path: Path) -> None:
    answer = ray("--version", path=tmp_path)
    assert (answer.returncode, answer.stderr) == (127, "there is no Ray on PATH\n")
