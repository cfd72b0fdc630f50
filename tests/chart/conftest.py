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

    def rendered(*values: str, release: str = "trainingrun-operator") -> list[dict[str, Any]]:
        command = [str(helm), "template", release, str(CHART)]
        command += ["--namespace", NAMESPACE, *(f"--set-json={value}" for value in values)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RefusedError(done.stderr)
        return [found for found in yaml.load_all(done.stdout, yaml.CSafeLoader) if found]

    return rendered


@pytest.fixture(scope="session")
def refused() -> type[Exception]:
    """The exception that `render` raises."""
    return RefusedError


@pytest.fixture(scope="session")
def everything(render: Render) -> list[dict[str, Any]]:
    """The chart with every option on."""
    return render(
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
