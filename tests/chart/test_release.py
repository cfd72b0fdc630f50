"""`make release`, of a copy of this checkout that has a registry, a commit and a tag."""

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from support.goldens import SAMPLES

ROOT = Path(__file__).parents[2]
VERSION = metadata.version("trainingrun")
REGISTRY = "registry.acme.test:5000/ml"
DIGESTS = ("sha256:" + "a" * 64, "sha256:" + "b" * 64)


class Checkout:
    """A copy of this checkout, with commits of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dist = folder / "dist"

    def run(self, *command: str, fails: bool = False) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "operator")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done

    def commit(self, *tags: str) -> None:
        self.run("git", "add", "--all")
        author = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
        self.run("git", *author, "commit", "--quiet", "--allow-empty", "--message=A release")
        for tag in tags:
            self.run("git", "tag", tag)

    def name(self, registry: str) -> None:
        """As a maintainer does: the names in one file, then `make generate`."""
        file = self.folder / ".ci" / "release.env"
        text = file.read_text().replace("registry.example.com", registry)
        file.write_text(text.replace("git.example.com", "git.acme.test"))
        self.run(sys.executable, ".ci/release_names.py")

    def release(self, *arguments: str, fails: bool = False) -> str:
        done = self.run(sys.executable, ".ci/release.py", *arguments, fails=fails)
        return done.stderr if fails else done.stdout


def copied(folder: Path) -> Checkout:
    """What git knows here, or would know."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
            (folder / name).chmod((ROOT / name).stat().st_mode)
    checkout = Checkout(folder)
    checkout.run("git", "init", "--quiet")
    return checkout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Of which a release can be made."""
    made = copied(tmp_path_factory.mktemp("release"))
    made.name(REGISTRY)
    made.commit(f"v{VERSION}")
    return made


@pytest.fixture(scope="module")
def released(checkout: Checkout, helm: Path) -> Path:
    """The folder with a release's files."""
    said = checkout.release(str(helm), *DIGESTS).split()
    assert said == sorted(f"dist/{file.name}" for file in checkout.dist.iterdir())
    return checkout.dist


def test_a_release_has_each_file_with_its_sum_and_the_same_bytes_again(
    checkout: Checkout, released: Path, helm: Path
):
    sums = (released / "SHA256SUMS").read_text()
    found = dict(reversed(line.split("  ")) for line in sums.splitlines())
    assert set(found) == {
        f"trainingrun-{VERSION}-py3-none-any.whl",
        f"trainingrun-{VERSION}.tar.gz",
        f"trainingrun-operator-{VERSION}.tgz",
        f"trainingrun-operator-{VERSION}.cdx.json",
        f"trainingrun-torch-{VERSION}.cdx.json",
        "install.yaml",
        "quickstart.yaml",
        "trainingrun.schema.json",
    }
    for name, digest in found.items():
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest
    checkout.release(str(helm), *DIGESTS)
    assert (released / "SHA256SUMS").read_text() == sums


def test_the_sdist_makes_the_same_wheel(released: Path, tmp_path: Path):
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    sdist = released / f"trainingrun-{VERSION}.tar.gz"
    command = [sys.executable, "-m", "pip", "wheel", *options, f"--wheel-dir={tmp_path}"]
    subprocess.run([*command, str(sdist)], check=True)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as ours, zipfile.ZipFile(released / made.name) as theirs:
        names = sorted(ours.namelist())
        assert names == sorted(theirs.namelist())
        assert all(ours.read(name) == theirs.read(name) for name in names)


def test_the_manifest_names_both_images_by_digest(released: Path):
    text = (released / "install.yaml").read_text()
    objects = [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]
    (spec,) = (found["spec"] for found in objects if found["kind"] == "Deployment")
    (container,) = spec["template"]["spec"]["containers"]
    settings = {one["name"]: one.get("value") for one in container["env"]}
    assert container["image"] == f"{REGISTRY}/trainingrun-operator@{DIGESTS[0]}"
    training = settings["TRAININGRUN_OPERATOR_IMAGE"]
    assert training == f"{REGISTRY}/trainingrun-torch@{DIGESTS[1]}"
    assert "example.com/trainingrun" not in text


