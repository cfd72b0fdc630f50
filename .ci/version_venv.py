#!/usr/bin/env python3
"""Make a virtual environment that is this one, but with another version of Ray or of PyTorch, or
with what lock files name beside it.

Run as `make test-ray`, `make test-torch` and `make test-frameworks`; arguments: the folder, and
such as ray==2.58.0, or lock files.
"""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def make(folder: Path, *requirements: str, dependencies: bool = False) -> Path:
    """An environment in which these come first, and everything else is found in this one; its
    interpreter.

    Args:
        folder: replaced, if there is one.
        requirements: arguments of `pip install`.
        dependencies: what they need is installed, too.
    """
    venv.create(folder, clear=True, with_pip=False)
    python = folder / "bin" / "python"
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", query], text=True).strip())
    here = sysconfig.get_path("purelib")
    # After the environment's own packages, so that its Ray comes first; as a site's folder, so that
    # what is installed there in editable form is found as well.
    (site / "development.pth").write_text(f"import site; site.addsitedir({json.dumps(here)})\n")
    # The runtime looks for it beside its interpreter.
    spy = Path(sysconfig.get_path("scripts")) / "py-spy"
    python.with_name("py-spy").symlink_to(spy.absolute())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site)]
    subprocess.run([*pip, *([] if dependencies else ["--no-deps"]), *requirements], check=True)
    return python


def main(folder: Path, requirement: str) -> None:
    """Make it. Ray finds what it needs in this environment; PyTorch brings its own, since each
    version links with CUDA libraries of its own.
    """
    name, _, version = requirement.partition("==")
    python = make(folder, requirement, dependencies=name == "torch")
    query = f"import {name}; print({name}.__version__)"
    found = subprocess.check_output([python, "-c", query], text=True).strip()
    if found.partition("+")[0] != version:
        sys.exit(f"{python} imports {name} {found} instead of {version}")


if __name__ == "__main__":
    if sys.argv[2].endswith(".lock"):
        locks = [argument for lock in sys.argv[2:] for argument in ("--requirement", lock)]
        make(Path(sys.argv[1]), "--require-hashes", *locks)
    else:
        main(Path(sys.argv[1]), sys.argv[2])
