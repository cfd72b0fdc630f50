"""Scripts that a framework's own launcher starts elsewhere run unmodified as those of torchrun."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.torchrun_runs import FOLDER, Started, run_alone
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RecordKind

SCRIPTS = Path(__file__).parent / "scripts"
EPOCHS = 4


@pytest.fixture(params=["accelerate", "deepspeed"])
def script(request: pytest.FixtureRequest) -> Path:
    return SCRIPTS / f"{request.param}_launched.py"


@pytest.fixture
def run(ray: LocalRay, script: Path, tmp_path: Path) -> Iterator[Started]:
    """Its epochs take longer than the 5 s for which a folder has to be quiet."""
    made = Started(
        ray, tmp_path / "run", script.read_text(), "--output-dir", FOLDER,
        "--epochs", str(EPOCHS), "--step-seconds", "0.6",
    )  # fmt: skip
    yield made
    made.stop()


def test_a_killed_one_goes_on_from_its_own_checkpoint_to_the_weights_that_it_has_alone(
    run: Started, script: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    run_alone([sys.executable, script, "--output-dir", alone, "--epochs", str(EPOCHS)])

    run.start()
    run.wait_until(lambda progress: progress.checkpoint is not None)
    run.scripts()[1].send_signal(signal.SIGKILL)
    assert run.wait() == 0, run.log()

    kinds = [record.kind for record in run.progress().records]
    assert kinds.count(RecordKind.WORKER_LOST) == 1
    wanted, found = torch.load(alone / "final.pt"), run.kept("final.pt")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], weights) for name, weights in wanted.items())
