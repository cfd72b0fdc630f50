"""What a local run shows: a live bar in a terminal, plain lines elsewhere, and the summary."""

import contextlib
import io
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from trainingrun_protocol import progress as documents

from ..api.quantities import amount
from ..api.status import Phase
from . import terminal_text
from .interruptions import Interruption
from .run_line import Run, phase, progress_line, warnings
from .starting import Wait
from .terminal_text import cell, gib, is_new, number, plain, plain_lines

_LINE_EVERY_S = 5.0
"""Where there is no terminal, as in CI's log."""


class SteadyStream:
    """A stream that takes what it can: no training ends because a line of it cannot be shown.

    A pipe whose reader has gone, a full disk below a redirected output, an encoding without the
    character.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write what the stream takes."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written, where that is possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def settle(self) -> None:
        """Give up what cannot be written: else Python would end with an exit code of its own."""
        try:
            self._stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Display:
    """A live view of the run; a context manager that restores the terminal at its end."""

    def __init__(self, console: Console, name: str) -> None:
        """Show run `name` on a console."""
        self._console = console
        # With TERM=dumb, as in a shell of Emacs, rich shows nothing that is drawn anew.
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._name = name
        self._began = time.monotonic()
        self._line_at = 0.0
        self._line = ""
        self._warned: set[str] = set()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[line]}", markup=False),
            console=console,
            transient=True,
            disable=not self._is_live,
        )
        self._task: TaskID = self._bar.add_task(name, total=None, line="")

    def note(self, line: str, style: str = "") -> None:
        """Print a line that stays."""
        self._console.print(cell(line), style=style, highlight=False, soft_wrap=True)

    def once(self, line: str) -> None:
        """Print a warning that stays, the first time."""
        if is_new(line, self._warned):
            self.note(line, style="yellow")

    def output(self, text: str) -> None:
        """Print whole lines of a script as it has printed them."""
        if text:
            lines = Text(plain_lines(text.rstrip("\n")))
            self._console.print(lines, highlight=False, soft_wrap=True)

    def overruled(self, progress: documents.Progress) -> None:
        """Print settings of the script that are overruled, each once."""
        for record in progress.records:
            if record.kind is documents.RecordKind.SETTING_OVERRULED:
                self.once(record.message)

    def show(self, run: Run, wait: Wait | None = None) -> None:
        """Show where the run stands as its record has it, and what its start waits for."""
        for warning in warnings(run):
            self.once(warning)
        waits = []
        # Else no line would follow while the training starts.
        if phase(run) == Phase.STARTING:
            waits = [f"{time.monotonic() - self._began:.0f} s", *([str(wait)] if wait else [])]
        line, progress = progress_line(run, waits), run["status"].get("progress") or {}
        total, done = progress.get("totalSteps"), progress.get("step", 0)
        if wait is not None and wait.of is not None:
            total, done = wait.of, wait.done
        (task,) = self._bar.tasks
        task.total = total  # None, too, which `update` takes for no change
        self._bar.update(self._task, completed=done, line=line)
        now = time.monotonic()
        if not self._is_live and now >= self._line_at and line != self._line:
            self._line_at, self._line = now + _LINE_EVERY_S, line
            self.note(f"{self._name}: {line}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()


def summary(
    result: documents.ProgressResult,
    interruptions: Sequence[Interruption],
    losses: int,
    elapsed_s: float,
    folder: str,
) -> Text:
    """The result of the run and the cost of its interruptions.

    Args:
        result: The result of the training.
        interruptions: Each time that it stopped and continued.
        losses: Of a sweep, how often a trial was interrupted.
        elapsed_s: Seconds from the command to the result.
        folder: The run's own folder, shown where there is no checkpoint.
    """
    rows: list[tuple[str, object]] = []
    # Accuracy first: it is the metric of most interest.
    for name in sorted(result.metrics, key=lambda name: (name != "accuracy", name)):
        rows.append((plain(name), number(result.metrics[name])))
    if result.sweep is not None:  # a loss stops one trial, and the others continue
        rows.append(("interruptions", str(losses)))
        best = next((t for t in result.sweep.trials if t.number == result.sweep.best), None)
        if best is not None:
            rows.append(("best config", json.dumps(best.config)))
    else:
        rows.append(("interruptions", str(len(interruptions))))
        rows.append(("steps lost", _steps_lost(interruptions)))
        without = sum(each.seconds for each in interruptions)
        rows.append(("seconds without training", f"{without:.1f}"))
    rows.append(("seconds in all", f"{elapsed_s:.1f}"))
    rows.append(("checkpoint", result.checkpoint_uri or f"none; see {folder}"))
    if result.best_checkpoint_uri:
        rows.append(("best checkpoint", result.best_checkpoint_uri))
    return Text(terminal_text.pairs(rows))


def _steps_lost(interruptions: Sequence[Interruption]) -> str:
    lost = [each.steps_lost for each in interruptions]
    known = [steps for steps in lost if steps is not None]
    if len(known) < len(lost):
        return "not known; without a session, all since the last report with a checkpoint"
    return str(sum(known))


def beyond_memory(progress: documents.Progress, memory: str) -> dict[int, str]:
    """The ranks that a cluster would end, and a sentence for each.

    Args:
        progress: what the ranks report; one in a container that has a limit tells what all of its
            processes use, and is left out.
        memory: workers.resources.memory.
    """
    return {
        row.rank: f"rank {row.rank} uses {gib(row.used_bytes)} of {memory}, "
        "workers.resources.memory, at which a cluster would end it"
        for row in progress.ranks
        if row.limit_bytes is None and row.used_bytes and row.used_bytes > amount(memory)
    }
