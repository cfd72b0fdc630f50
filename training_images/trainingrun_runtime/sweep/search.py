"""The values that each trial of a sweep is trained with: drawn, or chosen by a library; pure."""

import itertools
import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from importlib import util
from typing import Any

from trainingrun_protocol.contract import ContractParameter, ContractSweep

from . import optuna_search
from .record import Trial

Search = Callable[[int, Mapping[int, Trial]], dict[str, Any]]
"""Chooses the values of the trial with this number from what is known of all trials."""


def configs(sweep: ContractSweep, seed: str) -> list[dict[str, Any]]:
    """The values of each trial, first trial first.

    Args:
        sweep: what is tried.
        seed: decides what is drawn; the same seed draws the same values.
    """
    if sweep.samples is None:
        names = [parameter.name for parameter in sweep.space]
        choices = [parameter.values or [] for parameter in sweep.space]
        return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*choices)]
    drawn = random.Random(seed)  # noqa: S311 - no secret
    return [
        {parameter.name: draw(parameter, drawn) for parameter in sweep.space}
        for _ in range(sweep.samples)
    ]


def within(sweep: ContractSweep, config: dict[str, Any]) -> dict[str, Any]:
    """The config with every number moved to the nearest end of its range if it is outside."""
    ranges = {p.name: p for p in sweep.space if p.values is None}
    return {name: _within(ranges.get(name), value) for name, value in config.items()}


def _within(parameter: ContractParameter | None, value: Any) -> Any:
    if parameter is None:
        return value
    low, high = parameter.min or 0.0, parameter.max or 0.0
    found = min(max(value, low), high)
    return int(found) if parameter.type == "integer" else found


def draw(parameter: ContractParameter, drawn: Any) -> Any:
    """A value of the parameter.

    Args:
        parameter: what is tried.
        drawn: a `random.Random`, or the module itself.
    """
    if parameter.values is not None:
        return drawn.choice(parameter.values)
    low, high = parameter.min or 0.0, parameter.max or 0.0
    if parameter.type == "integer":
        # Each whole number has the width of one, so that both ends are as likely as the others.
        nearest = round(_between(low - 0.5, high + 0.5, parameter, drawn))
        return min(max(nearest, int(low)), int(high))
    return min(max(_between(low, high, parameter, drawn), low), high)


def _between(low: float, high: float, parameter: ContractParameter, drawn: Any) -> float:
    if parameter.scale == "log":
        return math.exp(drawn.uniform(math.log(low), math.log(high)))
    return float(drawn.uniform(low, high))


def library_search(sweep: ContractSweep, seed: str) -> Search | None:
    """What chooses the values of trials when they begin; None: they are drawn before.

    Args:
        sweep: what is tried.
        seed: decides what is drawn.
    """
    return partial(optuna_search.suggest, sweep, seed) if sweep.library is not None else None


def missing_library(sweep: ContractSweep) -> str | None:
    """What is wrong with this image, in a sentence; None: it has what the search needs."""
    if sweep.library is None or util.find_spec(sweep.library.lower()) is not None:
        return None
    package = sweep.library.lower()
    return (
        f"sweep.search is {sweep.library}, and the training image has no package {package}; build "
        f"it with EXTRAS={package}, name {package} in training.requirements, or set search: random"
    )
