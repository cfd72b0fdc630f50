"""The table of docs/stores.md, which `make test-stores` writes."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from support import benchmark_page
from support.stores import FAULTS, SERVERS

PAGE = Path(__file__).parents[2] / "docs" / "stores.md"

Outcomes = Mapping[tuple[str, str], list[bool]]
"""By server and name of a test's function: whether each of its cases has passed."""


def write(outcomes: Outcomes) -> None:
    """Take the outcomes of all tests into the page, except in CI.

    Raises:
        ValueError: The page has no table `stores`.
    """
    if os.environ.get("CI") != "true":
        PAGE.write_text(benchmark_page.merged(PAGE.read_text(), "stores", rows(outcomes)))


def rows(outcomes: Outcomes) -> Iterable[tuple[str, str, str, str, str]]:
    """The rows of the servers that tests were run on."""
    for name, (version, _) in SERVERS.items():
        ran = {test: all(each) for (server, test), each in outcomes.items() if server == name}
        contract = {test: each for test, each in ran.items() if "_a_session_" not in test}
        held = _cell(contract, "test")
        if name in FAULTS and held == "passed":
            held = f"refused: {FAULTS[name]}"
        if ran:
            with_session = _cell(ran, "test_with_a_session")
            yield name, version, held, with_session, _cell(ran, "test_without_a_session")


def _cell(ran: Mapping[str, bool], beginning: str) -> str:
    found = [passed for test, passed in ran.items() if test.startswith(beginning)]
    return "-" if not found else "passed" if all(found) else "failed"
