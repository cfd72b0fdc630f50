"""Ray Tune's population based training, asked for its decisions alone.

Its `_exploit` would change Tune's own trials; here it only says what it would do.
"""

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import PopulationBasedTraining

from . import expected

_STEP, _VALUE = "step", "value"

Decisions = dict[int, tuple[int, dict[str, Any]]]
"""Trial -> the trial from whose checkpoint it goes on, and its new config."""


class _Member:
    """A trial that waits, as the scheduler sees it."""

    status, checkpoint, experiment_tag = "PAUSED", "its newest one", ""
    run_metadata = SimpleNamespace(
        checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
    )
    temporary_state = SimpleNamespace(saving_to=None)

    def __init__(self, number: int, config: dict[str, Any]) -> None:
        self.number, self.config = number, config

    def is_finished(self) -> bool:
        return False


# Not in `expected`, which would load Ray Tune in every driver.
for _name in ("_exploit", "_get_new_config"):
    if not hasattr(PopulationBasedTraining, _name):
        raise expected.UnknownRay(expected.sentence(f"has no PopulationBasedTraining.{_name}"))


class _Decides(PopulationBasedTraining):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.decisions: Decisions = {}

    def _exploit(self, tune_controller: Any, trial: Any, trial_to_clone: Any) -> None:
        config, _ = self._get_new_config(trial, trial_to_clone)
        self.decisions[trial.number] = (trial_to_clone.number, config)


def exploit(
    scores: Mapping[int, float],
    configs: Mapping[int, dict[str, Any]],
    mutations: dict[str, Any],
    within: Callable[[dict[str, Any]], dict[str, Any]],
    mode: str,
    seed: str,
) -> Decisions:
    """Which trials go on from the checkpoint of another one, and with which config.

    Args:
        scores: the metric of each trial that is trained on, all after the same step.
        configs: their configs.
        mutations: key of the config -> a list of its values, or a function that draws one.
        within: moves a mutated config back to what is allowed.
        mode: whether a smaller score is better, `min`, or a larger one, `max`.
        seed: decides what is drawn; the same seed draws the same.
    """
    scheduler = _Decides(
        time_attr=_STEP,
        metric=_VALUE,
        mode=mode,
        perturbation_interval=1,
        hyperparam_mutations=mutations,
        custom_explore_fn=within,
        synch=True,
    )
    members = [_Member(number, dict(configs[number])) for number in scores]
    controller: Any = SimpleNamespace(
        search_alg=None, get_trials=lambda: members, get_live_trials=lambda: members
    )
    state = random.getstate()
    random.seed(seed)  # Tune draws from the process's generator
    try:
        for member in members:
            scheduler.on_trial_add(controller, member)
        for member in members:
            result = {_STEP: 1, _VALUE: scores[member.number]}
            scheduler.on_trial_result(controller, member, result)
    finally:
        random.setstate(state)
    return scheduler.decisions
