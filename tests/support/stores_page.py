"""The table of docs/stores.md, which `make test-stores` writes."""

import os
from pathlib import Path

from support import benchmark_page

PAGE = Path(__file__).parents[2] / "docs" / "stores.md"


def write(store: str, version: str, result: str) -> None:
    """Take the result into the page, except in CI.

    Raises:
        ValueError: The page has no table `stores`.
    """
    if os.environ.get("CI") != "true":
        row = [(store, version, result)]
        PAGE.write_text(benchmark_page.merged(PAGE.read_text(), "stores", row))
