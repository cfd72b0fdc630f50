"""Fixtures that several folders of tests share."""

import os
from collections.abc import Iterator

import pytest

from support import statistics
from support.apiserver import ApiServer, running_apiserver
from support.binaries import Unavailable, kuberay_crds
from trainingrun.api.crd import crd


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """A real API server with the CRDs of TrainingRun and KubeRay, one for the whole session.

    Skips where its binaries cannot be had, except in CI, where that is a failure.
    """
    try:
        with running_apiserver() as server:
            for file in kuberay_crds():
                server.install_crd(file.read_text())
            server.install_crd(crd())
            yield server
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(str(reason))
        pytest.skip(str(reason))


@pytest.fixture
def namespace(apiserver: ApiServer) -> str:
    """A namespace of the test's own."""
    return apiserver.new_namespace()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have to say about themselves, such as how much was fuzzed."""
    for line in statistics.LINES:
        terminalreporter.write_line(line)
