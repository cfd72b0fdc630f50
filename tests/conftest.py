"""Fixtures that several folders of tests share."""

import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from support import closing_lines
from support.apiserver import ApiServer, running_apiserver
from support.binaries import skipping_unavailable

# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile("trainingrun", deadline=None)
hypothesis.settings.load_profile("trainingrun")


# In the background of a script Ctrl-C is ignored, also by what the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Of `nohup`: a stopped rank whose raylet dies gets SIGHUP and SIGCONT from the kernel, and would
# finish the step in which it is to be lost.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """A real API server with the CRDs of TrainingRun and KubeRay, one for the whole session.

    Skips where its binaries cannot be had, except in CI, where that is a failure.
    """
    with skipping_unavailable(), running_apiserver() as server:
        server.install_crds()
        yield server


@pytest.fixture
def namespace(apiserver: ApiServer) -> str:
    """A namespace of the test's own."""
    return apiserver.new_namespace()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands its lines over."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["closing_lines"] = closing_lines.LINES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the lines of a worker that has ended."""
    closing_lines.LINES.extend(getattr(node, "workeroutput", {}).get("closing_lines", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have to say about themselves, such as how much was fuzzed."""
    for line in closing_lines.LINES:
        terminalreporter.write_line(line)
