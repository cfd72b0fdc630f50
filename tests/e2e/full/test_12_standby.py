"""A pod that waits with everything loaded takes the place of one whose node is killed."""

import json

from e2e.kube import Kubectl, wait_for
from e2e.report import seconds_without_training
from e2e.runs import TOTAL_STEPS
from e2e.scenario import WELL_UNDER_WAY, Scenario

SLOT = "example.com/slot"
"""Of which a worker pod takes one: with two on the spot node, one would be left."""
TO_GO_ON = 8
"""Bound in seconds."""


def give_slots(kubectl: Kubectl, node: str, number: int) -> None:
    """Say that a node has so many slots."""
    slots = {SLOT: str(number)}
    patch = json.dumps({"status": {"capacity": slots, "allocatable": slots}})
    kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")


def test_spot_node_killed_while_a_pod_waits(scenario: Scenario):
    run, nodes = scenario.run, scenario.run.cluster
    for node in nodes.workers:
        give_slots(run.kubectl, node, 1)
    one = {"requests": {SLOT: "1"}, "limits": {SLOT: "1"}}
    template = {"spec": {"containers": [{"name": "ray-worker", "resources": one}]}}
    waits = {"standby": 1, "capacity": {"type": "PreferSpot"}, "placement": "Spread"}
    scenario.spec["workers"] |= waits
    scenario.spec["podTemplate"] = template
    # Slow steps: the other pod has to be ready well before the end.
    scenario.spec["training"]["config"] = {"steps": TOTAL_STEPS, "step_seconds": 0.6}
    scenario.start_and_reach(1)
    assert sorted(run.workers().values()) == sorted(nodes.workers), "the driver waits for no other"
    give_slots(run.kubectl, nodes.on_demand_node, 2)
    run.wait_for_step(WELL_UNDER_WAY)
    wait_for("a pod that waits", lambda: standby(scenario) == 1, 60, run.sentence)
    since = scenario.disturb(nodes.kill_node, nodes.spot_node)
    try:
        reached = run.steps()[-1].number
        run.wait_for_step(reached + 20)
        said = wait_for(
            "a missing standby pod in the status",
            lambda: (found := run.conditions())["Waiting"]["reason"] == "StandbyMissing" and found,
            60,
            run.sentence,
        )
        assert (said["Ready"]["status"], said["Stalled"]["status"]) == ("True", "False")
        status = run.succeed()
    finally:
        nodes.start_node(nodes.spot_node)

    pause = seconds_without_training(run.steps(), since)
    what = "(w) spot node docker kill, a pod waits"
    scenario.went_on(pause, what, target=TO_GO_ON, lost_at_most=0)
    assert (status["attempt"], status["workers"]["wanted"]) == (1, 2)
    assert status["disruptions"]["nodeLosses"] == 1
    (loss,) = status["disruptions"]["history"]
    assert (loss["reason"], loss["node"]) == ("NodeLost", nodes.spot_node)
    assert status["cost"]["seconds"]["waiting"] > 0


def standby(scenario: Scenario) -> int:
    """Pods that wait, by the status."""
    return int(scenario.run.status().get("workers", {}).get("standby", 0))
