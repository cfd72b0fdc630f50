"""Packages that are not in the image, installed by pip into a folder of their own.

Ray's `runtime_env: {pip: …}` is not used: where the image's Python is a virtual environment, Ray
copies that as a whole on every node, gigabytes with PyTorch in it, and the driver, which runs the
user's script, has none of it.
"""

import itertools
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path

log = logging.getLogger(__name__)

KEPT = ("ray", "torch")
"""Packages that stay those of the image: the runtime is made for its Ray, and PyTorch for its
drivers."""
TIMEOUT_S = 1800
IMAGE = "image.pth"
"""Names the folders of the image's packages."""
_OFFLINE = ("Retrying (Retry(", "NewConnectionError", "NameResolutionError", "ReadTimeoutError")
"""What pip prints where an index does not answer; its errors then name a missing package."""


class Uninstallable(Exception):
    """The requirements cannot be installed; the text is one sentence."""


class IndexSilent(Exception):
    """No package index answers; a later try may succeed."""


def install(requirements: Sequence[str], target: Path) -> None:
    """Install packages that this Python does not have yet into `target`.

    What the image has, and what fits, is not installed again. pip reads its own environment
    variables, such as PIP_INDEX_URL, PIP_FIND_LINKS and PIP_NO_INDEX.

    Args:
        requirements: Lines as of a requirements file; paths are relative to the parent of `target`.
        target: A folder that does not exist yet.

    Raises:
        Uninstallable: The user has to change something.
        IndexSilent: A package index cannot be reached.
    """
    if util.find_spec("pip") is None:
        raise Uninstallable(
            "training.requirements need pip, and this Python has none; use an image that has it, "
            "or put the packages into the image"
        )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as scratch:
        folder = Path(scratch)
        packages = _environment(folder / "environment")
        lines, kept = folder / "requirements.txt", folder / "kept.txt"
        lines.write_text("".join(f"{line}\n" for line in requirements))
        kept.write_text("".join(f"{name}=={found}\n" for name, found in _kept()))
        command = [str(folder / "environment/bin/python"), "-m", "pip", "install"]
        command += ["--no-input", "--no-cache-dir", "--no-compile"]
        command += ["--disable-pip-version-check", "--requirement", str(lines)]
        command += ["--constraint", str(kept)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
                cwd=target.parent,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except subprocess.TimeoutExpired:
            raise IndexSilent(
                f"pip did not install training.requirements within {TIMEOUT_S} s; check the "
                "package index, or put the packages into the image"
            ) from None
        output = _without_credentials(done.stdout)
        log.info("pip: %s", output)
        if done.returncode:
            raise _error(output, requirements)
        (packages / IMAGE).unlink()
        shutil.move(packages, target)
    log.info("training.requirements were installed in %.1f s", time.monotonic() - began)


def _environment(folder: Path) -> Path:
    """Make a virtual environment that has the packages of this Python; its own site-packages.

    pip leaves what is outside of an environment as it is.
    """
    venv.EnvBuilder(system_site_packages=True, symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / IMAGE).write_text("".join(f"{path}\n" for path in ours))
    return packages


def _kept() -> list[tuple[str, str]]:
    found = []
    for name in KEPT:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:  # an image without PyTorch
            continue
    return found


def _error(output: str, requirements: Sequence[str]) -> Exception:
    if any(sign in output for sign in _OFFLINE):
        return IndexSilent(
            "training.requirements cannot be installed, for a package index cannot be reached; "
            "check PIP_INDEX_URL in training.env and the network"
        )
    said = _reason(output)
    # pip names the lines of the file, which the user has not seen.
    said = re.sub(r" ?\(from line \d+ of \S+\)", "", said)
    said = re.sub(r"-r \S+ \(line (\d+)\)", lambda found: requirements[int(found[1]) - 1], said)
    return Uninstallable(
        f"training.requirements cannot be installed: {said[:500].rstrip('.')}; correct the line, "
        "or set PIP_INDEX_URL or PIP_FIND_LINKS in training.env to where the package is"
    )


def _reason(output: str) -> str:
    """What pip says went wrong, on one line."""
    lines = output.splitlines()
    if "The conflict is caused by:" in lines:
        after = lines[lines.index("The conflict is caused by:") + 1 :]
        conflict = itertools.takewhile(lambda line: line.startswith(" "), after)
        return ", but ".join(line.strip() for line in conflict)
    errors = [line[6:].strip() for line in lines if line.startswith("ERROR:")]
    return (errors or [line.strip() for line in lines if line.strip()] or ["pip failed"])[-1]


def _without_credentials(text: str) -> str:
    return re.sub(r"://[^/\s@]*@", "://", text)
