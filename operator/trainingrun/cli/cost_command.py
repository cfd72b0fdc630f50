"""`trainingrun cost`: accelerator seconds and money of one run, or of many by what they share."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from trainingrun_protocol.plain_text import money_text

from ..api.v1alpha1 import KUEUE_QUEUE
from ..client.sources import Cluster, Source
from ..local import terminal_text
from ..local.run_line import Run
from ..local.terminal_text import terminal_width
from . import views
from .common import Everywhere, run_names, seconds
from .errors import CliError, say
from .sources import source_of, taking

CAUSES = ("training", "saving", "lost", "starting", "waiting")
_NOTHING = "-"
"""Of a run that the operator has not counted yet, or that has not this label or queue."""


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(cost)


@taking(source_of)
def cost(
    source: Source,
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a TrainingRun.", autocompletion=run_names),
    ] = None,
    by: Annotated[
        str,
        typer.Option(help="run, namespace, queue, or a label of runs, such as team."),
    ] = "run",
    since: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="DURATION",
            help="Only runs that have not ended, or ended within so long, such as 24h or 7d.",
        ),
    ] = None,
    everywhere: Everywhere = False,
) -> None:
    """Show what TrainingRuns have used by cause, and what that has cost."""
    if name is not None:
        for option, given in (("--by", by != "run"), ("--since", since is not None)):
            if given:
                raise CliError(f"{option} is for several runs; leave it out, or {name}")
    runs = [source.run(name)] if name else source.runs(everywhere or by == "namespace")
    if since is not None:
        earliest = datetime.now(UTC) - timedelta(seconds=since)
        runs = [run for run in runs if _ended_after(run, earliest)]
    if not runs:
        say("No TrainingRuns found.")
        return
    typer.echo(table(runs, by, everywhere, terminal_width()))
    for sentence in losses(runs[0]) if name is not None else ():
        typer.echo(sentence)
    for sentence in (
        unknown(runs) if isinstance(source, Cluster) else ()
    ):  # this machine has no prices
        say(sentence)


def table(runs: Sequence[Run], by: str, everywhere: bool, width: int | None) -> str:
    """A line for each group of runs, and one for all of them."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[_group(run, by, everywhere)].append((run.get("status") or {}).get("cost") or {})
    heads = [by.upper(), "RUNS", "HOURS", *(cause.upper() for cause in CAUSES)]
    money = any(one.get("currency") for costs in groups.values() for one in costs)
    heads += ["COST", "WASTED", "SAVED BY SPOT"] if money else []
    rows = [_row(group, groups[group], money) for group in sorted(groups)]
    if len(rows) > 1:
        rows.append(_row("all", [one for costs in groups.values() for one in costs], money))
    if by == "run":
        rows, heads = [[row[0], *row[2:]] for row in rows], [heads[0], *heads[2:]]
    return terminal_text.table(heads, rows, width)


def spent(run: Run) -> str:
    """What a run has cost; empty: the operator has no prices, or has not counted it yet."""
    cost = (run.get("status") or {}).get("cost") or {}
    return _sum([cost], "amount", "atLeast") if cost.get("currency") else ""


def queue(run: Run) -> str:
    """The Kueue queue of a run; empty: it has none."""
    named = ((run.get("spec") or {}).get("scheduling") or {}).get("queue") or {}
    return str(named.get("name") or (run["metadata"].get("labels") or {}).get(KUEUE_QUEUE) or "")


def losses(run: Run) -> list[str]:
    """What a run lost, and which attempts ended badly, oldest first, in sentences."""
    status = run.get("status") or {}
    history = (status.get("disruptions") or {}).get("history") or []
    ended = [
        (one["endTime"], f"attempt {one['number']} ended, {one['reason']}: {one['message']}")
        for one in status.get("attempts") or []
        if one.get("endTime") and one.get("reason")
    ]
    found = sorted([*((one["time"], views.loss(one)) for one in history), *ended])
    return [terminal_text.plain(f"{time} {sentence}") for time, sentence in found]


def unknown(runs: Iterable[Run]) -> list[str]:
    """What the table leaves open, in sentences."""
    found = [(run, cost) for run in runs if (cost := (run.get("status") or {}).get("cost"))]
    sentences = []
    uncounted = [run for run in runs if not (run.get("status") or {}).get("cost")]
    if uncounted:
        sentences.append(f"{_names(uncounted)} held nothing that the operator has counted.")
    unpriced = [run for run, cost in found if cost.get("currency") and "amount" not in cost]
    if unpriced:
        sentences.append(
            f"What {_names(unpriced)} cost is at least the amount: a node had no price in "
            "prices.nodes of the operator's chart."
        )
    if found and not any(cost.get("currency") for _, cost in found):
        sentences.append("The operator has no prices; see prices.nodes of its chart.")
    return sentences


def _names(runs: Sequence[Run]) -> str:
    names = [run["metadata"]["name"] for run in runs[:3]]
    return ", ".join(names) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")


def _group(run: Run, by: str, everywhere: bool) -> str:
    metadata = run["metadata"]
    labels = metadata.get("labels") or {}
    if by == "run":
        return f"{metadata['namespace']}/{metadata['name']}" if everywhere else metadata["name"]
    if by == "namespace":
        return str(metadata["namespace"])
    if by == "queue":
        return queue(run) or _NOTHING
    return str(labels.get(by, _NOTHING))


def _row(group: str, costs: Sequence[Mapping[str, Any]], money: bool) -> list[str]:
    used = {cause: sum(_by_cause(one, cause) for one in costs) for cause in CAUSES}
    whole = sum(used.values())
    shares = [f"{used[cause] / whole:.0%}" if whole else _NOTHING for cause in CAUSES]
    row = [group, str(len(costs)), f"{whole / 3600:.2f}", *shares]
    if money:
        row += [_sum(costs, "amount", "atLeast"), _sum(costs, "wasted"), _sum(costs, "savedBySpot")]
    return row


def _by_cause(cost: Mapping[str, Any], cause: str) -> float:
    return float((cost.get("seconds") or {}).get(cause, 0))


def _sum(costs: Sequence[Mapping[str, Any]], field: str, least: str | None = None) -> str:
    """The sum by currency; `?` where a part of it is not known."""
    sums: dict[str, float] = defaultdict(float)
    is_known = True
    for one in costs:
        if not one:
            continue  # it has used nothing
        if field in one:
            sums[one["currency"]] += one[field]
            continue
        is_known = False
        if least and least in one:
            sums[one["currency"]] += one[least]
    text = " + ".join(
        f"{money_text(amount)} {currency}" for currency, amount in sorted(sums.items())
    )
    if is_known:
        return text or _NOTHING
    return f">={text}" if text and least else "?"


def _ended_after(run: Run, earliest: datetime) -> bool:
    ended = (run.get("status") or {}).get("completionTime")
    return ended is None or datetime.fromisoformat(ended) >= earliest
