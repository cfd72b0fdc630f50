"""Machines and pods are taken away from real training: it goes on and ends with the same weights.

The targets are the design's, for two CPU workers on a small machine. The scenarios run one after
the other, for their timings are the point. Most of them happen to one run: to start and end one for
each would take longer than they do.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster import SYSTEM, TestCluster
from e2e.command_line import trainingrun, with_bucket
from e2e.kube import wait_for
from e2e.long_run import LongRun
from e2e.report import Row, gaps_in_numbers, seconds_without_training, steps_lost
from e2e.runs import TOTAL_STEPS, Run, kill_trainer, signal_trainer, specification
from e2e.scenario import (
    ONE_WORKER_PER_NODE,
    PATIENCE,
    TO_FIRST_STEP,
    WELL_UNDER_WAY,
    Scenario,
    keep_reference,
)

PACE_S = 0.4
"""Seconds per step of the runs that lose something: their 240 steps last longer than the losses."""

of_the_disturbed_run = pytest.mark.usefixtures("rows")


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


@pytest.fixture(scope="module")
def disturbed(operated: TestCluster) -> Iterator[LongRun]:
    """A run to which the next tests happen, one after the other."""
    made = LongRun(Run(operated, operated.kubectl, "disturbed"), PACE_S)
    made.start(specification(failures={"hang": {"afterSeconds": 20}}))
    yield made
    made.run.remove()


@of_the_disturbed_run
def test_worker_deleted(disturbed: LongRun):
    run = disturbed.run
    disturbed.loses(
        "(b) worker pod deleted", "Preempted",
        lambda: run.kubectl.delete("pod", run.trainer()), target=17,
    )  # fmt: skip
    assert run.status()["attempt"] == 1, "the head was there all the time"


@of_the_disturbed_run
def test_training_process_killed(disturbed: LongRun):
    run, pod = disturbed.run, disturbed.run.trainer()
    disturbed.loses(
        "(c) training process kill -9", "WorkerLost",
        lambda: kill_trainer(run.kubectl, pod, disturbed.between_steps), target=5,
    )  # fmt: skip


@of_the_disturbed_run
def test_training_process_stopped(disturbed: LongRun):
    run, pod = disturbed.run, disturbed.run.trainer()
    disturbed.loses(
        "(c) training process stopped", "Hang",
        lambda: signal_trainer(run.kubectl, pod, "STOP", disturbed.between_steps), target=35,
    )  # fmt: skip
    hang = run.status()["hang"]
    assert [rank["where"].startswith("stopped in ") for rank in hang["ranks"]] == [
        rank.get("hangs", False) for rank in hang["ranks"]
    ]
    assert hang["stacks"].startswith(f"s3://runs/e2e/{run.folder()}/stacks/1/")


@of_the_disturbed_run
def test_head_force_deleted(disturbed: LongRun):
    run, head = disturbed.run, disturbed.run.head()
    disturbed.loses(
        "(d) head pod force-deleted", "HeadLost",
        lambda: run.kubectl.delete("pod", head, "--force", "--grace-period=0"), target=30,
        lost_at_most=disturbed.since_checkpoint,
    )  # fmt: skip


@of_the_disturbed_run
def test_operator_and_worker_deleted(disturbed: LongRun):
    run, worker = disturbed.run, disturbed.run.trainer()

    def take_both() -> None:
        operator = run.kubectl.within(SYSTEM)
        operator("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        run.kubectl.delete("pod", worker)

    disturbed.loses("(f) operator and worker pod deleted", "Preempted", take_both, target=17)


@of_the_disturbed_run
def test_suspended_and_resumed(disturbed: LongRun):
    disturbed.suspended_and_resumed("(g) suspended, resumed", target=TO_FIRST_STEP)


@of_the_disturbed_run
def test_the_disturbed_run_ends_as_if_nothing_had_happened(
    disturbed: LongRun, reference: Callable[[], str], rows: list[Row]
):
    status = disturbed.ends_like(reference, rows, attempts=2)

    counted = {kind: number for kind, number in status["disruptions"].items() if number}
    counted.pop("history")
    assert counted == {"preemptions": 2, "workerFailures": 1, "hangs": 1, "headLosses": 1}


def test_spot_node_killed(scenario: Scenario, tmp_path: Path):
    run, spec = scenario.run, scenario.spec
    nodes = run.cluster
    spec["workers"] |= {"capacity": {"type": "PreferSpot"}, "placement": "Spread"}
    spec["podTemplate"] = {"spec": {"topologySpreadConstraints": [ONE_WORKER_PER_NODE]}}
    long = LongRun(run, PACE_S)
    long.start(spec)
    workers = run.workers()
    assert set(workers.values()) == {nodes.spot_node, nodes.on_demand_node}

    def kill() -> None:
        long.between_steps()
        nodes.kill_node(nodes.spot_node)

    try:
        loss = long.loses("(e) spot node docker kill", "NodeLost", kill, target=45)
        status = long.ends_like(scenario.reference, scenario.rows)
    finally:
        nodes.start_node(nodes.spot_node)

    assert status["disruptions"]["nodeLosses"] == 1
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


def test_nothing_is_left_when_runs_are_deleted(disturbed: LongRun):
    """After all scenarios: no pod, RayJob, Secret, NetworkPolicy or Service of any run is left."""
    disturbed.run.remove()
    kubectl = disturbed.run.kubectl
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
