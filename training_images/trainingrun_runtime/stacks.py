"""Stacks on request, for a process that seems to hang."""

import faulthandler
import signal


def log_on_signal() -> None:
    """From now on SIGUSR1 has this process write the stack of each of its threads to stderr."""
    # The descriptor: sys.stderr may have been replaced by an object without one.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
