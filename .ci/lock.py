#!/usr/bin/env python3
"""Resolve the distribution with all its extras and print constraints, one `name==version` a line.

Run as `make lock`. Nothing is installed: pip only reports what it would install.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEADER = """\
# Constraints for every extra (operator, runtime, cli, dev), for the images and `make venv`.
# Made by `make lock`. Without hashes, because PyTorch's CPU, CUDA and ROCm builds share a version
# and differ in their files; for the same reason what only a CUDA build depends on is left out.
"""
ONLY_CUDA = re.compile(r"^(nvidia-|cuda-|triton$)")


def main() -> None:
    """Print the lock; arguments are further requirements, such as torch==2.13.0."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet"),
                *("--dry-run", "--ignore-installed", "--report", str(report)),
                *(".[dev]", *sys.argv[1:]),
            ],
            check=True,
        )
        wanted = json.loads(report.read_text())["install"]
    found = {
        re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item["metadata"]["version"]
        for item in wanted
    }
    lines = [
        f"{name}=={version.partition('+')[0]}"
        for name, version in sorted(found.items())
        if name != "trainingrun" and not ONLY_CUDA.match(name)
    ]
    print(HEADER + "\n".join(lines))


if __name__ == "__main__":
    main()
