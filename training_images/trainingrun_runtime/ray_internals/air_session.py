"""`ray.air.session`, whose functions do nothing in Ray Train v2.

They only warn and return None: a script that uses them would report no step, and begin at step 0
after each loss. Read for ray 2.58-2.60: `ray/air/session.py`, `ray/train/_internal/session.py`.
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


class RemovedFunction(RuntimeError):
    """A function that does nothing in this version of Ray was called."""


def refuse() -> None:
    """Have each of these functions raise an error with its replacement, in this process."""
    import ray.air.session

    for name in _REPLACEMENTS:
        setattr(ray.air.session, name, functools.partial(_refuse, name))


def _refuse(name: str, *_arguments: Any, **_settings: Any) -> NoReturn:
    raise RemovedFunction(
        f"ray.air.session.{name}() does nothing in this version of Ray; call "
        f"{_REPLACEMENTS[name]}() instead"
    )
