"""What of the user's leaves a rank: everything is made to travel, or left out.

Ray's controller asks each rank for its error, its reports and what its function has returned, and
unpickles the answer. What cannot be pickled, or unpickled there, makes that call fail, and Ray
takes the rank for lost. So an error travels as text, and objects only as types that every process
has.
"""

import io
import linecache
import logging
import pickle
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import ray.cloudpickle
from ray.exceptions import RayActorError

from trainingrun_protocol.wire import encodable

from ..error_text import text_of, trace_of
from ..known_errors import failure_causes, remedies
from ..known_errors.failure_causes import PeerLost, Preempted, RaisedOnRank, Resized, Suspended
from ..stacks import own_line, raised_at
from ..store.reported_metrics import printable
from ..store.storage_errors import recognize

log = logging.getLogger(__name__)

_TRACE = 20_000
"""Characters of a traceback's end that travel."""
_EVERYWHERE = sys.stdlib_module_names | {"numpy", "torch"}
"""Packages whose types every process of a run has."""


def as_text(error: BaseException) -> BaseException:
    """What to raise in place of an error of a rank.

    Returns:
        Itself where it is the runtime's own; else `RaisedOnRank`, or the error of the store or the
        loss that it is about.
    """
    if isinstance(error, Preempted | Resized | Suspended):
        return error
    broken = failure_causes.broken_gpu(error)
    if broken is not None:
        return broken
    if isinstance(error, PeerLost | RaisedOnRank):
        return error
    if isinstance(error, RayActorError):  # of another process: this one lives
        return PeerLost(remedies.explained(error))
    storage = recognize(error)
    if storage is not None:
        return storage
    place = own_line(error.__traceback__)
    text = text_of(error)
    if not text and place is not None:  # such as a bare assert
        text = linecache.getline(*place).strip()
    retry, trace = failure_causes.retry_of(error), trace_of(error)[-_TRACE:]
    told = RaisedOnRank(type(error).__name__, text, raised_at(error), trace, retry)
    remedy = remedies.find(error)
    if remedy is not None:
        told.add_note(remedy.advice)
    return told


def print_any_text() -> None:
    """Have this process print text that is no UTF-8, such as a file's name, with its escape.

    Python does so with errors alone, and Ray not with them either: the log of an error would raise
    another one.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # Ray's own stream hands it on
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def shown_cause(error: BaseException) -> BaseException | None:
    """The cause of what is raised in place of an error, for Ray's own traceback of it.

    None: its text is no UTF-8, so Ray's controller could not log it. The rank's log has it.
    """
    text = "".join(traceback.format_exception(error))
    if text == encodable(text):
        return error
    log.error("%s", encodable(text))
    return None


def report(metrics: Mapping[Any, Any]) -> dict[Any, Any]:
    """What is reported, with text in place of what does not travel.

    Text is such that UTF-8 can hold it: Ray makes a table of pandas of what came with checkpoints.
    """
    return {_told(name): _told(value) for name, value in metrics.items()}


def _told(value: Any) -> Any:
    found = _value(value)
    return encodable(found) if isinstance(found, str) and not found.isascii() else found


def _value(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    try:
        _Known(io.BytesIO(pickle.dumps(value))).load()
        return value
    except Exception:
        if isinstance(value, dict):
            return {_value(name): _value(one) for name, one in value.items()}
        if isinstance(value, list | tuple | set):
            return [_value(one) for one in value]
        return printable(value)


class _Known(pickle.Unpickler):
    """Reads types alone that every process has."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _EVERYWHERE:
            raise pickle.UnpicklingError(f"{module}.{name} may not be known elsewhere")
        return super().find_class(module, name)


def packed(returned: Any) -> bytes | None:
    """What a script's function has returned, for `unpacked` in the script's process."""
    if returned is None:
        return None
    try:
        return bytes(ray.cloudpickle.dumps(returned))
    except Exception as error:
        log.warning("what the training function returned is left out: %s", text_of(error))
        return None


def unpacked(returned: bytes | None) -> Any:
    """What was packed; None where this process cannot read it."""
    if returned is None:
        return None
    try:
        return ray.cloudpickle.loads(returned)
    except Exception as error:
        log.warning("Result.return_value is None, as it cannot be read: %s", text_of(error))
        return None
