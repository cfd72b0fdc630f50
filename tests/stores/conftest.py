"""Fixtures of the tests on stores of several makers."""

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from support import stores_page
from support.binaries import skipping_unavailable
from support.stores import SERVERS, Store


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Store]]:
    """One of `SERVERS`, by its name; fails where it cannot be had."""
    name: str = request.param
    start = SERVERS[name][1]
    wanted = _all_are_wanted(request.config)
    with (
        skipping_unavailable(wanted=wanted),
        start(tmp_path_factory.mktemp("server")) as found,
    ):
        yield name, found


@pytest.fixture
def store(server: tuple[str, Store], monkeypatch: pytest.MonkeyPatch) -> Store:
    """The server, with its credentials in the environment and no others."""
    found = server[1]
    for name in [*os.environ]:
        if name.startswith(("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


_outcomes: dict[tuple[str, str], list[bool]] = defaultdict(list)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Iterator[Any]:
    """Notes whether a test on a server has passed."""
    report: pytest.TestReport = yield
    if (report.when == "call" or report.failed) and "server" in getattr(item, "fixturenames", ()):
        name = item.callspec.params["server"]
        _outcomes[name, item.function.__name__].append(report.passed)
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Writes docs/stores.md, once all tests here were run; not after an interruption."""
    ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if ended and _all_are_wanted(session.config):
        stores_page.write(_outcomes)


def _all_are_wanted(config: pytest.Config) -> bool:
    """Whether it is `make test-stores`, and not some of its tests."""
    return config.args == ["tests/stores"] and not (config.option.keyword or config.option.markexpr)
