"""`python -m trainingrun_runtime`: the RayJob's entrypoint."""

import logging
import os
import sys

from .ray_internals.expected import UnknownRay, check_version


def main() -> int:
    """Run the driver, or report why this Ray cannot be used; returns the exit code."""
    try:
        check_version()  # before any import that depends on the version of Ray
    except UnknownRay as error:
        from . import failed_start

        return failed_start.report(str(error))
    from . import driver

    return driver.main()


_exit_now = os._exit  # before the driver replaces it

if __name__ == "__main__":
    code = main()
    # Without finalization of the interpreter: it shuts Ray down, and Ray then exits with a code of
    # its own if a thread still calls it. The operator decides by the exit code.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    _exit_now(code)
