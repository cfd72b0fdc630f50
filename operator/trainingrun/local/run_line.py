"""Where a run stands, in the words that every command has for it: `run --local`, `watch`, `top`.

Any field of a status may be missing, as in a new run.
"""

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..api.reasons import ConditionReason
from ..api.status import Phase
from .terminal_text import duration, number, plain

Run = Mapping[str, Any]
"""A TrainingRun as the API server gives it."""

_REPORTS_WITHIN_S, _REPORTS_WITHIN_STEPS = 300.0, 10
"""A training that is silent for longer than both is in a pause or hangs, or no operator writes its
status: that reads each of 100 runs every 2 s and each of 5,000 every 100 s, and what has changed is
written after 30 s at the latest."""


def phase(run: Run) -> str:
    """The state of a run in one word; a run that no operator has seen is pending."""
    if run["metadata"].get("deletionTimestamp"):
        return Phase.DELETING.value  # also where no operator is left to say so
    return str((run.get("status") or {}).get("phase") or Phase.PENDING)


def progress_line(run: Run, waits: Sequence[str] = (), now: datetime | None = None) -> str:
    """Phase and progress of a run.

    Args:
        run: The run.
        waits: What else is known of its start.
        now: When it was asked; None: now, as for all of this module.
    """
    status = run.get("status") or {}
    progress, trials = status.get("progress") or {}, status.get("sweep") or {}
    parts = [phase(run), *waits]
    if trials:
        over = sum(trials.get(state, 0) for state in ("succeeded", "stopped", "failed"))
        of = over + trials.get("pending", 0) + trials.get("running", 0)
        parts.append(f"{over}/{of} trials")
    elif step(status):
        parts.append(f"step {step(status)}")
    if (loss := (progress.get("metrics") or {}).get("loss")) is not None and not trials:
        parts.append(f"loss {number(loss)}")
    if silent := last_report(run, now):
        parts.append(silent)
    elif phase(run) == Phase.RUNNING:
        if progress.get("stepSeconds"):
            rate = 1 / progress["stepSeconds"]
            parts.append(f"{rate:.1f} steps/s" if rate >= 1 else f"{rate:.2g} steps/s")
        if left := time_left(run, now):
            parts.append(f"{left} left")
    if status.get("attempt"):
        parts.append(f"attempt {status['attempt']}")
    if status.get("restarts"):
        parts.append(f"restarts {status['restarts']}")
    if preemptions := (status.get("disruptions") or {}).get("preemptions"):
        parts.append(f"preemptions {preemptions}")
    return plain(" · ".join(parts))


def time_left(run: Run, now: datetime | None = None) -> str:
    """What is left of the training, as it estimates that itself; empty: it does not train now."""
    seconds = _progress(run).get("secondsLeft")
    if seconds is None or phase(run) != Phase.RUNNING or last_report(run, now):
        return ""
    return duration(seconds)


def reported(run: Run, now: datetime | None = None) -> str:
    """How long ago the training last reported a step, such as `2h ago`; empty: it has not."""
    seconds = _silent_s(run, now)
    return "" if seconds is None else f"{duration(seconds)} ago"


def last_report(run: Run, now: datetime | None = None) -> str:
    """`last report 2h ago`, of a run that should train and is silent for long; empty: it is not.

    What a local run shows is written by the process that trains it, and is always of now.
    """
    seconds = _silent_s(run, now)
    if seconds is None or phase(run) != Phase.RUNNING or options(run):
        return ""
    of_steps = _REPORTS_WITHIN_STEPS * (_progress(run).get("stepSeconds") or 0.0)
    if seconds <= max(_REPORTS_WITHIN_S, of_steps):
        return ""
    return f"last report {reported(run, now)}"


def is_measured_now(run: Run, now: datetime | None = None) -> bool:
    """Whether its ranks train, and what the status has of them was measured just now.

    Without a session, and so without the time of a step, hours may lie between two reports while
    the ranks are measured all the same.
    """
    silent = last_report(run, now) and "stepSeconds" in _progress(run)
    return phase(run) == Phase.RUNNING and not silent


def _progress(run: Run) -> Mapping[str, Any]:
    return (run.get("status") or {}).get("progress") or {}


def _silent_s(run: Run, now: datetime | None) -> float | None:
    """Seconds since the training last reported a step; None: that is not known."""
    try:
        last = datetime.fromisoformat(_progress(run).get("updateTime") or "")
    except ValueError:
        return None
    return (now or datetime.now(UTC)).timestamp() - last.timestamp()


def step(status: Mapping[str, Any]) -> str:
    """Steps done, of how many."""
    progress = status.get("progress") or {}
    if "step" not in progress:
        return ""
    total = progress.get("totalSteps")
    return f"{progress['step']}/{total}" if total else str(progress["step"])


def warnings(run: Run, now: datetime | None = None) -> list[str]:
    """What a run that has not ended waits for, what slows it or is about to end it."""
    if phase(run) in (Phase.SUCCEEDED, Phase.FAILED):
        return []
    waits = [condition(run, kind) for kind in ("Stalled", "Waiting")]
    suspended = condition(run, "Suspended")
    if suspended and suspended.get("reason") == ConditionReason.BUDGET_SPENT:
        waits.append(suspended)  # which nobody has asked for
    messages = [found.get("message", "") for found in waits if found]
    return [*filter(None, messages), *measured_warnings(run, now)]


def measured_warnings(run: Run, now: datetime | None = None) -> list[str]:
    """What the ranks measure that slows the training or is about to end it."""
    return list(_progress(run).get("warnings") or []) if is_measured_now(run, now) else []


def reasons(run: Run, now: datetime | None = None) -> list[str]:
    """Why a run does not move, what slows it, or why it has ended, each with what to do."""
    found = warnings(run, now)
    for one in (run.get("status") or {}).get("conditions") or []:
        refused = one["type"] == "Accepted" and one["status"] == "False"
        ended = one["type"] in ("Failed", "Suspended") and one["status"] == "True"
        if (refused or ended) and one.get("message") not in found:
            found.append(f"{one['reason']}: {one.get('message', '')}")
    return list(dict.fromkeys(found))


LOCAL_FOLDER = "trainingrun.dev/local-folder"
"""Annotation of a run of this machine: the folder of all runs of its name."""


def options(run: Run) -> str:
    """What a command that is advised needs behind the run's name to find it."""
    metadata = run["metadata"]
    folder = (metadata.get("annotations") or {}).get(LOCAL_FOLDER)
    if folder is None:
        return ""
    default = Path("trainingrun-local", metadata["name"]).absolute()
    return " --local" + ("" if Path(folder) == default else f" --folder {shlex.quote(folder)}")


def condition(run: Run, kind: str) -> Mapping[str, Any] | None:
    """The condition of this type, if it is true."""
    for found in (run.get("status") or {}).get("conditions") or []:
        if found["type"] == kind and found["status"] == "True":
            true: Mapping[str, Any] = found
            return true
    return None
