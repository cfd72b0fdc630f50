"""The bash scripts with which the pods start and end, run by a real bash."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.goldens import a_run
from support.processes import wait_for
from trainingrun.rendering import RenderSettings, attempt

ROOT = Path(__file__).parents[2]
NODE = ROOT / "training_images" / "bin" / "trainingrun-node"
PRESTOP = ROOT / "training_images" / "bin" / "trainingrun-prestop"


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that says that it will answer a notice."""
    with subprocess.Popen(["sleep", "300"]) as process:
        (tmp_path / "watchers").mkdir()
        (tmp_path / "watchers" / str(process.pid)).touch()
        yield process
        process.kill()


def prestop(state: Path, notice_seconds: str = "60") -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        "TRAININGRUN_STATE_DIRECTORY": str(state),
        "TRAININGRUN_NOTICE_SECONDS": notice_seconds,
    }
    return subprocess.Popen(
        [str(PRESTOP)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ends(hook: "subprocess.Popen[str]", within: float = 30) -> str:
    """Its output, once it has ended with success."""
    output, _ = hook.communicate(timeout=within)
    assert hook.returncode == 0, output
    return output


def test_the_hook_ends_at_once_where_nobody_trains(tmp_path: Path) -> None:
    assert ends(prestop(tmp_path)) == ""
    assert list(tmp_path.iterdir()) == []


def test_the_hook_ends_at_once_in_a_pod_that_never_started(tmp_path: Path) -> None:
    assert ends(prestop(tmp_path / "absent")) == ""


def test_the_hook_does_not_wait_for_a_watcher_that_was_killed(
    tmp_path: Path, watcher: "subprocess.Popen[bytes]"
) -> None:
    watcher.kill()
    watcher.wait()
    assert ends(prestop(tmp_path)) == ""
    assert not (tmp_path / "notice").exists()


def test_the_hook_gives_the_deadline_and_ends_when_the_checkpoint_is_saved(
    tmp_path: Path, watcher: "subprocess.Popen[bytes]"
) -> None:
    before = int(time.time())
    hook = prestop(tmp_path, "60")
    wait_for((tmp_path / "notice").exists)
    assert before + 60 <= int((tmp_path / "notice").read_text()) <= time.time() + 60
    assert hook.poll() is None, "it waits for the checkpoint"
    (tmp_path / "saved").touch()
    assert ends(hook) == ""


def test_a_checkpoint_saved_for_an_earlier_notice_does_not_count(
    tmp_path: Path, watcher: "subprocess.Popen[bytes]"
) -> None:
    (tmp_path / "saved").touch()
    hook = prestop(tmp_path)
    wait_for((tmp_path / "notice").exists)
    assert not (tmp_path / "saved").exists()
    (tmp_path / "saved").touch()
    ends(hook)


def test_the_hook_ends_at_the_deadline(tmp_path: Path, watcher: "subprocess.Popen[bytes]") -> None:
    began = time.monotonic()
    assert ends(prestop(tmp_path, "2")) == ""
    assert time.monotonic() - began >= 1  # whole seconds: the deadline is at most 1 s early


def test_the_hook_ends_when_the_watcher_is_done(
    tmp_path: Path, watcher: "subprocess.Popen[bytes]"
) -> None:
    hook = prestop(tmp_path)
    wait_for((tmp_path / "notice").exists)
    (tmp_path / "watchers" / str(watcher.pid)).unlink()
    assert ends(hook) == ""


def test_the_hook_waits_while_one_of_the_pods_workers_is_left(
    tmp_path: Path, watcher: "subprocess.Popen[bytes]"
) -> None:
    (tmp_path / "watchers" / "0999999999").touch()  # of one that was killed; the first by name
    hook = prestop(tmp_path)
    wait_for((tmp_path / "notice").exists)
    assert hook.poll() is None, "the other worker makes the checkpoint"
    (tmp_path / "saved").touch()
    assert ends(hook) == ""


def test_a_users_own_hook_runs_once_the_checkpoint_is_saved(
    tmp_path: Path, watcher: "subprocess.Popen[bytes]"
) -> None:
    """As it is rendered for a podTemplate with a preStop hook."""
    own = {"preStop": {"exec": {"command": ["touch", str(tmp_path / "own hook")]}}}
    containers = [{"name": "ray-worker", "lifecycle": own}]
    run = a_run(workers={"podTemplate": {"spec": {"containers": containers}}})
    cluster = attempt(run, 1, RenderSettings())["spec"]["rayClusterSpec"]
    (container,) = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    with subprocess.Popen(
        container["lifecycle"]["preStop"]["exec"]["command"],
        env={
            "PATH": f"{PRESTOP.parent}{os.pathsep}{os.environ['PATH']}",
            "TRAININGRUN_STATE_DIRECTORY": str(tmp_path),
        },
    ) as hooks:
        wait_for((tmp_path / "notice").exists)
        assert not (tmp_path / "own hook").exists()
        (tmp_path / "saved").touch()
        assert hooks.wait(30) == 0
    assert (tmp_path / "own hook").exists()


def node(*arguments: str, state: Path, **environment: str) -> "subprocess.Popen[str]":
    inherited = {k: v for k, v in os.environ.items() if k != "KUBERAY_GEN_RAY_START_CMD"}
    roots = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    state_folder = {"TRAININGRUN_STATE_DIRECTORY": str(state)}
    return subprocess.Popen(
        [str(NODE), *arguments],
        env={**inherited, "PYTHONPATH": roots, "PATH": path, **state_folder, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    "arguments", [pytest.param((), id="without arguments"), pytest.param(("driver",), id="driver")]
)
def test_a_node_is_head_or_worker(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    process = node(*arguments, state=tmp_path, KUBERAY_GEN_RAY_START_CMD="true")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 64
    assert "usage: trainingrun-node head|worker" in said


def test_a_node_without_kuberays_command_says_so(tmp_path: Path) -> None:
    process = node("worker", state=tmp_path)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 64
    assert "KUBERAY_GEN_RAY_START_CMD is not set" in said


def test_the_ray_process_takes_the_scripts_place_and_its_signals(tmp_path: Path) -> None:
    """A shell in between would swallow SIGTERM, and Ray's notice with it."""
    started = tmp_path / "started"
    program = (
        "import os, pathlib, signal, sys;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42));"
        f"pathlib.Path({str(started)!r}).write_text(f'{{os.getpid()}} {{sys.argv[1]}}');"
        "signal.pause()"
    )
    command = f'{sys.executable} -c "{program}" --resources=\'{{"a b": 1}}\''
    with node("worker", state=tmp_path / "state", KUBERAY_GEN_RAY_START_CMD=command) as process:
        wait_for(lambda: started.exists() and started.read_text())
        pid, _, argument = started.read_text().partition(" ")
        assert int(pid) == process.pid
        assert argument == '--resources={"a b": 1}'
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 42


@pytest.mark.parametrize(
    ("pod", "found"),
    [
        pytest.param({"LD_LIBRARY_PATH": "/a:/b"}, "/a:/b:/cuda:/torch", id="both"),
        pytest.param({"LD_LIBRARY_PATH": ""}, "/cuda:/torch", id="of the base"),
        pytest.param({"LD_LIBRARY_PATH": "/a:/cuda:/torch"}, "/a:/cuda:/torch", id="already there"),
    ],
)
def test_a_pods_search_path_comes_before_the_base_images(
    tmp_path: Path, pod: dict[str, str], found: str
) -> None:
    process = node(
        "worker",
        state=tmp_path,
        KUBERAY_GEN_RAY_START_CMD="printenv LD_LIBRARY_PATH",
        TRAININGRUN_BASE_LD_LIBRARY_PATH="/cuda:/torch",
        TRAININGRUN_BASE_PYTHONPATH="",
        **pod,
    )
    assert process.communicate(timeout=30) == (f"{found}\n", "")


def test_a_restarted_container_forgets_the_former_ones_notice(tmp_path: Path) -> None:
    for name in ("notice", "saved", "suspend", "progress.json"):
        (tmp_path / name).touch()
    for name in ("watchers", "output"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "17").touch()
    process = node("worker", state=tmp_path, KUBERAY_GEN_RAY_START_CMD="true")
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_the_head_serves_progress_beside_ray(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = f"touch {tmp_path}/ray-started; sleep 300"

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    process = node(
        "head",
        state=tmp_path / "state",
        KUBERAY_GEN_RAY_START_CMD=f"bash -c '{command}'",
        TRAININGRUN_PROGRESS_PORT=str(port),
    )
    try:
        wait_for((tmp_path / "ray-started").exists)
        wait_for(healthy, 60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the session that this test started
        process.communicate()
