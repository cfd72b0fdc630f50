"""The rows of Ray Data are in the ranks' order, wherever an epoch is continued."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainingrun_runtime.data import ray_loader, ray_source
from trainingrun_runtime.data.position import Dealing, Position, batches_from, order
from trainingrun_runtime.data.ray_source import SAMPLE_INDEX, Layout, columns


class Numbers:
    """Its samples are their indices."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __getitem__(self, index: int) -> dict[str, int]:
        self.loaded.append(index)
        return {"number": index}


def blocks(layout: Layout, monkeypatch: pytest.MonkeyPatch, data: Any) -> list[Any]:
    """What the tasks of Ray Data make: the columns of each block."""
    monkeypatch.setattr(ray_source, "_get", lambda reference: reference)
    monkeypatch.setattr(ray_source.BlockAccessor, "batch_to_block", lambda batch: batch)
    tasks = ray_source.SamplesLeft([data], layout).get_read_tasks(1)
    assert len(tasks) == layout.number_of_blocks()
    assert {task.metadata.num_rows for task in tasks} <= {layout.rows_per_block}
    return [block for task in tasks for block in task()]


@given(
    samples=st.integers(6, 60),
    ranks=st.integers(1, 5),
    lost=st.integers(0, 3),
    batch_size=st.integers(1, 5),
    per_block=st.integers(1, 4),
    done=st.integers(0, 8),
    drop_last=st.booleans(),
)
def test_blocks_in_turn_are_the_batches_of_each_rank(
    samples: int,
    ranks: int,
    lost: int,
    batch_size: int,
    per_block: int,
    done: int,
    drop_last: bool,
) -> None:
    """Ray Data gives the next block to the rank with the fewest rows, and of these to the first.

    Also where the ranks do the steps of all workers (`workers.globalBatch: keep`).
    """
    dealing = Dealing(batch_size, ranks, drop_last, ranks + lost)
    position = Position(seed=3, shuffle=True, samples=samples)
    for _ in range(min(done, dealing.steps(samples))):
        position = position.after(dealing)
    seen = Counter(order(samples, 3, 0, shuffle=True)[: position.consumed].tolist())
    layout = Layout(position, dealing, per_block)
    data = Numbers()
    with pytest.MonkeyPatch.context() as patch:
        found = blocks(layout, patch, data)
    got: list[list[int]] = [[] for _ in range(ranks)]
    for block in found:
        rows = block[SAMPLE_INDEX].tolist()
        assert rows == block["number"].tolist()
        assert len(rows) == layout.rows_per_block, "else the next block goes to another rank"
        min(got, key=len).extend(rows)
    size = layout.rows_per_batch
    for step, batches in enumerate(batches_from(position, dealing, range(ranks))):
        for rank, batch in enumerate(batches):
            rows = got[rank][step * size : (step + 1) * size]
            assert rows[: len(batch.indices)] == batch.indices.tolist()
            seen.update([] if batch.repeats else batch.indices.tolist())
    left = sum(
        len(b.indices) for step in batches_from(position, dealing, range(ranks)) for b in step
    )
    assert len(data.loaded) == left, "no sample is loaded only to be left out"
    assert set(seen.values()) <= {1}
    assert drop_last or len(seen) == samples


def test_values_of_one_shape_become_arrays_and_others_stay_as_they_are() -> None:
    found = columns(
        [
            {"image": torch.ones(2, 3), "label": 4, "name": "a", "words": [1]},
            {"image": torch.zeros(2, 3), "label": 5, "name": "bcd", "words": [1, 2]},
        ]
    )
    assert found["image"].shape == (2, 2, 3)
    assert found["label"].tolist() == [4, 5]
    assert found["name"].tolist() == ["a", "bcd"]
    assert found["words"].tolist() == [[1], [1, 2]]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        pytest.param((1, 2), "a sample of the data set is a tuple, and the rows", id="no names"),
        pytest.param({SAMPLE_INDEX: 1}, "has a value 'sample_index', which is", id="own name"),
    ],
)
def test_samples_that_make_no_row_are_refused(sample: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        columns([sample])


WANTED = np.asarray([4, 2])


def test_rows_that_fill_a_batch_up_are_left_out() -> None:
    found = {SAMPLE_INDEX: np.asarray([4, 2, 2]), "x": np.asarray([1.0, 2.0, 2.0])}
    assert ray_loader._checked(found, WANTED)["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param({"x": np.ones(2)}, "have no column 'sample_index'", id="no column"),
        pytest.param(
            {SAMPLE_INDEX: np.asarray([4, 3])},
            r"samples \[4, 3\] where it was the turn of \[4, 2\]; have it return a row for each",
            id="a row was left out",
        ),
        pytest.param({SAMPLE_INDEX: np.asarray([4])}, r"samples \[4\] where", id="too few"),
        pytest.param(None, r"samples \[\] where it was the turn", id="none"),
    ],
)
def test_other_rows_than_those_whose_turn_it_is_are_refused(found: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        ray_loader._checked(found, WANTED)
