"""How the command line begins, and what a first Ctrl-C does to it."""

import os
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from support.cli_server import running_server

INTERRUPTS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("module", ["trainingrun.cli.main", "typer", "trainingrun.cli.log_command"])
def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS)
    roots = [str(tmp_path), *(str(Path(path)) for path in sys.path if "operator" in path)]
    done = subprocess.run(
        [sys.executable, "-m", "trainingrun", "version", "--client"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots), "INTERRUPTED_AT": module},
        capture_output=True,
        text=True,
        check=False,
        # As at a terminal: tests that run in the background inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == -signal.SIGINT


def test_the_command_that_is_installed_begins_where_python_m_does() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    commands = project["project"]["scripts"]
    assert set(commands.values()) == {"trainingrun.__main__:main"}


def test_the_own_version_is_printed_before_a_cluster_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    with running_server(tmp_path, monkeypatch) as server:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        server.answers[f"{crds}/trainingruns.trainingrun.dev"] = [(200, answers)]
        with subprocess.Popen(
            [sys.executable, "-m", "trainingrun", "version"],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("trainingrun  ")
            answers.set()
            process.communicate()


@pytest.mark.parametrize(
    "arguments",
    [["validate", "manifests/demo.yaml"], ["list", "--local", "-o", "json"], ["--help"]],
    ids=str,
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_below_the_output_is_one_sentence(
    arguments: list[str], unbuffered: str
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trainingrun", *arguments],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "the output cannot be written (No space left on device); write it to a disk with space\n",
    )
