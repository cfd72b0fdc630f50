"""`python -m trainingrun_runtime`: the RayJob's entrypoint."""

import logging
import os
import sys

from .ray_internals.expected import UnknownRay, check_version


def main() -> int:
    """Run the driver, or say why this Ray cannot be used; the exit code."""
    try:
        check_version()  # before anything that takes Ray as it is, already when it is imported
    except UnknownRay as error:
        from . import failed_start

        return failed_start.refuse(str(error))
    from . import driver

    return driver.main()


_leave = os._exit  # as it is before the driver guards it against scripts

if __name__ == "__main__":
    code = main()
    # Not by way of the interpreter's end: it closes Ray first, and Ray ends the process with a code
    # of its own where a thread still asks it something. The code is what the run's fate hangs on.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    _leave(code)
