"""Stacks: which of their lines are the user's own, and those of a process that seems to hang."""

import ctypes
import faulthandler
import signal
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType

_RUNTIME = Path(__file__).parent
_OURS = tuple(str(path) for path in _RUNTIME.iterdir() if path.name != "examples")
_OTHERS = (sysconfig.get_path("stdlib"), *_OURS, "<")  # <: of no file
_CALLER = "/trainingrun_runtime/worker/training_function.py"
"""Imports and calls the training function."""
_PACKAGES = ("/site-packages/", "/dist-packages/", "/.trainingrun-packages/")
"""Where code is that the user has not written, beside `_OTHERS`."""
_PR_SET_PTRACER = 0x59616D61
"""Of the kernel's `prctl.h`."""


def log_on_signal() -> None:
    """From now on SIGUSR1 has this process write the stack of each of its threads to stderr."""
    # The descriptor: sys.stderr may have been replaced by an object without one.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def is_of_the_user(file: str) -> bool:
    """Whether code in this file is the user's own."""
    return not file.startswith(_OTHERS) and not _is_of_a_package(file)


def own_line(raised: TracebackType | None) -> tuple[str, int] | None:
    """File and line of the user's own code that an error has passed last.

    None: it has passed none.
    """
    passed = [(frame.f_code.co_filename, line) for frame, line in walk_tb(raised)]
    own = [place for place in passed if is_of_the_user(place[0])]
    if own:
        return own[-1]
    # A training that is a package of the image: it was called before the packages that it uses.
    packages = (p for p in passed if _is_of_a_package(p[0]) and not p[0].startswith(_OURS))
    return next(packages, None)


def raised_at(error: BaseException) -> str | None:
    """The line that `own_line` names, such as `train.py:31`."""
    place = own_line(error.__traceback__)
    return f"{Path(place[0]).name}:{place[1]}" if place else None


def allow_tracing() -> None:
    """From now on processes of the same user may read the stack of this one, as py-spy does.

    Where the kernel lets only parents do so (Yama), the training's process is read by a sibling.
    """
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


def line_under_way(frame: FrameType | None) -> FrameType | None:
    """The frame of the user's own code that runs now; None: there is none.

    Args:
        frame: the innermost one of a thread.
    """
    stack = [frame for frame, _ in walk_stack(frame)]
    own = own_place([frame.f_code.co_filename for frame in stack])
    return stack[own] if own is not None else None


def own_place(files: Sequence[str]) -> int | None:
    """Which of the calls of a stack is the innermost one of the user's own code; None: none is.

    Args:
        files: of the calls, innermost first.
    """
    own = next((i for i, file in enumerate(files) if is_of_the_user(file)), None)
    if own is not None:
        return own
    # A training that is a package of the image: the runtime has called or imported it.
    within = enumerate(files[: depth(files)])
    called = [i for i, file in within if _is_of_a_package(file) or file.startswith(_OURS)]
    if not called or files[called[-1]].startswith(_OURS):
        return None  # the runtime restores, or works for the training
    package = _package(files[called[-1]])
    return next(i for i in called if _is_of_a_package(files[i]) and _package(files[i]) == package)


def depth(files: Sequence[str]) -> int:
    """How many calls there are within the one that runs the training; all: none is known.

    Args:
        files: of the calls, innermost first.
    """
    return next((i for i, file in enumerate(files) if file.endswith(_CALLER)), len(files))


def _package(file: str) -> str:
    folder = next(folder for folder in _PACKAGES if folder in file)
    return file.rpartition(folder)[2].partition("/")[0]


def _is_of_a_package(file: str) -> bool:
    return any(folder in file for folder in _PACKAGES)
