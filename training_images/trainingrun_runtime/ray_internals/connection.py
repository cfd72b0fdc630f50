"""The driver's one connection to Ray, which a script neither opens again nor closes.

Replaces `ray.init` and `ray.shutdown`, public functions whose parameters are checked as those of
the others (see `expected`).
"""

import functools
import logging
from typing import Any

import ray

log = logging.getLogger(__name__)


def keep() -> None:
    """Have `ray.init()` hand out the connection that there is, and `ray.shutdown()` leave it.

    Scripts begin and end with them. A second connection is an error to Ray, and with the first one
    closed nobody could say any more how the training ended.
    """
    connect = ray.init

    @functools.wraps(connect)
    def init(*arguments: Any, **settings: Any) -> Any:
        if not ray.is_initialized():
            return connect(*arguments, **settings)
        ignored = sorted(settings.keys() - {"address", "ignore_reinit_error"})
        if ignored:
            log.warning("ray.init(%s) is ignored: the run's Ray is up", ", ".join(ignored))
        return connect(ignore_reinit_error=True)

    def shutdown(*_arguments: Any, **_settings: Any) -> None:
        log.info("ray.shutdown() is left to the end of the run")

    ray.init, ray.shutdown = init, shutdown
