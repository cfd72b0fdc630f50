"""The driver's connection to Ray, which a script neither opens a second time nor closes.

Replaces `ray.init` and `ray.shutdown`, public functions whose parameters are checked as those of
the others (see `expected`).
"""

import functools
import logging
from typing import Any

import ray

log = logging.getLogger(__name__)


def keep() -> None:
    """Have `ray.init()` return the existing connection, and `ray.shutdown()` do nothing.

    Scripts call both. Ray refuses a second connection, and the driver needs the first one after
    the script to report the outcome.
    """
    connect = ray.init

    @functools.wraps(connect)
    def init(*arguments: Any, **settings: Any) -> Any:
        if not ray.is_initialized():
            return connect(*arguments, **settings)
        ignored = sorted(settings.keys() - {"address", "ignore_reinit_error"})
        if ignored:
            log.warning(
                "ray.init(%s) is ignored: the driver is connected already", ", ".join(ignored)
            )
        return connect(ignore_reinit_error=True)

    def shutdown(*_arguments: Any, **_settings: Any) -> None:
        log.info("ray.shutdown() is ignored until the end of the run")

    ray.init, ray.shutdown = init, shutdown
