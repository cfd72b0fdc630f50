"""`Client(local=True)` on a real Ray, as a notebook calls it: functions of cells, in `__main__`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import notebook_cells

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebooks" / "laptop.ipynb"
PAGE = ROOT / "docs" / "python.md"

TRAIN = """
def train(config):
    import time
    import torch
    from trainingrun_runtime import Session

    model = torch.nn.Linear(1, 1)
    session = Session(seed=0, model=model)
    for step in session.steps(config["steps"]):
        time.sleep(config["pause"])
        session.report(loss=1 / (step + 1))
        if config.get("raises"):
            raise ValueError("no such file")
"""


def run_notebook(folder: Path, *files: Path | str) -> subprocess.CompletedProcess[str]:
    """Run notebooks and cells in one process."""
    paths = []
    for number, file in enumerate(files):
        if isinstance(file, str):
            file = folder / f"cell_{number}.py"
            file.write_text(str(files[number]))
        paths.append(str(file))
    done = subprocess.run(
        [sys.executable, "-m", "support.notebook_cells", *paths],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_function_of_a_notebook_is_trained_and_its_run_shown(tmp_path: Path) -> None:
    before_it_is_deleted = """
import json
found = {
    "phase": run.phase,
    "step": run.progress().step,
    "less": bool(run.metrics["loss"].iloc[-1] < run.metrics["loss"].iloc[0]),
    "rows": len(run.metrics),
    "checkpoints": [each.step for each in run.checkpoints],
    "there": run.checkpoints[-1].uri.startswith(run.folder),
    "lines": [str(line) for line in run.logs(rank=1) if "line is found" in line.text],
    "losses": run.events(),
    "names": [each.name for each in client.list()] == [run.name] == [client.get(run.name).name],
    "why": run.why(),
}
print("FOUND", json.dumps(found))
"""
    notebook = json.loads(NOTEBOOK.read_text())
    *cells, last = notebook["cells"]
    assert "run.delete()" in "".join(last["source"])
    assert not any(cell.get("outputs") for cell in cells)
    (tmp_path / "all_but_last.ipynb").write_text(json.dumps({**notebook, "cells": cells}))
    done = run_notebook(
        tmp_path, tmp_path / "all_but_last.ipynb", before_it_is_deleted, "run.delete()"
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    assert found == {
        "phase": "Succeeded",
        "step": 100,
        "less": True,
        "rows": 100,
        "checkpoints": found["checkpoints"],
        "there": True,
        "lines": ["[rank 1] the line is found"],
        "losses": [],
        "names": True,
        "why": [],
    }
    assert found["checkpoints"][-1] == 100
    assert "Succeeded · step 100/100" in done.stdout
    assert '<path d="M' in done.stdout  # the curve
    assert "<iframe sandbox srcdoc=" in done.stdout
    assert "[rank 0] the line is found" in done.stdout
    assert list((tmp_path / "trainingrun-local").glob("train-*/train-*")) == []


@pytest.mark.slow
def test_a_local_run_is_suspended_resumed_and_killed_and_says_so(tmp_path: Path) -> None:
    cells = """
import os, signal, time
from trainingrun import Client, RunError

def refused(call):
    try:
        call()
    except RunError as error:
        return str(error)
    raise AssertionError("it is not refused")

client = Client(local=True)
run = client.submit(train, config={"steps": 200, "pause": 0.05}, workers=1, name="mine")
print("TIMEOUT", refused(lambda: run.wait(timeout=0.5)))
while run.progress().step < 3:
    time.sleep(0.1)
print("TAKEN", refused(client.get("mine").resume))
run.resume()  # it trains, and goes on
client.get("mine").suspend()  # as another process does
print("SUSPENDED", refused(run.wait))
stopped = run.checkpoints[-1].step
later = client.submit(train, config={"steps": 1, "pause": 0}, workers=1, name="mine")
later.wait()
run.resume()
while run.progress().step <= stopped:
    time.sleep(0.1)
print("RESUMED", run.status.attempt, stopped > 0, later.status.attempt)
os.kill(run._process._process.pid, signal.SIGKILL)
print("KILLED", refused(run.wait))
print("WHY_KILLED", run.why())

failing = {"steps": 400, "pause": 0, "raises": True}
run = client.submit(train, config=failing, workers=1, failures={"maxRestarts": 0})
lines = [line.text for line in run.logs(rank=0, follow=True)]
print("FAILED", refused(run.wait))
print("LINES", any("no such file" in line for line in lines))
print("WHY", run.why()[0])
"""
    of_page, *_, on_this_machine = notebook_cells.code_cells(PAGE)
    assert "Client(local=True)" in on_this_machine
    whole = "print('PAGE', run.status.progress.step)"
    done = run_notebook(tmp_path, TRAIN, cells, of_page, on_this_machine, whole)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["TIMEOUT"].startswith("mine has not ended within 0.5 s, and goes on: Starting")
    assert said["TAKEN"].startswith("mine was not begun by this process")
    assert said["SUSPENDED"].startswith("mine is suspended: attempt 1 was stopped; `trainingrun")
    assert said["RESUMED"] == "2 True 1", "and not the later run of the same name"
    assert said["KILLED"].startswith("mine is suspended: no process trains it")
    assert "no process trains it" in said["WHY_KILLED"]
    assert " failed: LocalRun: " in said["FAILED"]
    assert "ValueError: no such file" in said["FAILED"]
    assert said["LINES"] == "True"
    assert "ValueError: no such file" in said["WHY"]
    assert said["PAGE"] == "100"
