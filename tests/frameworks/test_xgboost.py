"""XGBoost on a real Ray: what a kill and a notice cost, with a session and with Ray's callback."""

from collections.abc import Callable
from pathlib import Path

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run

SCRIPT = Path(__file__).parent / "scripts" / "xgboost_script.py"
ROUNDS = 80


def test_no_round_is_lost_on_notice_and_the_trees_are_the_same_with_a_session(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    whole = undisturbed(a_run("xgboost", rounds=ROUNDS), journal)
    assert journal.steps() == list(range(1, ROUNDS + 1))
    assert float(str(whole("accuracy"))) > 0.8

    run = a_run("xgboost", rounds=ROUNDS, step_seconds=0.1)
    run.contract = run.contract.model_copy(
        update={"checkpoints": run.contract.checkpoints.model_copy(update={"every_steps": 10})}
    )
    noticed, killed = disturb(run, journal, "xgboost, session", kill_at=17, notice_at=50)
    assert noticed == 0
    assert killed <= 12
    assert set(journal.steps()) == set(range(1, ROUNDS + 1))
    assert run.metrics()["trees_sha256"] == whole("trees_sha256")


def test_an_unmodified_script_resumes_from_what_rays_callback_has_reported(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    run = a_run(script=SCRIPT, rounds=ROUNDS)
    noticed, killed = disturb(run, journal, "xgboost, unmodified", kill_at=17, notice_at=45)
    assert killed <= 12
    assert noticed <= 12
    assert set(journal.steps()) == set(range(1, ROUNDS + 1))
