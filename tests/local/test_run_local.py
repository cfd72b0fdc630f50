"""The same YAML on one machine, with real Ray: lost nodes, errors and Ctrl-C.

Each run is the command line in a process of its own, as a user starts it.
"""

import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import installed_wheel
from support.cli_server import call
from support.packages import wheel, zipped
from trainingrun.local.folder import own_run

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600
"""Generous: a crowded CI machine starts processes slowly."""


def a_run(function: str, workers: int = 2, per_pod: int = 1, **config: object) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "trainingrun.dev/v1alpha1",
            "kind": "TrainingRun",
            "metadata": {"name": "tiny"},
            "spec": {
                "training": {"function": function, "config": config},
                "workers": {"count": workers, "perPod": per_pod},
                "storage": {"uri": "s3://nobody/looks/here"},
                "failures": {"maxRestarts": 1, "backoff": {"initialSeconds": 0}},
            },
        }
    )


@dataclass
class Command:
    """One `trainingrun run --local`, in a folder of its own."""

    folder: Path
    process: "subprocess.Popen[str]"

    @property
    def output_file(self) -> Path:
        return self.folder / "output.txt"

    @property
    def output(self) -> str:
        return self.output_file.read_text()

    def result(self) -> dict[str, str]:
        """The summary's rows."""
        rows = (line.split("  ", 1) for line in self.output.splitlines() if "  " in line)
        return {name.strip(): value.strip() for name, value in rows}

    def wait(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    def wait_for(self, word: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while word not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def start(
    folder: Path, manifest: str, *options: str, file: str = "run.yaml", installed: str = ""
) -> Command:
    """Run a manifest by the command of this checkout, or by one that is installed."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(manifest)
    code = "from trainingrun.cli.main import app; app()"
    paths = [ROOT / "operator", ROOT / "training_images", folder]
    environment = {**os.environ, "TEST_MARK": str(folder)}
    if installed:
        environment.pop("PYTHONPATH", None)
    else:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    command = [installed] if installed else [sys.executable, "-u", "-c", code]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*command, "run", file, "--local", *options],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            # As at a terminal: tests that run in the background inherit that Ctrl-C is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    return Command(folder, process)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for one test's commands; no process of theirs may outlive it."""
    yield tmp_path
    mark = f"TEST_MARK={tmp_path}".encode()
    left = [
        entry.name
        for entry in Path("/proc").glob("[0-9]*")
        if any(variable.startswith(mark) for variable in _environ(entry).split(b"\0"))
    ]
    assert left == []


def losses_in(folder: Path) -> list[dict[str, Any]]:
    """The documents of the run's losses, as its drivers have written them to the bucket."""
    found = sorted((folder / "trainingrun-local").rglob("history/*.json"))
    return [json.loads(document.read_text()) for document in found]


def test_a_run_that_loses_a_node_goes_on_where_it_was(folder: Path) -> None:
    """By the wheel with its extras `cli` and `runtime`, without the checkout."""
    wheel = installed_wheel.built(folder)
    binaries = installed_wheel.installed(wheel, folder / "venv", "cli", "runtime")
    manifest = a_run("trainingrun_runtime.examples.digits:train", steps=60, step_seconds=0.05)
    trainingrun = str(binaries / "trainingrun")
    command = start(folder, manifest, "--preempt-after", "1s", installed=trainingrun)
    assert command.wait() == 0, command.output
    listed = installed_wheel.call(folder, trainingrun, "list", "--local")
    assert re.search(r"tiny +Succeeded", listed), listed
    assert "node local-2 preempted at step" in command.output
    assert command.result()["interruptions"] == "1"
    assert int(command.result()["steps lost"]) <= 1
    (loss,) = losses_in(folder)
    assert (loss["reason"], loss["node"], loss["attempt"]) == ("Preempted", "local-2", 1)
    assert loss["lostSteps"] == int(command.result()["steps lost"])
    assert loss["restoredStep"] == loss["step"] - loss["lostSteps"]
    assert loss["recoverySeconds"] > 0
    assert loss["action"].startswith(f"resumed from step {loss['restoredStep']}")
    code, output, errors = call("logs", "tiny", "--folder", str(folder / "trainingrun-local/tiny"))
    assert (code, errors) == (0, "")
    # Of both worker groups, of which one has lost its node.
    assert output.count("[rank 0] Setting up process group for: env://") == 2
    assert "[driver] " in output
    (page,) = (folder / "trainingrun-local" / "tiny").glob("tiny-*/report.html")
    words = " ".join(re.sub("<[^>]*>", " ", page.read_text().partition("<body>")[2]).split())
    assert "Function trainingrun_runtime.examples.digits:train Workers 2 Each worker 1 CPU" in words
    versions = f"Python {platform.python_version()}, PyTorch {metadata.version('torch')}, Ray "
    assert f"Versions {versions}{metadata.version('ray')}, trainingrun " in words
    assert "Config step_seconds 0.05 steps 60" in words


@pytest.mark.slow
def test_a_run_that_loses_a_node_ends_with_the_same_weights(folder: Path) -> None:
    manifest = a_run("trainingrun_runtime.examples.digits:train", steps=60, step_seconds=0.1)
    undisturbed = start(folder / "undisturbed", manifest)
    assert undisturbed.wait() == 0, undisturbed.output
    preempted = start(folder / "preempted", manifest, "--preempt-after", "2s")
    assert preempted.wait() == 0, preempted.output
    assert undisturbed.result()["interruptions"] == "0"
    shown = own_run("tiny", folder / "undisturbed/trainingrun-local/tiny")[1]["status"]["progress"][
        "ranks"
    ]
    assert [row["rank"] for row in shown] == [0, 1]
    assert {row["node"] for row in shown} == {"local-1", "local-2"}
    assert preempted.result()["interruptions"] == "1"
    assert preempted.result()["weights_sha256"] == undisturbed.result()["weights_sha256"]
    (page,) = (folder / "preempted" / "trainingrun-local" / "tiny").glob("tiny-*/report.html")
    written = page.read_text()
    assert '<span class="state good">Succeeded</span>' in written
    assert ">Preempted</span>" in written
    assert "<h3>loss</h3>" in written


@pytest.mark.slow
def test_a_function_that_raises_is_retried_then_fails_with_its_error_and_the_log(
    folder: Path,
) -> None:
    (folder / "broken.py").write_text(
        "def train(config):\n    print('reading')\n    raise ValueError('no such file')\n"
    )
    command = start(folder, a_run("broken:train", workers=1))
    assert command.wait() == 1
    assert "ValueError: no such file (broken.py:3); attempt 2 follows in 0 s" in command.output
    *_, sentence, output, log = command.output.splitlines()
    assert output.startswith("output of the workers: /")
    files = Path("/").glob(output.removeprefix("output of the workers: /") + ".out")
    assert [line for file in files for line in file.read_text().splitlines()].count("reading") == 2
    assert sentence.startswith("tiny failed: ")
    code, output, errors = call("logs", "tiny", "--folder", str(folder / "trainingrun-local/tiny"))
    assert (code, errors) == (0, "")
    first, *lines = output.partition("==> all ranks and the driver <==\n")[0].splitlines()
    assert first.startswith("==> rank 0 failed first: rank 0 raised ValueError: no such file (br")
    assert "[rank 0] reading" in lines
    assert any("ValueError: no such file" in line for line in lines)
    assert "ValueError: no such file (broken.py:3)" in sentence
    assert "the same error ended two attempts in a row before their first step" in sentence
    assert "no such file" in Path(log.removeprefix("log: ")).read_text()
    (page,) = (folder / "trainingrun-local" / "tiny").glob("tiny-*/report.html")
    written = page.read_text()
    assert '<span class="state bad">Failed</span>' in written
    assert "ValueError: no such file (broken.py:3)" in written
    for number in (1, 2):
        assert f'data-head="Attempt">{number}</td><td data-head="Outcome">' in written
    losses = losses_in(folder)
    assert [(loss["attempt"], loss["reason"]) for loss in losses] == [
        (1, "ApplicationError"),
        (2, "ApplicationError"),
    ]
    assert "ValueError: no such file (broken.py:3)" in losses[0]["message"]


@pytest.mark.slow
def test_a_function_beside_the_runs_file_is_trained_from_another_folder(folder: Path) -> None:
    manifest = a_run("beside:train", workers=1)
    (folder / "job").mkdir()
    (folder / "job/beside.py").write_text("def train(config):\n    print('found it')\n")
    command = start(folder, manifest, file="job/run.yaml")
    assert command.wait() == 0, command.output
    where = f"training.function beside:train is that of {folder / 'job/beside.py'}"
    assert command.output.splitlines()[0] == where
    printed = call("logs", "tiny", "--folder", str(folder / "trainingrun-local/tiny"))[1]
    assert "[rank 0] found it" in printed


@pytest.mark.slow
def test_of_a_function_that_reports_nothing_the_summary_claims_no_number_of_lost_steps(
    folder: Path,
) -> None:
    (folder / "silent.py").write_text("import time\ndef train(config):\n    time.sleep(75)\n")
    command = start(folder, a_run("silent:train"), "--preempt-after", "2s")
    assert command.wait() == 0, command.output
    assert "the training function has reported nothing for 30 s" in command.output
    assert "node local-2 preempted; training again after" in command.output
    assert "it begins again, since no checkpoint was reported" in command.output
    assert command.result()["interruptions"] == "1"
    assert command.result()["steps lost"].startswith("not known")


@pytest.mark.slow
def test_what_a_script_prints_after_its_training_is_shown_and_its_log_is_named(
    folder: Path,
) -> None:
    (folder / "plain.py").write_text(
        "import ray.train\n"
        "from ray.train.torch import TorchTrainer\n"
        "def train():\n"
        "    ray.train.report({'loss': 0.25})\n"
        "print('before')\n"
        "result = TorchTrainer(train).fit()\n"
        "print(f\"Final  loss: {result.metrics['loss']}\", end='')\n"
    )
    run = yaml.safe_load(a_run("", workers=1))
    run["spec"]["training"] = {"script": {"path": str(folder / "plain.py")}}
    command = start(folder, yaml.safe_dump(run))
    assert command.wait() == 0, command.output
    lines = command.output.splitlines()
    assert "Final  loss: 0.25" in lines
    assert "before" not in lines
    assert "Final  loss: 0.25" in Path(lines[-1].removeprefix("log: ")).read_text()


@pytest.mark.slow
def test_code_and_requirements_of_the_file_are_used_as_on_a_cluster(folder: Path) -> None:
    train = (
        "import tinything, torch\n"
        "from pathlib import Path\n"
        "from trainingrun_runtime import Session\n"
        "def main():\n"
        "    session = Session(model=torch.nn.Linear(1, 1))\n"
        "    list(session.steps(3))\n"
        "    session.finish(found=Path('word.txt').read_text() + tinything.WORD)\n"
    )
    code = zipped(folder / "code.zip", {"train.py": train, "word.txt": "of the zip, "})
    wheel(folder / "wheels", "tinything", "1.2", "WORD = 'of the wheel'")
    manifest = yaml.safe_load(a_run("train:main", workers=1))
    manifest["spec"]["training"] |= {
        "code": {"uri": code.as_uri()},
        "requirements": ["tinything"],
        "env": [
            {"name": "PIP_NO_INDEX", "value": "1"},
            {"name": "PIP_FIND_LINKS", "value": str(folder / "wheels")},
        ],
    }
    command = start(folder, yaml.safe_dump(manifest))
    assert command.wait() == 0, command.output
    assert command.result()["found"] == "of the zip, of the wheel"


@pytest.mark.slow
def test_a_process_that_can_write_no_file_any_more_trains_to_the_end(folder: Path) -> None:
    manifest = a_run("trainingrun_runtime.examples.linear:train", 1, steps=100, step_seconds=0.1)
    command = start(folder, manifest)
    command.wait_for("Running · step")
    # As on a full disk, for what it shows and for its output; the training's own can be written.
    resource.prlimit(command.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    assert command.wait() == 0, command.output
    (result,) = (folder / "trainingrun-local/tiny").glob("tiny-*/result/*.json")
    assert json.loads(result.read_text())["checkpointUri"]


@pytest.mark.slow
def test_ctrl_c_keeps_a_checkpoint_and_resume_goes_on_from_it(folder: Path) -> None:
    function = "trainingrun_runtime.examples.linear:train"
    manifest = a_run(function, workers=2, per_pod=2, steps=200, step_seconds=0.1)
    stopped = start(folder, manifest)
    stopped.wait_for("Running · step")
    stopped.process.send_signal(signal.SIGINT)
    assert stopped.wait() == 130
    assert "--resume continues" in stopped.output
    nodes = (folder / "trainingrun-local").glob("**/local-*.log")
    assert [node.name for node in nodes] == ["local-1.log"], "one node holds both workers"
    place = ("tiny", "--folder", str(folder / "trainingrun-local/tiny"))
    code, printed, _ = call("logs", *place, "--follow")
    assert code == 0
    assert "[ranks 0-1] the training function ends: suspended after step" in printed
    assert "Traceback" not in printed
    assert "PreemptionWatcher" not in printed
    code, _, errors = call("watch", *place)
    assert (code, "tiny is suspended: attempt 1 was stopped" in errors) == (1, True)

    resumed = start(folder, manifest, "--resume")
    assert resumed.wait() == 0, resumed.output
    assert "attempt 2" in resumed.output
    assert own_run("tiny", folder / "trainingrun-local/tiny")[1]["status"]["attempt"] == 2
    # Of the checkpoints themselves the newest two are kept.
    documents = sorted((folder / "trainingrun-local/tiny").glob("tiny-*/progress/*.json"))
    first, second = (json.loads(document.read_text()) for document in documents)
    assert 0 < first["checkpoint"]["step"] < 200
    assert second["resumedFromStep"] == first["checkpoint"]["step"]
    assert second["step"] == 200


@pytest.mark.slow
def test_a_run_begins_from_another_run_in_the_local_folder(folder: Path) -> None:
    function = "trainingrun_runtime.examples.linear:train"
    whole = start(folder / "whole", a_run(function, workers=1, steps=40))
    assert whole.wait() == 0, whole.output
    first = yaml.safe_load(a_run(function, workers=1, steps=20))
    first["metadata"]["name"] = "first"
    half = start(folder, yaml.safe_dump(first))
    assert half.wait() == 0, half.output
    checkpoint = half.result()["checkpoint"]

    manifest = yaml.safe_load(a_run(function, workers=1, steps=40))
    manifest["spec"]["storage"]["restoreFrom"] = {"run": "first"}
    rest = start(folder, yaml.safe_dump(manifest))
    assert rest.wait() == 0, rest.output
    assert f"restored step 20 from {checkpoint}" in rest.output
    assert rest.result()["weights_sha256"] == whole.result()["weights_sha256"]


DIES_WITH_A_LINE = """
import os, signal
from pathlib import Path

import ray.train, torch
from trainingrun_runtime import Session


def train(config):
    session = Session(seed=1, model=torch.nn.Linear(1, 1))
    for step in session.steps(40):
        mark = Path(os.environ["TEST_MARK"]) / f"died-{step}"
        if ray.train.get_context().get_world_rank() == 1 and step in (5, 9) and not mark.exists():
            mark.touch()
            print(f"shard {step} is corrupt", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_rule_counts_what_a_rank_has_printed_before_it_died(folder: Path):
    (folder / "corrupt.py").write_text(DIES_WITH_A_LINE)
    manifest = yaml.safe_load(a_run("corrupt:train"))
    manifest["spec"]["failures"]["rules"] = [
        {"when": {"logPattern": "shard \\d+ is missing"}, "then": "Fail"},
        {
            "when": {"logPattern": "shard \\d+ is corrupt", "classes": ["WorkerLost"]},
            "then": "Restart",
            "maxRestarts": 1,
        },
    ]
    command = start(folder, yaml.safe_dump(manifest))
    assert command.wait() == 1, command.output
    assert "maxRestarts of rule 2 of failures.rules is 1, and all of them are used up" in (
        " ".join(command.output.split())
    )
    assert (folder / "died-5").exists(), "after which it went on"
    assert (folder / "died-9").exists()
