"""Each sample of an epoch is dealt once, to whatever number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainingrun_runtime.data.position import Dealing, order


def dealt(dealing: Dealing, left: int) -> list[list[int]]:
    """Sizes of the ranks' batches, step by step."""
    steps = []
    while taken := dealing.taken(left):
        parts = [dealing.share(taken, rank) for rank in range(dealing.ranks)]
        assert [p.start for p in parts] == [0, *(p.stop for p in parts[:-1])]
        assert parts[-1].stop == taken
        steps.append([part.stop - part.start for part in parts])
        left -= taken
    return steps


@pytest.mark.parametrize(
    ("left", "batch_size", "ranks", "drop_last", "steps"),
    [
        pytest.param(8, 2, 2, False, [[2, 2], [2, 2]], id="full batches"),
        pytest.param(7, 2, 2, False, [[2, 2], [2, 1]], id="the last step is smaller"),
        pytest.param(9, 2, 2, False, [[2, 2], [2, 1], [1, 1]], id="one sample more, two ranks"),
        pytest.param(13, 4, 3, False, [[4, 3, 3], [1, 1, 1]], id="one sample more, three ranks"),
        pytest.param(7, 1, 3, False, [[1, 1, 1], [2, 1, 1]], id="batches of one"),
        pytest.param(3, 4, 3, False, [[1, 1, 1]], id="one sample for each rank"),
        pytest.param(9, 2, 2, True, [[2, 2], [2, 2]], id="drop_last"),
        pytest.param(3, 2, 2, True, [], id="drop_last, nothing is left"),
        pytest.param(0, 2, 2, False, [], id="nothing"),
    ],
)
def test_the_samples_that_are_left_are_dealt_to_all_ranks(
    left: int, batch_size: int, ranks: int, drop_last: bool, steps: list[list[int]]
) -> None:
    dealing = Dealing(batch_size, ranks, drop_last)
    assert dealt(dealing, left) == steps
    assert dealing.steps(left) == len(steps)


@given(
    left=st.integers(0, 500),
    batch_size=st.integers(1, 9),
    ranks=st.integers(1, 9),
    drop_last=st.booleans(),
)
def test_every_rank_has_a_batch_of_bounded_size_in_every_step(
    left: int, batch_size: int, ranks: int, drop_last: bool
) -> None:
    dealing = Dealing(batch_size, ranks, drop_last)
    if 0 < left < ranks and not drop_last:
        with pytest.raises(ValueError, match=f"{left} samples are left in this epoch for {ranks}"):
            dealing.steps(left)
        return
    steps = dealt(dealing, left)
    sizes = [size for step in steps for size in step]
    assert dealing.steps(left) == len(steps)
    assert all(size >= 1 for size in sizes)
    assert max(sizes, default=0) <= max(batch_size, 2 if batch_size == 1 else 0)
    if drop_last:
        assert set(sizes) <= {batch_size}
        assert left - sum(sizes) < batch_size * ranks
    else:
        assert sum(sizes) == left


def test_an_order_follows_from_seed_and_epoch_alone_in_every_version() -> None:
    assert order(5, seed=0, epoch=0, shuffle=False).tolist() == [0, 1, 2, 3, 4]
    known = {  # of (seed, epoch)
        (0, 0): [1, 3, 7, 5, 2, 6, 4, 0],
        (0, 1): [4, 7, 0, 5, 1, 3, 6, 2],
        (1, 0): [2, 5, 6, 0, 4, 7, 1, 3],
    }
    found = {place: order(8, *place, shuffle=True).tolist() for place in known}
    assert found == known
    assert sorted(order(1000, 3, 4, shuffle=True)) == list(range(1000))
