"""A cluster in memory, just large enough to carry out plans: KubeRay, kubelet and driver in one.

It keeps an eye on what must never happen: two attempts' RayJobs at once, and a number used twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from trainingrun.api.contract import Progress
from trainingrun.api.status import RunStatus
from trainingrun.reconciling import Observed, Plan, ReconcileSettings, plan
from trainingrun.reconciling.model import Action, Apply, Delete
from trainingrun.rendering import RenderSettings

from .builders import T0, a_head, a_pod, a_progress, a_ray_cluster, a_ray_job, a_run, nodes, unix

Event = Callable[["SmallCluster"], None]


@dataclass
class SmallCluster:
    """One run's world. `step` lets the world go on, `look` lets the operator do so."""

    spec: dict[str, Any] = field(default_factory=dict)
    status: RunStatus = field(default_factory=RunStatus)
    seconds: float = 0
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    clusters: dict[int, dict[str, Any]] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    progress: Progress | None = None
    epoch: int = 0
    created: list[int] = field(default_factory=list)
    run_deleted: bool = False

    def observe(self) -> Observed:
        """What the operator sees; the status goes through JSON, as it does in a real cluster."""
        return Observed(
            a_run(status=RunStatus.model_validate(self.status.to_dict()), **self.spec),
            ray_jobs=tuple(self.jobs.values()),
            ray_clusters=tuple(self.clusters.values()),
            pods=tuple(self.pods),
            nodes=nodes(),
            progress=self.progress,
            progress_age_s=0.5 if self.progress else None,
        )

    def look(self, crash_after: int | None = None) -> Plan:
        """One look of the operator; it dies after so many actions, before it writes the status."""
        now = T0 + timedelta(seconds=self.seconds)
        made = plan(self.observe(), RenderSettings(), ReconcileSettings(), now)
        ended_before = self.status.completion_time
        for number, action in enumerate(made.actions):
            if crash_after is not None and number >= crash_after:
                return made
            self._carry_out(action)
        if crash_after is None:
            self.status = made.status
        assert ended_before is None or self.status.completion_time == ended_before
        return made

    def step(self, seconds: float = 2) -> None:
        """The world goes on: what was deleted vanishes, RayJob first, its pods after it."""
        self.seconds += seconds
        gone = [n for n, job in self.jobs.items() if "deletionTimestamp" in job["metadata"]]
        for number in list(self.clusters):
            if number not in self.jobs:
                del self.clusters[number]
                self.pods = []
        for number in gone:
            del self.jobs[number]

    def train(self, step: int = 10, **document: Any) -> None:
        """The current attempt's driver reports a step and a checkpoint of it."""
        (number,) = self.jobs
        self.jobs[number]["status"]["jobStatus"] = "RUNNING"
        if self.progress is None or self.progress.attempt != number:
            self.epoch += 1
        self.progress = a_progress(
            number,
            epoch=self.epoch,
            step=step,
            step_time=unix(self.seconds),
            checkpoint={"uri": f"s3://c/{step}", "step": step, "time": unix(self.seconds)},
            **document,
        )

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Apply) and action.manifest["kind"] == "RayJob":
            self._create(int(action.manifest["metadata"]["labels"]["trainingrun.dev/attempt"]))
        elif isinstance(action, Delete) and action.ref.kind == "RayJob":
            for job in self.jobs.values():
                if job["metadata"]["uid"] == action.ref.uid:
                    job["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
        elif isinstance(action, Delete) and action.ref.kind == "TrainingRun":
            self.run_deleted = True

    def _create(self, number: int) -> None:
        if number in self.jobs:
            return
        assert not self.jobs, f"attempt {number} begins beside {list(self.jobs)}"
        assert not self.pods, f"attempt {number} begins beside pods of another one"
        assert number not in self.created, f"number {number} is used twice"
        self.created.append(number)
        born = self.seconds
        self.jobs[number] = a_ray_job(number, born=born)
        self.clusters[number] = a_ray_cluster(number)
        self.pods = [
            a_head(number, born=born),
            a_pod("worker-1", number=number, born=born + 1),
            a_pod("worker-2", number=number, node="spot-2", born=born + 1),
        ]
