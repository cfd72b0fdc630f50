"""The page as HTML: one file, without a script, that asks nobody for anything. Pure.

Whatever a run says may be hostile: each text is freed of control characters and escaped, no address
in it becomes a link, and the page's own policy forbids scripts, requests and forms.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from trainingrun_protocol.plain_text import plain_lines, size

from .contents import Contents, value_text
from .timeline import clock, duration

LONGEST_TEXT = 20_000
"""Characters of one text on the page."""


def html(contents: Contents) -> str:
    """The page."""
    return environment(__package__).get_template("page.html.j2").render(page=contents)


@cache
def environment(*packages: str) -> Environment:
    """What makes pages of the templates of these packages; whatever they are given is text.

    `parts.html.j2` is all that the page of a run says, and `styles.css` how it looks.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "") for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe,
    )
    environment.filters |= {
        "end": _end,
        "filled": filled,
        "clock": clock,
        "duration": duration,
        "size": size,
        "value": value_text,
        "percent": lambda share: f"{share:.0%}",
        "seconds": lambda seconds: f"{seconds:.3g} s",
        "memory": lambda used: f"{used / 2**30:.1f} GiB",
    }
    return environment


def filled(rows: Iterable[Any]) -> set[str]:
    """Names of the fields that any of these rows has; the columns of the others are left out."""
    fields: set[str] = set()
    for row in rows:
        values = row._asdict() if hasattr(row, "_asdict") else dict(row)
        fields |= {name for name, value in values.items() if value not in (None, "")}
    return fields


def _safe(value: Any) -> Any:
    """Of each expression of the template, before it is escaped."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    more = len(value) - LONGEST_TEXT
    return plain_lines(value[:LONGEST_TEXT]) + (f" ({more:,} more characters)" if more > 0 else "")


def _end(text: str) -> str:
    """The end of a text that is too long, which says what its begin does not."""
    if len(text) <= LONGEST_TEXT:
        return text
    kept = text[-LONGEST_TEXT + 100 :]
    return f"({len(text) - len(kept):,} characters before this are left out)\n{kept}"
