"""The progress document: a JSON file that the driver replaces and the server serves."""

import json
import os
from pathlib import Path

from trainingrun_protocol.progress import Progress


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
