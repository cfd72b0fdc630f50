"""Stacks: which of their lines are the user's own, and those of a process that seems to hang."""

import faulthandler
import signal
import sysconfig
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType

_RUNTIME = Path(__file__).parent
_OURS = tuple(str(path) for path in _RUNTIME.iterdir() if path.name != "examples")
_OTHERS = (sysconfig.get_path("stdlib"), *_OURS, "<")  # <: of no file
_PACKAGES = ("/site-packages/", "/dist-packages/", "/.trainingrun-packages/")
"""Where code is that the user has not written, beside `_OTHERS`."""


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


def line_under_way(frame: FrameType | None) -> FrameType | None:
    """The frame of the user's own code that runs now; None: there is none.

    Args:
        frame: the innermost one of a thread.
    """
    stack = [frame for frame, _ in walk_stack(frame)]  # innermost first
    own = next((f for f in stack if is_of_the_user(f.f_code.co_filename)), None)
    if own is not None:
        return own
    # A training that is a package of the image: the runtime has called it.
    ours = next((i for i, f in enumerate(stack) if f.f_code.co_filename.startswith(_OURS)), 0)
    called = [f for f in stack[:ours] if _is_of_a_package(f.f_code.co_filename)]
    package = _package(called[-1]) if called else None
    return next((f for f in called if _package(f) == package), None)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _is_of_a_package(file: str) -> bool:
    return any(folder in file for folder in _PACKAGES)
