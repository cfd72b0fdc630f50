"""The page as HTML: one file, without a script, that asks nobody for anything. Pure.

Whatever a run says may be hostile: each text is freed of control characters and escaped, no address
in it becomes a link, and the page's own policy forbids scripts, requests and forms.
"""

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from trainingrun_protocol.plain_text import plain_lines, size

from .contents import Contents, value_text
from .timeline import clock, duration

LONGEST_TEXT = 20_000
"""Characters of one text on the page."""


def html(contents: Contents) -> str:
    """The page."""
    return _template().render(page=contents)


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe,
    )
    environment.filters |= {
        "filled": filled,
        "clock": clock,
        "duration": duration,
        "size": size,
        "value": value_text,
        "percent": lambda share: f"{share:.0%}",
        "seconds": lambda seconds: f"{seconds:.3g} s",
        "memory": lambda used: f"{used / 2**30:.1f} GiB",
    }
    text = resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text)


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
    return plain_lines(value[:LONGEST_TEXT]) if isinstance(value, str) else value
