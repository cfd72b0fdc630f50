"""`python -m trainingrun_runtime`: the RayJob's entrypoint."""

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from .ray_internals import quiet_logs
from .ray_internals.expected import UnknownRay, check_version

if TYPE_CHECKING:
    from .sweep.driver import SweepDriver


def main() -> int:
    """Run the driver, or report why this Ray cannot be used."""
    try:
        check_version()  # before any import that depends on the version of Ray
    except UnknownRay as error:
        from .progress import document

        return document.report_unusable_image(str(error))
    quiet_logs.leave_out()
    from .driver import driver

    return driver.main(_start_sweep)


def _start_sweep(*arguments: Any) -> "SweepDriver":
    from .sweep.driver import SweepDriver  # Ray Tune, which no other run needs

    return SweepDriver(*arguments)


_exit_now = os._exit  # before the driver replaces it

if __name__ == "__main__":
    code = main()
    # Without finalization of the interpreter: it shuts Ray down, and Ray then exits with a code of
    # its own if a thread still calls it. The operator decides by the exit code.
    # The training code may have closed or replaced what is flushed here.
    with contextlib.suppress(Exception):
        logging.shutdown()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    _exit_now(code)
