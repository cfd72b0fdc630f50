"""The samples that are left of an epoch as a source of Ray Data, laid out for the ranks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
import ray
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from .position import Batch, Dealing, Position, batches_from, loaded

SAMPLE_INDEX = "sample_index"
"""The column that each row has: which sample it is."""


@dataclass(frozen=True)
class Layout:
    """In which order the rows of the samples that are left follow one another.

    Ray Data hands blocks to the ranks in turn where all of them have as many rows. So a block holds
    what one rank takes in some batches, and the ranks' blocks follow one another. A batch that has
    fewer samples, as at the end of an epoch, is filled up with rows that the rank leaves out. The
    blocks that Ray Data makes by itself are no unit: their number follows from the CPUs.
    """

    position: Position
    """Where the rows begin."""
    dealing: Dealing
    """Which samples each rank takes in each step."""
    batches_per_block: int
    """Batches that a block has; the last blocks may have fewer."""

    @property
    def rows_per_block(self) -> int:
        """Rows of each block."""
        return self.rows_per_batch * self.batches_per_block

    @property
    def rows_per_batch(self) -> int:
        """Rows of each batch, with those that fill it up."""
        # With one sample per step and rank, some ranks may get two in the last step.
        return self.dealing.batch_size + (self.dealing.batch_size == 1 and not self.dealing.ones)

    def number_of_blocks(self) -> int:
        """Blocks of all ranks together."""
        batches = self.dealing.batches(self.position.left)
        return self.dealing.ranks * -(-batches // self.batches_per_block)

    def blocks(self) -> Iterator[list[Batch]]:
        """What is loaded for each block: rank by rank, again for the next batches, and so on."""
        batches = batches_from(self.position, self.dealing, range(self.dealing.ranks))
        while group := list(islice(batches, self.batches_per_block)):
            for rank in range(self.dealing.ranks):
                yield [of_ranks[rank] for of_ranks in group]


class SamplesLeft(Datasource):
    """Reads the samples of a data set in a layout.

    Args:
        dataset: reference to the data set, in a list, so that Ray does not resolve it.
        layout: of the rows.
    """

    def __init__(self, dataset: list[Any], layout: Layout) -> None:
        super().__init__()
        self._dataset, self._layout = dataset, layout

    def estimate_inmemory_data_size(self) -> int | None:
        """Not known."""
        return None

    def get_read_tasks(self, *_: Any, **__: Any) -> list[ReadTask]:
        """A task for each block."""
        layout = self._layout
        metadata = BlockMetadata(num_rows=layout.rows_per_block, size_bytes=None, exec_stats=None)
        sizes = layout.rows_per_batch, layout.rows_per_block
        return [
            ReadTask(partial(_read, self._dataset, batches, *sizes), metadata)
            for batches in layout.blocks()
        ]


def _read(
    dataset: list[Any], batches: Sequence[Batch], rows_per_batch: int, rows_per_block: int
) -> Iterable[Block]:
    """One block; runs in a task of Ray Data."""
    data = _get(dataset[0])
    samples: list[Mapping[str, Any]] = []
    indices: list[int] = []
    for number, batch in enumerate(batches, 1):
        wanted = batch.indices.tolist()
        samples += loaded(data, batch.number, wanted)
        indices += wanted
        rows = number * rows_per_batch if number < len(batches) else rows_per_block
        fill = rows - len(samples)
        samples += samples[-1:] * fill
        indices += indices[-1:] * fill
    yield BlockAccessor.batch_to_block({SAMPLE_INDEX: np.asarray(indices), **columns(samples)})


@lru_cache(maxsize=1)
def _get(dataset: Any) -> Any:
    """The data set, once per process."""
    return ray.get(dataset)


def columns(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Samples as named columns.

    Raises:
        TypeError: a sample is no mapping, or has a column of the loader's own.
    """
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"a sample of the data set is a {type(sample).__name__}, and the rows of Ray Data "
                'have names for their values; return a dict, as in {"image": image, "label": label}'
            )
        if SAMPLE_INDEX in sample:
            raise TypeError(
                f"a sample of the data set has a value {SAMPLE_INDEX!r}, which is the name of the "
                "loader's own column; give it another name"
            )
    return {name: _column([sample[name] for sample in samples]) for name in samples[0]}


def _column(values: list[Any]) -> Any:
    arrays = [np.asarray(value) for value in values]
    if arrays[0].dtype.kind in "biufc" and len({each.shape for each in arrays}) == 1:
        return np.stack(arrays)
    found = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        found[number] = value
    return found
