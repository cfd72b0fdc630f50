"""The values of a trial as HyperOpt chooses them: its tree-structured Parzen estimator.

As with Optuna, nothing is kept from one trial to the next; see `optuna_search`. Pure.
"""

import math
import random
from collections.abc import Mapping
from typing import Any

from trainingrun_protocol.contract import ContractParameter, ContractSweep
from trainingrun_protocol.progress import TrialState

from .record import Trial


def suggest(
    sweep: ContractSweep, seed: str, number: int, trials: Mapping[int, Trial]
) -> dict[str, Any]:
    """The values of the trial that begins now; see `optuna_search.suggest`."""
    from hyperopt import space_eval, tpe
    from hyperopt.base import Domain, Trials

    space = {parameter.name: _expression(parameter) for parameter in sweep.space}
    domain, known = Domain(lambda _: None, space), Trials()
    losses = _losses(sweep.mode, trials)
    for other, loss in losses.items():
        known.insert_trial_doc(_document(known, domain, sweep, trials[other], loss))
    known.refresh()
    drawn = random.Random(f"{seed}/{number}").getrandbits(31)  # noqa: S311 - no secret
    (found,) = tpe.suggest([number], domain, known, drawn)
    chosen = {name: values[0] for name, values in found["misc"]["vals"].items()}
    config = space_eval(space, chosen)
    return {parameter.name: _plain(parameter, config[parameter.name]) for parameter in sweep.space}


def _expression(parameter: ContractParameter) -> Any:
    from hyperopt import hp

    name, low, high = parameter.name, parameter.min or 0.0, parameter.max or 0.0
    if parameter.values is not None:
        return hp.choice(name, parameter.values)
    if parameter.type == "integer":
        # Each whole number has the width of one, as where values are drawn at random.
        low, high = low - 0.5, high + 0.5
        if parameter.scale == "log":
            return hp.qloguniform(name, math.log(low), math.log(high), 1)
        return hp.quniform(name, low, high, 1)
    if parameter.scale == "log":
        return hp.loguniform(name, math.log(low), math.log(high))
    return hp.uniform(name, low, high)


def _plain(parameter: ContractParameter, value: Any) -> Any:
    if parameter.values is not None:
        return value
    found = min(max(float(value), parameter.min or 0.0), parameter.max or 0.0)
    return int(found) if parameter.type == "integer" else found


def _losses(mode: str, trials: Mapping[int, Trial]) -> dict[int, float]:
    """What HyperOpt is to minimize, of every trial that has begun.

    One that has no value yet, or never will, counts as bad as the worst: so trials at once differ.
    """
    sign = 1.0 if mode == "min" else -1.0
    ended = (TrialState.SUCCEEDED, TrialState.STOPPED)
    found = {
        number: sign * trial.value if trial.state in ended and trial.value is not None else None
        for number, trial in trials.items()
        if trial.config
    }
    worst = max((loss for loss in found.values() if loss is not None), default=0.0)
    return {number: worst if loss is None else loss for number, loss in found.items()}


def _document(known: Any, domain: Any, sweep: ContractSweep, trial: Trial, loss: float) -> Any:
    """A trial as HyperOpt has it."""
    from hyperopt import JOB_STATE_DONE, STATUS_OK

    raw = {
        p.name: p.values.index(trial.config[p.name]) if p.values else trial.config[p.name]
        for p in sweep.space
    }
    misc = {
        "tid": trial.number,
        "cmd": domain.cmd,
        "workdir": None,
        "idxs": {name: [trial.number] for name in raw},
        "vals": {name: [value] for name, value in raw.items()},
    }
    result = {"status": STATUS_OK, "loss": loss}
    (document,) = known.new_trial_docs([trial.number], [None], [result], [misc])
    document["state"] = JOB_STATE_DONE
    return document
