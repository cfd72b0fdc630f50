"""One cluster for the session, and one table of what every scenario cost.

KEEP=1 keeps the cluster, and whatever cluster was there before is kept anyway. E2E_SKIP_BUILD=1
takes the images as they are. E2E_CLUSTER names another cluster. E2E_KUBERAY_VERSION and
KUBERAY_MANIFEST name another KubeRay. E2E_LIVE_SOURCE=1 is told in live_source.py, E2E_PATIENCE in
scenario.py.
"""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from e2e import cluster as clusters
from e2e import installing, live_source
from e2e.cluster import TestCluster
from e2e.diagnosing import excerpt, keep_evidence, recall
from e2e.long_run import LongRun
from e2e.report import Row, cells_of, table
from e2e.runs import Run, specification
from e2e.scenario import Scenario, keep_reference, reference_key
from support import benchmark_page, compatibility

NAME = os.environ.get("E2E_CLUSTER", "trainingrun-e2e")
OTHER_KUBERAY = os.environ.get("E2E_KUBERAY_VERSION")
ROWS = pytest.StashKey[list[Row]]()
REPORTS = pytest.StashKey[dict[str, pytest.TestReport]]()
EXCERPTS = pytest.StashKey[list[str]]()
"""What the heads of failed tests logged last: the cluster is gone when it is read."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []
    config.stash[EXCERPTS] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A plain `pytest` at the root builds no cluster: these tests run only where they are named."""
    if any("e2e" in argument for argument in config.args):
        return
    ours = [item for item in items if "e2e" in item.path.parts]
    items[:] = [item for item in items if item not in ours]
    config.hook.pytest_deselected(items=ours)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed and call.excinfo:  # now: the whole report comes after the last test
        print(f"\n{item.name}: {str(call.excinfo.value)[:1000]}")
    item.stash.setdefault(REPORTS, {})[report.when] = report
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for text in config.stash[EXCERPTS]:
        terminalreporter.section("what is left of a failed test")
        terminalreporter.write_line(text)
    if rows := config.stash[ROWS]:
        terminalreporter.section("what each disturbance cost")
        terminalreporter.write(table(rows))
    if not config.option.keyword and not any("::" in argument for argument in config.args):
        write_versions(terminalreporter.stats)  # of whole files


SCENARIOS = "tests/e2e/test_2_scenarios.py"
"""Without these tests a version counts as not tried."""


def write_versions(stats: Mapping[str, list[pytest.TestReport]]) -> None:
    """The rows of docs/compatibility.md: which versions these tests have used."""
    found: Counter[str] = Counter()
    for report in stats.get("passed", []):
        found[report.nodeid.partition("::")[0]] += report.when == "call"
    for outcome in ("failed", "error", "skipped"):
        for report in stats.get(outcome, []):
            found[report.nodeid.partition("::")[0]] = 0
    if SCENARIOS in found:
        command = "make e2e-full" if any("/full/" in file for file in found) else "make e2e"
        versions = clusters.versions()
        if OTHER_KUBERAY:  # then the row is about that alone
            versions = {"KubeRay": versions["KubeRay"]}
            command += f" E2E_KUBERAY_VERSION={OTHER_KUBERAY}"
        compatibility.write_kind(versions, found, command)


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """Nodes, KubeRay, bucket and images; the operator is not installed yet."""
    existed = (
        NAME
        in subprocess.run(
            ["kind", "get", "clusters"], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    clusters.build_images()
    made = clusters.create_cluster(NAME)
    clusters.load_image(made, clusters.TRAINING_IMAGE, *made.workers)
    if clusters.LIVE_SOURCE:
        live_source.copy_to_nodes(made)
    yield made
    if not existed and not os.environ.get("KEEP"):
        clusters.delete_cluster(made)


@pytest.fixture(scope="session")
def operated(cluster: TestCluster) -> TestCluster:
    """The cluster with the operator, installed by the chart."""
    installing.install_by_chart(cluster)
    return cluster


@pytest.fixture(scope="session")
def reference(operated: TestCluster, pytestconfig: pytest.Config) -> Callable[[], str]:
    """The undisturbed run's weights: of this session, or of an earlier one with the same image."""

    def weights() -> str:
        key = reference_key()
        known = recall("undisturbed")
        if known.get("key") != key:
            run = Run(operated, operated.kubectl, "undisturbed")
            run.start(specification())
            keep_reference(run.succeed())
            run.remove()
        return recall("undisturbed")["weights"]

    return weights


@pytest.fixture
def kubectl(operated: TestCluster) -> clusters.Kubectl:
    """kubectl in the scenarios' namespace."""
    return operated.kubectl


@pytest.fixture
def scenario(
    request: pytest.FixtureRequest, operated: TestCluster, reference: Callable[[], str]
) -> Iterator[Scenario]:
    """A run named after the test, removed at its end; what is left of a failed one is kept."""
    name = name_of(request.node)
    run = Run(operated, operated.kubectl, name)
    rows = request.config.stash[ROWS]
    yield Scenario(run, specification(), rows, reference)
    if failed(request.node):
        keep(request, operated, name)
    run.remove()
    write_table(rows)


@pytest.fixture
def rows(request: pytest.FixtureRequest, operated: TestCluster) -> Iterator[list[Row]]:
    """The table's rows, for tests that share a run; what is left of a failed one is kept."""
    yield request.config.stash[ROWS]
    if failed(request.node):
        keep(request, operated, name_of(request.node))
    write_table(request.config.stash[ROWS])


@pytest.fixture(scope="module")
def long_run(operated: TestCluster) -> Iterator[LongRun]:
    """A run that trains slowly, from before the module's first test to the end of its last one."""
    made = LongRun(Run(operated, operated.kubectl, "long-run"))
    made.start(specification())
    yield made
    made.run.remove()
    installing.install_by_chart(operated)


def keep(request: pytest.FixtureRequest, cluster: TestCluster, name: str) -> None:
    """Keep what is left of a failed test."""
    folder = keep_evidence(cluster, cluster.kubectl, name)
    print(f"evidence: {folder}")
    request.config.stash[EXCERPTS].append(excerpt(folder))


def name_of(node: pytest.Item) -> str:
    """The test's name as the name of an object."""
    return re.sub("[^a-z0-9]+", "-", node.name.removeprefix("test_"))[:40].rstrip("-")


def write_table(rows: list[Row]) -> None:
    """Now, not at the end: a session that is cut off has measured something too."""
    if rows:
        (clusters.ARTIFACTS / "e2e.md").write_text(table(rows))
        if not OTHER_KUBERAY:  # the page is about the usual one
            benchmark_page.write("losses", map(cells_of, rows))


def failed(node: pytest.Item) -> bool:
    """Whether the test has failed."""
    return any(report.failed for report in node.stash.get(REPORTS, {}).values())
