"""Runs on a local Ray, driven by the runtime alone: no operator, no command line."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainingrun.local import processes
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import (
    CONTRACT_ENV,
    PROGRESS_FILE,
    SUSPEND_FILE,
    WORKER_RESOURCE,
    ContractCheckpoints,
    ContractStorage,
    RunContract,
)
from trainingrun_protocol.progress import Progress
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.store import run_result
from trainingrun_runtime.store.bucket import Bucket

ROOT = Path(__file__).parents[2]
OUTAGE_S = float(os.environ.get("TEST_OUTAGE_SECONDS", "5"))
"""How long an outage of the store lasts in the tests that make one."""
PATIENCE_S = 300 + 2 * OUTAGE_S
RESOURCES = {"CPU": 1.0, WORKER_RESOURCE: 1.0}


class Run:
    """A run on this machine, with a worker or more on each node; one driver after the other."""

    def __init__(
        self,
        ray: LocalRay,
        folder: Path,
        function: str | None,
        config: dict[str, Any],
        bucket: Bucket | None = None,
        script: Path | None = None,
        every_seconds: float = 300,
        workers: int = 2,
    ) -> None:
        self.ray = ray
        self.state = folder / "state"
        self._log = folder / "driver.log"
        self.bucket = bucket or Bucket.open(f"file://{folder}/run")
        self._driver: subprocess.Popen[bytes] | None = None
        self.contract = RunContract(
            name="example",
            namespace="default",
            uid="0",
            attempt=1,
            function=function,
            script=str(script) if script else None,
            config=config,
            workers=workers,
            resources_per_worker=RESOURCES,
            storage=ContractStorage(
                uri=self.bucket.root, endpoint=self.bucket.endpoint, region=self.bucket.region
            ),
            checkpoints=ContractCheckpoints(every_seconds=every_seconds),
        )

    def start(self, **variables: str) -> None:
        """Start a driver; `wait` and `wait_until` follow it."""
        (self.state / SUSPEND_FILE).unlink(missing_ok=True)
        self._driver = self.ray.start_on_head(
            ["-m", "trainingrun_runtime"],
            {
                "TRAININGRUN_STATE_DIRECTORY": str(self.state),
                CONTRACT_ENV: json.dumps(self.contract.to_dict()),
                **variables,
            },
            self._log,
        )

    def wait_until(self, condition: Callable[[Progress], object]) -> Progress:
        """The first progress document of the driver under way that meets a condition."""
        assert self._driver is not None
        deadline = time.monotonic() + PATIENCE_S
        while not condition(progress := self.progress()):
            assert self._driver.poll() is None, f"it ended: {self.log()}"
            assert time.monotonic() < deadline, f"it waits: {progress} {self.log()}"
            time.sleep(0.1)
        return progress

    def wait(self) -> int:
        """The exit code of the driver under way."""
        assert self._driver is not None
        try:
            return self._driver.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end: {self.log()}") from None

    def drive(self, suspend_at: int | None = None) -> int:
        """Run a driver to its end, or ask it to suspend at a step; its exit code."""
        self.start()
        if suspend_at is not None:
            self.wait_until(lambda progress: progress.step >= suspend_at)
            self.suspend()
        return self.wait()

    def suspend(self) -> None:
        """Ask the driver under way for a checkpoint and its end."""
        (self.state / SUSPEND_FILE).touch()

    def stop(self) -> None:
        """Kill the driver if it is still under way."""
        if self._driver is not None:
            processes.kill(self._driver)

    def training_process(self) -> int:
        """Process id of one of the processes that train."""
        return self.training_processes()[0]

    def training_processes(self) -> list[int]:
        """Process ids of all processes that train."""
        nodes = {node.process.pid for node in self.ray.workers}
        found = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit()
            and b"RayTrainWorker" in _read(entry / "cmdline")
            and has_ancestor(int(entry.name), nodes)
        ]
        assert found, f"nobody trains: {self.log()}"
        return found

    def progress(self) -> Progress:
        return progress_document.read(self.state / PROGRESS_FILE) or Progress(attempt=1)

    def metrics(self) -> dict[str, Any]:
        """The final metrics."""
        found = run_result.read(self.bucket)
        assert found is not None, self.log()
        return found.metrics

    def log(self) -> str:
        """The end of the driver's log."""
        return self._log.read_text()[-4000:]


def has_ancestor(pid: int, wanted: Collection[int]) -> bool:
    """Whether a process was started, maybe indirectly, by one of the wanted ones."""
    while pid > 1 and pid not in wanted:
        fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        pid = int(fields[1]) if fields else 0  # it has ended meanwhile
    return pid in wanted


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b") S 0"


@contextmanager
def two_workers(
    logs: Path,
    *,
    workers_per_node: int = 1,
    gpus: tuple[str, ...] = (),
    data_cpus: int | None = None,
    uploads_output: bool = False,
    **variables: str,
) -> Iterator[LocalRay]:
    """A Ray of our own with two worker nodes; the tests' own modules can be training functions.

    Args:
        logs: Folder for the nodes' output.
        workers_per_node: Workers that each node holds.
        gpus: One for each worker; to Ray they are bookkeeping.
        data_cpus: `workers.resources.dataCpus`.
        uploads_output: Whether what drivers and ranks print is kept in the run's folder.
        variables: Environment of every process.
    """
    roots = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images", "tests"))
    environment = {"PYTHONPATH": roots, "RAY_USAGE_STATS_ENABLED": "0", **variables}
    each = {**RESOURCES, "GPU": 1.0} if gpus else RESOURCES
    with LocalRay(
        logs,
        environment,
        each,
        gpus,
        workers_per_node=workers_per_node,
        data_cpus=data_cpus,
        uploads_output=uploads_output,
    ) as cluster:
        cluster.start(2)
        yield cluster


_BOTH_NODES = f"""
import ray, time
ray.init(logging_level="ERROR")
while sum({WORKER_RESOURCE!r} in node["Resources"] for node in ray.nodes()) < 2:
    time.sleep(0.1)
"""


def wait_for_both_nodes(ray: LocalRay, folder: Path) -> None:
    """Return when both workers' nodes have joined, as KubeRay waits for all pods.

    Processes are prestarted on the nodes that are there when a driver starts.
    """
    assert ray.start_on_head(["-c", _BOTH_NODES], {}, folder / "nodes.log").wait(60) == 0
