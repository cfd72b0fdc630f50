"""Fewer workers rather than none: one of two goes on, two again, and each sample is seen once."""

from collections import Counter
from datetime import datetime
from typing import Any, NamedTuple

from e2e.cluster import HERE
from e2e.kube import wait_for
from e2e.report import Row, gaps_in_numbers, seconds_without_training, steps_lost
from e2e.runs import STEP_SECONDS, Run, specification
from e2e.scenario import (
    ONE_WORKER_PER_NODE,
    PATIENCE,
    TO_FIRST_STEP,
    WELL_UNDER_WAY,
    Scenario,
)

SCRIPT = HERE / "elastic_train.py"
SAMPLES = 6400
"""Two minutes with two workers: a larger group has to be worth its start."""
BATCH = 4
"""Of a rank."""
RESIZE_SECONDS = 10
TO_GO_ON, TO_GO_ON_WITHOUT_NOTICE, TO_GROW = 6, 14, 10
"""Bounds in seconds."""


class Noted(NamedTuple):
    """What a rank has noted of one step."""

    time: float
    size: int
    """Workers at that time."""
    samples: tuple[int, ...]


def elastic(run: Run, samples: int = SAMPLES, **workers: Any) -> dict[str, Any]:
    """The spec of an elastic run of the script, whose ConfigMap is made."""
    run.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "elastic"},
            "data": {SCRIPT.name: SCRIPT.read_text()},
        }
    )
    training = {
        "script": {"configMap": "elastic", "file": SCRIPT.name},
        "config": {"samples": samples, "batch": BATCH, "step_seconds": STEP_SECONDS},
    }
    spec = specification(training=training)
    spec["workers"] |= {"minimum": 1, "resizeSeconds": RESIZE_SECONDS, **workers}
    return spec


def noted(run: Run) -> list[Noted]:
    """What all ranks have noted, oldest first."""
    lines = [line.split() for text in run.journals.texts("*.samples") for line in text.splitlines()]
    return sorted(
        Noted(float(time_), int(size), tuple(map(int, samples))) for time_, size, *samples in lines
    )


def training(run: Run) -> int:
    """Workers that train, by the status."""
    return int(run.status().get("workers", {}).get("training", 0))


def wait_until_trains_with(run: Run, workers: int, since: float, timeout: float) -> float:
    """Wait until so many workers have done a step after that time; the time of the first one."""

    def first() -> float | None:
        run.fail_if_over("Failed")
        return next((n.time for n in noted(run) if n.size == workers and n.time > since), None)

    return wait_for(f"a step with {workers} workers", first, timeout, run.sentence)


def test_pod_deleted_and_its_replacement_kept_away(scenario: Scenario):
    run, node = scenario.run, scenario.run.cluster.on_demand_node
    scenario.spec = elastic(run)
    scenario.start_and_reach(WELL_UNDER_WAY)
    assert set(run.workers().values()) == {node}
    run.kubectl("cordon", node)
    try:
        since = scenario.disturb(run.kubectl.delete, "pod", run.trainer())
        smaller = wait_until_trains_with(run, 1, since, timeout=120)
        run.wait_for_step(run.steps()[-1].number + 20)
        wait_for("1 worker in the status", lambda: training(run) == 1, 30, run.sentence)
        said = run.conditions()
        assert (said["Ready"]["status"], said["Stalled"]["status"]) == ("True", "False")
        assert said["Waiting"]["reason"] == "FewerWorkers"
        assert "cannot be scheduled" in said["Waiting"]["message"]
        assert run.status()["phase"] == "Running"
        pause = seconds_without_training(run.steps(), since)
    finally:
        run.kubectl("uncordon", node)

    ready = wait_for("two ready workers", lambda: ready_since(run, 2), 120, run.sentence)
    larger = wait_until_trains_with(run, 2, max(ready, smaller), timeout=180)
    growing = seconds_without_training(run.steps(), ready)
    status = run.succeed()

    lost = steps_lost(run.steps())
    back = larger - ready
    restarts = status.get("restarts", 0)
    scenario.rows += [
        Row("(v) 1 of 2: pod deleted", pause, TO_GO_ON, lost, None, restarts, "goes on with one"),
        Row(
            "(v) back to 2 of 2", back, TO_GROW, None, None, None,
            f"from the pod being ready; {growing:.1f} s without training",
        ),
    ]  # fmt: skip
    assert gaps_in_numbers(run.steps()) == []
    assert lost == 0
    seen = Counter(sample for step in noted(run) for sample in step.samples)
    assert seen == Counter(range(SAMPLES)), "a sample was seen twice or never"
    assert (status["attempt"], restarts) == (1, 0)
    assert status["disruptions"]["preemptions"] == 1
    (loss,) = status["disruptions"]["history"]
    assert loss["action"].startswith("went on with 1 of 2 workers: "), loss
    sizes = {one["workers"]: one["seconds"] for one in status["workers"]["sizes"]}
    assert set(sizes) == {1, 2}
    goodput = status["goodput"]
    assert abs(goodput["lostSeconds"]["fewerWorkers"] - sizes[1] / 2) <= 0.2
    assert max(pause / TO_GO_ON, back / TO_GROW) <= PATIENCE


