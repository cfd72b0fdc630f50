"""Hangs that no process ends by itself: training goes on within 35 s, with the same weights."""

import pytest

from e2e.cluster import HERE
from e2e.kube import wait_for
from e2e.report import seconds_without_training
from e2e.runs import STEP_SECONDS, TOTAL_STEPS
from e2e.scenario import ONE_WORKER_PER_NODE, WELL_UNDER_WAY, Scenario

SCRIPT = HERE / "hang_train.py"
AFTER_20_S = {"hang": {"afterSeconds": 20}}
"""failures."""


@pytest.mark.parametrize(
    ("hang", "place"), [("loop", "in loop (hang_train.py:"), ("lock", "in lock (hang_train.py:")]
)
def test_rank_that_hangs_in_its_own_code(scenario: Scenario, hang: str, place: str):
    run = scenario.run
    run.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "hangs"},
            "data": {SCRIPT.name: SCRIPT.read_text()},
        }
    )
    scenario.spec["training"] = {
        "script": {"configMap": "hangs", "file": SCRIPT.name},
        "config": {"steps": TOTAL_STEPS, "step_seconds": STEP_SECONDS, "hang": hang},
    }
    scenario.spec["failures"] = AFTER_20_S
    scenario.start_and_reach(WELL_UNDER_WAY)
    wait_for("a hang in the status", lambda: run.status().get("hang"), timeout=120)
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since=0)
    scenario.went_on(pause, f"(u) rank in a {hang}", target=35, lost_at_most=0)
    assert status["disruptions"]["hangs"] == 1
    hung = [rank["where"] for rank in status["hang"]["ranks"] if rank.get("hangs")]
    assert len(hung) == 1, status["hang"]
    assert hung[0].startswith(place)


def test_node_paused(scenario: Scenario):
    run, nodes = scenario.run, scenario.run.cluster
    scenario.spec["workers"] |= {"capacity": {"type": "PreferSpot"}, "placement": "Spread"}
    scenario.spec["podTemplate"] = {"spec": {"topologySpreadConstraints": [ONE_WORKER_PER_NODE]}}
    scenario.spec["failures"] = AFTER_20_S
    scenario.start_and_reach(WELL_UNDER_WAY)
    since = scenario.disturb(nodes.pause_node, nodes.spot_node)
    try:
        status = run.succeed()
    finally:
        nodes.start_node(nodes.spot_node)

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(u) node docker pause", target=45, lost_at_most=0)
    assert status["disruptions"]["nodeLosses"] == 1, "Ray and the control plane see it, and no hang"
    assert status["disruptions"].get("hangs", 0) == 0
