"""The libraries that choose the values of a trial from the results of others."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import util
from typing import Any

from trainingrun_protocol.contract import ContractSweep

from . import hyperopt_search, optuna_search
from .record import Trial

Draw = Callable[[int, Mapping[int, Trial]], dict[str, Any]]
"""Chooses the values of the trial with this number from what is known of all trials."""

_SUGGESTS = {"Optuna": optuna_search.suggest, "HyperOpt": hyperopt_search.suggest}


def draw(sweep: ContractSweep, seed: str) -> Draw | None:
    """What chooses the values of trials when they begin; None: they are drawn before.

    Args:
        sweep: what is tried.
        seed: decides what is drawn.
    """
    return partial(_SUGGESTS[sweep.library], sweep, seed) if sweep.library is not None else None


def missing(sweep: ContractSweep) -> str | None:
    """What is wrong with this image, in a sentence; None: it has what the search needs."""
    if sweep.library is None or util.find_spec(sweep.library.lower()) is not None:
        return None
    package = sweep.library.lower()
    return (
        f"sweep.search is {sweep.library}, and the training image has no package {package}; build "
        f"it with EXTRAS={package}, name {package} in training.requirements, or set search: random"
    )
