"""Boosting that goes on after a loss: its schedules and draws are the run's, not those of the call.

Each continues a real booster by the arguments that `train` gives to the library.
"""

import json
import multiprocessing
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

from trainingrun_runtime.frameworks import lightgbm as our_lightgbm
from trainingrun_runtime.frameworks import xgboost as our_xgboost

ROUNDS, DONE = 12, 5
RATES = [0.5 * 0.8**number for number in range(ROUNDS)]


def data() -> tuple[Any, Any]:
    rows = np.random.default_rng(0).normal(size=(400, 10))
    return rows, rows.sum(1)


def lightgbm_rounds(
    rounds: int, former: Any = None, rates: Any = None, **more: Any
) -> lightgbm.Booster:
    done = former.current_iteration() if former else 0
    params = {"num_leaves": 4, "min_data_in_leaf": 5, "verbosity": -1, "num_threads": 1, **more}
    schedule = [lightgbm.reset_parameter(learning_rate=rates)] if rates else []
    return lightgbm.train(
        our_lightgbm.seeded_at(params, done),
        lightgbm.Dataset(*data()),
        rounds - done,
        init_model=former,
        callbacks=[our_lightgbm.counted_from_the_first_round(each) for each in schedule],
    )


def xgboost_rounds(
    rounds: int, former: Any = None, rates: Any = None, **more: Any
) -> xgboost.Booster:
    done = former.num_boosted_rounds() if former else 0
    params = {"max_depth": 2, "nthread": 1, "learning_rate": 0.9, **more}
    schedule = [xgboost.callback.LearningRateScheduler(rates)] if rates else []
    return xgboost.train(
        our_xgboost.seeded_at(params, done),
        xgboost.DMatrix(*data()),
        rounds - done,
        xgb_model=former,
        callbacks=[our_xgboost.counted_from_the_first_round(each, done) for each in schedule],
    )


def lightgbm_trees(booster: lightgbm.Booster) -> str:
    return booster.model_to_string().partition("\nparameters:")[0]


@pytest.mark.parametrize("rates", [RATES, lambda number: RATES[number]], ids=["list", "function"])
def test_a_schedule_of_lightgbm_goes_on_where_the_run_is(rates: Any) -> None:
    former = lightgbm_rounds(DONE, rates=rates[:DONE] if isinstance(rates, list) else rates)
    continued = lightgbm_rounds(ROUNDS, former, rates)
    assert lightgbm_trees(continued) == lightgbm_trees(lightgbm_rounds(ROUNDS, rates=rates))


@pytest.mark.parametrize("rates", [RATES, lambda number: RATES[number]], ids=["list", "function"])
def test_a_schedule_of_xgboost_goes_on_where_the_run_is(rates: Any) -> None:
    continued = xgboost_rounds(ROUNDS, xgboost_rounds(DONE, rates=rates), rates)
    assert continued.get_dump() == xgboost_rounds(ROUNDS, rates=rates).get_dump()


def features_of_lightgbm(lost_after_each_round: bool) -> list[int]:
    """Which feature each tree uses, of which one of ten is drawn for each."""
    booster = None
    for rounds in range(1, ROUNDS + 1) if lost_after_each_round else [ROUNDS]:
        booster = lightgbm_rounds(rounds, booster, feature_fraction=0.1, seed=0)
    assert booster is not None
    return [tree["tree_structure"]["split_feature"] for tree in booster.dump_model()["tree_info"]]


def test_lightgbm_draws_other_features_after_each_loss() -> None:
    assert len(set(features_of_lightgbm(lost_after_each_round=False))) >= 5
    assert len(set(features_of_lightgbm(lost_after_each_round=True))) >= 5


def one_xgboost_round_more(raw: bytearray | None) -> bytearray:
    former = xgboost.Booster(model_file=raw) if raw else None
    rounds = former.num_boosted_rounds() + 1 if former else 1
    return xgboost_rounds(rounds, former, colsample_bytree=0.1, seed=0).save_raw("ubj")


def test_xgboost_draws_other_features_after_each_loss() -> None:
    """Each round in a process of its own, since its random numbers are those of the process."""
    raw = None
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        for _ in range(6):
            raw = processes.apply(one_xgboost_round_more, (raw,))
    trees = xgboost.Booster(model_file=raw).get_dump(dump_format="json")
    assert len({json.loads(tree)["split"] for tree in trees}) >= 3


def test_a_number_of_rounds_in_the_parameters_is_the_runs() -> None:
    rest, rounds = our_lightgbm._without({"n_estimators": 40, "num_leaves": 4}, "num_iterations")
    assert (rest, rounds) == ({"num_leaves": 4}, 40)
