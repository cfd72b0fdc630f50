"""Machines and pods are taken away from real training: it goes on and ends with the same weights.

The targets are the design's, for two CPU workers on a small machine. The scenarios run one after
the other, for their timings are the point.
"""

import re
import time
from pathlib import Path

from e2e.cluster import SYSTEM
from e2e.command_line import trainingrun, with_bucket
from e2e.kube import wait_for
from e2e.report import Row, gaps_in_numbers, seconds_without_training, steps_lost
from e2e.runs import TOTAL_STEPS, kill_trainer, signal_trainer
from e2e.scenario import (
    ONE_WORKER_PER_NODE,
    PATIENCE,
    SINCE_CHECKPOINT,
    TO_FIRST_STEP,
    WELL_UNDER_WAY,
    Scenario,
    keep_reference,
)


def test_undisturbed(scenario: Scenario):
    run = scenario.run
    run.start(scenario.spec)
    run.wait_for_step(1)
    to_first_step = run.steps()[0].time - run.applied
    assert run.services(), "KubeRay has made a Service for its head"
    status = run.succeed()

    keep_reference(status)
    steps = run.steps()
    note = f"apply to first step; training itself {steps[-1].time - steps[0].time:.0f} s"
    row = Row(
        "(a) undisturbed", to_first_step, TO_FIRST_STEP, steps_lost(steps), None,
        status.get("restarts", 0), note,
    )  # fmt: skip
    scenario.rows.append(row)
    assert len(steps) == TOTAL_STEPS
    assert gaps_in_numbers(steps) == []
    assert status["progress"]["step"] == TOTAL_STEPS
    assert status["attempt"] == 1
    assert to_first_step <= PATIENCE * TO_FIRST_STEP


def test_worker_deleted(scenario: Scenario):
    run = scenario.run
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(run.kubectl.delete, "pod", run.trainer())
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(b) worker pod deleted", target=17, lost_at_most=0)
    assert status["attempt"] == 1, "the head was there all the time"
    assert status["disruptions"]["preemptions"] == 1


def test_pod_of_two_workers_deleted(scenario: Scenario):
    run = scenario.run
    scenario.spec["workers"]["perPod"] = 2
    scenario.start_and_reach(WELL_UNDER_WAY)
    assert len(run.workers()) == 1, "one pod holds both workers"
    since = scenario.disturb(run.kubectl.delete, "pod", run.trainer())
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(b) pod of two workers deleted", target=17, lost_at_most=0)
    assert status["attempt"] == 1, "the head was there all the time"
    assert status["disruptions"]["preemptions"] == 1, "one pod, though two workers"


def test_training_process_killed(scenario: Scenario):
    run = scenario.run
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(kill_trainer, run.kubectl, run.trainer(), run.train_on)
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(c) training process kill -9", target=5, lost_at_most=0)
    assert status["attempt"] == 1
    assert status["disruptions"]["workerFailures"] == 1


def test_training_process_stopped(scenario: Scenario):
    run = scenario.run
    scenario.spec["failures"] = {"hang": {"afterSeconds": 20}}
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(signal_trainer, run.kubectl, run.trainer(), "STOP", run.train_on)
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(c) training process stopped", target=35, lost_at_most=0)
    assert status["attempt"] == 1
    losses = {name: number for name, number in status["disruptions"].items() if number}
    history = losses.pop("history")
    assert losses == {"hangs": 1}
    assert [loss["reason"] for loss in history] == ["Hang"]
    assert [rank["where"].startswith("stopped in ") for rank in status["hang"]["ranks"]] == [
        rank.get("hangs", False) for rank in status["hang"]["ranks"]
    ]
    assert status["hang"]["stacks"].startswith(f"s3://runs/e2e/{run.folder()}/stacks/1/")


def test_head_force_deleted(scenario: Scenario):
    run = scenario.run
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(run.kubectl.delete, "pod", run.head(), "--force", "--grace-period=0")
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(d) head pod force-deleted", target=30, lost_at_most=SINCE_CHECKPOINT)
    assert status["disruptions"]["headLosses"] == 1


