"""`make chaos` as far as it can be told without a cluster: what it draws, that it undoes it all."""

import io
import json
import re
import subprocess
import uuid
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from chaos import run_objects
from chaos.acting import signal_script
from chaos.faults import FAULTS, Fault, scenarios
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
from e2e.cluster import TestCluster
from e2e.kube import CommandError, Kubectl
from e2e.runs import Run
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


# Undoing


class FakeCluster:
    """Answers the commands that go to docker and kubectl: neither is there. It notes each."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.breaks_at: int | None = None
        """Number of the command that has no answer."""
        self.every_s = 5
        """Of the run's `checkpoints`."""
        self._down: set[str] = set()
        self._service = "s3"

    def run(self, command, **options) -> subprocess.CompletedProcess:
        words = [word for word in command if not word.startswith(("--kubeconfig", "--namespace"))]
        self.commands.append(" ".join([*words, options["input"] or ""]).strip())
        answer = self._answer(words)
        if len(self.commands) - 1 == self.breaks_at:
            return subprocess.CompletedProcess(command, 1, "", "no answer")
        return subprocess.CompletedProcess(command, 0, answer, "")

    def start(self, command, **_) -> "FakeProcess":
        return FakeProcess(self.run(command, input=None))

    def _answer(self, words) -> str:
        match words:
            case ["docker", "kill", where]:
                self._down.add(where)
            case ["docker", "start", where]:
                self._down.discard(where)
            case ["docker", "inspect", _, where]:
                return "false" if where in self._down else "true"
            case ["kubectl", "patch", "service", "s3", *_, patch]:
                self._service = re.search(r'"app": "(\w+)"', patch).group(1)
            case ["kubectl", "patch", "trainingrun", *_, patch] if "everySeconds" in patch:
                self.every_s = int(re.search(r'"everySeconds": (\d+)', patch).group(1))
            case ["docker", "exec", _, "sh", "-c", script] if ":2379/v3/" in script:
                return json.dumps({"header": {"revision": "7"}})
            case ["kubectl", "get", "node", name, *_]:
                return json.dumps(node(name))
            case ["kubectl", "get", "deployment", *_]:
                labels = {"matchLabels": {"app": "it"}}
                return json.dumps({"spec": {"replicas": 1, "selector": labels}})
            case ["kubectl", "get", "clusterrolebinding", *_]:
                return json.dumps(BINDING)
            case ["kubectl", "get", "clusterrole", *_]:
                return json.dumps({"rules": [{"resources": ["pods"]}]})
            case ["kubectl", "get", "leases", *_]:
                return json.dumps({"items": [{"spec": {"holderIdentity": "operator-1_x"}}]})
            case ["kubectl", "get", "endpointslices", *_]:
                return json.dumps({"items": [self._slice()]})
            case ["kubectl", "get", "pods", *rest]:
                return json.dumps({"items": pods(" ".join(rest))})
            case ["kubectl", "get", "pod", name, *_]:
                return json.dumps(pod(name, "worker", "spot"))
            case ["kubectl", "get", "trainingrun", *_]:
                return json.dumps({"spec": {"checkpoints": {"everySeconds": self.every_s}}})
            case ["kubectl", "get", *_]:
                return json.dumps({"status": {}})
        return ""

    def _slice(self) -> dict:
        there = [{"addresses": ["10.0.0.9"]}] if self._service in ("s3", "chaos") else None
        return {"endpoints": there}


class FakeProcess(nullcontext):
    """A command of `run_at_once`."""

    def __init__(self, done: subprocess.CompletedProcess) -> None:
        super().__init__(self)
        self.stdout = io.StringIO("prepared\n")
        self.returncode = done.returncode
        self._rest = done.stderr

    def communicate(self, *_, **__) -> tuple[str, None]:
        return self._rest, None

    def kill(self) -> None:
        pass


BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "metadata": {"name": "trainingrun-operator"},
    "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": "system"}],
}


def node(name: str) -> dict:
    return {
        "spec": {"podCIDR": "10.1.0.0/24"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "2"},
            "addresses": [{"type": "InternalIP", "address": f"address-of-{name}"}],
        },
    }


def pod(name: str, role: str, where: str) -> dict:
    return {
        "metadata": {"name": name, "labels": {"trainingrun.dev/role": role}},
        "spec": {"nodeName": f"chaos-test-worker{'2' if where == 'spot' else ''}"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "containerStatuses": [
                {"name": container, "containerID": "containerd://c"}
                for container in ("ray-worker", "ray-head", "versitygw", "operator")
            ],
        },
    }


def pods(words: str) -> list[dict]:
    if "app=s3" in words or "app=chaos" in words:
        return [pod("s3-1", "", "base")]
    if "trainingrun.dev/run" not in words:
        return []  # of a deployment that is away
    found = [pod("w-1", "worker", "spot"), pod("w-2", "worker", "base"), pod("h", "head", "base")]
    role = re.search(r"role=(\w+)", words)
    return [
        one
        for one in found
        if role is None or one["metadata"]["labels"]["trainingrun.dev/role"] == role.group(1)
    ]


