"""`trainingrun submit` from this machine: pods train the folder's code, also after a loss."""

import json
import re
from pathlib import Path

from e2e import live_source
from e2e.cluster import LIVE_SOURCE, TestCluster
from e2e.command_line import with_bucket
from e2e.kube import Kubectl, wait_for
from e2e.runs import Run, specification
from support.packages import wheel

NAME = "submitted"
STEPS = 400
CODE = f"""
import os
import time
from pathlib import Path

import tinything
import torch
from trainingrun_runtime import Session


def main():
    print("trains in pod", os.environ["POD_NAME"])
    session = Session(model=torch.nn.Linear(1, 1))
    for _ in session.steps({STEPS}):
        time.sleep(0.1)
    session.finish(word=Path("word.txt").read_text(), value=tinything.VALUE)
"""


def submit(kubectl: Kubectl, folder: Path) -> str:
    """What the command prints."""
    options = ("--code=.", "--requirements=requirements.txt", "--no-watch")
    return with_bucket(kubectl, folder, "submit", "run.yaml", *options)


def a_project(folder: Path) -> Path:
    """A run, its code, and a package that no image has, as a file of the code."""
    training = {"function": "train:main", "env": [{"name": "PIP_NO_INDEX", "value": "1"}]}
    spec = specification(training=training)
    manifest = {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": NAME},
        "spec": live_source.in_training(spec) if LIVE_SOURCE else spec,
    }
    (folder / "run.yaml").write_text(json.dumps(manifest))
    (folder / "train.py").write_text(CODE)
    (folder / "word.txt").write_text("of the folder")
    package = wheel(folder / "wheels", "tinything", "1.2", "VALUE = 42\n")
    (folder / "requirements.txt").write_text(f"./wheels/{package.name}\n")
    return folder


def test_submitted_code_is_trained_and_goes_on_after_a_deleted_worker(
    operated: TestCluster, kubectl: Kubectl, tmp_path: Path
):
    project = a_project(tmp_path)
    run = Run(operated, kubectl, NAME)
    run.remove()
    run.journals.clear()
    assert "uploaded to s3://runs/e2e/code" in submit(kubectl, project)
    wait_for(
        "step 40 of the submitted code",
        lambda: run.status().get("progress", {}).get("step", 0) >= 40,
        timeout=180,
        instead=run.sentence,
        every=1,
    )
    lost, other = sorted(run.workers())
    # From the pods, by their kubelets: nothing of the bucket.
    printed = with_bucket(kubectl, project, "logs", NAME)
    for pod in (lost, other):
        assert re.search(rf"^\[rank \d\] trains in pod {pod}$", printed, re.MULTILINE), printed
    assert "[driver] " in printed
    kubectl.delete("pod", lost)
    status = run.succeed()

    assert status["progress"]["step"] == STEPS
    assert status["attempt"] == 1
    assert status["disruptions"]["preemptions"] == 1
    assert status["result"]["metrics"]["word"] == "of the folder"
    assert status["result"]["metrics"]["value"] == 42
    run.wait_until_freed()
    printed = with_bucket(kubectl, project, "logs", NAME, "--grep", "trains in pod")
    assert f"trains in pod {lost}\n" in printed, "what only the lost pod has printed is kept"
    run.remove()
    assert "already" in submit(kubectl, project), "the same code is kept by its digest"
    run.remove()
