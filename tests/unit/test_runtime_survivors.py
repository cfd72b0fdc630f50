"""Which ranks save the last step: of each part of the state one that holds it."""

import pytest

from trainingrun_runtime.survivors.survivors import NotHeld, Offer, holders

PARTS = frozenset({7, 8})


def offer(part: int) -> Offer:
    return Offer(step=12, fingerprint=1, part=part, parts=PARTS)


def test_of_replicated_state_every_rank_has_all() -> None:
    assert holders({2: Offer(12, 1), 1: Offer(12, 1)}) == [[1, 2]]


def test_of_sharded_state_each_part_has_its_holders() -> None:
    assert holders({3: offer(8), 2: offer(7), 1: offer(8)}) == [[1, 3], [2]]


def test_a_part_that_nobody_holds_is_said() -> None:
    with pytest.raises(NotHeld, match="none of ranks 0 and 2, which are left, holds 1 of its 2"):
        holders({2: offer(7), 0: offer(7)})
