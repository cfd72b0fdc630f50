"""How a worker calls the training function."""

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from trainingrun_runtime.worker.training_function import (
    FunctionError,
    _call,
    _refuse_unrun,
    load_training_function,
)


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


def takes_keys(lr: float = 0.1, steps: int = 3) -> Any:
    return {"lr": lr, "steps": steps}


def needs_keys(lr: float, steps: int = 3) -> Any:
    return {"lr": lr, "steps": steps}


def takes_keys_by_name(*, lr: float, steps: int = 3) -> Any:
    return {"lr": lr, "steps": steps}


def takes_any_keys(**config: Any) -> Any:
    return config


def takes_one_key(lr: float = 0.1) -> Any:
    return lr


def takes_it_by_another_name(settings: Any) -> Any:
    return settings


def takes_it_by_another_name_or_none(settings: Any = None) -> Any:
    return settings


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without functools.wraps, as many are."""

    def wrapper(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return wrapper


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


KEYS = {"lr": 1, "steps": 3}


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        pytest.param(takes_config, {"lr": 1}, id="config"),
        pytest.param(takes_config_or_none, {"lr": 1}, id="config or None"),
        pytest.param(takes_config_by_name, {"lr": 1}, id="config by name"),
        pytest.param(takes_config_and_more, {"lr": 1}, id="config and more"),
        pytest.param(takes_keys, KEYS, id="keys"),
        pytest.param(needs_keys, KEYS, id="needed keys"),
        pytest.param(takes_keys_by_name, KEYS, id="keys by name"),
        pytest.param(takes_any_keys, {"lr": 1}, id="any keys"),
        pytest.param(takes_one_key, 1, id="one key"),
        pytest.param(functools.partial(takes_keys, steps=3), KEYS, id="partial"),
        pytest.param(takes_it_by_another_name, {"lr": 1}, id="by another name"),
        pytest.param(takes_it_by_another_name_or_none, {"lr": 1}, id="by another name or None"),
        pytest.param(decorated(takes_config), {"lr": 1}, id="decorated"),
        pytest.param(wrapped(takes_config), {"lr": 1}, id="decorated with wraps"),
    ],
)
def test_a_training_function_gets_its_config(function: Callable[..., Any], returned: Any) -> None:
    assert _call(function, {"lr": 1}) == returned


@pytest.mark.parametrize(
    ("function", "config"),
    [
        pytest.param(takes_nothing, {"lr": 1}, id="no argument"),
        pytest.param(takes_keys, {"learning_rate": 1}, id="a key that it has not"),
        pytest.param(takes_one_key, {"learning_rate": 1}, id="another key"),
        pytest.param(takes_keys_by_name, {"steps": 1}, id="a key is missing"),
    ],
)
def test_a_config_that_the_function_cannot_take_is_refused(
    function: Callable[..., Any], config: dict[str, Any]
) -> None:
    """It would train with its defaults, and nobody would know."""
    keys = ", ".join(config)
    with pytest.raises(FunctionError, match=f"{function.__name__}.* whose keys are {keys}"):
        _call(function, config)


@pytest.mark.parametrize("function", [takes_nothing, takes_keys, decorated(takes_nothing)])
def test_without_a_config_a_function_keeps_its_defaults(function: Callable[..., Any]) -> None:
    assert _call(function, {}) == function()


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        pytest.param(takes_nothing, "nothing", id="without it"),
        pytest.param(takes_it_by_another_name, {"settings": 1}, id="all of it"),
    ],
)
def test_the_function_of_a_script_is_called_as_ray_calls_it(
    function: Callable[..., Any], returned: Any
) -> None:
    assert _call(function, {"settings": 1}, in_script=True) == returned


async def is_async(config: Any) -> None:
    del config


def is_a_generator(config: Any) -> Iterator[Any]:
    yield config


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        pytest.param(is_async, "is an `async def`", id="async"),
        pytest.param(decorated(is_async), "is an `async def`", id="decorated async"),
        pytest.param(is_a_generator, "has a `yield`", id="generator"),
        pytest.param(takes_config, None, id="a plain function"),
    ],
)
def test_a_function_of_whose_body_nothing_has_run_is_refused(
    function: Callable[..., Any], reason: str | None
) -> None:
    returned = _call(function, {"lr": 1})
    with pytest.raises(FunctionError, match=reason) if reason else nullcontext():
        _refuse_unrun(function, returned)


class NotAFunction:
    def __init__(self, config: Any) -> None:
        del config


def test_a_class_is_no_training_function() -> None:
    with pytest.raises(FunctionError, match="is not a function"):
        load_training_function(f"{__name__}:NotAFunction")


def test_an_error_of_the_module_is_not_taken_for_a_name_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "with_a_bug.py").write_text("import os\nos.no_such_thing\ndef train(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AttributeError, match="no_such_thing"):
        load_training_function("with_a_bug:train")
