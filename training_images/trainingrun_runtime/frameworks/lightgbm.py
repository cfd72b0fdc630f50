"""LightGBM: `train` as that of `lightgbm`, with a session.

    from trainingrun_runtime.frameworks import lightgbm

    booster = lightgbm.train(params, train_set, num_boost_round=500, valid_sets=[train_set])

It works in a `training.function` and in the function of Ray's LightGBMTrainer; in the former it
connects the workers by itself. A step is a round of boosting.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightgbm
import torch.distributed as dist
from lightgbm.basic import _ConfigAliases
from lightgbm.callback import CallbackEnv

from ..session.session import Session
from ..survivors.watched_tensors import NotCovered
from . import boosting, process_group
from .driven_loop import DrivenLoop, Ended

_OWN_PORT = re.compile(r"^\[local_listen_port: \d+\]$", re.MULTILINE)
"""What a model's text has of one rank alone."""
_RESET_PARAMETER = type(lightgbm.reset_parameter(learning_rate=[0.1]))
_SAMPLING_SEEDS = {
    "bagging_seed": 3,
    "feature_fraction_seed": 2,
    "extra_seed": 6,
    "drop_seed": 4,
    "objective_seed": 5,
}
"""What rounds draw from, and LightGBM's defaults (4.7, docs/Parameters.rst)."""
_KIND = re.compile(r"^\[boosting: (\w+)\]$", re.MULTILINE)


def train(
    params: Mapping[str, Any],
    train_set: lightgbm.Dataset,
    num_boost_round: int = 100,
    *,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> lightgbm.Booster:
    """Train a booster, from the checkpoint on if there is one; every rank gets the same.

    A checkpoint holds the booster. When a rank dies without notice, the other ranks save the last
    round, unless rounds change former trees (`dart`) or `boosting` is `rf`. `reset_parameter`
    counts rounds from the run's first one. What other callbacks count, such as the rounds without a
    better value that end the training early, begins anew after a loss. LightGBM's own random
    numbers then go on from seeds that follow from the given ones and the round. PyTorch's, NumPy's
    and Python's follow from the round and the rank.

    Args:
        params: of the booster; with more workers than one, `tree_learner` says how they share.
        train_set: this rank's data.
        num_boost_round: rounds since the run's first one; as for `lightgbm.train`, one in `params`
            counts instead.
        callbacks: see `lightgbm.train`.
        options: everything else that `lightgbm.train` takes, but `init_model`.
    """
    process_group.ensure()
    kept = _KeptBooster()
    session = Session(seed=0, booster=kept)
    params, named = _without(params, "num_iterations")
    rounds = int(num_boost_round if named is None else named)
    if session.step >= rounds and kept.booster is not None:
        return kept.booster
    steps = _Steps(session, kept, rounds)
    try:
        booster = lightgbm.train(
            {**_network(params), **seeded_at(params, session.step)},
            train_set,
            rounds - session.step,
            init_model=kept.booster,
            callbacks=[  # a round ends before any begins
                steps.before,
                steps.after,
                *(counted_from_the_first_round(callback) for callback in callbacks),
            ],
            **options,
        )
    except Ended:  # early stopping had ended the training before the checkpoint
        return kept.booster
    steps.end()
    return booster


def load(uri: str | Path, **where: Any) -> lightgbm.Booster:
    """The booster of a checkpoint that `train` has made, for inference; see `results.load`.

    Raises:
        ValueError: The checkpoint has no booster, or no round of boosting is in it.
    """
    booster: lightgbm.Booster = boosting.load(_KeptBooster(), uri, **where)
    return booster


def seeded_at(params: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Parameters for the rounds from a step on.

    LightGBM begins its random numbers at each call, from its seeds: with the same ones each group
    of ranks would draw the first rounds' rows and features again. `data_random_seed` stays, as the
    bins of the features follow from it.

    Args:
        params: as they are given.
        step: rounds that are done. 0: they are returned as they are.
    """
    if not step:
        return dict(params)
    _, seed = _without(params, "seed")
    then = dict(params)
    for number, (name, default) in enumerate(_SAMPLING_SEEDS.items()):
        then, given = _without(then, name)
        if given is None:
            given = default if seed is None else int(seed) + number
        then[name] = (int(given) + step) % 2**31
    return then


def counted_from_the_first_round(callback: Any) -> Any:
    """A callback for `lightgbm.train`; `reset_parameter` counts from the run's first round.

    It takes the round's number less the call's first one, and refuses a list that has not as many
    values as the call has rounds; after a loss a call has the rounds that are left.
    """
    if not isinstance(callback, _RESET_PARAMETER):
        return callback

    def counted(env: CallbackEnv) -> None:
        rounds = (env.iteration, 0, env.end_iteration)
        callback(CallbackEnv(env.model, env.params, *rounds, env.evaluation_result_list))

    counted.before_iteration = callback.before_iteration  # type: ignore[attr-defined]
    counted.order = callback.order  # type: ignore[attr-defined]
    return counted


def _without(params: Mapping[str, Any], name: str) -> tuple[dict[str, Any], Any]:
    """Parameters without one, whatever it is called there; its value, None if it is not given."""
    names = _ConfigAliases.get(name)
    given = params.get(name, next((params[n] for n in sorted(names) if n in params), None))
    return {key: value for key, value in params.items() if key not in names}, given


class _KeptBooster(boosting.KeptBooster):
    def state_dict(self) -> dict[str, Any]:
        return {"text": _text(self.booster) if self.booster is not None else ""}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["text"]:
            self.booster = lightgbm.Booster(model_str=state["text"])

    def rounds_of(self, booster: Any) -> int:
        return int(booster.current_iteration())

    def content_of(self, booster: Any, rounds: int) -> Callable[[], dict[str, Any]]:
        return lambda: {"text": _text(booster, rounds)}

    def require_growing(self, booster: Any) -> None:
        found = _KIND.search(booster.model_to_string())
        kind = found[1] if found else "unknown"
        if kind != "gbdt":
            raise NotCovered(f"a round may change what former ones have made (boosting {kind})")


def _text(booster: lightgbm.Booster, rounds: int | None = None) -> str:
    """The model's text, the same on every rank; of the first rounds, if a number is given."""
    return _OWN_PORT.sub("[local_listen_port: 12400]", booster.model_to_string(rounds))


class _Steps:
    """Moves the session's loop on, and reports what is evaluated."""

    def __init__(self, session: Session, kept: _KeptBooster, rounds: int) -> None:
        self._session, self._kept = session, kept
        self._loop = DrivenLoop(session, 1, lambda: rounds, ends_early=True)

        def before(env: CallbackEnv) -> None:
            self._loop.begin_step(0)
            self._kept.booster = env.model

        def after(env: CallbackEnv) -> None:
            results = env.evaluation_result_list or ()
            if latest := {f"{data}-{metric}": float(v) for data, metric, v, *_ in results}:
                self._session.report(**latest)

        before.before_iteration = True  # type: ignore[attr-defined]
        self.before, self.after = before, after

    def end(self) -> None:
        """All rounds are done."""
        self._loop.end()


def _network(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters by which LightGBM connects the workers, where the code gives none."""
    if not dist.is_initialized() or "machines" in params:
        return {}
    address = process_group.free_address()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, address)
    port = int(address.rpartition(":")[2])
    return {"num_machines": len(every), "machines": ",".join(every), "local_listen_port": port}
