"""Boosting that early stopping has ended: after a loss it is over, and another run goes on with it.

The libraries are the real ones; of the session Ray is a stand-in (`support.session_without_ray`).
"""

import importlib
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from xgboost.callback import EarlyStopping

from support.session_without_ray import Run
from trainingrun_runtime.checkpoints import snapshot
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.frameworks import process_group
from trainingrun_runtime.frameworks.xgboost import _KeptBooster as KeptXGBoost

ROUNDS = 200

libraries = pytest.mark.parametrize("library", ["xgboost", "lightgbm"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setattr(process_group, "ensure", lambda: (0, 1))
    return Run(monkeypatch, tmp_path)


def trained(
    library: str, patience: int = 3, rounds: int = ROUNDS, *, save_best: bool = False
) -> Any:
    """The booster of the process under way: of noise, of which no more can be learned before long.

    Args:
        library: that trains it.
        patience: rounds without a better value that end the training.
        rounds: of boosting, at most.
        save_best: of XGBoost: whether the rounds after the best one are left out.
    """
    numbers = np.random.default_rng(0)
    rows, others = numbers.normal(size=(2, 120, 4))
    labels, other_labels = numbers.normal(size=(2, 120))
    train = importlib.import_module(f"trainingrun_runtime.frameworks.{library}").train
    if library == "xgboost":
        held_out = xgboost.DMatrix(others, other_labels)
        stops: dict[str, Any] = {"early_stopping_rounds": patience}
        if save_best:
            stops = {"callbacks": [EarlyStopping(rounds=patience, save_best=True)]}
        return train(
            {"max_depth": 2, "nthread": 1},
            xgboost.DMatrix(rows, labels),
            rounds,
            evals=[(held_out, "others")],
            verbose_eval=False,
            **stops,
        )
    data = lightgbm.Dataset(rows, labels)
    return train(
        {"num_leaves": 4, "min_data_in_leaf": 5, "verbosity": -1, "num_threads": 1},
        data,
        rounds,
        valid_sets=[lightgbm.Dataset(others, other_labels, reference=data)],
        callbacks=[lightgbm.early_stopping(patience, verbose=False)],
    )


def trees(booster: Any) -> Any:
    if isinstance(booster, xgboost.Booster):
        return booster.get_dump(with_stats=True)
    return booster.model_to_string().partition("\nparameters:")[0]


@libraries
def test_a_training_that_early_stopping_has_ended_has_the_same_trees_after_a_loss(
    run: Run, library: str
) -> None:
    run.begin()
    whole = trees(trained(library))
    ended = run.end()
    assert 3 < ended.position.step < ROUNDS

    run.begin(ended)
    assert trees(trained(library)) == whole
    assert run.end().position == ended.position


@pytest.mark.parametrize(
    ("library", "options"),
    [
        pytest.param("xgboost", {}, id="xgboost"),
        pytest.param("xgboost", {"save_best": True}, id="xgboost, best rounds"),
        pytest.param("lightgbm", {}, id="lightgbm"),
    ],
)
def test_another_run_does_further_rounds_of_a_training_that_early_stopping_has_ended(
    run: Run, library: str, options: dict[str, Any]
) -> None:
    run.begin()
    trained(library, **options)
    ended = run.end()
    run.begin(ended, another_runs=True)
    trained(library, **options)
    assert ended.position.step < run.end().position.step < ROUNDS


@pytest.mark.parametrize("rounds", [ROUNDS, 9])
def test_a_training_that_keeps_its_best_rounds_ends_with_them_in_its_checkpoint(
    run: Run, rounds: int
) -> None:
    """Whether early stopping ends it, or its last round."""
    run.begin()
    booster = trained("xgboost", 3 if rounds == ROUNDS else ROUNDS, rounds, save_best=True)
    best, ended = trees(booster), run.end()
    assert len(best) < ended.position.step <= rounds
    for _ in range(2):
        kept = KeptXGBoost({})
        snapshot.restore(LocalFiles(ended.folder), {"booster": kept}, 0, 1)
        assert trees(kept.booster) == best
        assert kept.booster.best_iteration == booster.best_iteration == len(best) - 1

        run.begin(ended)
        assert trees(trained("xgboost", 3, rounds, save_best=True)) == best
        again = run.end()
        assert again.position == ended.position
        ended = again
