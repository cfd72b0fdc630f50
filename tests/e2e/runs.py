"""One TrainingRun of a scenario: start it, read its status and step journals, remove parts."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import live_source
from .cluster import ENDPOINT, LIVE_SOURCE, TRAINING_IMAGE, TestCluster
from .journals import ENV, MOUNT, Journals
from .kube import Kubectl, NotSeenError, wait_for
from .report import Step

TOTAL_STEPS = 240
STEP_SECONDS = 0.15
CHECKPOINT_SECONDS = 5
WORKERS = 2

BURST = {"requests": {"cpu": "100m"}, "limits": {"cpu": "2"}}
"""Three nodes share one small machine: pods ask for little and may use what is free."""


def specification(**changes: Any) -> dict[str, Any]:
    """A small valid spec; the changes replace whole fields."""
    return {
        "image": TRAINING_IMAGE,
        "training": {
            "function": "trainingrun_runtime.examples.digits:train",
            "config": {"steps": TOTAL_STEPS, "step_seconds": STEP_SECONDS},
        },
        "workers": {
            "count": WORKERS,
            "resources": {"cpu": "1", "memory": "2Gi", "sharedMemory": "256Mi"},
            "podTemplate": {"spec": {"containers": [{"name": "ray-worker", "resources": BURST}]}},
        },
        "head": {
            "resources": {"cpu": "1", "memory": "3Gi"},
            "podTemplate": {"spec": {"containers": [{"name": "ray-head", "resources": BURST}]}},
        },
        "storage": {
            "uri": "s3://runs/e2e",
            "endpoint": ENDPOINT,
            "region": "us-east-1",
            "credentialsSecret": "s3-credentials",
        },
        "checkpoints": {"everySeconds": CHECKPOINT_SECONDS},
        **changes,
    }


class Run:
    """A TrainingRun on the test cluster."""

    def __init__(self, cluster: TestCluster, kubectl: Kubectl, name: str) -> None:
        self.cluster = cluster
        self.kubectl = kubectl
        self.name = name
        self.journals = Journals(cluster, name)
        self.applied = 0.0
        """Unix time at which it was applied."""

    def start(self, spec: Mapping[str, Any], journal: bool = True) -> None:
        """Create it after whatever had its name is gone.

        A restricted namespace admits no journal: that is a folder of the node.
        """
        self.remove()
        self.journals.clear()
        if journal:
            spec = self._with_journal(spec)
        manifest = {
            "apiVersion": "trainingrun.dev/v1alpha1",
            "kind": "TrainingRun",
            "metadata": {"name": self.name},
            "spec": live_source.in_training(spec) if LIVE_SOURCE else spec,
        }
        self.applied = time.time()
        self.kubectl.apply(manifest)

    def _with_journal(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        container = {"name": "ray-worker", "resources": BURST, "volumeMounts": [MOUNT]}
        template = {"spec": {"containers": [container], "volumes": [self.journals.volume()]}}
        training = {**spec["training"], "env": [*spec["training"].get("env", []), ENV]}
        workers = {**spec["workers"], "podTemplate": template}
        return {**spec, "workers": workers, "training": training}

    def remove(self) -> None:
        """Delete it and wait until nothing of it is left in the cluster."""
        self.kubectl.delete("trainingrun", self.name, wait=True)
        self.wait_until_freed()

    def wait_until_freed(self, timeout: float = 90) -> None:
        """Wait until the run holds no pod."""
        wait_for(
            f"no pod of {self.name} is left",
            lambda: not self.pods(),
            timeout,
            instead=lambda: ", ".join(pod["metadata"]["name"] for pod in self.pods()),
        )

    def patch(self, **spec: Any) -> None:
        """Change fields of the spec."""
        self.kubectl.patch("trainingrun", self.name, {"spec": spec})

    # Its state

    def status(self) -> dict[str, Any]:
        """The status, {} before the first one."""
        return self.kubectl.get("trainingrun", self.name).get("status", {})

    def conditions(self) -> dict[str, dict[str, Any]]:
        """The conditions by type."""
        return {entry["type"]: entry for entry in self.status().get("conditions", [])}

    def holds(self, condition: str) -> bool:
        """Whether a condition is True."""
        return is_true(self.conditions(), condition)

    def events(self) -> list[str]:
        """`Reason: message` of its events."""
        selector = f"involvedObject.name={self.name},involvedObject.kind=TrainingRun"
        text = self.kubectl("get", "events", f"--field-selector={selector}", "--output=json")
        return [f"{event['reason']}: {event['message']}" for event in json.loads(text)["items"]]

    def folder(self) -> str:
        """Its folder in the bucket, below `storage.uri`."""
        return f"{self.name}-{self.kubectl.get('trainingrun', self.name)['metadata']['uid'][:8]}"

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        """Its pods, of one role or of both."""
        selector = f"trainingrun.dev/run={self.name}"
        return self.kubectl.list(
            "pods", f"{selector},trainingrun.dev/role={role}" if role else selector
        )

    def workers(self) -> dict[str, str]:
        """Node by name of each worker pod that runs and is not about to leave."""
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.pods("worker")
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        }

    def incarnations(self) -> dict[str, tuple[str, int]]:
        """UID and restarts of containers of each pod that runs and is not about to leave."""
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                sum(one["restartCount"] for one in pod["status"]["containerStatuses"]),
            )
            for pod in self.pods()
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        }

    def services(self) -> list[str]:
        """Names of the Services of its RayClusters: they have KubeRay's labels alone."""
        return [
            service["metadata"]["name"]
            for service in self.kubectl.list("services", "ray.io/cluster")
            if service["metadata"]["labels"]["ray.io/cluster"].startswith(f"{self.name}-")
        ]

    def head(self) -> str:
        """Name of the head pod."""
        (pod,) = self.pods("head")
        return pod["metadata"]["name"]

    def ray_token(self) -> str:
        """What Ray asks for at its ports."""
        return self.kubectl.execute(self.head(), "ray-head", ["printenv", "RAY_AUTH_TOKEN"]).strip()

    def trainer(self) -> str:
        """Name of the worker pod with rank 0, the last that wrote a journal."""
        return self.journals.trainer()

    def steps(self) -> list[Step]:
        """Every step that was done, oldest first."""
        return self.journals.steps()

    # Waiting

    def wait_for_step(self, number: int, timeout: float = 180) -> None:
        """Wait until that step was done."""

        def done() -> bool:
            if any(step.number >= number for step in self.steps()):
                return True
            self.fail_if_over("Failed")
            return False

        wait_for(f"step {number} of {self.name}", done, timeout, self.sentence, every=1)

    def train_on(
        self,
        steps: int = 2,
        timeout: float = 120,
        instead: Callable[[], str] | None = None,
        every: float = 0.5,
    ) -> None:
        """Wait until so many further steps are done. It asks no API server.

        Args:
            instead: what is said where they are not done; otherwise what the run's status says.
            every: seconds between two looks.
        """
        since = time.time()

        def done() -> bool:
            return len([step for step in self.steps() if step.time > since]) >= steps

        wait_for(
            f"{steps} more steps of {self.name}", done, timeout, instead or self.sentence, every
        )

    def wait_for_condition(self, condition: str, timeout: float = 120) -> dict[str, Any]:
        """Wait until a condition is True; it."""

        def held() -> dict[str, Any] | None:
            found = self.conditions()  # once: each kubectl takes CPU time of the cluster
            if condition != "Failed" and is_true(found, "Failed"):
                raise NotSeenError(f"{self.name} is Failed: {self.sentence()}")
            return found[condition] if is_true(found, condition) else None

        return wait_for(
            f"condition {condition} of {self.name}", held, timeout, self.sentence, every=1
        )

    def succeed(self, timeout: float = 240) -> dict[str, Any]:
        """Wait for success; the final status."""
        self.wait_for_condition("Succeeded", timeout)
        return self.status()

    def fail_if_over(self, condition: str) -> None:
        """Waiting for a run that has failed is of no use."""
        if self.holds(condition):
            raise NotSeenError(f"{self.name} is {condition}: {self.sentence()}")

    def sentence(self) -> str:
        """Everything that its status says, in one line."""
        said = [
            f"{entry['type']}={entry['status']} ({entry['reason']}): {entry.get('message', '')}"
            for entry in self.conditions().values()
        ]
        steps = self.steps()
        pods = [
            f"{pod['metadata']['name']} {pod['status'].get('phase')}"
            f"{' leaving' if 'deletionTimestamp' in pod['metadata'] else ''}"
            for pod in self.pods()
        ]
        last = f"last step {steps[-1].number} at {steps[-1].time:.0f}" if steps else "no step yet"
        return "; ".join([*said, last, f"pods {pods}"])


