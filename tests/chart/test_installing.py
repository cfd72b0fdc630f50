"""A real API server takes everything that the chart and manifests/install.yaml hold."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "manifests" / "install.yaml"


def test_the_manifest_is_what_generate_would_write(helm):
    made = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "install_manifest.py"), str(helm)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert made == INSTALL.read_text(), "run `make generate`"


def test_the_manifest_brings_its_namespace_first_and_nothing_of_helm():
    objects = list(yaml.load_all(INSTALL.read_text(), yaml.CSafeLoader))
    assert (objects[0]["kind"], objects[0]["metadata"]["name"]) == (
        "Namespace",
        "trainingrun-system",
    )
    labels = [found["metadata"].get("labels", {}) for found in objects]
    assert not any(one.get("app.kubernetes.io/managed-by") == "Helm" for one in labels)


def test_the_crd_by_itself_has_the_version_that_the_charts_has():
    """By which `doctor` tells whether it fits the operator."""
    file = ROOT / "charts/trainingrun-operator/files/crds/trainingruns.yaml"
    alone = yaml.load(file.read_text(), yaml.CSafeLoader)
    installed = next(
        found
        for found in yaml.load_all(INSTALL.read_text(), yaml.CSafeLoader)
        if found["metadata"]["name"] == alone["metadata"]["name"]
    )
    key = "app.kubernetes.io/version"
    assert alone["metadata"]["labels"][key] == installed["metadata"]["labels"][key]
    assert alone["spec"] == installed["spec"]


def test_an_api_server_takes_the_manifest(apiserver):
    objects = list(yaml.load_all(INSTALL.read_text(), yaml.CSafeLoader))
    apiserver.apply(objects[0])
    for found in objects[1:]:
        apiserver.apply(found, dry_run=True)


@pytest.mark.parametrize("mode", ["cluster", "namespaced", "everything", "names of digits"])
def test_an_api_server_takes_every_way_of_installing(
    apiserver, render, everything, of_digits, mode
):
    for namespace in ("trainingrun-system", "team-a", "2026"):
        apiserver.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    objects = {
        "cluster": lambda: render(),
        "namespaced": lambda: render('watchNamespaces=["team-a"]'),
        "everything": lambda: everything,
        "names of digits": lambda: of_digits,
    }[mode]()
    for found in objects:
        # Its CRD comes with the Prometheus operator.
        if not found["apiVersion"].startswith("monitoring.coreos.com/"):
            apiserver.apply(found, dry_run=True)


def values(part):
    if isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from values(inner)
    else:
        yield part


def test_names_of_digits_are_texts_wherever_they_are(of_digits):
    """YAML reads 2026 as a number, which no name, label or annotation may be."""
    wrong = [found["kind"] for found in of_digits if 2026 in values(found)]
    assert wrong == []
    assert all("2026" in values(found) for found in of_digits)


@pytest.mark.parametrize("release", ["team.a", "2026-prod", "a" * 35, "a" * 33 + ".b", "a" * 53])
def test_an_api_server_takes_the_service_whatever_the_release_is_called(apiserver, render, release):
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "trainingrun-system"},
    }
    apiserver.apply(namespace)
    (service,) = (one for one in render(release=release) if one["kind"] == "Service")
    apiserver.apply(service, dry_run=True)
