"""Training functions whose errors and values cannot be pickled, or not be unpickled."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import ray.train


class NeedsTwo(Exception):
    """Cannot be unpickled, as many libraries' errors: its arguments are not those of __init__."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def raises(config: dict[str, Any]) -> None:
    """As a library does that reads a data set."""
    raise NeedsTwo(7, f"the label file has no column {config['column']}")


def asserts(config: dict[str, Any]) -> None:
    """Has no text to tell."""
    assert config["column"] == "y"


def returns(config: dict[str, Any]) -> tuple[Callable[[], int], Any]:
    """Trains and returns what cannot be pickled, as a model and a writer with a lock."""
    ray.train.report({"loss": 0.5, "timer": threading.Lock(), "column": config["column"]})
    return lambda: 1, threading.Lock()


def yields(config: dict[str, Any]) -> Iterator[Any]:
    """Is a generator by a debugging aid that was left in."""
    yield config
