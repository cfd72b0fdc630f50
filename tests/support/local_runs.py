"""Runs on a local Ray, driven by the runtime alone: no operator, no command line."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainingrun.api.contract import (
    CONTRACT_ENV,
    PROGRESS_FILE,
    SUSPEND_FILE,
    ContractStorage,
    Progress,
    RunContract,
)
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_runtime import progress_document, result
from trainingrun_runtime.bucket import Bucket

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300


class Run:
    """A run with two workers on this machine, one driver after the other."""

    def __init__(self, ray: LocalRay, folder: Path, function: str, config: dict[str, Any]) -> None:
        self.ray = ray
        self.state = folder / "state"
        self._log = folder / "driver.log"
        self.bucket = Bucket.open(f"file://{folder}/run")
        self.contract = RunContract(
            name="example",
            namespace="default",
            uid="0",
            attempt=1,
            function=function,
            config=config,
            workers=2,
            resources_per_worker={"CPU": 1},
            storage=ContractStorage(uri=self.bucket.root),
        )

    def drive(self, suspend_at: int | None = None) -> int:
        """Run a driver to its end, or ask it to suspend at a step; its exit code."""
        variables = {
            "TRAININGRUN_STATE_DIRECTORY": str(self.state),
            CONTRACT_ENV: json.dumps(self.contract.to_dict()),
        }
        driver = self.ray.start_on_head(["-m", "trainingrun_runtime"], variables, self._log)
        deadline = time.monotonic() + PATIENCE_S
        while driver.poll() is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not end: {self.log()}")
            if suspend_at is not None and self.progress().step >= suspend_at:
                (self.state / SUSPEND_FILE).touch()
            time.sleep(0.1)
        return driver.returncode

    def progress(self) -> Progress:
        return progress_document.read(self.state / PROGRESS_FILE) or Progress(attempt=1)

    def metrics(self) -> dict[str, Any]:
        """The final metrics."""
        found = result.read(self.bucket)
        assert found is not None, self.log()
        return found.metrics

    def log(self) -> str:
        """The end of the driver's log."""
        return self._log.read_text()[-4000:]


@contextmanager
def two_workers(logs: Path, **variables: str) -> Iterator[LocalRay]:
    """A Ray of our own with two worker nodes; the tests' own modules can be training functions."""
    roots = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images", "tests"))
    environment = {"PYTHONPATH": roots, "RAY_USAGE_STATS_ENABLED": "0", **variables}
    with LocalRay(logs, environment, {"CPU": 1}) as cluster:
        cluster.start(2)
        yield cluster
