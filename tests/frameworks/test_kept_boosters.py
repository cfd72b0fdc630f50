"""The first rounds of a booster are what it was after them, also while a later one is under way."""

import re
from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

from trainingrun_runtime.frameworks.lightgbm import _KeptBooster as KeptLightGBM
from trainingrun_runtime.frameworks.xgboost import _KeptBooster as KeptXGBoost
from trainingrun_runtime.survivors.watched_tensors import NotCovered, NotWhole

CLASSES, ROUNDS = 3, 4


def data() -> tuple[Any, Any]:
    numbers = np.random.default_rng(0)
    rows = numbers.normal(size=(200, 5))
    return rows, (np.abs(rows).argmax(1) % CLASSES).astype(np.float32)


class XGBoost:
    """A booster with some rounds, and each one's state after its end."""

    def __init__(self, rounds: int = ROUNDS, **params: Any) -> None:
        rows, labels = data()
        self.matrix = xgboost.DMatrix(rows, labels)
        self.params = {"objective": "multi:softprob", "num_class": CLASSES, **params}
        self.kept = KeptXGBoost(self.params)
        self.booster = self.kept.booster = xgboost.Booster(self.params, cache=[self.matrix])
        for number in range(rounds):
            self.booster.update(self.matrix, number)

    def next_round(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        def objective(answers: Any, matrix: Any) -> tuple[Any, Any]:
            meanwhile()
            return np.sin(np.arange(answers.size)).reshape(answers.shape), np.ones_like(answers)

        self.booster.update(self.matrix, self.booster.num_boosted_rounds(), objective)

    @staticmethod
    def trees(state: Any) -> list[str]:
        return xgboost.Booster(model_file=bytearray(state["ubj"])).get_dump(with_stats=True)


class LightGBM:
    """Likewise."""

    def __init__(self, rounds: int = ROUNDS, **params: Any) -> None:
        rows, labels = data()
        objective = {"objective": "multiclass", "num_class": CLASSES, "verbosity": -1}
        self.kept = KeptLightGBM()
        self.booster = self.kept.booster = lightgbm.Booster(
            {**objective, "min_data_in_leaf": 5, **params}, lightgbm.Dataset(rows, labels)
        )
        for _ in range(rounds):
            self.booster.update()

    def next_round(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        def objective(answers: Any, dataset: Any) -> tuple[Any, Any]:
            meanwhile()
            return np.sin(np.arange(answers.size)), np.ones(answers.size)

        self.booster.update(fobj=objective)

    @staticmethod
    def trees(state: Any) -> list[str]:
        text = re.sub(r"\nparameters:.*", "", state["text"], flags=re.DOTALL)
        return re.split(r"\n(?=Tree=)", text)[1:]


@pytest.fixture(params=[XGBoost, LightGBM])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_later_round_changes_nothing(kind: Any) -> None:
    training = kind()
    then, state = kind.trees(training.kept.state_dict()), training.kept.kept()
    assert len(then) == ROUNDS * CLASSES
    found = []
    training.next_round(meanwhile=lambda: found.append(kind.trees(state())))
    training.next_round()
    assert found[0] == then
    assert kind.trees(state()) == then
    assert len(kind.trees(training.kept.state_dict())) == (ROUNDS + 2) * CLASSES


def test_a_booster_continues_from_it_as_from_the_whole_state(kind: Any) -> None:
    training = kind()
    whole, state = training.kept.state_dict(), training.kept.kept()
    training.next_round()
    continued = []
    for found in (whole, state()):
        kept = kind(rounds=0).kept
        kept.load_state_dict(found)
        rows, labels = data()
        if kind is XGBoost:
            matrix = xgboost.DMatrix(rows, labels)
            params = {"objective": "multi:softprob", "num_class": CLASSES}
            kept.booster = xgboost.train(params, matrix, 2, xgb_model=kept.booster)
        else:
            params = {"objective": "multiclass", "num_class": CLASSES, "verbosity": -1}
            dataset = lightgbm.Dataset(rows, labels)
            kept.booster = lightgbm.train(params, dataset, 2, init_model=kept.booster)
        continued.append(kind.trees(kept.state_dict()))
    assert len(continued[0]) == (ROUNDS + 2) * CLASSES
    assert continued[0] == continued[1]


def test_the_best_round_of_then_is_kept_with_the_rounds() -> None:
    training = XGBoost()
    training.booster.set_attr(best_iteration=1, best_score=0.5)
    state = training.kept.kept()
    training.next_round()
    training.booster.set_attr(best_iteration=ROUNDS, best_score=0.25)
    restored = XGBoost(rounds=0).kept
    restored.load_state_dict(state())
    assert restored.booster.attributes() == {"best_iteration": "1", "best_score": "0.5"}
    assert restored.booster.num_boosted_rounds() == ROUNDS


def refreshed() -> XGBoost:
    """A booster of which each round has given new weights to a former round's trees."""
    training = XGBoost()
    params = {"process_type": "update", "updater": "refresh", "verbosity": 0}
    training.kept = KeptXGBoost(params)
    training.kept.booster = xgboost.train(
        {**training.params, **params}, training.matrix, ROUNDS, xgb_model=training.booster
    )
    return training


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(lambda: XGBoost(booster="dart"), id="xgboost dart"),
        pytest.param(lambda: XGBoost(booster="gblinear"), id="xgboost linear"),
        pytest.param(refreshed, id="xgboost update"),
        pytest.param(lambda: LightGBM(boosting="dart"), id="lightgbm dart"),
        pytest.param(
            lambda: LightGBM(boosting="rf", bagging_freq=1, bagging_fraction=0.5),
            id="lightgbm forest",
        ),
    ],
)
def test_boosters_whose_rounds_may_change_former_ones_are_not_covered(training: Any) -> None:
    with pytest.raises(NotCovered, match="what former ones have made"):
        training().kept.kept()


def test_rounds_that_early_stopping_has_taken_away_are_not_handed_out() -> None:
    training = LightGBM()
    state = training.kept.kept()
    training.booster.rollback_one_iter()
    with pytest.raises(NotWhole, match="number of rounds changed"):
        state()


def test_what_one_rank_alone_has_is_not_in_lightgbms_text() -> None:
    one, other = (LightGBM(local_listen_port=port) for port in (15001, 15002))
    assert one.kept.state_dict() == other.kept.state_dict()
    assert one.kept.kept()() == other.kept.kept()()
