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
        minutes: As many groups as are estimated to take so long, at least one; None: all.
    """
    draw = random.Random(seed)
    shuffled = sorted(scenarios, key=lambda scenario: scenario.name)
    draw.shuffle(shuffled)
    by_place: dict[str, list[Scenario]] = {"first": [], "between": [], "last": []}
    for scenario in shuffled:
        by_place[_place(scenario)].append(scenario)
    groups: list[Group] = []
    spent_s = 0.0
    while any(by_place.values()):
        group = _group(by_place, draw)
        spent_s += RUN_S + sum(one.scenario.takes_s for one in group)
        if minutes is not None and groups and spent_s > 60 * minutes:
            break
        groups.append(group)
    return groups


def _place(scenario: Scenario) -> str:
    """Where in a run's life it can be."""
    if scenario.ends_run and scenario.phase is Phase.STARTING:
        return "last"
    if scenario.phase is Phase.STARTING:
        return "first"
    return "last" if scenario.ends_run or scenario.phase is Phase.ENDING else "between"


def _group(by_place: dict[str, list[Scenario]], draw: random.Random) -> Group:
    last = by_place["last"].pop() if by_place["last"] else None
    alone = last is not None and last.phase is Phase.STARTING
    found: list[Scenario] = []
    if not alone:
        if by_place["first"]:
            found.append(by_place["first"].pop())
        while by_place["between"] and len(found) < PER_RUN - (last is not None):
            found.append(by_place["between"].pop())
    if last is not None:
        found.append(last)
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
