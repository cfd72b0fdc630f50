"""Renders the chart as helm does."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.binaries import skipping_unavailable
from support.tools import helm as find_helm

CHART = Path(__file__).parents[2] / "charts" / "trainingrun-operator"
NAMESPACE = "trainingrun-system"
Render = Callable[..., list[dict[str, Any]]]


class RefusedError(Exception):
    """Helm refused the values; the text is what a user reads."""


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm's path. Skips where it cannot be had, except in CI, where that is a failure."""
    with skipping_unavailable():
        return find_helm()


@pytest.fixture(scope="session")
def render(helm: Path) -> Render:
    """The chart's objects with some values; `RefusedError` if helm does not take them."""

    def rendered(
        *values: str, release: str = "trainingrun-operator", namespace: str = NAMESPACE
    ) -> list[dict[str, Any]]:
        command = [str(helm), "template", release, str(CHART)]
        command += ["--namespace", namespace, *(f"--set-json={value}" for value in values)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RefusedError(done.stderr)
        return [found for found in yaml.load_all(done.stdout, yaml.CSafeLoader) if found]

    return rendered


@pytest.fixture(scope="session")
def refused() -> type[Exception]:
    """The exception that `render` raises."""
    return RefusedError


EVERYTHING = (
    "replicas=2",
    "metrics.serviceMonitor.enabled=true",
    "metrics.podMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "metrics.dashboards.enabled=true",
    'training.metricsFrom=[{"namespaceSelector": {"matchLabels": {"a": "b"}}}]',
    "networkPolicy.enabled=true",
    'networkPolicy.metricsFrom=[{"namespaceSelector": {"matchLabels": {"a": "b"}}}]',
    'image.pullSecrets=["registry"]',
    'priorityClassName="system-cluster-critical"',
    'nodeSelector={"pool": "system"}',
    'tolerations=[{"key": "system", "operator": "Exists"}]',
    'podAnnotations={"note": "x"}',
    'podLabels={"team": "ml"}',
    'serviceAccount.annotations={"cloud": "account"}',
)
"""Values by which every option is on."""


@pytest.fixture(scope="session")
def everything(render: Render) -> list[dict[str, Any]]:
    """The chart with every option on."""
    return render(*EVERYTHING)


@pytest.fixture(scope="session")
def of_digits(render: Render) -> list[dict[str, Any]]:
    """The same with 2026 for each name that can be chosen, for all namespaces and for some."""
    values = [f'{name}="2026"' for name in ("nameOverride", "serviceAccount.name")]
    values += ['priorityClassName="2026"', 'image.pullSecrets=["2026"]']
    values += ["admissionPolicy.enabled=true"]
    return [
        found
        for where in ([], ['watchNamespaces=["2026"]'])
        for found in render(*EVERYTHING, *values, *where, release="2026", namespace="2026")
    ]
