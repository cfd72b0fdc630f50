#!/usr/bin/env python3
"""Make a virtual environment that is this one, with every framework beside it.

Run as `make test-frameworks`; arguments: the folder, and the frameworks' lock files.
"""

import sys
from pathlib import Path

from version_venv import make

if __name__ == "__main__":
    locks = [argument for lock in sys.argv[2:] for argument in ("--requirement", lock)]
    make(Path(sys.argv[1]), "--require-hashes", *locks)
