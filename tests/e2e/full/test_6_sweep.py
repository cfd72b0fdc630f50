"""A sweep whose workers, and then whose head, are lost: no trial is repeated that was done."""

from typing import Any

from e2e.kube import wait_for
from e2e.runs import Run, kill_trainer, specification
from e2e.scenario import Scenario

SWEEP = {
    "search": "grid",
    "metric": "accuracy",
    "mode": "max",
    "concurrency": 2,
    "space": [{"name": "lr", "values": [0.01, 0.1]}, {"name": "momentum", "values": [0, 0.9]}],
}
TRAINING = {
    "function": "trainingrun_runtime.examples.tuned:train",
    "config": {"epochs": 6, "step_seconds": 0.15},
}


def test_sweep_loses_a_training_process_and_its_head(scenario: Scenario):
    run = scenario.run
    usual = specification()
    scenario.spec = specification(
        training=TRAINING, sweep=SWEEP, workers={**usual["workers"], "count": 1}
    )
    run.start(scenario.spec)
    run.wait_for_condition("Ready", timeout=180)
    run.wait_for_step(40)
    kill_trainer(run.kubectl, run.trainer())
    done = wait_for(
        "a trial that is done", lambda: finished(run), timeout=300, instead=run.sentence
    )
    run.kubectl.delete("pod", run.head(), "--force", "--grace-period=0")
    status = run.succeed(timeout=600)

    assert status.get("restarts", 0) == 0
    assert status["sweep"]["succeeded"] == 4
    rows = {row["number"]: row for row in status["sweep"]["trials"]}
    assert {number: rows[number] for number in done} == done, "a trial that was done has changed"
    whole = Run(run.cluster, run.kubectl, "whole")
    whole.start(scenario.spec)
    undisturbed = whole.succeed(timeout=600)
    whole.remove()
    assert trials(status) == trials(undisturbed)
    for name in ("trial", "config", "metrics"):
        assert status["result"][name] == undisturbed["result"][name], name


def finished(run: Run) -> dict[int, dict[str, Any]]:
    """The rows of the trials that were trained to their end, by number."""
    rows = run.status().get("sweep", {}).get("trials", [])
    return {row["number"]: row for row in rows if row["state"] == "Succeeded"}


def trials(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of all trials, without what differs from run to run."""
    rows = status["sweep"]["trials"]
    return [{key: row[key] for key in row if key != "checkpointUri"} for row in rows]
