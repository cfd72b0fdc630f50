"""Ray Tune, as a sweep uses it: it begins the trials, so many at once, and gets their reports.

Its own state stays on the head and is never restored: it consists of pickles, and `record` has
what the next driver needs. Nothing is kept of what its loggers would write.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from trainingrun_protocol.contract import ContractSweep

from ..state_directory import state_directory
from .schedulers import STEP, VALUE
from .trial import JobFolder, train

HEAD = {"CPU": 0, "node:__internal_head__": 0.001}
"""Ray resources of a trial's process: it is on the head, which no spot node carries."""

_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
}


@dataclass(frozen=True)
class Calls:
    """What Ray Tune asks and tells."""

    reported: Callable[[int, int, float | None], bool]
    """A trial has reported, with steps and metric; whether it has to end at once."""
    lost: Callable[[int], None]
    """The process of a trial has ended with an error."""
    halts: Callable[[], bool]
    """Whether no further trial is to begin."""
    is_over: Callable[[], bool]
    """Whether nothing is left to wait for, though trials are left."""
    begin_next: Callable[[], str | None]
    """Name of the job that begins now; None: none can yet, or ever."""

    # Tune pickles its scheduler and its stopper, for a restore that is never made.
    def __reduce__(self) -> tuple[Any, ...]:
        return _no_calls, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Calls":
        return self


def _no_calls() -> Calls:
    return Calls(lambda *_: False, lambda _: None, lambda: True, lambda: True, lambda: None)


class _Scheduler(FIFOScheduler):
    """Begins trials in their order."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        return None if self._calls.halts() else super().choose_trial_to_run(tune_controller)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if STEP not in result:
            return str(TrialScheduler.CONTINUE)  # the function has returned
        ends = self._calls.reported(_number(trial), result[STEP], result[VALUE])
        return str(TrialScheduler.STOP if ends else TrialScheduler.CONTINUE)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self._calls.lost(_number(trial))


def _number(trial: Any) -> int:
    return int(trial.config["trial"].partition("-")[0])


class _Queue(Searcher):
    """Asks for the next trial whenever fewer run than may run at once."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls
        self._running: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        name = self._calls.begin_next()
        if name is not None:
            self._running.add(trial_id)
            return {"trial": name}
        return None if self._running else str(Searcher.FINISHED)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._running.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Nothing of it is kept; see `record`."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing of it is kept."""


class _Over(tune.Stopper):
    """Ends Tune where nothing is left that it should wait for."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._calls.is_over()


def run(sweep: ContractSweep, jobs: JobFolder, calls: Calls) -> None:
    """Train trials as they come; returns when they have ended, whatever their outcome."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)

    def trial(config: dict[str, Any]) -> None:
        train(jobs.read(config["trial"]), tune.report)

    storage = state_directory() / "tune"
    shutil.rmtree(storage, ignore_errors=True)  # of a former driver on this head
    tune.Tuner(
        tune.with_resources(trial, HEAD),
        tune_config=tune.TuneConfig(
            scheduler=_Scheduler(calls),
            search_alg=_Queue(calls),
            num_samples=-1,  # until the queue has none left
            max_concurrent_trials=sweep.concurrency,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(storage),
            verbose=0,
            stop=_Over(calls),
            failure_config=tune.FailureConfig(max_failures=0),
        ),
    ).fit()
