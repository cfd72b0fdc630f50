#!/usr/bin/env python3
"""Write the lock files: every package that is installed anywhere, with the SHA-256 of its files.

Run as `make lock`; arguments are further constraints, such as torch==2.13.0. uv resolves for every
platform at once and installs nothing. What is written names no registry.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

LOCKS = {
    "requirements.lock": "dev",
    "operator/requirements.lock": "operator",
    "training_images/requirements.lock": "runtime",
}
"""The extra that each file is for; all of them agree with the first."""
_OTHERS = {"operator", "runtime", "cli", "dev"}
FRAMEWORKS = [
    extra for extra in PROJECT["project"]["optional-dependencies"] if extra not in _OTHERS
]
"""The extras of frameworks, and of a sweep's search; each has a file with what the training image
does not have without it."""
FRAMEWORK_LOCK = "training_images/frameworks/{extra}.lock"
BUILD_LOCK = ".ci/build.lock"
"""What builds the wheel."""
DOCS_LOCK = ".ci/docs.lock"
"""What makes the documents a site: the successor of Material for MkDocs, which ends in May 2027."""
SBOM_LOCK = ".ci/sbom.lock"
"""What lists the packages of an image for a release."""

HEADER = """\
# {what}, with the SHA-256 of every file of each release: `pip install --require-hashes --no-deps`.
# Made by `make lock`. PyTorch is not in it, nor what only its CUDA builds need: its builds for
# CPU, CUDA and ROCm share a version and differ in their files. TORCH in the Makefile names it.
"""
ELSEWHERE = re.compile(r"^(torch|nvidia-.*|cuda-.*|triton)$")


def main() -> None:
    """Resolve everything first, then each image's part with the same versions."""
    constraints, image = list(sys.argv[1:]), set[str]()
    for path, extra in LOCKS.items():
        pins = _write(
            path, f"The extra `{extra}`", ["pyproject.toml", "--extra", extra], constraints
        )
        constraints = pins if path == "requirements.lock" else constraints
        image = {_name(pin) for pin in pins} if extra == "runtime" else image
    frameworks = list(constraints)
    for extra in FRAMEWORKS:
        frameworks += _write(
            FRAMEWORK_LOCK.format(extra=extra),
            f"What the extra `{extra}` adds to training_images/requirements.lock",
            ["pyproject.toml", "--extra", extra],
            frameworks,
            without=image,
        )
    build = "\n".join(PROJECT["build-system"]["requires"])
    _write(BUILD_LOCK, "What builds the wheel", ["-"], constraints, build)
    _write(DOCS_LOCK, "What makes the site of the documents", ["-"], constraints, "zensical")
    _write(SBOM_LOCK, "What lists an image's packages", ["-"], [], "cyclonedx-bom>=7,<8")


def _write(
    path: str,
    what: str,
    source: list[str],
    constraints: list[str],
    stdin: str = "",
    without: Collection[str] = (),
) -> list[str]:
    """Write one file; every pin that was found, for the next one's constraints."""
    command = [sys.executable, "-m", "uv", "pip", "compile", *source, "--universal"]
    lowest = PROJECT["project"]["requires-python"].removeprefix(">=").partition(",")[0]
    command += ["--python-version", lowest]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    if os.environ.get("PIP_INDEX_URL"):
        command += ["--default-index", os.environ["PIP_INDEX_URL"]]
    # From a pipe: uv reads constraints from files alone.
    read, write = os.pipe()
    os.write(write, "\n".join(constraints).encode())
    os.close(write)
    found = subprocess.run(
        [*command, "--constraints", f"/dev/fd/{read}"],
        input=stdin,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        pass_fds=[read],
    ).stdout
    os.close(read)
    blocks = re.findall(r"^\S.*(?:\n[ \t].*)*", found, re.MULTILINE)
    names = {block: _name(block) for block in blocks}
    kept = [b for b in blocks if not ELSEWHERE.match(names[b]) and names[b] not in without]
    (ROOT / path).write_text(HEADER.format(what=what) + "\n".join(kept) + "\n")
    return [block.splitlines()[0].rstrip(" \\") for block in blocks]


def _name(pin: str) -> str:
    return pin.partition("==")[0]


if __name__ == "__main__":
    main()
