"""The values of a trial as Optuna chooses them: a tree-structured Parzen estimator.

A study is made anew for each trial, from what is recorded of the others. So the values follow from
the run's UID, the trial's number and those results, and the next driver continues by itself. Pure.
"""

import random
from collections.abc import Mapping
from typing import Any

from trainingrun_protocol.contract import ContractParameter, ContractSweep
from trainingrun_protocol.progress import TrialState

from .record import Trial


def suggest(
    sweep: ContractSweep, seed: str, number: int, trials: Mapping[int, Trial]
) -> dict[str, Any]:
    """The values of the trial that begins now.

    Args:
        sweep: what is tried.
        seed: decides what is drawn.
        number: of the trial.
        trials: all of them, as far as they are; those without a config have not begun.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    drawn = random.Random(f"{seed}/{number}").getrandbits(32)  # noqa: S311 - no secret
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=drawn, constant_liar=True),
        direction="minimize" if sweep.mode == "min" else "maximize",
    )
    space = {parameter.name: _distribution(parameter) for parameter in sweep.space}
    for trial in trials.values():
        if trial.config and trial.number != number:
            study.add_trial(_known(trial, space))
    return dict(study.ask(space).params)


def _distribution(parameter: ContractParameter) -> Any:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if parameter.values is not None:
        return CategoricalDistribution(parameter.values)
    low, high, log = parameter.min or 0.0, parameter.max or 0.0, parameter.scale == "log"
    if parameter.type == "integer":
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _known(trial: Trial, space: dict[str, Any]) -> Any:
    """A trial as a study has it: complete, stopped early, failed, or running."""
    from optuna.trial import TrialState as State
    from optuna.trial import create_trial

    state, value = State.RUNNING, None
    if trial.state is TrialState.SUCCEEDED and trial.value is not None:
        state, value = State.COMPLETE, trial.value
    elif trial.state is TrialState.STOPPED:
        state = State.PRUNED
    elif trial.state.final:
        state = State.FAIL
    return create_trial(
        state=state,
        value=value,
        params={name: trial.config[name] for name in space},
        distributions=space,
        intermediate_values={step: found for step, found in trial.reports if found is not None},
    )