def test_operator_and_worker_deleted(scenario: Scenario):
    run = scenario.run
    operator = run.kubectl.within(SYSTEM)
    scenario.start_and_reach(WELL_UNDER_WAY)

    trainer = run.trainer()

    def take_both() -> None:
        operator("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        run.kubectl.delete("pod", trainer)

    since = scenario.disturb(take_both)
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(f) operator and worker pod deleted", target=17, lost_at_most=0)
    assert status["attempt"] == 1
    assert status["disruptions"]["preemptions"] == 1, "counted once, by whichever operator"


def test_suspended_and_resumed(scenario: Scenario):
    run = scenario.run
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(lambda: run.patch(suspend=True))
    run.wait_for_condition("Suspended")
    run.wait_until_freed()
    scenario.notes.append(f"freed every pod after {time.time() - since:.0f} s")
    assert run.status()["phase"] == "Suspended"

    resumed = time.time()
    run.patch(suspend=False)
    run.succeed()

    pause = next(step.time for step in run.steps() if step.time > resumed) - resumed
    scenario.went_on(pause, "(g) suspended, resumed", target=TO_FIRST_STEP, lost_at_most=0)


def test_spot_node_killed(scenario: Scenario, tmp_path: Path):
    run = scenario.run
    nodes = run.cluster
    scenario.spec["workers"] |= {"capacity": {"type": "PreferSpot"}, "placement": "Spread"}
    scenario.spec["podTemplate"] = {"spec": {"topologySpreadConstraints": [ONE_WORKER_PER_NODE]}}
    scenario.start_and_reach(WELL_UNDER_WAY)
    workers = run.workers()
    assert set(workers.values()) == {nodes.spot_node, nodes.on_demand_node}
    since = scenario.disturb(nodes.kill_node, nodes.spot_node)
    try:
        status = run.succeed()
    finally:
        nodes.start_node(nodes.spot_node)

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(e) spot node docker kill", target=45, lost_at_most=0)
    assert status["disruptions"]["nodeLosses"] == 1
    history = status["disruptions"]["history"]
    (loss,) = [loss for loss in history if loss["reason"] == "NodeLost"]
    assert (loss["node"], loss["capacity"]) == (nodes.spot_node, "Spot")
    (lost,) = [pod for pod, node in workers.items() if node == nodes.spot_node]
    assert loss["pods"] == [lost]
    assert loss["lostSteps"] == 0
    assert 0 < loss["lostSeconds"] <= 60
    assert loss["action"].endswith(", in attempt 1")
    causes = status["cost"]["seconds"]
    assert abs(sum(causes.values()) - status["cost"]["totalSeconds"]) < 0.1
    assert causes["training"] > 0
    run.wait_until_freed()
    assert f"NodeLost {lost} on node {nodes.spot_node} (Spot" in trainingrun(
        run.kubectl, "cost", run.name
    )
    page = tmp_path / "page.html"
    with_bucket(run.kubectl, tmp_path, "report", run.name, "--html", f"--to={page}")
    assert {"NodeLost", lost, nodes.spot_node} <= set(re.findall(r"[\w-]+", page.read_text()))


def test_nothing_is_left_when_runs_are_deleted(scenario: Scenario):
    """After all scenarios: no pod, RayJob, Secret, NetworkPolicy or Service of any run is left."""
    kubectl = scenario.run.kubectl
    kinds = {
        "trainingrun.dev/run": "rayjobs,rayclusters,pods,secrets,networkpolicies",
        "ray.io/cluster": "services",  # have KubeRay's labels alone
    }
    wait_for(
        "nothing that a run owned is left",
        lambda: not any(kubectl.list(of, label) for label, of in kinds.items()),
        timeout=60,
        instead=lambda: "".join(
            kubectl("get", of, f"--selector={label}") for label, of in kinds.items()
        ),
    )
