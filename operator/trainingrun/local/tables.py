"""Tables as text, in which no name and no number is ever cut. Pure but for `terminal_width`.

Where a terminal is too narrow for all columns, those that do not fit follow below as a further
table. A line that is wider than the terminal all the same is left to the terminal to wrap.
"""

import shutil
import sys
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from .plain import plain

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


def pairs(rows: Iterable[tuple[str, object]]) -> str:
    """Names and their values, a pair on each line."""
    return _aligned([[name, plain(value)] for name, value in rows])


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(cell_len, column)) + _GAP for column in zip(*lines, strict=True)]
    return "\n".join(
        "".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )
