"""How a worker calls the training function."""

from collections.abc import Callable
from typing import Any

import pytest

from trainingrun_runtime.worker import _call


def takes_config(config: Any) -> Any:
    return config


def takes_config_or_none(config: Any = None) -> Any:
    return config


def takes_config_by_name(*, config: Any = None) -> Any:
    return config


def takes_config_and_more(config: Any = None, debug: bool = False) -> Any:
    return config


def takes_nothing() -> Any:
    return "nothing"


def takes_other_settings(lr: float = 0.1, steps: int = 3) -> Any:
    return "nothing"


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (takes_config, {"lr": 1}),
        (takes_config_or_none, {"lr": 1}),
        (takes_config_by_name, {"lr": 1}),
        (takes_config_and_more, {"lr": 1}),
        (takes_nothing, "nothing"),
        (takes_other_settings, "nothing"),
    ],
)
def test_a_training_function_gets_its_config(function: Callable[..., Any], returned: Any) -> None:
    assert _call(function, {"lr": 1}) == returned
