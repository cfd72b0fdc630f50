"""The wheel works alone: without the checkout, and `trainingrun` is light to import."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support import installed_wheel
from support.installed_wheel import call

ROOT = Path(__file__).parents[2]
RUN = ROOT / "manifests" / "samples" / "script.yaml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this tree."""
    return installed_wheel.built(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with `trainingrun[cli]`."""
    return installed_wheel.installed(wheel, tmp_path_factory.mktemp("venv"), "cli")


def test_the_wheel_validates_renders_and_has_the_client(bin_folder: Path, tmp_path: Path) -> None:
    command, python = str(bin_folder / "trainingrun"), str(bin_folder / "python")
    (tmp_path / "run.yaml").write_text(RUN.read_text())
    assert call(tmp_path, command, "validate", "run.yaml") == "run.yaml: script is valid\n"
    for platform in ("generic", "gke", "eks", "karpenter", "aks"):
        rendered = call(tmp_path, command, "render", "run.yaml", "--platform", platform)
        assert "kind: RayJob" in rendered
        assert "kind: NetworkPolicy" in rendered
    code = """
import trainingrun, trainingrun_runtime, trainingrun_protocol
from trainingrun import Client, RunError
from trainingrun.api.crd import crd
from trainingrun_runtime.report_page import page
templates = page.environment("trainingrun.cli.ui", page.__package__)
for name in ("page.html.j2", "parts.html.j2", "fleet.html.j2", "run.html.j2", "logs.html.j2"):
    templates.get_template(name)
assert crd()["kind"] == "CustomResourceDefinition"
for package in (trainingrun, trainingrun_runtime, trainingrun_protocol):
    print(package.__file__)
"""
    places = call(tmp_path, python, "-c", code).split()
    assert all(Path(place).is_relative_to(bin_folder.parent) for place in places)


def test_each_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    roots = ("operator/trainingrun", "operator/trainingrun_protocol")
    listed = subprocess.run(
        ["git", "ls-files", *roots, "training_images/trainingrun_runtime"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {file.partition("/")[2] for file in listed} - names == set()
    assert {name.partition("/")[0] for name in names} == {
        "trainingrun",
        "trainingrun_protocol",
        "trainingrun_runtime",
    }


def test_the_package_loads_nothing_until_the_client_is_wanted() -> None:
    code = """
import sys
import trainingrun
loaded = set(sys.modules)
print(sorted(name for name in loaded if name.startswith("trainingrun.") or name == "pydantic"))
trainingrun.Client(local=True)
print(sorted({"aiohttp", "kopf", "kubernetes", "ray", "torch", "typer"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_what_the_client_lacks_is_named_with_its_extra(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["yaml"] = None
from trainingrun import Client
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *_, sentence = done.stderr.splitlines()
    assert sentence == "ImportError: yaml is not installed; install trainingrun[cli]"
