"""Functions of Ray that a script calls, and that do something else in this process.

`ray.init` and `ray.shutdown`: the driver's connection is neither opened a second time nor closed.
They are public functions, whose parameters are checked as those of the others (see `expected`).

Functions of `ray.air.session` and `ray.tune`: on the ranks of Ray Train v2 they only warn and
return None, so a script that uses them would report no step, and begin at step 0 after each loss.
Read for ray 2.58-2.60: `ray/air/session.py`, `ray/train/_internal/session.py`,
`ray/tune/trainable/trainable_fn_utils.py`, `ray/train/v2/_internal/execution/context.py`.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import ray

log = logging.getLogger(__name__)

_HONORED = {"address", "ignore_reinit_error"}
"""Settings of `ray.init()` that are used, or need not be."""
_REPLACEMENTS = {
    "report": "ray.train.report",
    "get_checkpoint": "ray.train.get_checkpoint",
    "get_dataset_shard": "ray.train.get_dataset_shard",
    "get_world_size": "ray.train.get_context().get_world_size",
    "get_world_rank": "ray.train.get_context().get_world_rank",
    "get_local_rank": "ray.train.get_context().get_local_rank",
    "get_local_world_size": "ray.train.get_context().get_local_world_size",
    "get_node_rank": "ray.train.get_context().get_node_rank",
    "get_experiment_name": "ray.train.get_context().get_experiment_name",
}
_OF_TUNE = ("report", "get_checkpoint")
"""They work in a trial of a Tuner, which a script may run before its training."""


class RemovedFunction(RuntimeError):
    """A function that does nothing in this version of Ray was called."""


def keep_connection(ignored: Callable[[Mapping[str, Any]], None]) -> None:
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


def refuse_removed() -> None:
    """Have each function that does nothing raise an error with its replacement, in this process.

    Those of `ray.tune` raise on a rank alone, also where another process has pickled them.
    """
    import ray.air.session
    import ray.tune

    for name in _REPLACEMENTS:
        setattr(ray.air.session, name, functools.partial(_refuse, name))
    for name in _OF_TUNE:
        setattr(ray.tune, name, functools.partial(_refuse_on_a_rank, name))


def _refuse(name: str, *_arguments: Any, **_settings: Any) -> NoReturn:
    raise RemovedFunction(
        f"ray.air.session.{name}() does nothing in this version of Ray; call "
        f"{_REPLACEMENTS[name]}() instead"
    )


def _refuse_on_a_rank(name: str, *arguments: Any, **settings: Any) -> Any:
    from ray.tune.trainable import trainable_fn_utils

    if _is_rank():
        raise RemovedFunction(
            f"ray.tune.{name}() does nothing in a training function; call {_REPLACEMENTS[name]}() "
            "instead"
        )
    return getattr(trainable_fn_utils, name)(*arguments, **settings)


def _is_rank() -> bool:
    """Whether this process is a worker of Ray Train."""
    from ray.train.v2._internal.execution.context import get_train_context

    try:
        get_train_context()
    except RuntimeError:
        return False
    return True
