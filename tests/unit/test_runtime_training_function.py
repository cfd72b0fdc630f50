"""How a worker calls the training function."""

from collections.abc import Callable
from typing import Any

import pytest

from trainingrun_runtime.training_function import _call


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
        pytest.param(takes_config, {"lr": 1}, id="config"),
        pytest.param(takes_config_or_none, {"lr": 1}, id="config or None"),
        pytest.param(takes_config_by_name, {"lr": 1}, id="config by name"),
        pytest.param(takes_config_and_more, {"lr": 1}, id="config and more"),
        pytest.param(takes_nothing, "nothing", id="nothing"),
        pytest.param(takes_other_settings, "nothing", id="other settings"),
    ],
)
def test_a_training_function_gets_its_config(function: Callable[..., Any], returned: Any) -> None:
    assert _call(function, {"lr": 1}) == returned