def ready_since(run: Run, workers: int) -> float | None:
    """When the last of so many worker pods became ready; None: fewer are."""
    ready = [
        datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
        for pod in run.pods("worker")
        for condition in pod["status"].get("conditions", ())
        if (condition["type"], condition["status"]) == ("Ready", "True")
    ]
    return max(ready) if len(ready) >= workers else None


def test_spot_node_killed(scenario: Scenario):
    run, nodes = scenario.run, scenario.run.cluster
    scenario.spec = elastic(run, capacity={"type": "PreferSpot"}, placement="Spread")
    scenario.spec["podTemplate"] = {"spec": {"topologySpreadConstraints": [ONE_WORKER_PER_NODE]}}
    scenario.start_and_reach(WELL_UNDER_WAY)
    assert set(run.workers().values()) == set(nodes.workers)
    since = scenario.disturb(nodes.kill_node, nodes.spot_node)
    try:
        wait_until_trains_with(run, 1, since, timeout=180)
        run.wait_for_step(run.steps()[-1].number + 5)
        pause = seconds_without_training(run.steps(), since)
        status = run.succeed(timeout=400)
    finally:
        nodes.start_node(nodes.spot_node)

    lost, restarts = steps_lost(run.steps()), status.get("restarts", 0)
    lost_at_most = scenario.may_lose(lost)
    row = Row(
        "(v) 1 of 2: spot node docker kill", pause, TO_GO_ON_WITHOUT_NOTICE, lost, None, restarts,
        ", ".join(scenario.notes),
    )  # fmt: skip
    scenario.rows.append(row)
    assert gaps_in_numbers(run.steps()) == []
    assert lost <= lost_at_most
    assert (status["attempt"], restarts) == (1, 0)
    assert status["disruptions"]["nodeLosses"] == 1
    seen = Counter(sample for step in noted(run) for sample in step.samples)
    assert set(seen) == set(range(SAMPLES)), "a sample was never seen"
    assert sum(seen.values()) - SAMPLES <= 2 * BATCH * lost, "a sample was seen twice"
    assert pause <= PATIENCE * TO_GO_ON_WITHOUT_NOTICE


def test_run_begins_with_the_one_worker_that_finds_a_node(scenario: Scenario):
    run = scenario.run
    few = 400
    scenario.spec = elastic(run, samples=few, placement="StrictSpread", globalBatch="keep")
    run.start(scenario.spec)
    run.wait_for_step(1, timeout=240)
    to_first_step = run.steps()[0].time - run.applied
    wait_for("1 worker in the status", lambda: training(run) == 1, 30, run.sentence)
    (cluster,) = run.kubectl.list("rayclusters", f"trainingrun.dev/run={run.name}")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["replicas"]) == (1, 2), "both are asked for again"
    assert run.conditions()["Waiting"]["reason"] == "FewerWorkers"
    status = run.succeed()

    bound = TO_FIRST_STEP + RESIZE_SECONDS
    scenario.rows.append(
        Row("(v) begins with 1 of 2", to_first_step, bound, note="apply to first step")
    )
    steps = noted(run)
    assert {step.size for step in steps} == {1}
    assert {len(step.samples) for step in steps} == {2 * BATCH}, "as many as two take"
    assert [step.number for step in run.steps()] == list(range(1, few // (2 * BATCH) + 1))
    seen = Counter(sample for step in steps for sample in step.samples)
    assert seen == Counter(range(few))
    assert status["disruptions"].get("history", []) == [], "a pod that never ran is no loss"
    assert [one["workers"] for one in status["workers"]["sizes"]] == [1]
    assert to_first_step <= PATIENCE * bound
