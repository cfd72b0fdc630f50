"""`trainingrun watch`: a line for each change of phase or progress, until the run ends."""

import re
import time
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from ..local.terminal_text import plain
from .terminal import CliError
from .views import Run, step

if TYPE_CHECKING:
    from .kube import Kube

_NUMBER = re.compile(r"\d+\.\d+")
_POLL_INTERVAL_S = 1.0
_UNREACHABLE_TIMEOUT_S = 60.0
"""How long it continues while the API server does not answer."""


def follow(kube: "Kube", name: str) -> None:
    """Print a line for each change until the run ends.

    Raises:
        CliError: it failed, or was deleted.
    """
    from .kube import NotFoundError, UnreachableError

    shown, answered_at = None, None
    warned: set[str] = set()
    while True:
        try:
            run = kube.run(name)
        except NotFoundError:
            if answered_at is None:
                raise
            raise CliError(f"{name} was deleted") from None
        except UnreachableError:
            if answered_at is None or time.monotonic() - answered_at > _UNREACHABLE_TIMEOUT_S:
                raise
        else:
            answered_at = time.monotonic()
            if (line := _line(run)) != shown:
                shown = line
                typer.echo(f"{datetime.now():%H:%M:%S} {name}: {line}")
            for warning in _warnings(run):
                kind = _NUMBER.sub("", warning)  # the same one is said again with other numbers
                if kind not in warned:
                    warned.add(kind)
                    typer.echo(f"{datetime.now():%H:%M:%S} {name}: {plain(warning)}")
            match (run.get("status") or {}).get("phase"):
                case "Succeeded":
                    return
                case "Failed":
                    raise CliError(f"{name} failed: {plain(_why(run))}")
                case "Deleting":
                    raise CliError(
                        f"{name} is deleted; finalizers hold the object: {_holders(run)}"
                    )
        time.sleep(_POLL_INTERVAL_S)


def _holders(run: Run) -> str:
    """The finalizers of a deleted run."""
    return plain(", ".join(run["metadata"].get("finalizers") or ()))


def _line(run: Run) -> str:
    """Phase and progress of a run."""
    status = run.get("status") or {}
    parts = [status.get("phase", "Pending")]
    if step(status):
        parts.append(f"step {step(status)}")
    loss = (status.get("progress") or {}).get("metrics", {}).get("loss")
    if loss is not None:
        parts.append(f"loss {loss:.4g}" if isinstance(loss, float) else f"loss {loss}")
    if status.get("attempt"):
        parts.append(f"attempt {status['attempt']}")
    preemptions = (status.get("disruptions") or {}).get("preemptions")
    if preemptions:
        parts.append(f"preemptions {preemptions}")
    return plain(" · ".join(parts))


def _warnings(run: Run) -> list[str]:
    """What slows the run or is about to end it."""
    return ((run.get("status") or {}).get("progress") or {}).get("warnings") or []


def _why(run: Run) -> str:
    """Reason and message of condition Failed."""
    for condition in (run.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Failed" and condition["status"] == "True":
            return f"{condition['reason']}: {condition.get('message', '')}"
    return "no reason is given"
