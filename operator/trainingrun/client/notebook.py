"""What a notebook shows of a run: a line, a bar, the curve of its loss, and its page."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..api.errors import RunError
from ..local.run_line import progress_line, warnings
from .places import Place, opened

_MOST_ROWS = 1_000_000
"""Of a table of metrics whose curve is drawn."""


@dataclass(frozen=True)
class Page:
    """The page of a run, for a browser."""

    html: str
    """One file that asks nobody for anything, and has no script."""

    def save(self, file: str | Path) -> None:
        """Write it to a file.

        Raises:
            RunError: It cannot be written.
        """
        try:
            Path(file).write_text(self.html, encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{file} cannot be written: {error.strerror}; name a file in a folder that can"
            ) from None

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox srcdoc="{escape(self.html)}" style="width: 100%; height: 800px; '
            'border: 1px solid #ccc"></iframe>'
        )


def summary(run: Mapping[str, Any], place: Place | None, problem: str = "") -> str:
    """A run in some lines of HTML.

    Args:
        run: The TrainingRun as the API server gives it.
        place: Its folder; None: that is not known.
        problem: Why nothing else is known, in a sentence.
    """
    name, percent = escape(run["metadata"]["name"]), None
    lines = [problem] if problem else [progress_line(run), *warnings(run)]
    status = run.get("status") or {}
    percent = (status.get("progress") or {}).get("percent")
    parts = [f"<b>{name}</b>", *(f"<div>{escape(line)}</div>" for line in lines)]
    if percent is not None:
        parts.append(f'<progress max="100" value="{int(percent)}" style="width: 100%"></progress>')
    if place is not None:
        parts.append(_curve(place))
    return f'<div style="max-width: 40em">{"".join(parts)}</div>'


def _curve(place: Place) -> str:
    """The curve of the loss as SVG, as it is on the page; nothing where there is none."""
    try:
        with opened(place, lambda _sentence: None) as bucket:
            from trainingrun_runtime.report_page import charts, curves
            from trainingrun_runtime.store import metrics_table

            drawn = curves.read(metrics_table.stored(bucket), 1, _MOST_ROWS).drawn
    except RunError:
        return ""  # the bucket is not needed to say where the run stands
    if not drawn:
        return ""
    curve = charts.curve(drawn[0], [])
    paths = "".join(
        f'<path d="{line.path}" fill="none" stroke="#36c" vector-effect="non-scaling-stroke"/>'
        for line in curve.lines
    )
    last = f"last finite value {curve.last}" if curve.left_out else curve.last
    not_drawn = f"; {curve.left_out} NaN or infinite" if curve.left_out else ""
    span = f"(from {curve.least} to {curve.largest}{not_drawn})"
    return (
        f"<div>{escape(curve.name)}: {last} {span}</div>"
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" style="width: 100%; height: 8em">'
        f"{paths}</svg>"
    )
