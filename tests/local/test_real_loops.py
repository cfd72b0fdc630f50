"""Training loops as in practice work, and an interruption changes no bit of its weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import SUSPEND_FILE
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_runtime import results
from trainingrun_runtime.store import manifest


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Callable[..., Run]:
    """Makes runs: `a_run("epochs", step_seconds=0.1)`."""

    def make(function: str, **config: Any) -> Run:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Run(ray, folder, f"support.real_loops:{function}", config)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "steps", "suspend_at", "evaluated"),
    [
        pytest.param("epochs", 35, 12, "[10, 20, 30, 35]", id="epochs"),
        pytest.param("loops", 30, 17, "[30]", id="loops"),
        pytest.param("draws", 30, 14, "[30]", id="random numbers between the loops"),
        pytest.param("averages", 30, 13, "[30]", id="weights that ranks average now and then"),
        pytest.param("accumulates", 30, 6, "[30]", id="gradients used after the loop"),
        pytest.param("accumulates", 30, 11, "[30]", id="gradients used in the loop"),
    ],
)
def test_it_ends_alike_when_interrupted_in_mid_loop(
    a_run: Callable[..., Run], function: str, steps: int, suspend_at: int, evaluated: str
) -> None:
    whole = a_run(function)
    assert whole.drive() == 0, whole.log()
    assert whole.metrics()["steps"] == whole.metrics()["drawn"] == steps
    assert whole.metrics()["evaluated"] == evaluated
    assert manifest.committed(whole.bucket)[-1].step == steps

    broken = a_run(function, step_seconds=0.1)
    assert broken.drive(suspend_at=suspend_at) == SUSPEND_EXIT_CODE, broken.log()
    (broken.state / SUSPEND_FILE).unlink()
    assert broken.drive() == 0, broken.log()
    assert suspend_at <= (broken.progress().resumed_from_step or 0) < steps
    wanted = {"weights_sha256", "steps", "drawn", "evaluated", "recent"}
    assert {k: v for k, v in broken.metrics().items() if k in wanted} == {
        k: v for k, v in whole.metrics().items() if k in wanted
    }


def test_evaluations_between_loops_and_after_the_last_one_are_time_of_training(
    ray: LocalRay, tmp_path: Path
) -> None:
    config = {"accuracies": [0.1, 0.2], "evaluation_seconds": 2.0, "waits": False}
    run = Run(ray, tmp_path, "support.evaluated_epochs:train", config)
    assert run.drive() == 0, run.log()
    assert 4.0 <= run.progress().seconds.productive < 6.0
    assert run.progress().seconds.recovery == 0


def test_each_checkpoint_is_the_state_of_its_step_and_the_last_one_that_of_the_end(
    a_run: Callable[..., Run],
) -> None:
    """Whatever is written meanwhile, and while the training code itself reports to Ray."""
    run = a_run("writes_past_pytorch")
    kept = run.contract.checkpoints.model_copy(update={"keep": 9})
    run.contract = run.contract.model_copy(update={"checkpoints": kept})
    assert run.drive() == 0, run.log()
    first, *_, last = manifest.committed(run.bucket)
    assert (first.step, last.step) == (3, 6)
    assert _table(run, first)[:20] == [1, 2, 3, *[0] * 17]
    assert _table(run, last)[:20] == [1, 2, 3, 4, 5, 6, *[0] * 4, *[7] * 10]


def _table(run: Run, made: manifest.Manifest) -> list[float]:
    table, bucket = torch.nn.Embedding(100_000, 4), run.bucket
    uri = bucket.uri(made.path)
    results.load(uri, table, name="table", endpoint=bucket.endpoint, region=bucket.region)
    found: list[float] = table.weight[:, 0].tolist()
    return found


def test_what_would_go_wrong_silently_is_refused(a_run: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "told"
    assert a_run("refused", told=str(file)).drive() == 1
    told = file.read_text()
    for sentence in (
        "optimizer is sharded (ZeroRedundancyOptimizer):",
        "loader is a list, which has no state_dict and no load_state_dict",
        "the training function has a Session already",
        "notes: state_dict()['folder'] is a function",
        "session.steps(5) was reached before",
        "the ranks are at different places of the training function: rank 0 is after a loop with 9 "
        "steps done, and rank 1 is in a loop with 10 steps done",
    ):
        assert sentence in told


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("optimizer not given", "the session has a model and not its Adam"),
        ("loop of its own", "before the session's first loop, and none"),
        ("model not wrapped", "model is not the same on every rank; where the ranks train one"),
    ],
)
def test_what_a_loss_would_cost_is_said_while_the_run_trains(
    a_run: Callable[..., Run], fault: str, sentence: str
) -> None:
    run = a_run("loses_silently", fault=fault)
    run.start()
    told = run.wait_until(lambda progress: progress.warnings != [])
    run.stop()
    assert [sentence in warning for warning in told.warnings] == [True]


@pytest.mark.slow
def test_a_suspension_that_the_function_swallows_counts_and_ranks_stay_as_many(
    a_run: Callable[..., Run],
) -> None:
    run = a_run("swallows", step_seconds=0.1)
    assert run.drive(suspend_at=12) == SUSPEND_EXIT_CODE, run.log()
    (run.state / SUSPEND_FILE).unlink()
    # Rank 1's loader has no place in a world of one.
    run.contract = run.contract.model_copy(
        update={"workers": 1, "function": "support.real_loops:loops"}
    )
    assert run.drive() == 1, run.log()
    failure = run.progress().failure
    assert failure is not None
    assert "of loader, noise, notes for each of its 2 ranks, and this run has" in failure.message
