"""How the ranks' states differ: what one of them saves for all, and what each saves for itself.

The ranks exchange digests, a few numbers for each object, and never the states.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from . import sharded_state
from .encoding import TAG
from .fingerprint import fingerprint
from .sharded_state import Encoded


class Fingerprints(NamedTuple):
    """Short digests of a state."""

    common: int
    """Of what should be the same on all ranks."""
    layout: int
    """Which parts this rank has of tensors that are on some ranks alone."""
    copies: int
    """Of the content of these parts: ranks of one layout should have the same."""


class Comparison(NamedTuple):
    """How the ranks' states differ."""

    own: set[str]
    """Names of the objects whose state is not the same on every rank."""
    same_parts: Mapping[str, Sequence[int]]
    """Ranks whose `Fingerprints.layout` is this rank's, by the object's name."""
    parameters: Mapping[str, Collection[str]] = MappingProxyType({})
    """Names of the parameters of those models of which rank 0 decides everything else."""


def compare(
    names: Sequence[str],
    ranks: Sequence[Sequence[int]],
    rank: int,
    parameters: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Comparison:
    """Compare all ranks' fingerprints.

    Args:
        names: of the objects.
        ranks: of each rank, for each object, `common`, `layout` and `copies`.
        rank: of this process.
        parameters: see `Comparison`.
    """
    own, same_parts = set(), {}
    for index, name in enumerate(names):
        every = [tuple(numbers[3 * index : 3 * index + 3]) for numbers in ranks]
        copies: dict[int, set[int]] = {}
        for _, layout, content in every:
            copies.setdefault(layout, set()).add(content)
        if len({common for common, _, _ in every}) > 1 or any(len(c) > 1 for c in copies.values()):
            own.add(name)
        layouts = [layout for _, layout, _ in every]
        same_parts[name] = [r for r, layout in enumerate(layouts) if layout == layouts[rank]]
    return Comparison(own, same_parts, parameters)


def fingerprints(
    states: Mapping[str, Encoded], replicated: Mapping[str, Collection[str]] | None = None
) -> dict[str, Fingerprints]:
    """Short digests of each state.

    Args:
        states: encoded, by name.
        replicated: names of the parameters of those models of which rank 0 decides everything else.
    """
    compared = replicated or {}
    return {name: _fingerprints(state, compared.get(name)) for name, state in states.items()}


def _fingerprints(state: Encoded, compared: Collection[str] | None) -> Fingerprints:
    some = sharded_state.parts_of_some(state)
    # What rank 0 decides for all, the buffers of a model in data parallelism, is not compared.
    common = state.tree if compared is None else divided(state.tree, compared)[0]
    return Fingerprints(
        common=fingerprint(common),
        layout=fingerprint({p: [*part.offsets, *part.local.shape] for p, part in some.items()}),
        copies=fingerprint([part.local for part in some.values()]),
    )


def divided(
    tree: Any, compared: Collection[str]
) -> tuple[dict[str, Any] | None, dict[str, Any] | Any]:
    """The parameters of a model's encoded state, and the rest; a state of another form is rest."""
    items = tree.get("items") if isinstance(tree, dict) and TAG in tree else None
    if not isinstance(items, dict):
        return None, tree
    parameters = {key: item for key, item in items.items() if key in compared}
    return parameters, {key: item for key, item in items.items() if key not in compared}


def layout(states: Mapping[str, Encoded]) -> int:
    """A digest of which parts of which tensors this rank has; 0: it holds everything whole."""
    found = {
        place: [*part.offsets, *part.local.shape]
        for state in states.values()
        for place, part in sharded_state.parts(state).items()
    }
    return fingerprint(found) if found else 0
