"""Less common losses: training goes on and ends with the same weights."""

import time

from e2e.cluster import HERE
from e2e.report import seconds_without_training, steps_lost
from e2e.runs import Run, kill_trainer, specification
from e2e.scenario import SINCE_CHECKPOINT, TO_FIRST_STEP, WELL_UNDER_WAY, Scenario, weights

PLAIN_SCRIPT = HERE / "plain_train.py"


def test_worker_container_killed(scenario: Scenario):
    run = scenario.run
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(
        run.cluster.kill_container, run.kubectl, run.trainer(), "ray-worker", run.train_on
    )
    run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(c) worker container kill -9", target=None, lost_at_most=0)


def test_raylet_killed_in_a_container_that_goes_on(scenario: Scenario):
    run = scenario.run
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(run.cluster.kill_raylet, run.kubectl, run.trainer())
    run.succeed()

    pause = seconds_without_training(run.steps(), since)
    assert pause < 240, "KubeRay's liveness probe ended the pod, after ten minutes"
    scenario.went_on(
        pause, "(t) raylet kill -9, container goes on", target=None, lost_at_most=SINCE_CHECKPOINT
    )


def test_newest_checkpoint_truncated(scenario: Scenario):
    run = scenario.run
    scenario.start_and_reach(WELL_UNDER_WAY)
    scenario.disturb(lambda: run.patch(suspend=True))
    run.wait_for_condition("Suspended")
    run.wait_until_freed()
    storage = run.kubectl.within("storage")
    storage("exec", "deployment/s3", "--", "sh", "-ec", TRUNCATE.replace("RUN", run.folder()))

    resumed = time.time()
    run.patch(suspend=False)
    run.succeed()

    pause = next(step.time for step in run.steps() if step.time > resumed) - resumed
    scenario.went_on(
        pause,
        "(h) newest checkpoint truncated",
        target=TO_FIRST_STEP,
        lost_at_most=SINCE_CHECKPOINT,
    )
    assert steps_lost(run.steps()) > 0, "the damaged checkpoint was used"
    assert any("checkpoint" in event.lower() and "damaged" in event for event in run.events())


TRUNCATE = """
cd /data/runs/e2e/RUN
newest=$(ls manifests | sort | tail -n 1)
folder=$(sed 's/.*"path": *"\\([^"]*\\)".*/\\1/' "manifests/$newest")
largest=$(ls -S "$folder" | head -n 1)
truncate -s -1 "$folder/$largest"
"""
"""Takes the last byte off the largest file of the newest checkpoint, behind the gateway's back."""


def test_plain_script(scenario: Scenario):
    run = scenario.run
    run.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "plain"},
            "data": {"plain_train.py": PLAIN_SCRIPT.read_text()},
        }
    )
    training = {"script": {"configMap": "plain", "file": "plain_train.py"}}
    scenario.spec = specification(training=training)
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(run.kubectl.delete, "pod", run.trainer())
    run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.notes.append("it saves every 20 steps and knows no notice")
    expect_weights_of_an_undisturbed_run(scenario)
    scenario.went_on(pause, "(i) plain script, pod deleted", target=None, lost_at_most=2 * 20)


def test_sharded_model_and_a_training_process_killed(scenario: Scenario):
    run = scenario.run
    function = {"function": "trainingrun_runtime.examples.fsdp:train"}
    scenario.spec = specification(training={**scenario.spec["training"], **function})
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(kill_trainer, run.kubectl, run.trainer(), run.train_on)
    run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.notes.append("each worker holds half of the state")
    expect_weights_of_an_undisturbed_run(scenario)
    scenario.went_on(
        pause,
        "(j) sharded model, training process kill -9",
        target=None,
        lost_at_most=SINCE_CHECKPOINT,
    )


def expect_weights_of_an_undisturbed_run(scenario: Scenario) -> None:
    """Of the scenario's own spec, in place of the usual one's."""
    run = Run(scenario.run.cluster, scenario.run.kubectl, "whole")
    run.start(scenario.spec)
    expected = weights(run.succeed())
    run.remove()
    scenario.reference = lambda: expected


def test_begins_from_another_run_and_loses_a_worker(scenario: Scenario):
    run = scenario.run
    training = scenario.spec["training"]
    first_half = {**training["config"], "steps": WELL_UNDER_WAY}
    other = Run(run.cluster, run.kubectl, "first-half")
    other.start({**scenario.spec, "training": {**training, "config": first_half}}, journal=False)
    other.succeed()
    folder = other.folder()

    storage = {**scenario.spec["storage"], "restoreFrom": {"run": other.name}}
    scenario.spec = {**scenario.spec, "storage": storage}
    scenario.start_and_reach(WELL_UNDER_WAY + 20)
    other.remove()
    scenario.disturb(run.kubectl.delete, "pod", run.trainer())
    status = run.succeed()

    assert status["restoredFrom"] == {"uri": f"s3://runs/e2e/{folder}", "step": WELL_UNDER_WAY}
    assert run.steps()[0].number == WELL_UNDER_WAY + 1
    assert steps_lost(run.steps()) == 0, "the run's own checkpoint was not used"
    assert weights(status) == scenario.reference()
    assert any(f"restored step {WELL_UNDER_WAY} of another run" in said for said in run.events())
