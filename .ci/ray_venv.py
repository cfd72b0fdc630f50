#!/usr/bin/env python3
"""Make a virtual environment that is this one, but with another version of Ray.

Run as `make test-ray`; arguments: the folder, and the version.
"""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def make(folder: Path, *requirements: str) -> Path:
    """An environment in which these come first, and everything else is found in this one; its
    interpreter.

    Args:
        folder: replaced, if there is one.
        requirements: arguments of `pip install`.
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
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(site), *requirements], check=True)
    return python


def main(folder: Path, version: str) -> None:
    """Make it. Only Ray itself is installed: everything else is found in this environment."""
    python = make(folder, f"ray=={version}")
    found = subprocess.check_output([python, "-c", "import ray; print(ray.__version__)"], text=True)
    if found.strip() != version:
        sys.exit(f"{python} imports Ray {found.strip()} instead of {version}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
