"""What can be read of an object that this version does not understand in full."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .base import BrokenRuleError

MOST_ROUNDS = 20
"""In each of which what is wrong is left out, before all of it is."""

Location = tuple[str | int, ...]


M = TypeVar("M", bound=BaseModel)


def read(model: type[M], raw: Mapping[str, Any]) -> M | None:
    """The object, without what is wrong in it; None: too much is."""
    rest = raw
    for _ in range(MOST_ROUNDS):
        try:
            return model.model_validate(rest)
        except ValidationError as error:
            if rest is raw:
                rest = copy.deepcopy(dict(raw))
            drop(rest, list(locations(error)))
    return None


def locations(error: ValidationError) -> Iterator[Location]:
    """Where what is wrong is; of a rule between fields, the one that it names."""
    for detail in error.errors(include_url=False, include_input=False):
        broken = (detail.get("ctx") or {}).get("error")
        path = broken.rule.path if isinstance(broken, BrokenRuleError) else ""
        yield (*detail["loc"], *(path.split(".") if path else ()))


def drop(value: Any, at: Iterable[Location]) -> None:
    """Takes out what is at each location; where that is missing, what it is missing from."""
    targets = {_reached(value, location) for location in at}
    # From the end of each list to its begin: what is taken out shifts what is behind it.
    for target in sorted(targets, key=lambda path: [*map(_sorted_as, path)], reverse=True):
        parent = value
        try:
            for step in target[:-1]:
                parent = parent[step]
            del parent[target[-1]]
        except (KeyError, IndexError):
            continue  # with what it was in


def _reached(value: Any, location: Location) -> Location:
    """As much of a location as there is."""
    for depth, step in enumerate(location):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return location[:depth]
    return location


def _sorted_as(step: str | int) -> tuple[int, str]:
    return (step, "") if isinstance(step, int) else (-1, step)
