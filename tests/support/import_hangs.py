"""The linear example in a module that hangs on one rank while it is imported for the first time."""

import os
import socket
from pathlib import Path

from trainingrun_runtime.examples.linear import train

__all__ = ["train"]

_first = Path(os.environ["IMPORT_HANGS"])
try:
    _first.touch(exist_ok=False)
except FileExistsError:
    pass
else:
    _read, _written = socket.socketpair()
    _read.recv(1)  # nobody sends
