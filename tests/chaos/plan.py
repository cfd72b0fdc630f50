"""Which scenarios happen when, drawn by a seed, and the table of how they went. Pure.

A scenario is a fault in a phase of a run. Several that leave the run alive happen to one run, one
after the other: starting and ending one for each would take most of the time.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

PER_RUN = 5
"""Scenarios of one run: its 240 steps last longer than they do."""
RUN_S = 90.0
"""What a run takes to its first checkpoint, and from the last scenario to its end."""


class Phase(StrEnum):
    """What the run does when the fault comes."""

    STARTING = "starting"
    """It has been applied, and has done no step."""
    TRAINING = "training"
    RECOVERING = "recovering"
    """A worker pod was deleted just before."""
    SUSPENDING = "suspending"
    RESUMING = "resuming"
    """`suspend` was set back to false just before."""
    ENDING = "ending"
    """It is in its last steps."""


LONGEST_DELAY_S = {
    Phase.STARTING: 30.0,
    Phase.TRAINING: 8.0,
    Phase.RECOVERING: 15.0,
    Phase.SUSPENDING: 4.0,
    Phase.RESUMING: 30.0,
    Phase.ENDING: 6.0,
}
"""Seconds from the phase's begin within which the fault comes, at a time that is drawn."""

PHASE_S = {
    Phase.STARTING: 90.0,
    Phase.TRAINING: 0.0,
    Phase.RECOVERING: 60.0,
    Phase.SUSPENDING: 120.0,
    Phase.RESUMING: 90.0,
    Phase.ENDING: 45.0,
}
"""Seconds without training that the phase itself is given, beside the fault's budget: what it costs
undisturbed takes a third to a half of it on two cores."""


@dataclass(frozen=True)
class Scenario:
    """A fault in a phase."""

    fault: str
    phase: Phase
    lasts_s: float
    """How long the fault is there before it is undone; 0: it is over at once."""
    budget_s: float
    """Seconds without training, the phase's own included, within which the run survives it."""
    ends_run: bool = False
    """Nothing of the run is left after it."""

    @property
    def name(self) -> str:
        """Such as `worker-deleted, training`."""
        return f"{self.fault}, {self.phase.value}"

    @property
    def takes_s(self) -> float:
        """Estimated seconds: half the budget, and the steps before and after it."""
        return self.lasts_s + self.budget_s / 2 + 20


@dataclass(frozen=True)
class Drawn:
    """A scenario and when it happens."""

    scenario: Scenario
    delay_s: float
    """From the phase's begin to the fault."""


Group = tuple[Drawn, ...]
"""The scenarios of one run, in order."""


def drawn_groups(
    scenarios: Iterable[Scenario], seed: int, minutes: float | None = None
) -> list[Group]:
    """All scenarios in an order and at times that the seed decides, in groups for one run each.

    Args:
        scenarios: What there is.
        seed: Decides the order and the times.
        minutes: As many as are estimated to take so long, at least one; None: all.
    """
    draw = random.Random(seed)
    shuffled = sorted(scenarios, key=lambda scenario: scenario.name)
    draw.shuffle(shuffled)
    places: dict[_Place, list[Scenario]] = {place: [] for place in _Place}
    for scenario in shuffled:
        places[_place(scenario)].append(scenario)
    groups: list[Group] = []
    spent_s = 0.0
    while any(places.values()):
        group = _group(places, draw)
        if minutes is not None:
            group = _fitting(group, 60 * minutes - spent_s) or (() if groups else group[:1])
        if not group:
            break
        spent_s += takes_s(group)
        groups.append(group)
    return groups


def takes_s(group: Group) -> float:
    """Estimated seconds of a run and its scenarios."""
    return RUN_S + sum(drawn.scenario.takes_s for drawn in group)


def _fitting(group: Group, seconds: float) -> Group:
    """As many of its scenarios as take so long."""
    return max(
        (group[:n] for n in range(len(group) + 1) if takes_s(group[:n]) <= seconds),
        key=len,
        default=(),
    )


class _Place(StrEnum):
    """Where in a run's life a scenario can be."""

    ALONE = "alone"
    """The run does not end by itself, so that nothing can be told of what came before."""
    FIRST = "first"
    BETWEEN = "between"
    LAST = "last"


def _place(scenario: Scenario) -> _Place:
    if scenario.ends_run:
        return _Place.ALONE
    by_phase = {Phase.STARTING: _Place.FIRST, Phase.ENDING: _Place.LAST}
    return by_phase.get(scenario.phase, _Place.BETWEEN)


def _group(places: dict[_Place, list[Scenario]], draw: random.Random) -> Group:
    """The next scenarios of one run. One that is alone comes after every few others."""
    others = sum(len(left) for place, left in places.items() if place is not _Place.ALONE)
    alone = places[_Place.ALONE]
    found: list[Scenario] = []
    if alone and (not others or draw.random() < len(alone) / (len(alone) + others / PER_RUN)):
        found.append(alone.pop())
    else:
        first, between, last = (places[one] for one in (_Place.FIRST, _Place.BETWEEN, _Place.LAST))
        found += [first.pop()] if first else []
        while between and len(found) < PER_RUN - bool(last):
            found.append(between.pop())
        found += [last.pop()] if last else []
    return tuple(Drawn(one, draw.uniform(0.0, LONGEST_DELAY_S[one.phase])) for one in found)


@dataclass
class Outcome:
    """How a scenario went."""

    scenario: Scenario
    failure: str = ""
    """Why the run has not survived it; empty: it has."""
    lost: int | None = None
    """Steps done twice."""
    seconds: float | None = None
    """Without training."""
    weights_equal: bool | None = None
    """Whether the run ended with the undisturbed one's weights; None: it did not end by itself."""


HEADER = ("scenario", "tried", "survived", "steps lost", "seconds", "budget", "weights equal")


def cells(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """A row for each scenario by its name: how often it was tried and survived, and the most that
    it has cost.
    """
    by_name: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_name.setdefault(outcome.scenario.name, []).append(outcome)
    return [_row(name, by_name[name]) for name in sorted(by_name)]


def _row(name: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    lost = [one.lost for one in outcomes if one.lost is not None]
    seconds = [one.seconds for one in outcomes if one.seconds is not None]
    equal = {one.weights_equal for one in outcomes} - {None}
    return (
        name,
        str(len(outcomes)),
        str(sum(not one.failure for one in outcomes)),
        str(max(lost)) if lost else "-",
        f"{max(seconds):.1f}" if seconds else "-",
        f"<= {outcomes[0].scenario.budget_s:.0f}",
        "NO" if False in equal else "yes" if equal else "-",
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Everything as a Markdown table, aligned so that it reads well as plain text too, and a line
    that sums it up.
    """
    lines = [HEADER, *cells(outcomes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    lines.insert(1, tuple("-" * width for width in widths))
    rows = (
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    failed = [outcome for outcome in outcomes if outcome.failure]
    total = f"{len(outcomes)} tried, {len(outcomes) - len(failed)} survived"
    reasons = "".join(f"\n{one.scenario.name}: {one.failure}" for one in failed)
    return "".join(f"| {row} |\n" for row in rows) + f"\n{total}{reasons}\n"
