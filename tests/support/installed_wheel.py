"""The wheel of this tree, in an environment that has nothing else but what its extras ask for."""

import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def built(folder: Path) -> Path:
    """The wheel, built into a folder; nothing is downloaded."""
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    command = [sys.executable, "-m", "pip", "wheel", *options, f"--wheel-dir={folder}", str(ROOT)]
    subprocess.run(command, check=True)
    (found,) = folder.glob("trainingrun-*.whl")
    return found


def installed(wheel: Path, folder: Path, *extras: str) -> Path:
    """The folder `bin` of a new environment with the wheel, and what its extras ask for.

    The latter are links to the packages of this environment.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    here = Path(sysconfig.get_path("purelib"))
    # A folder of links, for a .pth file in the folder itself would be read as well.
    others = folder / "others"
    others.mkdir()
    for distribution in needed(*extras):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (others / top).exists():
                (others / top).symlink_to(here / top)
    (own / "others.pth").write_text(f"{others}\n")
    pip = [sys.executable, "-m", "pip", f"--python={folder}/bin/python", "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--quiet", str(wheel)], check=True)
    return folder / "bin"


def needed(*extras: str) -> list[metadata.Distribution]:
    """What `trainingrun[extras]` asks for, directly or not, as it is installed here."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [("trainingrun", extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = metadata.distribution(name)
        for text in found[name].requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": extra}):
                waiting += [(requirement.name, one) for one in ("", *requirement.extras)]
    del found["trainingrun"]
    return list(found.values())


def call(folder: Path, *command: str, **environment: str) -> str:
    """What a command prints in a folder without a checkout, and without what leads to this one."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout
