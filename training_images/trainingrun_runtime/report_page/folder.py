"""What the page needs of a run's folder, read from the bucket."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from trainingrun_protocol.progress import ProgressResult, RunState, SweepTable

from ..store import (
    kept_output,
    kept_stacks,
    last_progress,
    loss_documents,
    manifest,
    metrics_table,
    retention,
    run_result,
    run_settings,
    start_traces,
)
from ..store.bucket import Bucket
from ..store.kept_output import Part, Source
from ..store.kept_stacks import KeptStacks
from ..store.last_progress import Driver
from ..store.loss_documents import LossDocument
from ..store.manifest import Manifest
from ..store.run_settings import RunSettings
from ..store.start_traces import StartTrace
from ..store.storage_errors import UnusableError
from . import curves
from .curves import Curves, Series

MOST_CURVES = 12
"""Metrics that are drawn: of more, those with `loss` in their name first, then in their order."""
MOST_LINES = 50
"""Last lines of a rank or of the driver."""
MOST_OUTPUT = 4
"""Ranks whose last lines are shown beside those that ended an attempt."""
MOST_FAILED = 3
"""Attempts of which the rank that ended them is shown."""
MOST_STACKS = 16
"""Ranks whose stacks are shown."""
_LARGEST_STACK = 100_000
"""Bytes that are read of one."""


@dataclass(frozen=True)
class LastLines:
    """What a rank, or the driver, has printed last."""

    attempt: int
    """Number of the attempt."""
    rank: int | None
    """None: the driver."""
    lines: list[str]
    """The last one last."""
    failed_first: bool = False
    """Whether it is the rank that ended the attempt."""


@dataclass(frozen=True)
class Stacks:
    """Where the ranks stood at one moment."""

    kept: KeptStacks
    """Which there are."""
    texts: dict[int, str]
    """By rank, of at most 16."""


@dataclass(frozen=True)
class RunFolder:
    """What a run has left."""

    root: str
    """URI of the folder."""
    drivers: list[Driver] = field(default_factory=list)
    """The first one first."""
    curves: list[Series] = field(default_factory=list)
    """Metrics that are numbers."""
    curves_left_out: int = 0
    """Further metrics that are numbers."""
    curves_without: list[str] = field(default_factory=list)
    """Metrics whose values are NaN or infinite."""
    checkpoints: list[Manifest] = field(default_factory=list)
    """Oldest first."""
    best: Manifest | None = None
    """The best checkpoint, where `checkpoints.best` is set."""
    result: ProgressResult | None = None
    """Of a run that has succeeded."""
    losses: list[LossDocument] = field(default_factory=list)
    """The first one first."""
    stacks: Stacks | None = None
    """The newest ones."""
    output: list[LastLines] = field(default_factory=list)
    """Of the ranks that ended the newest attempts, then of a few others of the newest one, unless
    that has succeeded or is suspended."""
    sweep: SweepTable | None = None
    """All trials of a sweep; the rest is that of one of them."""
    settings: RunSettings | None = None
    """What the newest driver has begun with."""
    starts: list[StartTrace] = field(default_factory=list)
    """When the processes of the newest worker groups were where."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, a sentence for each."""


def read(bucket: Bucket, largest_table: float = math.inf, most_rows: float = math.inf) -> RunFolder:
    """Read the folder of a run, or of a trial.

    Args:
        bucket: The folder.
        largest_table: Bytes of the table of metrics, as it is stored: one with more is not read.
        most_rows: Rows of it: one with more is not decoded.

    Raises:
        StorageError: The store did not answer.
    """
    notes = []
    committed = []
    for key, found in manifest.read_all(bucket):
        if isinstance(found, Manifest):
            committed.append(found)
        else:
            notes.append(f"{key} cannot be read: {found}.")
    try:
        result = run_result.read(bucket)
    except UnusableError as error:
        result = None
        notes.append(f"{error}.")
    drivers = last_progress.drivers(bucket)
    newest = drivers[-1].progress if drivers else None
    table = Curves()
    size = sum(entry.size for entry in bucket.list(metrics_table.FOLDER))
    if size <= largest_table:
        table = curves.read(metrics_table.stored(bucket), MOST_CURVES, most_rows)
    if table.too_large or size > largest_table:
        notes.append(
            f"The table of metrics has {size / 1e6:,.0f} MB{table.too_large}, too much for the "
            "head to draw; `trainingrun report --html` draws it."
        )
    return RunFolder(
        bucket.root,
        drivers,
        table.drawn,
        table.left_out,
        table.without,
        committed,
        retention.best_known(committed),
        result,
        sorted(loss_documents.read(bucket), key=lambda loss: loss.time),
        _stacks(bucket),
        _output(bucket, drivers),
        result.sweep if result is not None else newest.sweep if newest is not None else None,
        run_settings.newest(bucket),
        start_traces.read(bucket),
        notes,
    )


def _output(bucket: Bucket, drivers: Sequence[Driver]) -> list[LastLines]:
    found = []
    attempts = sorted({driver.attempt for driver in drivers}, reverse=True)[:MOST_FAILED]
    for attempt in attempts:
        failed = kept_output.failed(bucket, attempt)
        if failed is not None:
            lines = failed.lines[-MOST_LINES:]
            found.append(LastLines(attempt, failed.rank, lines, failed_first=True))
    newest = drivers[-1].progress if drivers else None
    ended_well = newest is not None and newest.state in (RunState.SUCCEEDED, RunState.SUSPENDED)
    if attempts and not ended_well:
        shown = {one.rank for one in found if one.attempt == attempts[0]}
        others = [one for one in _others(bucket, attempts[0]) if one.rank not in shown]
        # Where no rank has failed, the driver has: its script's error comes before what ranks did.
        found += others if shown else sorted(others, key=lambda one: one.rank is not None)
    return [one for one in found if one.lines]


def _others(bucket: Bucket, attempt: int) -> list[LastLines]:
    """A few ranks of the newest worker group, and the driver."""
    parts: dict[Source, list[Part]] = {}
    group = 0
    for part in kept_output.parts(bucket, attempt):
        parts.setdefault(part.source, []).append(part)
        # Not the highest number: each driver begins with 1 again, also within an attempt.
        if part.source.rank is not None and not part.last:
            group = part.source.group
    ranks = [source for source in parts if source.rank is not None and source.group == group]
    sources = sorted(ranks)[:MOST_OUTPUT] + [source for source in parts if source.rank is None]
    return [
        LastLines(
            attempt,
            source.rank,
            [line.text for line in kept_output.read(bucket, parts[source], tail=MOST_LINES)],
        )
        for source in sources
    ]


def _stacks(bucket: Bucket) -> Stacks | None:
    found = kept_stacks.kept(bucket)
    if not found:
        return None
    newest = found[-1]
    texts = {}
    for rank, key in islice(newest.ranks.items(), MOST_STACKS):
        content = bucket.get(key)
        if content is not None:
            texts[rank] = content[:_LARGEST_STACK].decode(errors="replace")
    return Stacks(newest, texts)
