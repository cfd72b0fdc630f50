"""The progress document: a JSON file that the driver replaces and the server serves."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainingrun.api.progress import Progress

_ENTRIES = 50
_CHARACTERS = 200


def write(path: str | Path, progress: Progress) -> None:
    """Replace the document. A reader sees the old one or the new one, never half of one."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.write_text(json.dumps(progress.to_dict(), allow_nan=False))
    part.replace(target)


def read(path: str | Path) -> Progress | None:
    """The document, or none before the driver wrote one."""
    try:
        return Progress.model_validate_json(Path(path).read_bytes())
    except FileNotFoundError:
        return None


def printable_metrics(metrics: Mapping[Any, Any]) -> dict[str, Any]:
    """Metrics as JSON can carry them and a status can hold them; never raises.

    Numbers of any library become Python numbers, NaN and infinity the strings "NaN", "Infinity" and
    "-Infinity", anything else its `repr`. At most 50 entries and 200 characters each are kept: a
    status that grows with what users report ends in an object that the API server refuses.
    """
    entries = list(metrics.items())[:_ENTRIES]
    return {str(name)[:_CHARACTERS]: _printable(value) for name, value in entries}


def _printable(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:_CHARACTERS]
    try:
        if hasattr(value, "item"):  # a scalar of numpy, torch or jax; larger arrays raise
            value = value.item()
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if abs(value) < 2**63 else float(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else _spelled(value)
        return repr(value)[:_CHARACTERS]
    except Exception:
        return f"<{type(value).__name__}>"


def _spelled(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
