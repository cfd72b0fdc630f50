"""What both images promise, read from their Dockerfiles; that they work is shown on a cluster."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = {
    "operator": ROOT / "operator" / "Dockerfile",
    "training": ROOT / "training_images" / "Dockerfile",
}


def instructions(path: Path) -> list[str]:
    """One line each, without comments."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
    return [line for line in re.sub(r"\\\n", "", text).splitlines() if line.strip()]


def final_stage(path: Path) -> list[str]:
    listed = instructions(path)
    return listed[max(i for i, line in enumerate(listed) if line.startswith("FROM ")) :]


@pytest.fixture(params=sorted(IMAGES))
def dockerfile(request) -> Path:
    return IMAGES[request.param]


def test_every_stage_starts_from_the_base_that_was_asked_for(dockerfile):
    listed = instructions(dockerfile)
    assert listed[0] == "ARG BASE_IMAGE=python:3.11-slim-bookworm"
    assert {line.split()[1] for line in listed if line.startswith("FROM ")} == {"${BASE_IMAGE}"}


def test_processes_run_as_uid_1000(dockerfile):
    users = [line for line in final_stage(dockerfile) if line.startswith("USER ")]
    # A number: Kubernetes' runAsNonRoot cannot check a name.
    assert users == ["USER 1000:1000"]


def test_dependencies_are_installed_before_code_is_copied(dockerfile):
    stage = final_stage(dockerfile)
    dependencies = next(i for i, line in enumerate(stage) if "-c /opt/trainingrun" in line)
    code = next(i for i, line in enumerate(stage) if "--from=wheel" in line)
    assert dependencies < code
    assert not any("operator/trainingrun" in line for line in stage[: dependencies + 1])


def test_every_install_is_pinned_or_takes_only_our_wheel(dockerfile):
    for line in final_stage(dockerfile):
        if "pip install" in line:
            assert "constraints.txt" in line or "--no-deps --no-index" in line
            assert "--no-cache-dir" in line


def test_nothing_of_the_builds_settings_stays_in_the_image(dockerfile):
    text = dockerfile.read_text()
    assert not re.search(r"^ENV .*PIP_(INDEX|EXTRA|FIND)", text, re.MULTILINE)
    assert "pip.conf" not in text
    assert "pip config" not in text
    assert "://" not in text


def test_no_feature_of_buildkit_is_needed(dockerfile):
    text = dockerfile.read_text()
    assert not re.search(r"# *syntax=|RUN --|COPY --(link|chmod|parents)|<<", text)


def test_the_image_tells_its_version_and_revision(dockerfile):
    stage = "\n".join(final_stage(dockerfile))
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in stage


def test_the_operator_comes_without_ray_and_the_training_image_without_kopf():
    assert "['operator']" in IMAGES["operator"].read_text()
    assert "['runtime']" in IMAGES["training"].read_text()


def test_the_training_image_has_the_pods_commands():
    assert "COPY training_images/bin/ /usr/local/bin/" in instructions(IMAGES["training"])
    for name in ("trainingrun-node", "trainingrun-prestop"):
        script = ROOT / "training_images" / "bin" / name
        assert script.stat().st_mode & 0o111, f"{name} is not executable"


def test_the_lock_pins_every_dependency_and_names_no_registry():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in pins)
    assert "torch==2.13.0" in pins
    assert not any("://" in line for line in lines)
