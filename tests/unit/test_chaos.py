"""`make chaos` as far as it can be told without a cluster: what it draws, and what it says."""

import subprocess
import uuid
from pathlib import Path

import pytest

from chaos.acting import signal_script
from chaos.faults import FAULTS, scenarios
from chaos.plan import (
    LONGEST_DELAY_S,
    PER_RUN,
    Outcome,
    Phase,
    Scenario,
    cells,
    drawn_groups,
    table,
    takes_s,
)
from chaos.runner import spec
from trainingrun.api.v1alpha1 import TrainingRun

ALL = [scenario for scenario, _ in scenarios().values()]


# What is drawn


def test_there_are_at_least_fifty_scenarios_and_one_of_each_name():
    assert len(ALL) >= 50
    assert len({scenario.name for scenario in ALL}) == len(ALL)
    assert {scenario.phase for scenario in ALL} == set(Phase)


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_decides_everything_and_each_scenario_is_drawn_once(seed):
    groups = drawn_groups(ALL, seed)
    assert groups == drawn_groups(reversed(ALL), seed)
    assert groups != drawn_groups(ALL, seed + 1)
    names = [drawn.scenario.name for group in groups for drawn in group]
    assert sorted(names) == sorted(scenario.name for scenario in ALL)
    for group in groups:
        assert len(group) <= PER_RUN
        for place, drawn in enumerate(group):
            assert 0 <= drawn.delay_s <= LONGEST_DELAY_S[drawn.scenario.phase]
            first, last = place == 0, place == len(group) - 1
            assert first or drawn.scenario.phase is not Phase.STARTING
            assert len(group) == 1 or not drawn.scenario.ends_run
            assert last or drawn.scenario.phase is not Phase.ENDING


@pytest.mark.parametrize("seed", range(5))
def test_minutes_keep_the_beginning_of_what_is_drawn(seed):
    groups = drawn_groups(ALL, seed)
    for minutes in (10, 60):
        kept = drawn_groups(ALL, seed, minutes)
        assert kept[:-1] == groups[: len(kept) - 1]
        assert kept[-1] == groups[len(kept) - 1][: len(kept[-1])]
        takes = sum(map(takes_s, kept)) / 60
        assert minutes - 5 < takes <= minutes
    assert [len(group) for group in drawn_groups(ALL, seed, 0)] == [1]
    assert drawn_groups([], seed) == drawn_groups([], seed, 10) == []


def test_the_run_that_is_disturbed_has_a_valid_spec():
    metadata = {"name": "chaos-1", "namespace": "e2e"}
    run = TrainingRun.model_validate({"metadata": metadata, "spec": spec()})
    assert run.spec.failures.hang.after_seconds == 25


# The table


def test_the_table_says_what_was_tried_and_what_each_cost():
    scenario = Scenario("pod deleted", Phase.TRAINING, lasts_s=0, budget_s=60)
    fine = Outcome(scenario, lost=2, seconds=20.0, weights_equal=True)
    bad = Outcome(scenario, failure="NotSeenError: no step", lost=0)
    gone = Outcome(Scenario("run deleted", Phase.TRAINING, 0, 90, ends_run=True))
    assert cells([fine, bad, gone]) == [
        ("pod deleted, training", "2", "1", "2", "20.0", "<= 60", "yes"),
        ("run deleted, training", "1", "1", "-", "-", "<= 90", "-"),
    ]
    text = table([fine, bad, gone])
    assert "3 tried, 2 survived\npod deleted, training: NotSeenError: no step\n" in text
    wrong = Outcome(scenario, weights_equal=False)
    assert cells([fine, wrong])[0][-1] == "NO"


# The faults


def test_no_fault_that_takes_something_away_from_a_run_is_said_to_keep_its_pods():
    gone = ("deleted", "killed", "evicted", "preempted", "memory", "suspended", "tainted")
    parts = ("worker", "head", "rank", "raylet", "every pod", "RayCluster", "RayJob", "run ")
    taken = [
        fault
        for fault in FAULTS
        if any(word in fault.name for word in gone) and any(part in fault.name for part in parts)
    ]
    assert len(taken) > 25
    assert not any(fault.keeps_pods for fault in taken)
    assert sum(fault.keeps_pods for fault in FAULTS) > 30


def test_a_signal_reaches_the_processes_that_fit_and_no_others():
    """On this machine, by names that no other process has."""
    mark = f"chaos-{uuid.uuid4()}"
    names = (f"python -m {mark}", f"{mark} --option=1", f"other-{mark}x")
    processes = [subprocess.Popen(["bash", "-c", 'exec -a "$0" sleep 600', name]) for name in names]
    try:
        for process, name in zip(processes, names, strict=True):
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(name.encode()):
                assert process.poll() is None
        kill = ["bash", "-c", signal_script(f"*python* -m {mark}*", "KILL")]
        assert subprocess.run(kill, check=False).returncode == 0
        assert processes[0].wait(timeout=30) == -9
        assert [process.poll() for process in processes[1:]] == [None, None]
        kill[-1] = signal_script(f"{mark} *", "KILL")
        assert subprocess.run(kill, check=False).returncode == 0
        assert processes[1].wait(timeout=30) == -9
        assert processes[2].poll() is None
        assert subprocess.run(kill, check=False).returncode != 0, "none is left that fits"
    finally:
        for process in processes:
            process.kill()
            process.wait()
