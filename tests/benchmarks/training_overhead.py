"""What does training pay for being able to go on? Two workers on this machine, each side in turn.

    python tests/benchmarks/training_overhead.py [--rounds 3]

Steps: the same steps under torchrun, Ray Train alone and our runtime, without checkpoints. A step
computes for about 10 ms and waits for 50, so that the machine has CPU time for Ray itself.
Checkpoints: 200 MB of state every 10 s to an S3 server on this machine, by plain Ray Train
(`ray.train.report` in the loop) and by our session; stalled is what steps took beyond their median.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = [str(ROOT / folder) for folder in ("operator", "training_images", "tests")]
sys.path[:0] = SOURCES

from support.s3 import ACCESS_KEY, SECRET_KEY, running_s3  # noqa: E402
from trainingrun.api.contract import (  # noqa: E402
    CONTRACT_ENV,
    WORKER_RESOURCE,
    ContractCheckpoints,
    ContractStorage,
    RunContract,
)
from trainingrun.local.ray_nodes import LocalRay  # noqa: E402

NEVER_S = 1e6
WARM_UP_S = 20.0
"""Seconds of training that do not count: Ray and we start helpers then."""
STEPS = {"steps": 900, "width": 512, "ballast": 0, "wait_seconds": 0.05, "every_seconds": NEVER_S}
CHECKPOINTS = {
    "steps": 400,
    "width": 16,
    "ballast": 200,
    "wait_seconds": 0.2,
    "every_seconds": 10.0,
}
PATIENCE_S = 600
RESOURCES = {"CPU": 1.0, WORKER_RESOURCE: 1.0}


class Bench:
    """The machine: a Ray with two workers and a bucket."""

    def __init__(self, ray: LocalRay, s3: str, folder: Path) -> None:
        self._ray, self._s3, self._folder = ray, s3, folder
        self._times = folder / "times.json"
        self._number = 0

    def torchrun(self, load: dict[str, Any]) -> list[float]:
        """Unix times of the steps under torchrun."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", str(HERE / "loads.py")]
        environment = {**os.environ, "LOAD": self._settings(load), "OMP_NUM_THREADS": "1"}
        with self._log().open("wb") as log:
            subprocess.run(
                command, env=environment, check=True, stdout=log, stderr=log, timeout=PATIENCE_S
            )
        return self._read()

    def plain(self, load: dict[str, Any]) -> list[float]:
        """Unix times of the steps under Ray Train alone."""
        address = self._s3.removeprefix("http://")
        storage = f"s3://runs/plain-{self._number}?scheme=http&endpoint_override={address}"
        variables = {"LOAD": self._settings(load), "STORAGE": storage}
        return self._on_head([str(HERE / "loads.py")], variables)

    def ours(self, load: dict[str, Any]) -> list[float]:
        """Unix times of the steps under our runtime."""
        contract = RunContract(
            name="bench",
            namespace="default",
            uid="0",
            attempt=1,
            function="loads:ours",
            config=json.loads(self._settings(load)),
            workers=2,
            resources_per_worker=RESOURCES,
            storage=ContractStorage(
                uri=f"s3://runs/ours-{self._number}", endpoint=self._s3, region="us-east-1"
            ),
            checkpoints=ContractCheckpoints(every_seconds=load["every_seconds"]),
        )
        variables = {CONTRACT_ENV: json.dumps(contract.to_dict())}
        return self._on_head(["-m", "trainingrun_runtime"], variables)

    def _settings(self, load: dict[str, Any]) -> str:
        self._number += 1
        self._times.unlink(missing_ok=True)
        return json.dumps({**load, "times": str(self._times)})

    def _on_head(self, command: list[str], variables: dict[str, str]) -> list[float]:
        driver = self._ray.start_on_head(command, variables, self._log())
        if driver.wait(timeout=PATIENCE_S):
            sys.exit(f"{command} failed: {self._log().read_text()[-3000:]}")
        return self._read()

    def _log(self) -> Path:
        return self._folder / f"{self._number}.log"

    def _read(self) -> list[float]:
        times: list[float] = json.loads(self._times.read_text())
        return times


def gaps(times: list[float]) -> list[float]:
    """Seconds of each step that counts."""
    counting = [time for time in times if time >= times[0] + WARM_UP_S]
    return [later - earlier for earlier, later in itertools.pairwise(counting)]


def rate(times: list[float]) -> float:
    """Steps per second."""
    return 1 / statistics.fmean(gaps(times))


def stalled(times: list[float]) -> float:
    """Part of the time beyond what the steps take otherwise."""
    found = gaps(times)
    usual = statistics.median(found)
    return sum(gap - usual for gap in found if gap > 1.5 * usual) / sum(found)


def main() -> None:
    """Measures everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    environment = {
        "PYTHONPATH": os.pathsep.join([*SOURCES, str(HERE)]),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "OMP_NUM_THREADS": "1",
    }
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_s3(Path(scratch, "s3")) as s3,
        LocalRay(Path(scratch), environment, RESOURCES) as ray,
    ):
        ray.start(2)
        bench = Bench(ray, s3.url, Path(scratch))
        ratios = []
        for number in range(rounds):
            order = [bench.torchrun, bench.plain, bench.ours]
            measured = {
                side.__name__: rate(side(STEPS)) for side in (order if number % 2 else order[::-1])
            }
            ratios.append(measured["ours"] / measured["torchrun"])
            found = ", ".join(f"{name} {measured[name]:.1f}" for name in sorted(measured))
            print(f"steps per second: {found}; ours to torchrun {ratios[-1]:.3f}", flush=True)
        theirs, ours = stalled(bench.plain(CHECKPOINTS)), stalled(bench.ours(CHECKPOINTS))
    print(f"ours to torchrun, median ratio of steps per second: {statistics.median(ratios):.3f}")
    every = CHECKPOINTS["every_seconds"]
    print(f"stalled by a checkpoint of 200 MB every {every:.0f} s:")
    print(f"  Ray Train alone {theirs:6.2%}, {theirs * every:5.2f} s for each")
    print(f"  ours            {ours:6.2%}, {ours * every:5.2f} s for each")
    print(f"  ratio           {theirs / ours:6.1f}" if ours else "  ours: none seen")


if __name__ == "__main__":
    main()
