"""Where each trial stands, from its reports to Ray Tune and from its progress document."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from trainingrun_protocol.contract import ContractSweep
from trainingrun_protocol.progress import Failure, Progress, RunState, TrialState

from ..store.reported_metrics import number_of
from . import summary
from .record import Trial
from .schedulers import Population, Rungs
from .search import Search
from .summary import Summary

log = logging.getLogger(__name__)

STOP_WAIT_S = 120.0
"""Seconds for which a trial that is to be stopped may take to save its state."""


class TrialTable:
    """The trials of one driver; its methods are called from several threads.

    Args:
        sweep: the contract's sweep.
        trials: as this driver begins.
        give_up: called with the failure for which the attempt has to end.
        population: where trials wait for each other.
        draw: chooses the config of a trial that has none, from the other trials.
    """

    def __init__(
        self,
        sweep: ContractSweep,
        trials: Iterable[Trial],
        give_up: Callable[[Failure], None],
        population: Population | None = None,
        draw: Search | None = None,
    ) -> None:
        self._population, self._draw = population, draw
        self._begun: set[int] = set()
        self._began: dict[int, float] = {}  # trial -> when its process did, Unix time
        self._sweep, self._give_up = sweep, give_up
        self._trials = {trial.number: trial for trial in trials}
        self._summary = Summary(sweep, self._trials)
        self._rungs = Rungs(sweep, self._trials.values()) if sweep.asha else None
        self._documents: dict[int, Progress] = {}
        self._stopping: dict[int, float] = {}  # trial -> when it was decided, monotonic
        self._changed = True
        self._lock = threading.RLock()

    @property
    def trials(self) -> dict[int, Trial]:
        """All of them, by number."""
        with self._lock:
            return dict(self._trials)

    def left(self) -> list[int]:
        """Trials that are to be trained."""
        return [number for number, trial in self.trials.items() if not trial.state.final]

    def begin_next(self) -> Trial | None:
        """The trial that begins now; None: none can yet, or ever."""
        with self._lock:
            number = self._next()
            if number is None:
                return None
            self._begun.add(number)
            self._began[number] = time.time()
            former = self._documents.pop(number, None)
            if former is not None:
                self._summary.leg_ended(number, former)
            trial = self._trials[number]
            if not trial.config and self._draw is not None:
                trial = trial.model_copy(update={"config": self._draw(number, self._trials)})
                self._trials[number], self._changed = trial, True
            return trial

    def _next(self) -> int | None:
        wait = self._population.waits if self._population is not None else lambda _: False
        trials = self._trials
        ready = [n for n in self.left() if n not in self._begun and not wait(trials[n])]
        if not ready and self._population is not None:
            legs = self._population.next_legs(trials)
            if legs:
                self._begun -= legs.keys()
                self._trials.update(legs)
                self._changed, ready = True, list(legs)
                log.info("leg %d begins", max(trial.leg for trial in legs.values()))
        # One that has ended an attempt comes last: the others do not wait for it again.
        return min(ready, key=lambda number: (trials[number].lost, number), default=None)

    def under_way(self) -> list[int]:
        """Trials whose process has begun and not ended."""
        with self._lock:
            return [n for n, found in self._documents.items() if not found.state.final]

    def changes(self) -> tuple[dict[int, Trial], set[int]] | None:
        """What the next driver has to know, and the trials that are to be stopped once it does.

        None: nothing has changed since the last call.
        """
        with self._lock:
            if not self._changed:
                return None
            self._changed = False
            return dict(self._trials), set(self._stopping)

    def keep_changes(self) -> None:
        """The changes could not be written; they are changes still."""
        self._changed = True

    def reported(self, number: int, step: int, value: float | None) -> bool:
        """A trial has reported its metric; whether it has to end at once."""
        with self._lock:
            if self._trials[number].state is TrialState.SUCCEEDED:
                return False  # its result counts, and not what was sent before it
            trial = self._trials[number]
            if self._population is not None and not self._population.in_leg(trial, step):
                return False  # what was sent before its leg was over
            trial = trial.model_copy(update={"value": value})
            if number in self._stopping:
                self._trials[number] = trial
                # Code without a session does not end by itself.
                return time.monotonic() - self._stopping[number] > STOP_WAIT_S
            if self._rungs is not None and not trial.state.final:
                trial = self._compared(self._rungs, trial, step, value)
            self._trials[number] = trial
        return False

    def _compared(self, rungs: Rungs, trial: Trial, step: int, value: float | None) -> Trial:
        compared, stop = rungs.compare(trial.number, step, value)
        if not compared:
            return trial
        self._changed = True
        trial = trial.model_copy(update={"reports": [*trial.reports, (step, value)]})
        if not stop:
            return trial
        log.info("trial %d is stopped after step %d", trial.number, step)
        self._stopping[trial.number] = time.monotonic()
        return trial.model_copy(update={"state": TrialState.STOPPED, "step": step})

    def follow(self, number: int, found: Progress) -> None:
        """A trial's document was read."""
        with self._lock:
            former, before = self._trials[number], self._documents.get(number)
            self._documents[number] = found
            if former.state is TrialState.SUCCEEDED:
                return
            trial = summary.update(former, found)
            if former.state is TrialState.PENDING and not found.state.final:
                trial = trial.model_copy(update={"state": TrialState.RUNNING})
            if found.state is RunState.SUSPENDED and not former.state.final:
                trial = trial.model_copy(update={"state": TrialState.PENDING})  # it has saved
            ended_before = before is not None and before.state.final
            if found.state is RunState.FAILED and not former.state.final and not ended_before:
                trial = self._failed(trial, found)
            if self._population is not None:
                trial = self._in_leg(self._population, trial, found)
            if trial.state is TrialState.SUCCEEDED:
                trial = self._rated(trial)
            self._changed |= found.state.final and not ended_before
            if trial.state is not former.state:
                log.info("trial %d: %s", number, trial.state.value)
                self._changed = True
            self._trials[number] = trial

    def _in_leg(self, population: Population, trial: Trial, found: Progress) -> Trial:
        if population.passed_by(trial, found):
            self._give_up(
                Failure(
                    kind="Application",
                    message=f"trial {trial.number} has done step {found.step} and did not wait for "
                    f"the others after step {population.until(trial)}; use a Session in the "
                    "training function, or another sweep.scheduler than PBT",
                )
            )
        return population.followed(trial, found)

    def _failed(self, trial: Trial, found: Progress) -> Trial:
        """An error of the training ends the trial alone, and so do a rule, and the loss of its
        workers again and again where others are not lost; any other failure ends the attempt.
        """
        failure = found.failure
        alone = failure is not None and (
            failure.kind == "Application"
            or failure.loss is not None  # for which a rule has ended it
            or (failure.kind == "Infrastructure" and self._others_train(trial, found))
        )
        if failure is not None and alone:
            state = {"state": TrialState.FAILED, "message": failure.message}
            return trial.model_copy(update=state)
        what = failure.message if failure is not None else "no reason was given"
        kind = failure.kind if failure is not None else "Infrastructure"
        self._give_up(Failure(kind=kind, message=f"trial {trial.number}: {what}"))
        self._changed = True
        return trial.model_copy(update={"lost": trial.lost + (kind == "Infrastructure")})

    def _others_train(self, trial: Trial, found: Progress) -> bool:
        """Whether others have done steps meanwhile, or were done, and it had an attempt before."""
        others = {n: one for n, one in self._documents.items() if n != trial.number}
        # Without a step of its own, what others did before it began is not meanwhile.
        since = max(found.step_time or 0.0, self._began.get(trial.number, 0.0))
        if any((one.step_time or 0.0) > since for one in others.values()):
            return True
        done = any(one.state is TrialState.SUCCEEDED for one in self._trials.values())
        return trial.lost > 0 and done

    def _rated(self, trial: Trial) -> Trial:
        """A trial that is done, with its final value."""
        if self._sweep.metric in trial.metrics:
            final = number_of(trial.metrics[self._sweep.metric])
            return trial.model_copy(update={"value": final})
        if trial.value is None:
            known = ", ".join(trial.metrics) or "none at all"
            # Where another one has reported it the name is right: the next attempt trains the rest.
            reported = any(one.value is not None for one in self._trials.values())
            self._give_up(
                Failure(
                    kind="Application",
                    retry="Always" if reported else "Never",
                    message=f"trial {trial.number} is done and has not reported "
                    f"{self._sweep.metric!r}, the metric of the sweep; it reported {known}; report "
                    "it with session.report() or session.finish(), or correct sweep.metric",
                )
            )
        return trial

    def postpone(self) -> list[int]:
        """Ray Tune has ended: what is not done waits for the next driver; returns it."""
        with self._lock:
            left = self.left()
            for number in left:
                waits = {"state": TrialState.PENDING}
                self._trials[number] = self._trials[number].model_copy(update=waits)
            return left

    def progress(self, head: Progress) -> Progress:
        """The document of the whole sweep; see `Summary.progress`."""
        with self._lock:
            return self._summary.progress(self._trials, self._documents, head)
