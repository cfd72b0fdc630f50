"""Text for a terminal: tables in which no name or number is cut.

Untrusted text is made safe before it is printed; see `trainingrun_protocol.plain_text`.

Where a terminal is too narrow for all columns of a table, those that do not fit follow below as a
further table. A line that is wider than the terminal all the same is left to the terminal to wrap.
"""

import re
import shutil
import sys
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

from trainingrun_protocol.plain_text import plain as plain
from trainingrun_protocol.plain_text import plain_lines as plain_lines

_FRACTION = re.compile(r"\d+\.\d+")


def cell(value: object) -> Text:
    """For rich, which would take a plain string's [brackets] for markup."""
    return Text(plain(value))


def gib(size: float) -> str:
    """Bytes of memory, in GiB."""
    return f"{size / 2**30:.1f} GiB"


def duration(total_seconds: float) -> str:
    """A duration in its largest unit, as kubectl shows ages: 42s, 17m, 5h, 3d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if total_seconds >= 2 * size:
            return f"{int(total_seconds // size)}{unit}"
    return f"{int(max(total_seconds, 0))}s"


def counted(count: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def seconds(value: float) -> str:
    """Seconds with three digits, and never in powers of ten."""
    return f"{value:.3g} s" if value < 99.95 else f"{value:.0f} s"


def number(value: object) -> str:
    """A value with four digits, where it is a fraction."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def end_of(text: bytes, most: int) -> bytes:
    """The last lines of a text, so many bytes at most."""
    return text if len(text) <= most else text[-most:].partition(b"\n")[2]


def is_new(sentence: str, said: set[str]) -> bool:
    """Whether a sentence is not in `said` yet, whatever its fractions are; it is afterwards."""
    kind = _FRACTION.sub("", sentence)
    new = kind not in said
    said.add(kind)
    return new


_GAP = 2


def terminal_width() -> int | None:
    """Columns of the terminal that is written to; None: a file or a pipe, without a limit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], width: int | None, keys: int = 1
) -> str:
    """Rows below their heads.

    Args:
        heads: One for each column.
        rows: Cells, as many in each row.
        width: Columns of the terminal; None: all in one table.
        keys: How many of the first columns say what a row is about; every table has them.
    """
    lines = [[plain(cell) for cell in row] for row in (heads, *rows)]
    columns = [list(column) for column in zip(*lines, strict=True)]
    widths = [max(map(cell_len, column)) + _GAP for column in columns]
    parts: list[list[int]] = [[]]
    for index in range(keys, len(columns)):
        used = sum(widths[:keys]) + sum(widths[each] for each in parts[-1])
        if width is not None and parts[-1] and used + widths[index] - _GAP > width:
            parts.append([])
        parts[-1].append(index)
    return "\n\n".join(
        _aligned([[line[each] for each in (*range(keys), *part)] for line in lines])
        for part in parts
    )


_NARROWEST = 20
"""Columns that a value needs beside its name to be wrapped there."""


def pairs(rows: Iterable[tuple[str, object]], width: int | None = None) -> str:
    """Names and their values, a pair on each line.

    Args:
        rows: Each with its name first.
        width: Columns of the terminal: a value that is longer is continued below its beginning,
            and broken between words alone; None: without a limit.
    """
    cells = [(name, plain(value)) for name, value in rows]
    room = (width or 0) - max((cell_len(name) + _GAP for name, _ in cells), default=0)
    lines: list[tuple[str, str]] = []
    for name, value in cells:
        parts = _wrapped(value, room) if room >= _NARROWEST else [value]
        lines += zip([name, *[""] * (len(parts) - 1)], parts, strict=True)
    return _aligned(lines)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most so many columns, where no word is longer."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(cell_len, column)) + _GAP for column in zip(*lines, strict=True)]
    return "\n".join(
        "".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )
