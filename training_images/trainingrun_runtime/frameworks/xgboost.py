"""XGBoost: `train` as that of `xgboost`, with a session.

    from trainingrun_runtime.frameworks import xgboost

    booster = xgboost.train(params, dtrain, num_boost_round=500, evals=[(dtrain, "train")])

It works in a `training.function` and in the function of Ray's XGBoostTrainer; in the former it
connects the workers by itself. A step is a round of boosting.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import xgboost
from ray.train.collective import broadcast_from_rank_zero
from xgboost.callback import LearningRateScheduler, TrainingCallback
from xgboost.collective import CommunicatorContext

from ..session.session import Session
from ..survivors.watched_tensors import NotCovered
from . import boosting, process_group
from .driven_loop import DrivenLoop, Ended


def train(
    params: Mapping[str, Any],
    dtrain: Any,
    num_boost_round: int = 10,
    *,
    callbacks: Sequence[TrainingCallback] = (),
    **options: Any,
) -> xgboost.Booster:
    """Train a booster, from the checkpoint on if there is one; every rank gets the same.

    A checkpoint holds the booster; the run's last one has what the callbacks leave of the rounds,
    as `EarlyStopping(save_best=True)` leaves the best ones. When a rank dies without notice, the
    other ranks save the last round, unless rounds change former trees (`dart`, `process_type:
    update`) or there are no trees. `LearningRateScheduler` counts rounds from the run's first one.
    What other callbacks count, such as the rounds without a better value that end the training
    early, begins anew after a loss. XGBoost's own random numbers then go on from a seed that
    follows from the given one and the round. PyTorch's, NumPy's and Python's follow from the round
    and the rank.

    Args:
        params: of the booster.
        dtrain: this rank's data.
        num_boost_round: rounds since the run's first one.
        callbacks: see `xgboost.train`.
        options: everything else that `xgboost.train` takes, but `xgb_model`.
    """
    with _connected(*process_group.ensure()):
        kept = _KeptBooster(params)
        session = Session(seed=0, booster=kept)
        if session.step >= num_boost_round and kept.booster is not None:
            return kept.booster
        steps = _Steps(session, kept, num_boost_round)
        # What the callbacks have left of the rounds, which the run's last checkpoint has as well.
        kept.booster = xgboost.train(
            seeded_at(params, session.step),
            dtrain,
            num_boost_round - session.step,
            xgb_model=kept.booster,
            callbacks=[  # a round of the session ends before any begins
                steps,
                *(counted_from_the_first_round(each, session.step) for each in callbacks),
            ],
            **options,
        )
        return kept.booster


def load(uri: str | Path, **where: Any) -> xgboost.Booster:
    """The booster of a checkpoint that `train` has made, for inference; see `results.load`.

    Raises:
        ValueError: The checkpoint has no booster, or no round of boosting is in it.
    """
    booster: xgboost.Booster = boosting.load(_KeptBooster({}), uri, **where)
    return booster


def seeded_at(params: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Parameters for the rounds from a step on.

    XGBoost begins its random numbers with a process, from its seed: with the same one each group of
    ranks would draw the first rounds' rows and features again.

    Args:
        params: as they are given.
        step: rounds that are done. 0: they are returned as they are.
    """
    then = dict(params)
    if step:
        seed = then.pop("random_state", 0)
        then["seed"] = (int(then.get("seed", seed)) + step) % 2**31
    return then


def counted_from_the_first_round(callback: TrainingCallback, done: int) -> TrainingCallback:
    """A callback for `xgboost.train`, of which a schedule counts from the run's first round.

    Args:
        callback: as it is given.
        done: rounds that are done.
    """
    if done and isinstance(callback, LearningRateScheduler):
        return _RestoredSchedule(callback.learning_rates, done)
    return callback


class _RestoredSchedule(LearningRateScheduler):
    """A schedule of learning rates that goes on after rounds that are done.

    XGBoost sets a rate after each round, for the next one; a new booster has that of its
    parameters.
    """

    def __init__(self, rates: Callable[[int], float], done: int) -> None:
        super().__init__(lambda epoch: rates(epoch + done))

    def before_training(self, model: Any) -> Any:
        model.set_param("learning_rate", self.learning_rates(-1))
        return model


class _KeptBooster(boosting.KeptBooster):
    """As one says.

    Args:
        params: of the booster.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self._process_type = params.get("process_type", "default")  # `save_config` has it not

    def state_dict(self) -> dict[str, Any]:
        raw = self.booster.save_raw("ubj") if self.booster is not None else b""
        return {"ubj": np.frombuffer(raw, np.uint8)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["ubj"]):
            self.booster = xgboost.Booster(model_file=bytearray(state["ubj"]))

    def rounds_of(self, booster: Any) -> int:
        return int(booster.num_boosted_rounds())

    def content_of(self, booster: Any, rounds: int) -> Callable[[], dict[str, Any]]:
        # A part of a booster has no `best_iteration` and `best_score`; later rounds change them.
        attributes = booster.attributes()

        def content() -> dict[str, Any]:
            first = booster[:rounds]
            first.set_attr(**attributes)
            return {"ubj": np.frombuffer(first.save_raw("ubj"), np.uint8)}

        return content

    def require_growing(self, booster: Any) -> None:
        kind = json.loads(booster.save_config())["learner"]["gradient_booster"]["name"]
        if kind != "gbtree" or self._process_type != "default":
            raise NotCovered(
                f"a round changes what former ones have made (booster {kind}, process_type "
                f"{self._process_type})"
            )


class _Steps(TrainingCallback):
    """Moves the session's loop on, and reports what is evaluated."""

    def __init__(self, session: Session, kept: _KeptBooster, rounds: int) -> None:
        super().__init__()
        self._session, self._kept, self._done = session, kept, session.step
        self._loop = DrivenLoop(session, 1, lambda: rounds, ends_early=True)

    def before_training(self, model: Any) -> Any:
        """Number rounds from the run's first one: what a round draws follows from its number."""
        self._kept.booster, done, update = model, self._done, model.update

        def update_from_there(dtrain: Any, iteration: int, fobj: Any = None) -> None:
            update(dtrain, iteration + done, fobj)

        model.update = update_from_there
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """The former round is over; whether no other one follows."""
        try:
            self._loop.begin_step(0)
        except Ended:  # early stopping had ended the training before the checkpoint
            return True
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Report the latest value of each metric."""
        latest = {
            f"{data}-{metric}": _value(values[-1])
            for data, metrics in evals_log.items()
            for metric, values in metrics.items()
        }
        if latest:
            self._session.report(**latest)
        return False

    def after_training(self, model: Any) -> Any:
        """All rounds are done."""
        self._loop.end()
        del model.update  # the class's own again
        return model


def _value(logged: Any) -> float:
    return float(logged[0] if isinstance(logged, tuple) else logged)


@contextlib.contextmanager
def _connected(rank: int, size: int) -> Iterator[None]:
    """The workers are connected for XGBoost, as XGBoostTrainer does it before the training."""
    if size == 1 or xgboost.collective.is_distributed():
        yield
        return
    arguments = None
    if rank == 0:
        host = ray.util.get_node_ip_address()
        tracker = xgboost.RabitTracker(n_workers=size, host_ip=host, sortby="task")
        tracker.start()
        threading.Thread(target=tracker.wait_for, name="xgboost-tracker", daemon=True).start()
        arguments = tracker.worker_args()
    arguments = broadcast_from_rank_zero(arguments)
    with CommunicatorContext(**arguments, dmlc_task_id=f"{rank:08}"):
        yield
