"""What is kept of a scenario that failed: enough to find the cause after the cluster is gone."""

import json
from pathlib import Path

from .cluster import ARTIFACTS, SYSTEM, TestCluster
from .kube import CommandError, Kubectl


def keep_evidence(cluster: TestCluster, kubectl: Kubectl, scenario: str) -> Path:
    """Write pods, events, logs, runs and nodes to `tests/.artifacts/<scenario>/`; that folder."""
    folder = ARTIFACTS / scenario
    folder.mkdir(parents=True, exist_ok=True)
    system = cluster.kubectl.within(SYSTEM)
    kuberay = cluster.kubectl.within("default")
    operator = ("logs", "deployment/trainingrun-operator", "--tail=5000", "--timestamps")
    questions = {
        "runs.yaml": (kubectl, ("get", "trainingruns", "--output=yaml")),
        "rayjobs.yaml": (kubectl, ("get", "rayjobs,rayclusters", "--output=yaml")),
        "pods.txt": (kubectl, ("get", "pods", "--output=wide", "--show-labels")),
        "pods.yaml": (kubectl, ("get", "pods", "--output=yaml")),
        "events.txt": (kubectl, ("get", "events", "--sort-by=.lastTimestamp")),
        "nodes.txt": (kubectl, ("describe", "nodes")),
        "leases.txt": (kubectl.within("kube-node-lease"), ("get", "leases", "--output=yaml")),
        "operator.log": (system, operator),
        "operator-before-restart.log": (system, (*operator, "--previous")),
        "operator-pods.yaml": (system, ("get", "pods", "--output=yaml")),
        "kuberay.log": (kuberay, ("logs", "deployment/kuberay-operator", "--tail=5000")),
        "bucket.txt": (cluster.kubectl.within("storage"), LIST_BUCKET),
    }
    for file, (where, words) in questions.items():
        _answer(folder / file, where, *words)
    for pod in _training_pods(kubectl):
        name = pod["metadata"]["name"]
        role = pod["metadata"]["labels"]["trainingrun.dev/role"]
        _answer(folder / f"{name}.log", kubectl, "logs", name, "--all-containers", "--tail=2000")
        if role == "head":
            words = ("exec", name, "--container=ray-head", "--", "bash", "-c", DRIVER_LOGS)
            _answer(folder / f"{name}-driver.log", kubectl, *words)
        else:
            words = ("exec", name, "--container=ray-worker", "--", "bash", "-c", WORKER_LOGS)
            _answer(folder / f"{name}-worker.log", kubectl, *words)
    return folder


def excerpt(folder: Path) -> str:
    """Progress and last lines of each head there, for a report that outlives the folder."""
    parts = []
    for file in sorted(folder.glob("*-driver.log")):
        lines = file.read_text().splitlines()
        progress, last = lines[:1], lines[1:][-60:]
        shown = [*(line[:1500] for line in progress), *(line[:400] for line in last)]
        parts.append("\n".join([f"{folder.name}/{file.name}:", *shown]))
    return "\n\n".join(parts)


LIST_BUCKET = ("exec", "deployment/s3", "--", "sh", "-c", "find /data -type f | tail -n 2000")
STACKS = (
    "for process in $(pgrep -f '{pattern}'); do"
    " caught=$(sed -n 's/^SigCgt:\\s*/0x/p' /proc/$process/status);"
    " (( caught & 0x200 )) && kill -USR1 $process; done; sleep 1; "
)
"""SIGUSR1 has the runtime's processes log the stacks of their threads. It would end one that does
not handle it yet, and other runs still train."""
DRIVER_LOGS = STACKS.format(pattern="python -m trainingrun_runtime$") + (
    "cat /tmp/trainingrun/progress.json; cd /tmp/ray/session_latest/logs;"
    " tail -n 2000 job-driver-*.log;"
    " tail -n 300 train/*.log"
)
WORKER_LOGS = STACKS.format(pattern="^ray::RayTrainWorker") + (
    "tail -n 500 /tmp/ray/session_latest/logs/worker-*.{out,err}"
)


def _training_pods(kubectl: Kubectl) -> list[dict]:
    try:
        return kubectl.list("pods", "trainingrun.dev/role")
    except CommandError:
        return []


def _answer(file: Path, kubectl: Kubectl, *words: str) -> None:
    try:
        text = kubectl(*words, check=False)
    except CommandError as error:  # a dead node's kubelet does not answer; the rest still counts
        text = str(error)
    file.write_text(text)


def remember(name: str, value: object) -> None:
    """Keep a value for a later session on the same cluster."""
    (ARTIFACTS / f"{name}.json").write_text(json.dumps(value, indent=1))


def recall(name: str) -> dict:
    """What an earlier session kept; {} if nothing."""
    file = ARTIFACTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}
