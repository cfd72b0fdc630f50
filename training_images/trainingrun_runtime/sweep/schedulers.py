"""The schedulers of a sweep: which trials are stopped early, and which continue from better ones.

`Rungs` is Ray Tune's ASHA, which continues where a former driver ended. `Population` is population
based training: after each interval the worst quarter of the trials begin again from checkpoints of
the best quarter, with mutated values. All wait for the last one, so that the decisions depend on
the values alone, and not on which trial is faster or is lost meanwhile.

Pure, apart from the process's random numbers, which are put back.
"""

import random
from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

from trainingrun_protocol.contract import ContractSweep
from trainingrun_protocol.progress import Progress, RunState, TrialState

from ..ray_internals.population import exploit
from ..store.reported_metrics import number_of
from . import search
from .record import Origin, Trial

STEP = "step"
"""Key of a result: steps done."""
VALUE = "value"
"""Key of a result: the metric."""
_RUNGS = 54
"""The last one is at 2**53 steps or more, where ASHA stops every trial."""
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


class Population:
    """Trials that are trained in legs of one interval each.

    Args:
        sweep: what is tried.
        interval: steps of a leg.
        seed: decides what is drawn.
    """

    def __init__(self, sweep: ContractSweep, interval: int, seed: str) -> None:
        self._sweep, self._interval, self._seed = sweep, interval, seed

    def until(self, trial: Trial) -> int:
        """The step after which the trial waits for the others."""
        return trial.leg * self._interval

    def waits(self, trial: Trial) -> bool:
        """Whether it has come as far as its leg goes."""
        return bool(trial.reports) and trial.reports[-1][0] >= self.until(trial)

    def in_leg(self, trial: Trial, step: int) -> bool:
        """Whether what is reported at this step is of the leg under way, which is not over."""
        began = trial.origin.step if trial.origin is not None else -1
        return began < step and not self.waits(trial)

    def passed_by(self, trial: Trial, found: Progress) -> bool:
        """Whether it trains on where it is to wait: only a session is told to wait."""
        return found.step > self.until(trial)

    def followed(self, trial: Trial, found: Progress) -> Trial:
        """The trial as its document shows it: whether its leg is over."""
        if (
            found.state is not RunState.SUSPENDED
            or found.paused_at_step != self.until(trial)
            or trial.state.final
            or self.waits(trial)
        ):
            return trial
        value = number_of(found.metrics.get(self._sweep.metric))
        reports = [*trial.reports, (found.paused_at_step, value)]
        changes = {"state": TrialState.PENDING, "value": value, "reports": reports}
        return trial.model_copy(update=changes)

    def next_legs(self, trials: Mapping[int, Trial]) -> dict[int, Trial]:
        """The trials with which the next legs begin; empty while one is awaited."""
        left = {number: trial for number, trial in trials.items() if not trial.state.final}
        if not left or not all(self.waits(trial) for trial in left.values()):
            return {}
        worst = _FAR if self._sweep.mode == "min" else -_FAR
        values = {number: trial.reports[-1][1] for number, trial in left.items()}
        leg = max(trial.leg for trial in left.values())
        decided = exploit(
            {number: worst if value is None else value for number, value in values.items()},
            {number: trial.config for number, trial in left.items()},
            {p.name: p.values or partial(search.draw, p, random) for p in self._sweep.space},
            partial(search.within, self._sweep),
            self._sweep.mode,
            f"{self._seed}/{leg}",
        )
        return {number: self._next_leg(trial, decided, left) for number, trial in left.items()}

    def _next_leg(
        self,
        trial: Trial,
        decided: Mapping[int, tuple[int, dict[str, Any]]],
        left: dict[int, Trial],
    ) -> Trial:
        number, config = decided.get(trial.number, (trial.number, trial.config))
        source = left[number]
        return trial.model_copy(
            update={
                "config": config,
                "leg": trial.leg + 1,
                "origin": Origin(number=number, leg=source.leg, step=self.until(source)),
                "step": source.step,
                "value": source.value,
                "metrics": source.metrics,
                "checkpoint_uri": source.checkpoint_uri,
            }
        )
