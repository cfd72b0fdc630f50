"""Transformers on a real Ray: what a kill and a notice cost, with our trainer and with Ray's."""

from collections.abc import Callable
from pathlib import Path

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run

SCRIPTS = Path(__file__).parent / "scripts"
EPOCHS, STEPS = 3, 23
"""Of the example; STEPS are those of an epoch, of two batches each."""


def test_no_step_is_lost_and_no_bit_is_different_with_a_session(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    whole = undisturbed(a_run("transformers", epochs=EPOCHS), journal)
    assert journal.steps() == list(range(1, EPOCHS * STEPS + 1))

    run = a_run("transformers", epochs=EPOCHS, step_seconds=0.15)
    lost = disturb(run, journal, "transformers, session", kill_at=10, notice_at=40)
    assert lost == (0, 0)
    assert sorted(journal.steps()) == list(range(1, EPOCHS * STEPS + 1))
    assert run.metrics()["weights_sha256"] == whole("weights_sha256")


def test_a_rank_that_dies_before_a_step_is_logged_costs_no_step(
    a_run: Callable[..., Run], journal: Journal, tmp_path: Path
) -> None:
    whole = undisturbed(a_run("transformers", epochs=1), journal)

    journal.clear()
    script = SCRIPTS / "transformers_dies_before_log.py"
    run = a_run(script=script, epochs=1, died=str(tmp_path / "died"))
    assert run.drive() == 0, run.log()
    assert (tmp_path / "died").exists()
    assert sorted(journal.steps()) == list(range(1, STEPS + 1))
    assert run.metrics()["weights_sha256"] == whole("weights_sha256")


def test_an_unmodified_script_resumes_from_what_rays_callback_has_reported(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    run = a_run(script=SCRIPTS / "transformers_script.py", epochs=8)
    noticed, killed = disturb(run, journal, "transformers, unmodified", kill_at=20, notice_at=50)
    assert killed < 15
    assert noticed <= 15
    assert set(journal.steps()) == set(range(1, 8 * 15 + 1))
