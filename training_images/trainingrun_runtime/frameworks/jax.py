"""JAX: the workers connected by `jax.distributed`, and a tree of arrays as an object of a session.

    connect()
    kept = Tree({"params": params, "momentum": momentum})
    session = Session(seed=0, state=kept)
    for step in session.steps(10_000):
        kept.tree, loss = update(kept.tree, batch_of(step))

It works in a `training.function` and in the function of Ray's JaxTrainer.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ray.train.collective import broadcast_from_rank_zero

from ..checkpoints.stateful_objects import KeptState
from ..survivors.watched_tensors import CONSTANTS, NotCovered, NotWhole
from . import process_group

READY_S = 1.0
"""Seconds that the arrays of a step may take to be computed once the ranks have agreed on it."""


def connect() -> None:
    """Connect the workers, unless they are; every rank calls it before it makes an array."""
    rank, size = process_group.ensure()
    if size == 1 or jax.distributed.is_initialized():
        return
    address = broadcast_from_rank_zero(process_group.free_address() if rank == 0 else None)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, size, rank)


class Tree(KeptState):
    """A tree of arrays and numbers, such as parameters and what an optimizer keeps for them.

    Every rank has all of it: arrays of this process alone, or replicated ones of all processes.

    Args:
        tree: to begin with; what is restored has its shape, its dtypes and its devices.
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        """As of now: assign what a step has made of it."""

    def state_dict(self) -> dict[str, Any]:
        """The leaves by their path.

        Raises:
            ValueError: this rank has only a part of one.
        """
        return _saved_leaves(self.tree)

    def kept(self) -> Callable[[], dict[str, Any]]:
        """See `KeptState`: nothing changes an array, so that a reference is enough.

        Raises:
            NotCovered: a leaf is neither one of JAX's arrays nor a number.
        """
        leaves, shape = jax.tree_util.tree_flatten(self.tree)
        for leaf in leaves:
            if not isinstance(leaf, (jax.Array, *CONSTANTS)):
                raise NotCovered(
                    f"the tree has a {type(leaf).__name__}, which may be changed in place; use "
                    "arrays of JAX"
                )
        # Now, while the device answers: what a key has inside takes a computation.
        leaves = [_without_key(leaf) for leaf in leaves]

        def state_then() -> dict[str, Any]:
            deadline = time.monotonic() + READY_S
            for leaf in leaves:
                if isinstance(leaf, jax.Array):
                    _require_there(leaf, deadline)
            return _saved_leaves(jax.tree_util.tree_unflatten(shape, leaves))

        return state_then

    def alone(self) -> list[Any] | None:
        """See `KeptState`: arrays of all processes are alike, those of one may be its own."""
        leaves = jax.tree_util.tree_leaves(self.tree)
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        if any(leaf.is_fully_addressable for leaf in arrays):
            return None
        return [leaf for leaf in leaves if not isinstance(leaf, jax.Array)]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take each leaf's value.

        Raises:
            ValueError: the tree has other leaves than the one that was saved, or of other shapes.
        """
        leaves, shape = jax.tree_util.tree_flatten_with_path(self.tree)
        names = [_name(path) for path, _ in leaves]
        differing = sorted(set(names) ^ state.keys())
        if differing:
            raise ValueError(
                f"the checkpoint's tree and this one differ in {', '.join(differing)}; begin with "
                "the tree that was saved, or start a new run"
            )
        restored = [
            _restored(leaf, state[name], name)
            for name, (_, leaf) in zip(names, leaves, strict=True)
        ]
        self.tree = jax.tree_util.tree_unflatten(shape, restored)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "the tree"


def _is_key(leaf: jax.Array) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _without_key(leaf: Any) -> Any:
    """The numbers of a key of random numbers; everything else as it is."""
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) and _is_key(leaf) else leaf


def _require_there(leaf: jax.Array, deadline: float) -> None:
    """Make sure that an array can be read.

    Raises:
        NotWhole: it was donated, or is not computed by the deadline.
    """
    while not leaf.is_deleted() and not leaf.is_ready():
        if time.monotonic() > deadline:
            raise NotWhole("the arrays of the last step are not computed: it waits for a rank")
        time.sleep(0.01)
    if leaf.is_deleted():
        raise NotWhole("the next step was given the arrays of the last one (donate_argnums)")


def _saved_leaves(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): _saved(leaf, _name(path)) for path, leaf in leaves}


def _saved(leaf: Any, name: str) -> Any:
    """A leaf as NumPy has it; of dtypes that NumPy has not, such as bfloat16, the bytes."""
    if not isinstance(leaf, jax.Array):
        return leaf
    if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        raise ValueError(
            f"{name} is sharded over processes, and a session saves whole arrays only; replicate "
            "it with jax.sharding.PartitionSpec()"
        )
    leaf = _without_key(leaf)
    found = np.asarray(leaf if leaf.is_fully_addressable else leaf.addressable_data(0))
    return found if found.dtype.isbuiltin == 1 else found.view(np.dtype(f"u{found.itemsize}"))


def _restored(leaf: Any, value: Any, name: str) -> Any:
    if not isinstance(leaf, jax.Array):
        return value
    wanted = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if wanted.shape != value.shape or wanted.dtype.itemsize != value.dtype.itemsize:
        raise ValueError(
            f"{name} is of {value.shape} and {value.dtype} in the checkpoint, and here of "
            f"{wanted.shape} and {wanted.dtype}; begin with the tree that was saved, or start a "
            "new run"
        )
    if _is_key(leaf):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
    content = value if wanted.dtype.isbuiltin == 1 else value.view(wanted.dtype)
    return jax.device_put(content, leaf.sharding)