UNDONE = (
    (r"docker kill (\S+)", r"docker start \1(?!\S)"),
    (r"docker pause (\S+)", r"docker unpause \1(?!\S)"),
    (r"kill -STOP (.+)", r"kill -CONT \1"),
    (r"iptables -I ([^&;]+)", r"iptables -D \1"),
    (r"kubectl (?:cordon|drain) (\S+)", r"kubectl uncordon \1"),
    (r"kubectl taint node (\S+) chaos=", r"kubectl taint node \1 chaos-"),
    (r"kubectl scale (\S+) --replicas=0", r"kubectl scale \1 --replicas=1"),
    (r'kubectl patch service s3 .*"app": "(?!s3)', r'kubectl patch service s3 .*"app": "s3"'),
    (r"kubectl delete clusterrolebinding", r"kubectl apply .*trainingrun-operator"),
    (r"kubectl delete secret s3-credentials", r"kubectl apply .*s3-credentials"),
    (r'kubectl patch trainingrun \S+ .*"suspend": true', r'kubectl patch .*"suspend": false'),
    (r"of=/dev/shm/chaos", r"rm -f /dev/shm/chaos"),
    (r'apply .*"kind": "PodDisruptionBudget"', r"delete poddisruptionbudget"),
    (r'apply .*"kind": "ResourceQuota"', r"delete resourcequota chaos"),
    (r'apply .*"kind": "PriorityClass"', r"delete priorityclass chaos-outranking"),
    (r'apply .*"kind": "Pod".*"name": "(chaos\S*)"', r"delete pod \1"),
    (r'apply .*"kind": "FlowSchema"', r"delete flowschema chaos"),
    (r'apply .*"kind": "PriorityLevelConfiguration"', r"delete prioritylevelconfiguration chaos"),
)
"""What is done, and the command that takes it back."""
OVER_AT_ONCE = (
    r"\bkill -9\b",
    r"-KILL",
    r"kubectl delete (pods?|trainingrun|rayclusters|rayjobs|secrets|networkpolicies)\b",
    r"kubectl create --raw=\S+/eviction",
    r"kubectl patch trainingrun \S+ .*everySeconds",
    r"python -c taken",
    r"systemctl restart",
)
"""What nothing takes back: something else begins anew."""
STAYS_STOPPED = ("rank 0 stopped", "raylet killed")
"""Faults that stop a process of a pod, which is replaced."""


@pytest.fixture
def run(monkeypatch, tmp_path) -> Run:
    made = Run(TestCluster("chaos-test", Kubectl(tmp_path / "none")), Kubectl(tmp_path), "chaos-1")
    monkeypatch.setattr(made.journals, "_by_pod", lambda: {"w-1": "1.0 1\n"})
    return made


def answers(monkeypatch, fake: FakeCluster) -> None:
    monkeypatch.setattr("e2e.kube.subprocess.run", fake.run)
    monkeypatch.setattr("e2e.kube.subprocess.Popen", fake.start)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_undone_whatever_happens_meanwhile(fault: Fault, run: Run, monkeypatch):
    fake = FakeCluster()
    answers(monkeypatch, fake)
    with suppress(ZeroDivisionError), fault.act(run):
        before = len(fake.commands)
        raise ZeroDivisionError
    done = fake.commands[:before]
    once = [one for one in done for pattern in OVER_AT_ONCE if re.search(pattern, one)]
    assert changes(done) or once, "it has changed nothing"
    if fault.name not in STAYS_STOPPED:
        is_undone(done, fake.commands[before:])


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.lasts_s], ids=lambda fault: fault.name
)
def test_a_fault_of_which_a_part_does_not_work_is_undone(fault: Fault, run: Run, monkeypatch):
    """The last of the commands that change something has worked, and has not answered."""
    whole, broken = FakeCluster(), FakeCluster()
    answers(monkeypatch, whole)
    with suppress(ZeroDivisionError), fault.act(run):
        before = len(whole.commands)
        raise ZeroDivisionError
    numbers = [number for number, one in enumerate(whole.commands[:before]) if changes([one])]
    broken.breaks_at = numbers[-1]
    answers(monkeypatch, broken)
    with pytest.raises(CommandError, match="no answer"), fault.act(run):
        pytest.fail("it goes on although a command has failed")
    is_undone(broken.commands[: numbers[-1] + 1], broken.commands[numbers[-1] + 1 :])


def test_each_edit_of_the_spec_changes_it(run: Run, monkeypatch):
    fake = FakeCluster()
    answers(monkeypatch, fake)
    values = [fake.every_s]
    for _ in range(3):
        with run_objects.spec_edited(run):
            values.append(fake.every_s)
    assert values == [5, 4, 5, 4]


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


def changes(commands: list[str]) -> list[tuple[str, str]]:
    """What was done that has to be undone, and the pattern of the command that does."""
    return [
        (found[0], back.replace("\\1", re.escape(found[1].strip()) if found.re.groups else ""))
        for pattern, back in UNDONE
        for command in commands
        for found in re.finditer(pattern, command)
    ]


def is_undone(done: list[str], later: list[str]) -> None:
    for change, back in changes(done):
        assert any(re.search(back, one) for one in later), f"{change}: not undone"


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
