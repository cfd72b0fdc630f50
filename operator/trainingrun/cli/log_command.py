"""`logs`: prints what the ranks and the driver of a run print; lines of several ranks once."""

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import typer

from ..client import kept_logs
from ..client import logs as client_logs
from ..client.log_lines import Batch, Printed, Selection, pattern
from ..client.places import Place
from ..client.sources import Source
from ..local.terminal_text import plain_lines
from .common import Endpoint, NameOrUri, seconds
from .errors import CliError, say
from .sources import source_of, taking

SAME_WITHIN_S = 10.0
"""Seconds within which the equal lines of ranks are printed as one."""


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(logs)


@taking(source_of)
def logs(
    source: Source,
    name: NameOrUri,
    rank: Annotated[int | None, typer.Option(min=0, help="Of this rank alone.")] = None,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Number of the attempt.", show_default="the last one"),
    ] = None,
    driver: Annotated[bool, typer.Option("--driver", help="Of the driver alone.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is printed from now on.")
    ] = False,
    since: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="DURATION", help="Not older than 10m, 2h …"),
    ] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Lines that contain this alone.")
    ] = None,
    tail: Annotated[
        int,
        typer.Option(min=0, help="Lines from the end of each rank and of the driver; 0: none."),
    ] = 1000,
    trial: Annotated[
        int | None, typer.Option(min=1, help="Number of the trial of a sweep.")
    ] = None,
    endpoint: Endpoint = None,
) -> None:
    """Print what the ranks and the driver print or have printed, also once their pods are gone."""
    if driver and rank is not None:
        raise CliError("--driver and --rank exclude each other; leave one of them out")
    selection = Selection(rank, driver, trial, attempt, since, pattern(grep), tail)
    if "://" in name:
        place = Place(name, endpoint, trial=trial)
        found = kept_logs.batches(place, selection, follow, say)
    else:
        found = client_logs.of_run(source, name, selection, follow, endpoint, say)
    for batch in found:
        _print(batch)


def _print(batch: Batch) -> None:
    text = batch.heading + "".join(f"{line}\n" for line in folded(batch.lines))
    # Into a file or a pipe the characters go unchanged.
    typer.echo(plain_lines(text) if sys.stdout.isatty() else text, nl=False)


@dataclass
class _Folded:
    """A line that one rank or more have printed."""

    first: Printed
    ranks: set[int] = field(default_factory=set)

    @property
    def label(self) -> str:
        if not self.ranks:
            return "driver"
        return f"rank{'s' if len(self.ranks) > 1 else ''} {_ranges(self.ranks)}"


def folded(lines: Iterable[Printed]) -> list[str]:
    """The lines with who has printed them; those that ranks have in common once.

    Args:
        lines: By their time.
    """
    found: list[_Folded] = []
    alike: dict[str, deque[_Folded]] = {}
    for line in lines:
        if line.rank is None:
            found.append(_Folded(line))
            continue
        others = alike.setdefault(line.text, deque())
        while others and line.time - others[0].first.time > SAME_WITHIN_S:
            others.popleft()
        one = next((each for each in others if line.rank not in each.ranks), None)
        if one is None:
            one = _Folded(line)
            found.append(one)
            others.append(one)
        one.ranks.add(line.rank)
    return [f"[{one.label}] {one.first.text}" for one in found]


def _ranges(ranks: set[int]) -> str:
    """As `0-3,5`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ",".join("-".join(map(str, run)) for run in runs)
