"""The rows of the page of all runs: what each says, which comes first, and which are wanted. Pure.

Each word is that of `list`, `get`, `cost` or `Run.why`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from ...api.reasons import ConditionReason
from ...api.status import Phase
from ...client.sources import ENDED
from ...local.run_line import Run, condition, phase, reasons, time_left
from ...reconciling.texts import parsed, short
from .. import cost_command, views

ON_A_PAGE = 100
_SENTENCE = 500
"""Characters of a sentence; the run's own page has all of it."""
_HANGS = (ConditionReason.HANG, ConditionReason.RANKS_WAIT)
UNKNOWN = "Unknown"
"""The state of a run that cannot be read."""


class Attention(IntEnum):
    """What a run needs, the most urgent first."""

    FAILING = 0
    """Somebody has to correct something, or its training was interrupted."""
    HANGING = 1
    """It holds its accelerators and does no step."""
    WAITING = 2
    """For what its condition says, or to begin."""
    RUNNING = 3
    RESTING = 4
    """It is suspended or deleted, as somebody wanted."""
    ENDED = 5


class Row(NamedTuple):
    """What is said of a run."""

    cells: Mapping[str, str]
    """By the heads of the columns of `list`."""
    attention: Attention
    queue: str = ""
    left: str = ""
    cost: str = ""
    reason: str = ""
    """Why it waits or stands, in one word."""
    sentences: tuple[str, ...] = ()
    """What is wrong, and what to do."""
    ended: float = 0.0
    """Unix time in seconds."""

    @property
    def state(self) -> str:
        """In one word."""
        return self.cells["PHASE"]

    @property
    def tone(self) -> str:
        """The color of the state: `good`, `bad`, `warning` or `busy`."""
        if self.state == Phase.SUCCEEDED:
            return "good"
        if self.state == Phase.FAILED or self.attention is Attention.FAILING:
            return "bad"
        return "warning" if self.attention < Attention.RUNNING else "busy"

    def has(self, words: Iterable[str]) -> bool:
        """Whether each of these words, in small letters, is in what is said."""
        said = " ".join((*self.cells.values(), self.queue, self.reason, *self.sentences)).lower()
        return all(word in said for word in words)


def rows_of(runs: Iterable[Run], now: datetime) -> list[Row]:
    """A row for each run: what needs a look, what runs, what has ended, the last one first."""
    return sorted(
        (_row(run, now) for run in runs),
        key=lambda row: (row.attention, -row.ended, row.cells["NAMESPACE"], row.cells["NAME"]),
    )


def _row(run: Run, now: datetime) -> Row:
    try:
        ended = (run.get("status") or {}).get("completionTime")
        return Row(
            views.cells(run, now),
            _attention(run),
            cost_command.queue(run),
            time_left(run, now),
            cost_command.spent(run),
            (condition(run, "Stalled") or condition(run, "Waiting") or {}).get("reason", ""),
            tuple(short(sentence, _SENTENCE) for sentence in _sentences(run, now)),
            parsed(ended).timestamp() if ended else 0.0,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        cells = dict.fromkeys(views.cells({"metadata": {}}, now), "")
        names = {head: str(run["metadata"].get(head.lower())) for head in ("NAMESPACE", "NAME")}
        said = (
            f"The run is not as this version of trainingrun knows it ({type(error).__name__}: "
            f"{error}); use the version of the operator"
        )
        sentences = (short(said, _SENTENCE),)
        return Row({**cells, **names, "PHASE": UNKNOWN}, Attention.FAILING, sentences=sentences)


def _sentences(run: Run, now: datetime) -> list[str]:
    """What is wrong and what to do; of an interrupted training also what was lost last."""
    status = run.get("status") or {}
    losses = (status.get("disruptions") or {}).get("history") or []
    lost = losses[-1:] if phase(run) == Phase.RECOVERING else []
    return [*reasons(run, now), *map(views.loss, lost)]


def _attention(run: Run) -> Attention:
    now = phase(run)
    if now in ENDED:
        return Attention.ENDED
    conditions: list[Mapping[str, Any]] = (run.get("status") or {}).get("conditions") or []
    refused = any(one["type"] == "Accepted" and one["status"] == "False" for one in conditions)
    if refused or condition(run, "Stalled") or now == Phase.RECOVERING:
        return Attention.FAILING
    waits = condition(run, "Waiting")
    if waits and waits["reason"] in _HANGS:
        return Attention.HANGING
    suspended = condition(run, "Suspended") or {}
    by_budget = suspended.get("reason") == ConditionReason.BUDGET_SPENT
    if waits or by_budget or now in (Phase.PENDING, Phase.QUEUED):
        return Attention.WAITING
    return Attention.RESTING if now in (Phase.SUSPENDED, Phase.DELETING) else Attention.RUNNING


@dataclass(frozen=True)
class Wanted:
    """Which rows are shown; what is empty excludes none."""

    namespace: str = ""
    state: str = ""
    text: str = ""
    """Words that are in a row."""
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """As the address of the page has it."""
        page = query.get("page", "")
        texts = {name: query.get(name, "").strip() for name in ("namespace", "state", "text")}
        return cls(**texts, page=int(page) if page.isdecimal() and len(page) < 7 else 1)

    def address(self, **changes: Any) -> str:
        """Of the page with these changes; the first one of others."""
        fields = vars(replace(self, **{"page": 1, **changes}))
        query = {name: value for name, value in fields.items() if value not in ("", 1)}
        return f"/?{urlencode(query)}" if query else "/"


class Shown(NamedTuple):
    """A part of the rows, and how many there are."""

    rows: Sequence[Row]
    counts: list[tuple[str, int]]
    """By state, of all that the namespace and the text leave."""
    found: int
    page: int
    pages: int
    namespaces: list[str]
    """Of all rows."""


def shown(rows: Sequence[Row], wanted: Wanted) -> Shown:
    """The rows of one page."""
    words = wanted.text.lower().split()
    some = [
        row for row in rows if wanted.namespace in ("", row.cells["NAMESPACE"]) and row.has(words)
    ]
    counts = Counter(row.state for row in some)
    found = [row for row in some if wanted.state in ("", row.state)]
    pages = max(-(-len(found) // ON_A_PAGE), 1)
    page = min(max(wanted.page, 1), pages)
    return Shown(
        found[(page - 1) * ON_A_PAGE : page * ON_A_PAGE],
        [(state, counts[state]) for state in (*Phase, UNKNOWN) if counts[state]],
        len(found),
        page,
        pages,
        sorted({row.cells["NAMESPACE"] for row in rows}),
    )
