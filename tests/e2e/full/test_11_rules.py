"""A rule that leaves the node of a rank that dies, and one that ends the run by an exit code."""

from e2e.kube import wait_for
from e2e.report import seconds_without_training
from e2e.runs import kill_trainer
from e2e.scenario import WELL_UNDER_WAY, Scenario

EXITS = "import sys\nsys.exit(42)\n"


def test_rank_killed_leaves_its_node(scenario: Scenario):
    run = scenario.run
    scenario.spec["workers"] |= {"capacity": {"type": "PreferSpot"}, "placement": "Spread"}
    leave = {"when": {"classes": ["WorkerLost"]}, "then": "RestartOnOtherNode", "maxRestarts": 2}
    scenario.spec["failures"] = {"maxPreemptions": 0, "rules": [leave]}
    scenario.start_and_reach(WELL_UNDER_WAY)
    pod = run.trainer()
    node = run.workers()[pod]
    since = scenario.disturb(kill_trainer, run.kubectl, pod, run.train_on)
    wait_for("the node in the status", lambda: run.status().get("excludedNodes"), timeout=60)
    wait_for("another pod", lambda: pod not in run.workers(), timeout=60)
    status = run.succeed()

    pause = seconds_without_training(run.steps(), since)
    scenario.went_on(pause, "(c) rank killed, its node left", target=45, lost_at_most=0)
    assert [one["node"] for one in status["excludedNodes"]] == [node]
    (use,) = status["failureRules"]
    assert (use["matches"], use["used"]) == (1, 1), "and maxPreemptions is 0"
    assert (status["attempt"], status["disruptions"]["workerFailures"]) == (1, 1)


def test_exit_code_ends_the_run(scenario: Scenario):
    run = scenario.run
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "exits"}}
    run.kubectl.apply({**manifest, "data": {"exits.py": EXITS}})
    scenario.spec["training"] = {"script": {"configMap": "exits", "file": "exits.py"}}
    rule = {"when": {"exitCodes": [42]}, "then": "Fail"}
    scenario.spec["failures"] = {"rules": [rule]}
    run.start(scenario.spec)
    wait_for("the end of the run", lambda: run.holds("Failed"), timeout=180)
    status = run.status()
    assert run.conditions()["Failed"]["reason"] == "FailedByRule"
    assert (status["attempt"], status["attempts"][0]["rule"]) == (1, 1)
