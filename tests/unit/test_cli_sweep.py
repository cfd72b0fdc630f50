"""`trainingrun sweep`: the trials, from a cluster's status or from a local run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.builders import a_run
from support.cli_server import RUNS, Server, call, running_server
from trainingrun.local import folder
from trainingrun_protocol.progress import Progress, SweepTable, TrialRow, TrialState

CONFIG = {"lr": 0.0178343, "momentum": 0.9}
TRIALS = [
    {
        "number": 1,
        "state": "Succeeded",
        "config": CONFIG,
        "step": 440,
        "value": 0.96111111,
        "checkpointUri": "s3://runs/sweep-1/trials/0001/checkpoints/a",
    },
    {"number": 2, "state": "Stopped", "config": {"lr": 0.0021}, "step": 88, "value": 0.5},
    {"number": 3, "state": "Failed", "config": {"lr": 9.0}, "message": "rank 0 raised \x1b[31mE"},
    {"number": 4, "state": "Pending", "config": {"lr": 0.1}},
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def a_sweep(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "tuned", "namespace": "team-a"},
        "spec": {"sweep": {"metric": "accuracy"}},
        "status": {"phase": "Running", **status},
    }


def test_every_trial_has_a_line_and_the_best_one_is_marked(server: Server) -> None:
    run = a_sweep(sweep={"trials": TRIALS, "best": 1, "succeeded": 1})
    server.answers[f"{RUNS}/tuned"] = [(200, run)]
    code, output, _ = call("sweep", "tuned")
    lines = [line.rstrip() for line in output.splitlines()]
    heads, first, second, third, fourth, failed, config, checkpoint = lines
    assert code == 0
    assert heads.split() == ["TRIAL", "STATE", "STEP", "accuracy", "lr", "momentum", "BEST"]
    assert first.split() == ["1", "Succeeded", "440", "0.961111", "0.0178343", "0.9", "*"]
    assert second.split() == ["2", "Stopped", "88", "0.5", "0.0021"]
    assert third.split() == ["3", "Failed", "0", "9"]
    assert fourth.split() == ["4", "Pending", "0", "0.1"]
    assert failed.startswith("trial 3: rank 0 raised")
    assert "\x1b" not in output
    assert config == 'best config  {"lr": 0.0178343, "momentum": 0.9}'
    assert checkpoint.endswith("trials/0001/checkpoints/a")


def test_get_counts_the_trials(server: Server) -> None:
    run = a_sweep(sweep={"succeeded": 2, "running": 1, "pending": 0, "best": 1, "trials": TRIALS})
    server.answers[f"{RUNS}/tuned"] = [(200, run)]
    output = call("get", "tuned")[1]
    assert "trials      2 succeeded, 1 running" in output
    assert "best trial  1" in output


def test_a_run_without_a_sweep_is_named_as_such(server: Server) -> None:
    server.answers[f"{RUNS}/tuned"] = [(200, {**a_sweep(), "spec": {}})]
    code, _, errors = call("sweep", "tuned")
    assert code == 1
    assert errors.startswith("TrainingRun tuned has no spec.sweep")


def test_a_sweep_that_has_not_begun_says_so(server: Server) -> None:
    server.answers[f"{RUNS}/tuned"] = [(200, a_sweep())]
    assert call("sweep", "tuned") == (0, "", "No trial of tuned has begun.\n")


SPACE = [{"name": "lr", "values": [0.1, 0.2]}]
SWEEP = {"search": "grid", "metric": "accuracy", "mode": "max", "space": SPACE}


def test_the_trials_of_a_local_run_are_shown(tmp_path: Path) -> None:
    row = TrialRow(number=1, state=TrialState.RUNNING, config=CONFIG, step=7, value=0.5)
    table = SweepTable(metric="accuracy", best=1, trials=[row])
    run = a_run(name="tuned", sweep=SWEEP)
    folder.Folder.prepare(run, tmp_path, False).record.show(Progress(attempt=1, sweep=table))
    code, output, _ = call("sweep", "tuned", "--local", "--folder", str(tmp_path))
    assert code == 0
    assert output.splitlines()[1].split() == ["1", "Running", "7", "0.5", "0.0178343", "0.9", "*"]


def test_a_local_run_without_trials_is_named(tmp_path: Path) -> None:
    folder.Folder.prepare(a_run(name="tuned"), tmp_path, False)
    code, _, errors = call("sweep", "tuned", "--local", "--folder", str(tmp_path))
    assert code == 1
    assert errors.startswith("TrainingRun tuned has no spec.sweep")
