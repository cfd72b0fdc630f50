"""`python -m trainingrun_runtime`: the RayJob's entrypoint."""

import sys

from .driver import main

if __name__ == "__main__":
    sys.exit(main())
