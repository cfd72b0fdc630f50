"""One execution of Ray Data after the other, of which each rank gets its part."""

from collections.abc import Callable
from typing import Any

import ray.data

from .ray_source import Layout, SamplesLeft

Transform = Callable[[ray.data.Dataset], ray.data.Dataset]


class Executions:
    """An actor that all ranks ask for their parts.

    Args:
        dataset: reference to the data set, in a list, so that Ray does not resolve it.
        transform: what Ray Data does with the rows; None: nothing.
    """

    def __init__(self, dataset: list[Any], transform: Transform | None) -> None:
        self._dataset, self._transform = dataset, transform
        self._number: int | None = None
        self._shards: list[ray.data.DataIterator] = []

    def shard(self, number: int, layout: Layout, rank: int) -> ray.data.DataIterator:
        """A rank's part of the execution with this number, which begins when all ranks read it.

        The first rank that asks decides; all ask with the same layout. The former execution ends
        once no rank has a part of it.
        """
        if number != self._number:
            self._shards = self._begun(layout)
            self._number = number
        return self._shards[rank]

    def _begun(self, layout: Layout) -> list[ray.data.DataIterator]:
        rows = ray.data.read_datasource(
            SamplesLeft(self._dataset, layout), override_num_blocks=layout.number_of_blocks()
        )
        context = rows.context
        context.execution_options.preserve_order = True
        context.target_max_block_size = None  # a block keeps its rows, however large it is
        context.enable_progress_bars = False
        if self._transform is not None:
            # Which may cut the rows into other blocks.
            rows = self._transform(rows).repartition(
                target_num_rows_per_block=layout.rows_per_block, strict=True
            )
        shards: list[ray.data.DataIterator] = rows.streaming_split(
            layout.dealing.ranks, equal=False
        )
        return shards
