"""What does a loss cost? The same training script on this operator and on KubeRay alone, in turn.

    KEEP=1 make e2e                                    # or any part of it: it makes the cluster
    python tests/benchmarks/beside_kuberay.py [--rounds 3] [--only head] [--cluster NAME]

Both sides run `tests/e2e/plain_train.py` on two CPU workers, with the same image, nodes, bucket and
requests. KubeRay's side is a RayJob as its documentation writes one (HTTPMode, checkpoints in the
bucket, `max_failures=-1`), with Ray's own settings. Per round and side: one run, from its apply to
its first step; then its training process is killed (`kill -9`), then its worker pod is deleted,
then its head is force-deleted. Seconds without training come from the journal of steps. The page
gets what three rounds or more have measured; what --only picks has fewer losses before it in its
run, and a row of its own.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "tests")]

from e2e.cluster import ARTIFACTS, ENDPOINT, NAMESPACE, TRAINING_IMAGE, TestCluster  # noqa: E402
from e2e.journals import ENV, MOUNT, Journals  # noqa: E402
from e2e.kube import Kubectl, wait_for  # noqa: E402
from e2e.report import seconds_without_training  # noqa: E402
from e2e.runs import BURST, Run, kill_trainer, specification  # noqa: E402
from support import benchmark_page  # noqa: E402

SCRIPT = ROOT / "tests" / "e2e" / "plain_train.py"
FOREVER = {"name": "STEPS", "value": "1000000"}
PROBE = {
    "httpGet": {"path": "/api/local_raylet_healthz", "port": 52365},
    "initialDelaySeconds": 10,
    "periodSeconds": 5,
    "timeoutSeconds": 2,
    "failureThreshold": 10,
}
"""KubeRay's own, which needs wget in the image, asked by the kubelet instead."""
LEAST_ROUNDS = 3
"""Fewer are a trial, and do not get into the page."""
PAUSE_S = 1.0
"""Without a step: each takes 0.15."""
BETWEEN_S = 12.0
"""Seconds of training before each disturbance: checkpoints are made every 3."""


class Side(Protocol):
    """One run, on one of the two."""

    journals: Journals

    def start(self) -> None: ...
    def head(self) -> str: ...
    def remove(self) -> None: ...


class Ours:
    """A TrainingRun with the script."""

    def __init__(self, cluster: TestCluster) -> None:
        self._run = Run(cluster, cluster.kubectl, "beside-ours")
        self.journals = self._run.journals

    def start(self) -> None:
        script = {"configMap": "plain", "file": SCRIPT.name}
        self._run.start(specification(training={"script": script, "env": [FOREVER]}))

    def head(self) -> str:
        return self._run.head()

    def remove(self) -> None:
        self._run.remove()


class KubeRay:
    """A RayJob with the script."""

    NAME = "beside-kuberay"

    def __init__(self, cluster: TestCluster) -> None:
        self._kubectl = cluster.kubectl
        self.journals = Journals(cluster, self.NAME)

    def start(self) -> None:
        self.journals.clear()
        self._kubectl.apply(self._manifest())

    def head(self) -> str:
        (pod,) = self._pods("head")
        return str(pod["metadata"]["name"])

    def remove(self) -> None:
        self._kubectl.delete("rayjob", self.NAME, wait=True)
        wait_for("no pod of KubeRay's run is left", lambda: not self._pods(), timeout=120)

    def _pods(self, role: str = "") -> list[dict[str, Any]]:
        role = f",ray.io/node-type={role}" if role else ""
        return self._kubectl.list("pods", f"beside=kuberay{role}")

    def _manifest(self) -> dict[str, Any]:
        address = ENDPOINT.removeprefix("http://")
        storage = f"s3://runs/kuberay-{time.time():.0f}?scheme=http&endpoint_override={address}"
        pod_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        code = {"name": "code", "mountPath": "/code"}
        credentials = [{"secretRef": {"name": "s3-credentials"}}]
        region = {"name": "AWS_REGION", "value": "us-east-1"}
        plain = [FOREVER, {"name": "STORAGE_PATH", "value": storage}, region]

        def template(container: dict[str, Any], *volumes: dict[str, Any]) -> dict[str, Any]:
            common = {
                "image": TRAINING_IMAGE,
                "resources": BURST,
                "envFrom": credentials,
                "readinessProbe": PROBE,
                "livenessProbe": {**PROBE, "initialDelaySeconds": 30, "failureThreshold": 120},
            }
            spec = {"containers": [{**common, **container}], "volumes": list(volumes)}
            return {"metadata": {"labels": {"beside": "kuberay"}}, "spec": spec}

        head = {"name": "ray-head", "env": plain, "volumeMounts": [code]}
        worker = {"name": "ray-worker", "env": [*plain, ENV, pod_name], "volumeMounts": [MOUNT]}
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": self.NAME},
            "spec": {
                "entrypoint": f"python /code/{SCRIPT.name}",
                "submissionMode": "HTTPMode",
                "rayClusterSpec": {
                    "headGroupSpec": {
                        "rayStartParams": {"num-cpus": "0"},
                        "template": template(
                            head, {"name": "code", "configMap": {"name": "plain"}}
                        ),
                    },
                    "workerGroupSpecs": [
                        {
                            "groupName": "workers",
                            "replicas": 2,
                            "minReplicas": 2,
                            "maxReplicas": 2,
                            "rayStartParams": {"num-cpus": "1"},
                            "template": template(worker, self.journals.volume()),
                        }
                    ],
                },
            },
        }


