"""What a tree of JAX arrays gives to a checkpoint, and takes from one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainingrun_runtime.checkpoints.encoding import decode, encode
from trainingrun_runtime.frameworks.jax import Tree
from trainingrun_runtime.survivors.watched_tensors import NotCovered, NotWhole


def a_tree(value: float) -> dict[str, Any]:
    return {
        "weights": jnp.full((2, 3), value),
        "half": [jnp.full(3, value, jnp.bfloat16), jax.random.key(int(value))],
        "scale": jnp.float32(value),
        "count": int(value),
    }


def test_a_tree_is_restored_with_its_dtypes() -> None:
    saved = encode(Tree(a_tree(7)).state_dict(), "state")
    kept = Tree(a_tree(0))
    kept.load_state_dict(decode(saved))
    wanted = jax.tree.leaves(a_tree(7))
    found = jax.tree.leaves(kept.tree)
    assert [str(leaf) for leaf in found] == [str(leaf) for leaf in wanted]
    assert [getattr(leaf, "dtype", int) for leaf in found] == [
        getattr(leaf, "dtype", int) for leaf in wanted
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": jnp.zeros(2)}, r"\['scale'\] is of \(\) and float32 in the checkpoint"),
        ({"bias": jnp.zeros(2)}, r"differ in \['bias'\]"),
    ],
)
def test_another_tree_is_refused(change: dict[str, Any], said: str) -> None:
    saved = Tree(a_tree(7)).state_dict()
    with pytest.raises(ValueError, match=said):
        Tree({**a_tree(0), **change}).load_state_dict(saved)


def test_the_tree_of_a_step_is_there_during_the_next_one() -> None:
    kept = Tree(a_tree(7))
    wanted, state = encode(kept.state_dict(), "state"), kept.kept()
    kept.tree["half"].append(jnp.zeros(1))
    kept.tree = jax.tree.map(lambda leaf: leaf, a_tree(0))
    assert repr(encode(state(), "state")) == repr(wanted)


def test_arrays_that_were_donated_to_the_next_step_are_there_no_longer() -> None:
    kept = Tree({"weights": jnp.ones((64, 64))})
    state = kept.kept()
    kept.tree = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(
        kept.tree
    )
    with pytest.raises(NotWhole, match="donate_argnums"):
        state()


def test_what_may_be_changed_in_place_is_not_covered() -> None:
    with pytest.raises(NotCovered, match="has a ndarray"):
        Tree({"weights": np.ones(2)}).kept()
