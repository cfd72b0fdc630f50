"""Boosted trees on a real Ray: what a kill and a notice cost, with a session and without one."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run

SCRIPTS = Path(__file__).parent / "scripts"
ROUNDS = 80

libraries = pytest.mark.parametrize("library", ["xgboost", "lightgbm"])


@libraries
def test_no_round_is_lost_and_the_trees_are_the_same_with_a_session(
    a_run: Callable[..., Run], journal: Journal, library: str
) -> None:
    whole = undisturbed(a_run(library, rounds=ROUNDS), journal)
    assert journal.steps() == list(range(1, ROUNDS + 1))
    assert float(str(whole("accuracy"))) > 0.8

    run = a_run(library, rounds=ROUNDS, step_seconds=0.1)
    lost = disturb(run, journal, f"{library}, session", kill_at=17, notice_at=50)
    assert lost == (0, 0)
    assert sorted(journal.steps()) == list(range(1, ROUNDS + 1))
    assert run.metrics()["trees_sha256"] == whole("trees_sha256")
    booster = importlib.import_module(f"trainingrun_runtime.frameworks.{library}").load(
        run.bucket.root
    )
    rounds = booster.current_iteration if library == "lightgbm" else booster.num_boosted_rounds
    assert rounds() == ROUNDS


@libraries
def test_an_unmodified_script_resumes_from_what_rays_callback_has_reported(
    a_run: Callable[..., Run], journal: Journal, library: str
) -> None:
    run = a_run(script=SCRIPTS / f"{library}_script.py", rounds=ROUNDS)
    noticed, killed = disturb(run, journal, f"{library}, unmodified", kill_at=17, notice_at=45)
    assert killed <= 12
    assert noticed <= 12
    assert set(journal.steps()) == set(range(1, ROUNDS + 1))
