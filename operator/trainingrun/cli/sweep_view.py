"""What `trainingrun sweep` prints: the trials of a sweep, the best one marked. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..api.sweep_table import TrialState
from ..local import tables

Trial = Mapping[str, Any]


def trials(found: Sequence[Trial], best: int | None, metric: str, width: int | None) -> str:
    """One line per trial, as they are numbered.

    Args:
        found: as in status.sweep.trials.
        best: number of the best one.
        metric: heads the column of values.
        width: columns of the terminal; None: no limit.
    """
    names = list(dict.fromkeys(name for trial in found for name in trial.get("config") or {}))
    rows = [
        (
            trial["number"],
            trial.get("state", ""),
            trial.get("step", 0),
            _shown(trial.get("value")),
            *(_shown((trial.get("config") or {}).get(name)) for name in names),
            "*" if trial["number"] == best else "",
        )
        for trial in found
    ]
    return tables.table(("TRIAL", "STATE", "STEP", metric, *names, "BEST"), rows, width)


def of_best(found: Sequence[Trial], best: int | None) -> str:
    """The best trial's config, as JSON for `training.config`, and its checkpoint."""
    trial = next(trial for trial in found if trial["number"] == best)
    config, checkpoint = trial.get("config") or {}, trial.get("checkpointUri")
    return tables.pairs(
        [("best config", json.dumps(config)), ("checkpoint", checkpoint or _none(trial))]
    )


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
