"""TensorFlow on a real Ray: what a kill and a notice cost, with a session and without one."""

from collections.abc import Callable
from pathlib import Path

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run

SCRIPT = Path(__file__).parent / "scripts" / "tensorflow_script.py"
EPOCHS, STEPS = 7, 11
"""Of the example; STEPS are those of an epoch."""


def test_no_step_is_lost_on_notice_and_no_bit_is_different_with_a_session(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    whole = undisturbed(a_run("tensorflow", epochs=EPOCHS), journal)
    assert journal.steps() == list(range(1, EPOCHS * STEPS + 1))
    assert float(str(whole("accuracy"))) > 0.5

    run = a_run("tensorflow", epochs=EPOCHS, step_seconds=0.1)
    run.contract = run.contract.model_copy(
        update={"checkpoints": run.contract.checkpoints.model_copy(update={"every_steps": 10})}
    )
    noticed, killed = disturb(run, journal, "tensorflow, session", kill_at=17, notice_at=50)
    assert noticed == 0
    assert killed <= 12
    assert set(journal.steps()) == set(range(1, EPOCHS * STEPS + 1))
    assert run.metrics()["weights_sha256"] == whole("weights_sha256")


def test_an_unmodified_script_resumes_from_what_rays_callback_has_reported(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    whole = undisturbed(a_run(script=SCRIPT, epochs=6), journal)

    run = a_run(script=SCRIPT, epochs=6)
    noticed, killed = disturb(run, journal, "tensorflow, unmodified", kill_at=20, notice_at=50)
    assert killed < 15
    assert noticed <= 15
    assert set(journal.steps()) == set(range(1, 6 * 15 + 1))
    assert run.metrics()["loss"] == whole("loss")
