"""Where a run stands, in the words that every command has for it: `run --local`, `watch`, `top`.

Any field of a status may be missing, as in a new run.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..api.status import Phase
from .terminal_text import duration, number, plain

Run = Mapping[str, Any]
"""A TrainingRun as the API server gives it."""


def phase(run: Run) -> str:
    """The state of a run in one word; a run that no operator has seen is pending."""
    if run["metadata"].get("deletionTimestamp"):
        return Phase.DELETING.value  # also where no operator is left to say so
    return str((run.get("status") or {}).get("phase") or Phase.PENDING)


def progress_line(run: Run, waits: Sequence[str] = ()) -> str:
    """Phase and progress of a run; `waits`: what else is known of its start."""
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
    if phase(run) == Phase.RUNNING:
        if progress.get("stepSeconds"):
            rate = 1 / progress["stepSeconds"]
            parts.append(f"{rate:.1f} steps/s" if rate >= 1 else f"{rate:.2g} steps/s")
        if left := time_left(run):
            parts.append(f"{left} left")
    if status.get("attempt"):
        parts.append(f"attempt {status['attempt']}")
    if status.get("restarts"):
        parts.append(f"restarts {status['restarts']}")
    if preemptions := (status.get("disruptions") or {}).get("preemptions"):
        parts.append(f"preemptions {preemptions}")
    return plain(" · ".join(parts))


def time_left(run: Run) -> str:
    """What is left of the training, as it estimates that itself; empty: it does not train now."""
    seconds = ((run.get("status") or {}).get("progress") or {}).get("secondsLeft")
    return "" if seconds is None or phase(run) != Phase.RUNNING else duration(seconds)


def step(status: Mapping[str, Any]) -> str:
    """Steps done, of how many."""
    progress = status.get("progress") or {}
    if "step" not in progress:
        return ""
    total = progress.get("totalSteps")
    return f"{progress['step']}/{total}" if total else str(progress["step"])


def warnings(run: Run) -> list[str]:
    """What a run that has not ended waits for, what slows it or is about to end it."""
    status = run.get("status") or {}
    if phase(run) in (Phase.SUCCEEDED, Phase.FAILED):
        return []
    waits = (condition(run, kind) for kind in ("Stalled", "Waiting"))
    messages = [found.get("message", "") for found in waits if found]
    return [*filter(None, messages), *((status.get("progress") or {}).get("warnings") or [])]


def reasons(run: Run) -> list[str]:
    """Why a run does not move, what slows it, or why it has ended, each with what to do."""
    found = warnings(run)
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
