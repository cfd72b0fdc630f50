"""Code and packages that are not in the image, on real Ray: in the driver and in every rank."""

import json
import os
import signal
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.local_runs import Run, wait_for_both_nodes
from support.packages import wheel, zipped
from support.prestarted import processes
from support.s3 import S3Server
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractCode
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.store.bucket import Bucket

pytestmark = pytest.mark.slow

MODULE = """
import os
import time
from pathlib import Path

import helper
import tinything
import torch
from trainingrun_runtime import Session


def train(config):
    session = Session(model=torch.nn.Linear(1, 1))
    for _ in session.steps(60):
        time.sleep(0.1)
    session.finish(
        value=helper.VALUE + tinything.VALUE,
        text=Path("data.txt").read_text(),
        command=os.popen("cd /; python -c 'import tinything; print(tinything.VALUE)'").read(),
    )
"""
SCRIPT = """
import json
import time
from pathlib import Path

import model  # beside the script
import torch
from helper import VALUE  # at the top of the code
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from support.prestarted import processes


deadline = time.monotonic() + 120
while len(found := processes(HOME)) < 3 and time.monotonic() < deadline:
    time.sleep(0.1)
Path(BEFORE).write_text(json.dumps([process.pid for process in found]))
print(Path("data.txt").read_text(), flush=True)
TorchTrainer(model.train, scaling_config=ScalingConfig(num_workers=2)).fit()
"""
MODEL = """
import time

import helper
import torch
from trainingrun_runtime import Session


def train():
    session = Session(model=torch.nn.Linear(1, 1))
    for _ in session.steps(100_000):
        session.report(value=helper.VALUE)
        time.sleep(0.05)
"""


@pytest.fixture
def a_run(ray: LocalRay, s3: S3Server, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Makes a run whose code is in the bucket, in another folder than the run's own."""
    made: list[Run] = []

    def make(files: dict[str, str], function: str | None, **contract: Any) -> Run:
        store = Bucket.open("s3://runs/code", s3.url, "us-east-1")
        store.put("train.zip", zipped(tmp_path / "train.zip", files).read_bytes())
        bucket = Bucket.open(f"s3://runs/{tmp_path.name}", s3.url, "us-east-1")
        run = Run(ray, tmp_path, function, {}, bucket, every_seconds=1)
        code = ContractCode(uri=store.uri("train.zip"), endpoint=s3.url, region="us-east-1")
        run.contract = run.contract.model_copy(update={"code": code, **contract})
        made.append(run)
        return run

    yield make
    for run in made:
        run.stop()


def test_a_function_of_the_code_uses_a_requirement_and_resumes_after_a_kill_and_a_suspend(
    a_run: Callable[..., Run], tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels", "tinything", "1.2", "VALUE = 40\n", ["numpy"])
    files = {"jobs/mine.py": MODULE, "helper.py": "VALUE = 2\n", "data.txt": "hello"}
    run = a_run(files, "jobs.mine:train", requirements=["tinything==1.2"])
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}

    run.start(**offline)
    run.wait_until(lambda progress: progress.step >= 20)
    os.kill(run.training_process(), signal.SIGKILL)
    run.wait_until(lambda p: p.step >= 30 and RecordKind.WORKER_LOST in {r.kind for r in p.records})
    run.suspend()
    assert run.wait() == SUSPEND_EXIT_CODE, run.log()

    run.contract = run.contract.model_copy(update={"attempt": 2})
    run.start(**offline)
    assert run.wait() == 0, run.log()
    assert (run.progress().resumed_from_step or 0) >= 30
    assert run.progress().step == 60
    assert run.metrics() == {"value": 42, "text": "hello", "command": "40\n"}


def test_a_script_of_the_code_runs_in_its_folder_and_in_prestarted_processes(
    a_run: Callable[..., Run], ray: LocalRay, tmp_path: Path
) -> None:
    before, home = tmp_path / "before", str(ray.head.state.parents[1])
    script = f"HOME, BEFORE = {home!r}, {str(before)!r}\n{textwrap.dedent(SCRIPT)}"
    files = {"src/train.py": script, "src/model.py": MODEL, "helper.py": "VALUE = 2\n"}
    run = a_run({**files, "data.txt": "read by the driver"}, None, script="src/train.py")

    wait_for_both_nodes(ray, tmp_path)
    run.start()
    run.wait_until(lambda progress: progress.metrics.get("value") == 2)
    titles = {process.pid: process.title.split(".")[0] for process in processes(home)}
    assert "read by the driver" in run.log()
    used = Counter(titles.get(pid) for pid in json.loads(before.read_text()))
    assert used["ray::TrainController"] == 1
    assert used["ray::RayTrainWorker"] == 2
