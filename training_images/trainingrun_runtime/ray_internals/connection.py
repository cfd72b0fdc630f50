"""The driver's connection to Ray, which a script neither opens a second time nor closes.

Replaces `ray.init` and `ray.shutdown`, public functions whose parameters are checked as those of
the others (see `expected`).
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import ray

log = logging.getLogger(__name__)


_HONORED = {"address", "ignore_reinit_error"}


def keep(ignored: Callable[[Mapping[str, Any]], None]) -> None:
    """Have `ray.init()` return the existing connection, and `ray.shutdown()` do nothing.

    Scripts call both. Ray refuses a second connection, and the driver needs the first one after
    the script to report the outcome.

    Args:
        ignored: called with the settings of a `ray.init()` that are not used, if there are any.
    """
    connect = ray.init

    @functools.wraps(connect)
    def init(*arguments: Any, **settings: Any) -> Any:
        if not ray.is_initialized():
            return connect(*arguments, **settings)
        unused = {name: value for name, value in settings.items() if _is_set(name, value)}
        if unused:
            ignored(unused)
        return connect(ignore_reinit_error=True)

    def _is_set(name: str, value: Any) -> bool:
        parameter = inspect.signature(connect).parameters.get(name)
        return name not in _HONORED and (parameter is None or value != parameter.default)

    def shutdown(*_arguments: Any, **_settings: Any) -> None:
        log.info("ray.shutdown() is ignored until the end of the run")

    ray.init, ray.shutdown = init, shutdown
