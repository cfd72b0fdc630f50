"""Population based training: trials wait for each other, and bad ones go on from good ones.

After each interval the worst quarter of the trials begin again from checkpoints of the best
quarter, with mutated values. All wait for the last one, so that the decisions depend on the values
alone, and not on which trial is faster or is lost meanwhile. Pure, apart from the process's random
numbers, which are put back.
"""

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from trainingrun_protocol.contract import ContractSweep
from trainingrun_protocol.progress import Progress, RunState, TrialState

from ..ray_internals.population import exploit
from . import record, space
from .record import Origin, Trial

_FAR = 1e30
"""In place of a value that is no number: worse than any."""


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
        value = record.number_of(found.metrics.get(self._sweep.metric))
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
            {p.name: p.values or partial(space.draw, p, random) for p in self._sweep.space},
            partial(space.within, self._sweep),
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


def outdated(trials: Mapping[int, Trial]) -> list[str]:
    """Folders of legs whose checkpoints nothing begins from any more."""
    needed = {(trial.number, trial.leg) for trial in trials.values()}
    origins = [t.origin for t in trials.values() if t.origin is not None and not t.state.final]
    needed |= {(origin.number, origin.leg) for origin in origins}
    return [
        record.folder(trial.number, leg)
        for trial in trials.values()
        for leg in range(1, trial.leg)
        if (trial.number, leg) not in needed
    ]