def is_true(conditions: Mapping[str, dict[str, Any]], condition: str) -> bool:
    """Whether one of the conditions is True."""
    return conditions.get(condition, {}).get("status") == "True"


SIGNAL_TRAINER = r"""
for entry in /proc/[0-9]*; do
  read -r -d '' title 2>/dev/null < "$entry/cmdline"
  case ${title%% *} in
    ray::*TrainWorker*) found="$found ${entry#/proc/}" ;;
  esac
done
echo prepared
read -r go
kill -SIGNAL $found
"""
"""Signals Ray Train's worker process in its container; it has no ps. It starts no process: a few
dozen would use up the container's share of the CPUs, and the worker would stand still before it
ends."""


def kill_trainer(kubectl: Kubectl, pod: str, when: Callable[[], object] = lambda: None) -> None:
    """`kill -9` of the process that trains, inside its container: the pod itself stays.

    Args:
        when: see `run_at_once`.
    """
    signal_trainer(kubectl, pod, "KILL", when)


def signal_trainer(
    kubectl: Kubectl, pod: str, signal: str, when: Callable[[], object] = lambda: None
) -> None:
    """Send a signal, such as STOP, to the process that trains."""
    script = SIGNAL_TRAINER.replace("SIGNAL", signal)
    kubectl.execute_at_once(pod, "ray-worker", ["bash", "-c", script], when)
