"""Optuna chooses the values of a sweep's trials, also after a driver that was lost."""

import math
from typing import Any

import pytest

from support.framework_runs import Journal
from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractParameter, ContractSweep
from trainingrun_protocol.progress import TrialState
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.sweep import record, search
from trainingrun_runtime.sweep.record import Trial

SPACE = [
    ContractParameter(name="lr", min=1e-6, max=0.1, scale="log"),
    ContractParameter(name="batch_size", min=8, max=64, type="integer"),
    ContractParameter(name="seed", values=[0, 1, 2]),
]


def _sweep() -> ContractSweep:
    whole = {"metric": "loss", "mode": "min", "samples": 40, "library": "Optuna", "space": SPACE}
    return ContractSweep.model_validate(whole)


def _suggest(uid: str, number: int, trials: dict[int, Trial]) -> dict[str, Any]:
    draw = search.library_search(_sweep(), uid)
    assert draw is not None
    return draw(number, trials)


def _distance(config: dict[str, Any]) -> float:
    return abs(math.log10(config["lr"]) + 3)


def _searched(uid: str, samples: int) -> dict[int, Trial]:
    """What is tried if the best learning rate is 0.001."""
    trials = {number: Trial(number=number, config={}) for number in range(1, samples + 1)}
    for number in trials:
        config = _suggest(uid, number, trials)
        done = {"config": config, "state": TrialState.SUCCEEDED, "value": _distance(config)}
        trials[number] = trials[number].model_copy(update=done)
    return trials


def test_values_stay_within_their_bounds_and_come_nearer_to_the_best_ones() -> None:
    trials = _searched("a-uid", 40)
    configs = [trial.config for trial in trials.values()]
    assert all(1e-6 <= config["lr"] <= 0.1 for config in configs)
    assert all(type(config["batch_size"]) is int for config in configs)
    assert {config["seed"] for config in configs} == {0, 1, 2}
    first, last = configs[:20], configs[20:]
    assert sum(map(_distance, last)) < sum(map(_distance, first)) / 1.2


def test_the_next_driver_chooses_what_the_former_one_would_have_chosen() -> None:
    trials = _searched("a-uid", 12)
    assert trials == _searched("a-uid", 12)
    assert trials != _searched("another-uid", 12)
    read = {
        number: Trial.model_validate_json(trial.model_dump_json(by_alias=True))
        for number, trial in trials.items()
    }
    read[13] = Trial(number=13, config={})
    assert _suggest("a-uid", 13, read) == _suggest("a-uid", 13, {**trials, 13: read[13]})


def test_trials_of_every_state_are_known_to_the_search() -> None:
    trials = _searched("a-uid", 12)
    ended = {
        1: {"state": TrialState.STOPPED, "reports": [(10, None), (40, 2.0)]},
        2: {"state": TrialState.FAILED, "value": None},
        3: {"state": TrialState.RUNNING, "value": None},
        4: {"value": None},
    }
    for number, changes in ended.items():
        trials[number] = trials[number].model_copy(update=changes)
    trials[13] = Trial(number=13, config={})
    assert set(_suggest("a-uid", 13, trials)) == {"lr", "batch_size", "seed"}


@pytest.fixture
def run(ray: LocalRay, journal: Journal, tmp_path: Any) -> Run:
    journal.clear()
    config = {"steps": 40, "step_seconds": 0.1}
    found = Run(ray, tmp_path, "trainingrun_runtime.examples.linear:train", config, workers=1)
    found.contract = found.contract.model_copy(
        update={
            "checkpoints": found.contract.checkpoints.model_copy(update={"every_seconds": 1}),
        }
    )
    return found


def _trials(bucket: Bucket) -> list[tuple[dict[str, Any], Any]]:
    found = record.read(bucket)
    trials = found.trials if found is not None else []
    assert [trial.state for trial in trials] == [TrialState.SUCCEEDED] * 3
    return [(trial.config, trial.metrics["weights_sha256"]) for trial in trials]


def test_a_search_goes_on_after_a_loss_with_the_values_of_an_undisturbed_one(
    run: Run,
) -> None:
    sweep = _sweep().model_copy(update={"samples": 3})
    run.contract = run.contract.model_copy(update={"sweep": sweep})
    run.start()
    run.wait_until(
        lambda progress: (
            progress.sweep is not None
            and progress.sweep.trials[1].step > 15
            and progress.sweep.trials[1].checkpoint_uri
        )
    )
    run.stop()
    assert run.drive() == 0, run.log()
    disturbed = _trials(run.bucket)
    undisturbed = Bucket.open(f"{run.bucket.root}-undisturbed")
    storage = run.contract.storage.model_copy(update={"uri": undisturbed.root})
    run.contract = run.contract.model_copy(update={"storage": storage})
    assert run.drive() == 0, run.log()
    assert _trials(undisturbed) == disturbed
