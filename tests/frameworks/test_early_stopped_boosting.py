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

from support.session_without_ray import Run
from trainingrun_runtime.frameworks import process_group

ROUNDS = 200

libraries = pytest.mark.parametrize("library", ["xgboost", "lightgbm"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setattr(process_group, "ensure", lambda: (0, 1))
    return Run(monkeypatch, tmp_path)


def trained(library: str, patience: int = 3) -> Any:
    """The booster of the process under way: of noise, of which no more can be learned before long.

    Args:
        patience: rounds without a better value that end the training.
    """
    numbers = np.random.default_rng(0)
    rows, others = numbers.normal(size=(2, 120, 4))
    labels, other_labels = numbers.normal(size=(2, 120))
    train = importlib.import_module(f"trainingrun_runtime.frameworks.{library}").train
    if library == "xgboost":
        held_out = xgboost.DMatrix(others, other_labels)
        return train(
            {"max_depth": 2, "nthread": 1},
            xgboost.DMatrix(rows, labels),
            ROUNDS,
            evals=[(held_out, "others")],
            early_stopping_rounds=patience,
            verbose_eval=False,
        )
    data = lightgbm.Dataset(rows, labels)
    return train(
        {"num_leaves": 4, "min_data_in_leaf": 5, "verbosity": -1, "num_threads": 1},
        data,
        ROUNDS,
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


@libraries
def test_another_run_does_further_rounds_of_a_training_that_early_stopping_has_ended(
    run: Run, library: str
) -> None:
    run.begin()
    trained(library)
    ended = run.end()
    run.begin(ended, another_runs=True)
    trained(library)
    assert ended.position.step < run.end().position.step < ROUNDS
