"""The tables of docs/benchmarks.md and docs/compatibility.md, written by the commands that measure.

A table begins with `<!-- table: NAME -->` and ends with the first empty line after it. A row that
is measured again takes the place of the one with the same first cell, and the others stay: a
command may measure some of them. CI measures on machines that nobody knows, and writes nothing.
"""

import os
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


def write(table: str, rows: Iterable[Sequence[str]], page: Path = PAGE) -> None:
    """Takes the rows into the page's table, each with when and on what it was measured.

    Raises:
        ValueError: the page has no such table, a row has another number of cells, or two of these
            rows have the same first cell.
    """
    if os.environ.get("CI") == "true":
        return
    measured = f"{datetime.now(UTC):%Y-%m-%d}, {revision()}, {os.cpu_count()} cores"
    page.write_text(merged(page.read_text(), table, [(*row, measured) for row in rows]))


def merged(page: str, table: str, rows: Iterable[Sequence[str]]) -> str:
    """The page with these rows in its table."""
    before, mark, rest = page.partition(f"<!-- table: {table} -->\n")
    if not mark:
        raise ValueError(f"the page has no table {table!r}: add <!-- table: {table} -->")
    old, end, after = rest.partition("\n\n")
    heading, line, *lines = old.splitlines()
    known = {_cells(line)[0]: line for line in lines}
    measured: set[str] = set()
    for row in rows:
        if row[0] in measured:
            raise ValueError(f"two rows are called {row[0]!r}: the second would replace the first")
        measured.add(row[0])
        if len(row) != len(_cells(heading)):
            raise ValueError(f"{row} does not fit the table {heading}")
        known[row[0]] = f"| {' | '.join(row)} |"
    rows_text = "\n".join([heading, line, *known.values()])
    return "".join([before, mark, rows_text, end or "\n", after])


def cell(table: str, row: str, column: str) -> str:
    """What the page has in the row that begins with `row`.

    Raises:
        KeyError: there is no such row or column.
    """
    _, _, rest = PAGE.read_text().partition(f"<!-- table: {table} -->\n")
    heading, _, *lines = rest.partition("\n\n")[0].splitlines()
    rows = {
        _cells(line)[0]: dict(zip(_cells(heading), _cells(line), strict=True)) for line in lines
    }
    return rows[row][column]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def revision() -> str:
    """Of the checkout; "no revision" where it is none."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout.strip() or "no revision"
