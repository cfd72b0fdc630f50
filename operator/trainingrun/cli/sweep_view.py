"""What `trainingrun sweep` prints: the trials of a sweep, the best one marked. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from ..api.sweep_table import TrialState
from ..local.plain import cell

Trial = Mapping[str, Any]


def trials(found: Sequence[Trial], best: int | None, metric: str) -> Table:
    """One line per trial, as they are numbered.

    Args:
        found: as in status.sweep.trials.
        best: number of the best one.
        metric: heads the column of values.
    """
    names = list(dict.fromkeys(name for trial in found for name in trial.get("config") or {}))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    for head in ("TRIAL", "STATE", "STEP", metric, *names, "BEST"):
        table.add_column(cell(head), no_wrap=True)
    for trial in found:
        config = trial.get("config") or {}
        cells = [
            str(trial["number"]),
            trial.get("state", ""),
            str(trial.get("step", 0)),
            _shown(trial.get("value")),
            *(_shown(config.get(name)) for name in names),
            "*" if trial["number"] == best else "",
        ]
        table.add_row(*(cell(each) for each in cells))
    return table


def of_best(found: Sequence[Trial], best: int | None) -> Table:
    """The best trial's config, as JSON for `training.config`, and its checkpoint."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for trial in found:
        if trial["number"] == best:
            table.add_row("best config", cell(json.dumps(trial.get("config") or {})))
            table.add_row("checkpoint", cell(trial.get("checkpointUri") or _none(trial)))
    return table


def _none(trial: Trial) -> str:
    over = trial.get("state") in [state for state in TrialState if state.final]
    return "none" if over else "none yet"


def failures(found: Sequence[Trial]) -> list[str]:
    """Why trials failed, a line for each."""
    return [f"trial {t['number']}: {t['message']}" for t in found if t.get("message")]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
