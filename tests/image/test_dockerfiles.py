"""What both images promise, read from their Dockerfiles; that they work is shown on a cluster."""

import re
import subprocess
import tomllib
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


def stages(path: Path) -> dict[str, list[str]]:
    """The instructions of each stage by its name; the final one's is empty."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in instructions(path):
        if line.startswith("FROM "):
            name = line.partition(" AS ")[2]
            found[name] = []
        elif found:
            found[name].append(line)
    return found


def test_every_stage_starts_from_the_base_that_was_asked_for_by_default_one_named_by_digest(
    dockerfile,
):
    listed = instructions(dockerfile)
    base = r"ARG BASE_IMAGE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}"
    assert re.fullmatch(base, listed[0])
    assert {line.split()[1] for line in listed if line.startswith("FROM ")} == {"${BASE_IMAGE}"}


def test_both_images_have_the_same_base():
    assert len({instructions(path)[0] for path in IMAGES.values()}) == 1


def test_processes_run_as_uid_1000(dockerfile):
    users = [line for line in final_stage(dockerfile) if line.startswith("USER ")]
    # A number: Kubernetes' runAsNonRoot cannot check a name.
    assert users == ["USER 1000:1000"]


def test_dependencies_are_copied_before_code(dockerfile):
    stage = final_stage(dockerfile)
    dependencies = next(i for i, line in enumerate(stage) if "--from=packages" in line)
    code = next(i for i, line in enumerate(stage) if "--from=wheel" in line)
    assert dependencies < code
    # A change of the code must not install everything anew.
    copies = [line for line in stages(dockerfile)["packages"] if line.startswith(("COPY", "ADD"))]
    sources = [source for line in copies for source in line.split()[1:-1]]
    assert sources
    for source in sources:
        assert source.endswith(".lock") or source == "training_images/frameworks/"


def test_every_install_is_checked_by_hash_or_takes_only_our_wheel(dockerfile):
    installs = [
        command
        for line in instructions(dockerfile)
        for command in re.split(r"&&|\|\|", line)
        if "pip install" in command
    ]
    assert len(installs) >= 3
    for command in installs:
        assert "--no-cache-dir" in command
        if '"${TORCH}"' not in command:  # its builds differ in their files; see SECURITY.md
            assert "--require-hashes" in command or "--no-index" in command
            assert "--no-deps" in command


def test_no_build_argument_stays_in_the_images_history(dockerfile):
    """A RUN is recorded with the value of every ARG before it in its stage: an address of a package
    registry may hold a password.
    """
    final = stages(dockerfile)[""]
    arguments = [i for i, line in enumerate(final) if line.startswith("ARG ")]
    assert [final[i].split("=")[0] for i in arguments] == ["ARG VERSION", "ARG REVISION"]
    assert not [line for line in final[arguments[0] :] if line.startswith(("RUN ", "COPY "))]
    assert not [line for line in final if "PIP_" in line]


def test_nothing_of_the_builds_settings_stays_in_the_image(dockerfile):
    text = dockerfile.read_text()
    assert not re.search(r"^ENV .*PIP_", text, re.MULTILINE)
    assert "pip.conf" not in text
    assert "pip config" not in text
    assert "://" not in text


def test_no_feature_of_buildkit_is_needed(dockerfile):
    text = dockerfile.read_text()
    assert not re.search(r"# *syntax=|RUN --|COPY --(link|chmod|parents)|<<", text)


def test_the_image_has_its_version_and_revision(dockerfile):
    stage = "\n".join(final_stage(dockerfile))
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in stage


def pins(path: str) -> dict[str, str]:
    """Version by package of a lock file."""
    lines = (ROOT / path).read_text().splitlines()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", line)[0] for line in lines if line[0] > "9")


def test_the_operator_comes_without_ray_and_the_training_image_without_kopf():
    assert "kopf" in pins("operator/requirements.lock")
    assert "ray" not in pins("operator/requirements.lock")
    assert "ray" in pins("training_images/requirements.lock")
    assert "kopf" not in pins("training_images/requirements.lock")


def test_the_training_image_has_the_pods_commands():
    assert "COPY training_images/bin/ /usr/local/bin/" in instructions(IMAGES["training"])
    for name in ("trainingrun-node", "trainingrun-prestop"):
        script = ROOT / "training_images" / "bin" / name
        assert script.stat().st_mode & 0o111, f"{name} is not executable"


LOCKS = [
    "requirements.lock",
    "operator/requirements.lock",
    "training_images/requirements.lock",
    ".ci/build.lock",
]
FRAMEWORKS = {
    path.stem: f"training_images/frameworks/{path.name}"
    for path in sorted((ROOT / "training_images" / "frameworks").glob("*.lock"))
}
"""The lock file of each framework."""


@pytest.mark.parametrize("path", [*LOCKS, *FRAMEWORKS.values()])
def test_the_lock_names_every_package_with_hashes_and_no_registry(path: str):
    text = (ROOT / path).read_text()
    assert "://" not in text
    blocks = re.split(r"\n(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    for block in blocks:
        first, *hashes = block.split(" \\\n")
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [^@]+)?", first)
        assert hashes
        assert all(re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}", one) for one in hashes)


@pytest.mark.parametrize("path", LOCKS[1:])
def test_all_locks_agree(path: str):
    assert pins(path).items() <= pins("requirements.lock").items()


def test_what_the_project_says_that_it_needs_is_in_the_locks():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    needed = {
        "requirements.lock": [*extras["dev"], *extras["operator"], *extras["runtime"]],
        "operator/requirements.lock": extras["operator"],
        "training_images/requirements.lock": extras["runtime"],
        ".ci/build.lock": project["build-system"]["requires"],
    }
    for path, requirements in needed.items():
        names = {re.split(r"[\[<>=~! ]", one)[0].lower() for one in requirements}
        assert names - {"torch", "trainingrun"} <= pins(path).keys()


def test_each_framework_adds_to_the_image_without_changing_what_is_in_it():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image, versions = pins("training_images/requirements.lock"), pins("requirements.lock")
    for name, path in FRAMEWORKS.items():
        needed = {re.split(r"[<>=]", one)[0] for one in extras["optional-dependencies"][name]}
        assert needed <= pins(path).keys()
        assert not pins(path).keys() & {*image, "torch", "triton"}
        for package, version in pins(path).items():
            assert versions.setdefault(package, version) == version  # EXTRAS may name several


def make(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_pytorch_that_no_lock_can_name_is_named_once():
    torch = re.findall(r"^TORCH \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert torch == re.findall(r"^ARG TORCH=(.+)$", IMAGES["training"].read_text(), re.MULTILINE)
    assert f"--build-arg TORCH='{torch[0]}'" in make("images").stdout


def test_a_release_is_built_on_a_base_that_is_named_by_digest():
    assert re.search(r"--build-arg BASE_IMAGE='\S+@sha256:", make("release-images").stdout)
    done = subprocess.run(
        ["make", "release-images", "RELEASE_BASE_IMAGE=python:3.11"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert "RELEASE_BASE_IMAGE is python:3.11; name a release's base by digest" in done.stderr
