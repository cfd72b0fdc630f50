"""Lightning on a real Ray: what a kill and a notice cost, with our callback and with Ray's."""

from collections.abc import Callable
from pathlib import Path

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run

SCRIPT = Path(__file__).parent / "scripts" / "lightning_script.py"
EPOCHS, STEPS = 9, 12
"""Of the examples; STEPS are those of an epoch."""


def test_no_step_is_lost_and_no_bit_is_different_with_the_callback(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    whole = undisturbed(a_run("lightning", epochs=EPOCHS), journal)
    assert journal.steps() == list(range(1, EPOCHS * STEPS + 1))
    assert float(str(whole("accuracy"))) > 0.5

    run = a_run("lightning", epochs=EPOCHS, step_seconds=0.1)
    # Killed after checkpoints by time and after ends of epochs, and only once notes that take more
    # than 0.3 % of the time would have ceased.
    run.contract = run.contract.model_copy(
        update={"checkpoints": run.contract.checkpoints.model_copy(update={"every_seconds": 2})}
    )
    lost = disturb(run, journal, "lightning, callback", kill_at=65, notice_at=80)
    assert lost == (0, 0)
    assert sorted(journal.steps()) == list(range(1, EPOCHS * STEPS + 1))
    assert run.metrics()["weights_sha256"] == whole("weights_sha256")
    assert run.metrics()["accuracy"] == whole("accuracy")


def test_an_unmodified_script_resumes_from_what_rays_callback_has_reported(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    run = a_run(script=SCRIPT, epochs=8)
    noticed, killed = disturb(run, journal, "lightning, unmodified", kill_at=20, notice_at=50)
    assert killed < 15
    assert noticed <= 15
    assert set(journal.steps()) == set(range(1, 8 * 15 + 1))
