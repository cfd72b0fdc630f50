"""What cannot be pickled ends no rank: what it was is said, or it is left out; with real Ray."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay

pytestmark = pytest.mark.slow

SCRIPT = """
from ray.train.torch import TorchTrainer
from support.cannot_travel import returns

result = TorchTrainer(returns, train_loop_config={"column": "y"}).fit()
assert result.return_value is None, result
"""


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Callable[[str], Run]:
    """Makes a run of one of the functions."""
    return lambda name: Run(ray, tmp_path, f"support.cannot_travel:{name}", {"column": "x"})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "raised NeedsTwo: 7: the label file has no column x (cannot_travel.py:"),
        ("asserts", 'raised AssertionError: assert config["column"] == "y" (cannot_travel.py:'),
        ("yields", "raised FunctionError: the training function yields has a `yield`"),
    ],
)
def test_an_error_is_the_applications_and_says_where_it_was_raised(
    a_run: Callable[[str], Run], function: str, said: str
) -> None:
    run = a_run(function)
    assert run.drive() == 1, run.log()
    failure = run.progress().failure
    assert failure is not None
    assert failure.kind == "Application"
    assert said in failure.message
    assert "Traceback (most recent call last)" in failure.traceback


def test_what_is_returned_is_left_out_and_what_is_reported_is_text(
    a_run: Callable[[str], Run],
) -> None:
    run = a_run("returns")
    assert run.drive() == 0, run.log()
    assert run.metrics() | {"timer": ""} == {"loss": 0.5, "timer": "", "column": "x"}
    assert "lock" in run.metrics()["timer"]


def test_a_script_gets_none_in_place_of_what_its_function_returns(
    ray: LocalRay, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = Run(ray, tmp_path, None, {}, script=script)
    assert run.drive() == 0, run.log()
