"""DeepSpeed on a real Ray: what a kill and a notice cost, with a session and without one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run

SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_script.py"
SHOWS_ITS_EXTENSION = """
import pathlib
import deepspeed
from ray.train.torch import TorchTrainer

def train():
    deepspeed.init_distributed("gloo")
    pathlib.Path("{shown}").write_text(str(deepspeed.comm.comm.cdb.shm_comm_op))

TorchTrainer(train).fit()
"""
EPOCHS, STEPS = 7, 11
"""Of the example; STEPS are those of an epoch."""


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_no_step_is_lost_on_notice_and_no_bit_is_different_with_a_session(
    a_run: Callable[..., Run], journal: Journal, stage: int
) -> None:
    whole = undisturbed(a_run("deepspeed", epochs=EPOCHS, zero_stage=stage), journal)
    assert journal.steps() == list(range(1, EPOCHS * STEPS + 1))
    assert float(str(whole("accuracy"))) > 0.5

    run = a_run("deepspeed", epochs=EPOCHS, zero_stage=stage, step_seconds=0.1)
    run.contract = run.contract.model_copy(
        update={"checkpoints": run.contract.checkpoints.model_copy(update={"every_steps": 10})}
    )
    name = f"deepspeed, ZeRO stage {stage}, session"
    noticed, killed = disturb(run, journal, name, kill_at=17, notice_at=50)
    assert noticed == 0
    # Without ZeRO the rank that is left has all of the last step.
    assert killed <= (12 if stage else 0)
    assert set(journal.steps()) == set(range(1, EPOCHS * STEPS + 1))
    assert run.metrics()["weights_sha256"] == whole("weights_sha256")


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_an_unmodified_script_resumes_from_the_shards_that_it_has_reported(
    a_run: Callable[..., Run], journal: Journal, stage: int
) -> None:
    run = a_run(script=SCRIPT, epochs=6, zero_stage=stage)
    name = f"deepspeed, ZeRO stage {stage}, unmodified"
    noticed, killed = disturb(run, journal, name, kill_at=20, notice_at=50)
    assert killed < 15
    assert noticed <= 15
    assert set(journal.steps()) == set(range(1, 6 * 15 + 1))


def test_no_extension_is_compiled_for_an_unmodified_script(
    a_run: Callable[..., Run], tmp_path: Path
) -> None:
    script, shown = tmp_path / "script.py", tmp_path / "extension"
    script.write_text(SHOWS_ITS_EXTENSION.format(shown=shown))
    run = a_run(script=script)
    assert run.drive() == 0, run.log()
    assert shown.read_text() == "None"
