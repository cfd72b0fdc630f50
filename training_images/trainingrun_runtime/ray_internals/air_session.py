"""Functions of `ray.air.session` and `ray.tune` that do nothing on the ranks of Ray Train v2.

They only warn and return None: a script that uses them would report no step, and begin at step 0
after each loss. Read for ray 2.58-2.60: `ray/air/session.py`, `ray/train/_internal/session.py`,
`ray/tune/trainable/trainable_fn_utils.py`, `ray/train/v2/_internal/execution/context.py`.
"""

import functools
from typing import Any, NoReturn

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


def refuse() -> None:
    """Have each of these functions raise an error with its replacement, in this process.

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
