"""A script as people start it with torchrun, unmodified, on real Ray: what it is told and keeps."""

import io
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractTorchrun
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.store import manifest, run_result, verification

pytestmark = pytest.mark.slow

SAMPLE = Path(__file__).parents[2] / "manifests/samples/torchrun.yaml"
STEPS = 100
FOLDER = "$(TRAININGRUN_CHECKPOINT_DIR)"


class Started(Run):
    """A run of a script that each rank starts; its nodes are those of the module's Ray."""

    def __init__(self, ray: LocalRay, folder: Path, code: str, *arguments: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        script = folder / "train.py"
        script.write_text(code)
        super().__init__(ray, folder, None, {})
        started = ContractTorchrun(script=str(script), args=list(arguments))
        self.contract = self.contract.model_copy(update={"torchrun": started})

    def scripts(self) -> dict[int, psutil.Process]:
        """The processes of the script, by rank."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.cmdline()[1:3] == ["-u", str(self.folder / "train.py")]:
                    found[int(process.environ()["RANK"])] = process
            except psutil.Error:
                continue
        return found

    def begins(self) -> list[int]:
        """The first step of each start of rank 0."""
        text = (self.folder / "driver.log").read_text()
        return [int(step) for step in re.findall(r"rank 0 of \d+ begins with step (\d+)", text)]

    def kept(self, name: str = "snapshot.pt") -> Any:
        """A file of the newest checkpoint, as `torch.load` reads it."""
        newest = manifest.committed(self.bucket)[-1]
        assert verification.verify(self.bucket, newest) is None
        content = self.bucket.get(f"{newest.path}/{name}")
        assert content is not None
        return torch.load(io.BytesIO(content))


@pytest.fixture(scope="module")
def sample() -> str:
    """The script of the sample."""
    config_map, _ = yaml.safe_load_all(SAMPLE.read_text())
    return str(config_map["data"]["train.py"])


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Makes runs: `a_run(code, "--steps", "10")`."""
    made: list[Started] = []

    def make(code: str, *arguments: str) -> Started:
        made.append(Started(ray, tmp_path / f"run-{len(made)}", code, *arguments))
        return made[-1]

    yield make
    for run in made:
        run.stop()


@pytest.fixture(scope="module")
def undisturbed(
    ray: LocalRay, sample: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What an undisturbed run of the sample ends with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = Started(ray, folder, sample, "--folder", FOLDER, "--steps", str(STEPS))
    assert run.drive() == 0, run.log()
    found: dict[str, Any] = run.kept()
    assert found["step"] == STEPS
    result = run_result.read(run.bucket)
    assert result is not None
    assert result.checkpoint_uri == run.bucket.uri(manifest.committed(run.bucket)[-1].path)
    assert run.begins() == [1]
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["step"] == wanted["step"]
    for name, weights in wanted["model"].items():
        assert torch.equal(found["model"][name], weights)
    states = (one["optimizer"]["state"] for one in (found, wanted))
    for own, other in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(own["momentum_buffer"], other["momentum_buffer"])


def test_a_killed_script_costs_the_steps_since_its_last_checkpoint_and_no_bit(
    a_run: Callable[..., Started], sample: str, undisturbed: dict[str, Any]
) -> None:
    run = a_run(
        sample, "--folder", FOLDER, "--steps", str(STEPS), "--save-every", "60",
        "--step-seconds", "0.2",
    )  # fmt: skip
    run.start()
    run.wait_until(lambda progress: progress.checkpoint is not None)
    run.scripts()[1].send_signal(signal.SIGKILL)
    assert run.wait() == 0, run.log()

    assert_same(run.kept(), undisturbed)
    assert run.begins() == [1, 61]
    progress = run.progress()
    kinds = [record.kind for record in progress.records]
    assert kinds.count(RecordKind.WORKER_LOST) == 1
    assert progress.world_size == 2