def main() -> None:
    """Measures both sides and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="the losses whose name has this in it")
    parser.add_argument("--cluster", default="trainingrun-e2e")
    options = parser.parse_args()
    kubeconfig = ARTIFACTS / f"{options.cluster}.kubeconfig"
    if not kubeconfig.exists():
        sys.exit(f"there is no cluster {options.cluster}; make one with: KEEP=1 make e2e")
    cluster = TestCluster(options.cluster, Kubectl(kubeconfig, NAMESPACE))
    cluster.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "plain"},
            "data": {SCRIPT.name: SCRIPT.read_text()},
        }
    )
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(options.rounds):
        sides: list[tuple[str, Side]] = [("KubeRay", KubeRay(cluster)), ("ours", Ours(cluster))]
        for name, side in sides if number % 2 == 0 else reversed(sides):
            for what, seconds in one_run(cluster.kubectl, side, options.only):
                print(f"round {number + 1}, {name:8} {what:28} {seconds:6.1f} s", flush=True)
                found.setdefault(what, {}).setdefault(name, []).append(seconds)
    print(f"\n{'medians, seconds without training':34} KubeRay    ours   ratio")
    for what, by_side in found.items():
        theirs, ours = (statistics.median(by_side[name]) for name in ("KubeRay", "ours"))
        print(f"{what:34} {theirs:7.1f} {ours:7.1f} {ours / theirs:7.2f}")
        if options.rounds < LEAST_ROUNDS:
            continue
        row = (what, f"{theirs:.1f} s", f"{ours:.1f} s", f"{ours / theirs:.2f}")
        benchmark_page.write("beside KubeRay", [row])


def one_run(kubectl: Kubectl, side: Side, only: str) -> list[tuple[str, float]]:
    """What was done to one run, and what it cost."""
    side.remove()
    disturbances: list[tuple[str, Callable[[], object]]] = [
        ("training process kill -9", lambda: kill_trainer(kubectl, side.journals.trainer())),
        ("worker pod deleted", lambda: kubectl.delete("pod", side.journals.trainer())),
        (
            "head pod force-deleted",
            lambda: kubectl.delete("pod", side.head(), "--force", "--grace-period=0"),
        ),
    ]
    try:
        applied = time.time()
        side.start()
        trains(side, since=applied)
        first_step = ("apply to first step", side.journals.steps()[0].time - applied)
        measured = [] if only else [first_step]
        for what, disturb in disturbances:
            if only not in what:
                continue
            trains(side, since=time.time(), seconds=BETWEEN_S)
            now = time.time()
            disturb()
            paused(side, since=now)
            trains(side, since=time.time(), seconds=BETWEEN_S)
            name = f"{what}, by --only {only}" if only else what
            measured.append((name, seconds_without_training(side.journals.steps(), now)))
        return measured
    finally:
        side.remove()


def trains(side: Side, since: float, seconds: float = 0.0) -> None:
    """Waits for a step that was done so long after a time."""
    wait_for(
        "a step of training",
        lambda: any(step.time >= since + seconds for step in side.journals.steps()),
        timeout=300,
    )


def paused(side: Side, since: float) -> None:
    """Waits for a pause after a time, also one that is over: a pod that is deleted trains on for a
    while, and a killed process may be back before this looks."""

    def seen() -> bool:
        steps = (step.time for step in side.journals.steps() if step.time > since)
        times = [since, *steps, time.time()]
        return any(later - earlier > PAUSE_S for earlier, later in itertools.pairwise(times))

    wait_for("training to pause", seen, timeout=120)


if __name__ == "__main__":
    main()
