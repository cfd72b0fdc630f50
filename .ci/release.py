#!/usr/bin/env python3
"""Make in dist/ what is published of one commit, as `make release` calls it.

Usage: release.py HELM OPERATOR_DIGEST TRAINING_DIGEST; the latter are those of the pushed images.
With --check alone nothing is made, and what would be refused is, but for the digests.
The commit is that of HEAD, which has the tag of the version in pyproject.toml. All files have the
commit's time, so that a second call makes the same bytes.

Files: the wheel and the sdist, the chart, install.yaml with both images by digest, the JSON schema
of a TrainingRun, a first run, for each image a CycloneDX document of its lock's packages, and
SHA256SUMS.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import release_names

ROOT = release_names.ROOT
DIST = ROOT / "dist"
QUICKSTART = ROOT / "manifests" / "samples" / "quickstart.yaml"
BOM_ENVIRONMENT = ROOT / "build" / "sbom"
BILLS = {
    "trainingrun-operator": "operator/requirements.lock",
    "trainingrun-torch": "training_images/requirements.lock",
}
"""The lock of each image's packages."""


def refusal(names: dict[str, str], digests: dict[str, str]) -> str | None:
    """Why no release can be made of this checkout, in one sentence with what to do."""
    if changed := _run("git", "status", "--porcelain").splitlines():
        return (
            f"{changed[0][3:]} differs from the last commit, as {len(changed)} in all do; commit "
            "or remove what differs, for a release is made of one commit"
        )
    tag, tags = f"v{names['VERSION']}", _run("git", "tag", "--points-at", "HEAD").split()
    if tag not in tags:
        return (
            f"HEAD has {'the tag ' + ', '.join(tags) if tags else 'no tag'}, and the version in "
            f"pyproject.toml is {names['VERSION']}; set the version, or tag the commit {tag}"
        )
    for key in ("REGISTRY", "SOURCE"):
        if re.search(r"\bexample\.(com|org)\b", names[key]):
            return (
                f"{key} in .ci/release.env is {names[key]}, which is no real place; name yours, "
                "run `make generate` and commit that"
            )
    for variable, digest in digests.items():
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            return (
                f"{variable} is {digest!r} and has to be sha256: and 64 hexadecimal digits; `make "
                "publish-images` pushes the images and notes their digests"
            )
    return None


def main() -> None:
    """Refuse, or make the files."""
    names = release_names.names()
    if sys.argv[1:] == ["--check"]:
        sys.exit(refusal(names, {}))
    helm, operator, training = sys.argv[1:]
    if said := refusal(names, {"OPERATOR_DIGEST": operator, "TRAINING_DIGEST": training}):
        sys.exit(said)
    os.environ["SOURCE_DATE_EPOCH"] = _run("git", "log", "-1", "--format=%ct").strip()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(DIST))
    _run(helm, "package", "charts/trainingrun-operator", f"--destination={DIST}")
    image = f"training.image={names['REGISTRY']}/trainingrun-torch@{training}"
    values = [f"image.digest={operator}", image]
    manifest = _run(sys.executable, ".ci/install_manifest.py", helm, *values)
    (DIST / "install.yaml").write_text(manifest)
    schema = _run(sys.executable, "-m", "trainingrun.api.json_schema")
    (DIST / "trainingrun.schema.json").write_text(schema)
    shutil.copy2(QUICKSTART, DIST)
    for image, lock in BILLS.items():
        _bill(lock, DIST / f"{image}-{names['VERSION']}.cdx.json")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in _made()]
    (DIST / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(*(f"dist/{file.name}" for file in _made()), sep="\n")


def _made() -> list[Path]:
    return sorted(DIST.iterdir())


def _bill(lock: str, target: Path) -> None:
    """Write a lock's packages as CycloneDX; its program has an environment of its own."""
    python = BOM_ENVIRONMENT / "bin" / "python"
    if not (BOM_ENVIRONMENT / "installed").exists():
        _run(sys.executable, "-m", "venv", "--clear", str(BOM_ENVIRONMENT))
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        _run(*pip, "--require-hashes", "--no-deps", "--requirement=.ci/sbom.lock")
        (BOM_ENVIRONMENT / "installed").touch()
    command = [str(python), "-m", "cyclonedx_py", "requirements", lock]
    _run(*command, "--output-reproducible", f"--output-file={target}")


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
