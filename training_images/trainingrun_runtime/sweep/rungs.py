"""Which trials are stopped early: Ray Tune's ASHA, which goes on where a former driver ended."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

from trainingrun_protocol.contract import ContractSweep

from .record import Trial

STEP = "step"
"""Key of a result: steps done."""
VALUE = "value"
"""Key of a result: the metric."""
_RUNGS = 20
_FAR = 1e30
"""In place of a value that is no number: worse than any, and ASHA can still interpolate it."""


class Rungs:
    """Compares trials after `grace_steps`, `grace_steps` times `reduction_factor`, and so on.

    Args:
        sweep: the settings.
        trials: as a former driver left them.
    """

    def __init__(self, sweep: ContractSweep, trials: Iterable[Trial]) -> None:
        factor = sweep.reduction_factor
        self._steps = [sweep.grace_steps * factor**n for n in range(_RUNGS)]
        self._worst = _FAR if sweep.mode == "min" else -_FAR
        self._asha = AsyncHyperBandScheduler(
            time_attr=STEP,
            metric=VALUE,
            mode=sweep.mode,
            max_t=self._steps[-1],
            grace_period=sweep.grace_steps,
            reduction_factor=factor,
        )
        self._reached: dict[int, int] = {}  # trial -> rungs that it has reached
        for trial in trials:
            for step, value in trial.reports:
                self.compare(trial.number, step, value)

    def compare(self, number: int, step: int, value: float | None) -> tuple[bool, bool]:
        """A trial has reported; whether this was a comparison, and whether it is to be stopped.

        Args:
            number: of the trial.
            step: steps that it has done.
            value: the metric; None: no number, which is worse than every number.
        """
        reached = sum(rung <= step for rung in self._steps)
        if reached <= self._reached.get(number, 0):
            return False, False
        # ASHA wants Tune's trial for its name alone, and Tune names them anew in every driver.
        alias: Any = SimpleNamespace(trial_id=f"{number:04d}")
        controller: Any = None
        if number not in self._reached:
            self._asha.on_trial_add(controller, alias)
        self._reached[number] = reached
        result = {STEP: step, VALUE: self._worst if value is None else value}
        action = self._asha.on_trial_result(controller, alias, result)
        return True, action == TrialScheduler.STOP
