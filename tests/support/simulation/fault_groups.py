"""Faults: each is a function of the simulation and a whole number that chooses.

They come in groups, so that a story can do without some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .story import Story

Happening = Callable[["Story", int], None]


class Fault(NamedTuple):
    """Something that can happen."""

    group: str
    happen: Happening


FAULTS: list[Fault] = []
GROUPS: list[str] = []


def fault(group: str) -> Callable[[Happening], Happening]:
    """Register a fault in its group."""
    if group not in GROUPS:
        GROUPS.append(group)

    def register(happen: Happening) -> Happening:
        FAULTS.append(Fault(group, happen))
        return happen

    return register
