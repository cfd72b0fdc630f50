"""The same training under torchrun, Ray Train alone and our runtime, on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.local_runs import wait_for_both_nodes
from support.s3 import CREDENTIALS, running_s3
from trainingrun.local import processes
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import (
    CONTRACT_ENV,
    WORKER_RESOURCE,
    ContractCheckpoints,
    ContractStorage,
    RunContract,
)
from trainingrun_runtime.store.bucket import Bucket

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE_S = 300
RESOURCES = {"CPU": 1.0, WORKER_RESOURCE: 1.0}
NEVER_S = 1e6
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(
        [*(str(ROOT / folder) for folder in ("operator", "training_images", "tests")), str(HERE)]
    ),
    **CREDENTIALS,
    "AWS_REGION": "us-east-1",
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Measured:
    """What one training wrote down; Unix times."""

    started: float
    """When its program was started."""
    turns: list[list[float]] = field(default_factory=list)
    """When rank 0 had done each step of each of its turns, those that were done again included."""
    killed: float | None = None
    """When rank 1 killed itself."""

    @property
    def steps(self) -> list[float]:
        """When rank 0 had done each step."""
        return [at for turn in self.turns for at in turn]

    @property
    def first_step_s(self) -> float:
        """Seconds from its start to its first step."""
        return self.steps[0] - self.started

    @property
    def next_step_s(self) -> float:
        """Seconds from the death of rank 1 to the next step of a new worker group."""
        assert self.killed is not None
        # The other rank may still end the step in which rank 1 died; a new group takes a second.
        return next(at for at in self.steps if at > self.killed + 0.5) - self.killed


@dataclass
class Training:
    """A training that was started."""

    program: "subprocess.Popen[bytes]"
    settings: dict[str, Any]
    log: Path
    started: float

    def wait(self) -> Measured:
        """What it has written down; it has to end well."""
        self._require(self.program.wait(PATIENCE_S) == 0)
        return self.measured()

    def wait_for(self, turns: int, steps: int) -> None:
        """Return when it has done so many steps in the last of so many turns."""
        deadline = time.monotonic() + PATIENCE_S
        while len(found := self.measured().turns) < turns or len(found[turns - 1]) < steps:
            self._require(self.program.poll() in (None, 0) and time.monotonic() < deadline)
            time.sleep(0.1)

    def give_turn(self, number: int) -> None:
        """Let rank 0 go on."""
        Path(f"{self.settings['times']}.turn").write_text(str(number))

    def measured(self) -> Measured:
        """What it has written down until now."""
        times = Path(self.settings["times"])
        killed = Path(f"{times}.killed")
        written = times.read_text() if times.exists() else ""
        complete = written[: written.rfind("\n") + 1]
        return Measured(
            self.started,
            [[float(line) for line in turn.split()] for turn in complete.split("\n\n")],
            float(killed.read_text()) if killed.exists() else None,
        )

    def _require(self, fine: bool) -> None:
        if not fine:
            sys.exit(f"{self.program.args!r} failed: {self.log.read_text()[-3000:]}")


class Sides:
    """The machine: a Ray with two workers on two nodes, and a bucket.

    Args:
        ray: the nodes.
        s3: URL of the server that ours uses. It stands for other machines, so it leaves the CPUs
            to the training that goes on meanwhile.
        awaited_s3: URL of the one for what waits for it: Ray Train alone, and restores.
        folder: for logs and what is measured.
    """

    def __init__(self, ray: LocalRay, s3: str, awaited_s3: str, folder: Path) -> None:
        self._ray, self._s3, self.awaited_s3, self.folder = ray, s3, awaited_s3, folder
        self._number = 0
        self._torchruns: list[subprocess.Popen[bytes]] = []

    @property
    def follower(self) -> psutil.Process:
        """The process that keeps what is printed."""
        assert self._ray.uploader is not None
        return psutil.Process(self._ray.uploader.pid)

    def follower_cpu_s(self) -> float:
        """CPU seconds that it has taken."""
        times = self.follower.cpu_times()
        return times.user + times.system

    @contextmanager
    def without_follower(self) -> Iterator[None]:
        """Stop the process meanwhile that keeps what is printed."""
        self.follower.suspend()
        try:
            yield
        finally:
            self.follower.resume()

    def close(self) -> None:
        """Kill what still runs under torchrun; the rest ends with Ray."""
        for program in self._torchruns:
            if program.poll() is None:
                processes.kill(program)

    def torchrun(self, load: dict[str, Any]) -> Training:
        """Start it under torchrun."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", str(HERE / "loads.py")]
        settings, log = self._settings(load)
        environment = {**os.environ, **ENVIRONMENT, "LOAD": json.dumps(settings)}
        started = time.time()
        self._torchruns.append(processes.start(command, environment, log))
        return Training(self._torchruns[-1], settings, log, started)

    def plain(self, load: dict[str, Any]) -> Training:
        """Start it under Ray Train alone."""
        settings, log = self._settings(load)
        address = self.awaited_s3.removeprefix("http://")
        storage = f"s3://runs/plain-{self._number}?scheme=http&endpoint_override={address}"
        variables = {"LOAD": json.dumps(settings), "STORAGE": storage}
        return self._on_head([str(HERE / "loads.py")], variables, settings, log)

    def ours(self, load: dict[str, Any]) -> Training:
        """Start it under our runtime."""
        return self.drive("loads:ours", load, self.bucket(awaited=False))

    def bucket(self, *, awaited: bool) -> Bucket:
        """An empty folder for a run, in one of the two servers."""
        self._number += 1
        server = self.awaited_s3 if awaited else self._s3
        return Bucket.open(f"s3://runs/ours-{self._number}", server, "us-east-1")

    def drive(self, function: str, load: dict[str, Any], bucket: Bucket) -> Training:
        """Start a driver of ours."""
        settings, log = self._settings(load)
        contract = RunContract(
            name="bench",
            namespace="default",
            uid="0",
            attempt=1,
            function=function,
            config=settings,
            workers=2,
            resources_per_worker=RESOURCES,
            storage=ContractStorage(
                uri=bucket.root, endpoint=bucket.endpoint, region=bucket.region
            ),
            checkpoints=ContractCheckpoints(every_seconds=NEVER_S),
        )
        variables = {CONTRACT_ENV: json.dumps(contract.to_dict())}
        return self._on_head(["-m", "trainingrun_runtime"], variables, settings, log)

    @contextmanager
    def without_ray(self, driver: Training) -> Iterator[None]:
        """Stop all nodes and a driver meanwhile, as if they were not on this machine.

        Only for some seconds: a node that does not answer counts as lost at last.
        """
        nodes = [self._ray.head.process, *(node.process for node in self._ray.workers)]
        roots = [*(node.pid for node in nodes), driver.program.pid, self.follower.pid]
        stopped = [pid for root in roots for pid in _signal_family(root, signal.SIGSTOP)]
        try:
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _settings(self, load: dict[str, Any]) -> tuple[dict[str, Any], Path]:
        self._number += 1
        place = self.folder / str(self._number)
        return {**load, "times": f"{place}.times"}, Path(f"{place}.log")

    def _on_head(
        self, command: list[str], variables: dict[str, str], settings: dict[str, Any], log: Path
    ) -> Training:
        started = time.time()
        return Training(self._ray.start_on_head(command, variables, log), settings, log, started)


def _signal_family(root: int, number: signal.Signals) -> Iterator[int]:
    """Signal a process and all that it has started, parents first; each that was there."""
    found = []
    with suppress(psutil.NoSuchProcess):
        found = [psutil.Process(root)]
    while found:
        process = found.pop()
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            yield process.pid
            found += process.children()


@contextmanager
def two_workers(folder: Path) -> Iterator[Sides]:
    """The machine, ready; this process has the server's credentials too."""
    os.environ.update(CREDENTIALS)
    with (
        running_s3(folder / "s3", niceness=19) as s3,
        running_s3(folder / "awaited-s3") as awaited_s3,
        LocalRay(folder, ENVIRONMENT, RESOURCES, uploads_output=True) as ray,
    ):
        ray.start(2)
        wait_for_both_nodes(ray, folder)
        sides = Sides(ray, s3.url, awaited_s3.url, folder)
        try:
            yield sides
        finally:
            sides.close()