def test_the_packed_chart_installs_the_releases_images(released: Path, helm: Path):
    packed = released / f"trainingrun-operator-{VERSION}.tgz"
    command = [str(helm), "template", "trainingrun-operator", str(packed)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for image in ("operator", "torch"):
        assert f'"{REGISTRY}/trainingrun-{image}:{VERSION}"' in rendered
    with tarfile.open(packed) as archive:
        read = functools.partial(text_in, archive)
        readme, chart = read("README.md"), yaml.safe_load(read("Chart.yaml"))
    assert f"oci://{REGISTRY}/charts/trainingrun-operator --version {VERSION}" in readme
    assert chart["version"] == chart["appVersion"] == VERSION
    images = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert {image["image"].partition(":5000/ml/")[2] for image in images} == {
        f"trainingrun-operator:{VERSION}",
        f"trainingrun-torch:{VERSION}",
    }


def text_in(archive: tarfile.TarFile, name: str) -> str:
    """A file of the packed chart."""
    file = archive.extractfile(f"trainingrun-operator/{name}")
    assert file is not None
    return file.read().decode()


def test_no_file_of_a_user_keeps_the_former_names(checkout: Checkout):
    chart = (checkout.folder / "charts" / "trainingrun-operator").iterdir()
    samples = [checkout.folder / sample.relative_to(ROOT) for sample in SAMPLES]
    for file in [checkout.folder / "README.md", *samples, *(one for one in chart if one.is_file())]:
        assert not re.search(r"registry\.example\.com/(trainingrun-|charts/)", file.read_text())
        assert "git.example.com" not in file.read_text()
    framework = (checkout.folder / "manifests" / "samples" / "lightning.yaml").read_text()
    assert f"\n  image: {REGISTRY}/trainingrun-lightning:{VERSION}\n" in framework
    default = "operator/trainingrun/rendering/platforms/__init__.py"
    assert f'"{REGISTRY}/trainingrun-torch:{VERSION}"' in (checkout.folder / default).read_text()
    own = (checkout.folder / "manifests" / "samples" / "script-in-image.yaml").read_text()
    assert "registry.example.com/vision" in own, "not an image of ours"


@pytest.mark.parametrize(
    ("image", "lock"),
    [("operator", "operator/requirements.lock"), ("torch", "training_images/requirements.lock")],
)
def test_each_package_of_an_image_is_in_its_bill(released: Path, image: str, lock: str):
    bill = json.loads((released / f"trainingrun-{image}-{VERSION}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(one["name"], one["version"]) for one in bill["components"]}
    pins = re.findall(r"^([a-z0-9.-]+)==([^ ]+)", (ROOT / lock).read_text(), re.MULTILINE)
    assert listed == set(pins)


def test_what_is_no_release_is_refused_with_what_to_do(tmp_path: Path, helm: Path):
    """One after the other, each repaired as the sentence says."""
    checkout = copied(tmp_path)
    refused = functools.partial(checkout.release, "--check", fails=True)
    checkout.commit("v0.0.1")
    (checkout.folder / "new.txt").touch()
    assert refused() == (
        "new.txt differs from the last commit, as 1 in all do; commit or remove what differs, for "
        "a release is made of one commit\n"
    )
    (checkout.folder / "new.txt").unlink()
    assert refused() == (
        f"HEAD has the tag v0.0.1, and the version in pyproject.toml is {VERSION}; set the "
        f"version, or tag the commit v{VERSION}\n"
    )
    checkout.run("git", "tag", f"v{VERSION}")
    assert refused() == (
        "REGISTRY in .ci/release.env is registry.example.com, which is no real place; name yours, "
        "run `make generate` and commit that\n"
    )
    checkout.name(REGISTRY)
    checkout.commit()
    assert "HEAD has no tag" in refused()
    checkout.run("git", "tag", "--force", f"v{VERSION}")
    checkout.release("--check")
    digestless = checkout.release(str(helm), DIGESTS[0], "", fails=True)
    assert digestless.startswith("TRAINING_DIGEST is '' and has to be sha256: and 64 hexadecimal")
    assert not checkout.dist.exists()


WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def test_the_workflow_calls_targets_that_there_are_and_runs_nobody_elses_action():
    workflow = yaml.load(WORKFLOW.read_text(), yaml.BaseLoader)
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    steps = workflow["jobs"]["release"]["steps"]
    assert {key for step in steps for key in step} == {"name", "run"}
    scripts = [step["run"] for step in steps]
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    targets = re.findall(r"\bmake ([\w-]+)", "\n".join(scripts))
    assert targets.index("publish-images") < targets.index("release"), "its digests are needed"
    described = (ROOT / "docs" / "releasing.md").read_text()
    for target in targets:
        dry_run = ["make", "--dry-run", "--no-print-directory", target]
        assert subprocess.run(dry_run, cwd=ROOT, capture_output=True, check=False).returncode == 0
        assert f"make {target}" in described


def test_images_are_published_for_both_machines_with_what_is_in_them_and_how_they_were_made():
    command = ["make", "--dry-run", "--no-print-directory", "publish-images"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    builds = [line for line in printed.replace("\\\n", "").splitlines() if "buildx build" in line]
    assert len(builds) == 2
    for build, image in zip(builds, ("operator", "torch"), strict=True):
        assert "--platform 'linux/amd64,linux/arm64' --sbom=true --provenance=mode=max" in build
        assert re.search(r"BASE_IMAGE='\S+@sha256:", build)
        assert f"--metadata-file build/images/{image}.json" in build
        assert f"--tag registry.example.com/trainingrun-{image}:{VERSION} " in build
    assert printed.index(".ci/release.py --check") < printed.index("buildx build")


def test_a_release_takes_the_digests_of_the_images_that_were_pushed(checkout: Checkout):
    folder = checkout.folder / "build" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for name, digest in zip(("operator", "torch"), DIGESTS, strict=True):
        # As buildx writes it: also the digest of what was built is in it.
        written = {"buildx.build.ref": "a/b/c", "containerd.image.digest": digest}
        (folder / f"{name}.json").write_text(json.dumps(written, indent=2))
    done = checkout.run("make", "--dry-run", "--no-print-directory", "release")
    assert f".ci/release.py \"$helm\" '{DIGESTS[0]}' '{DIGESTS[1]}'" in done.stdout
