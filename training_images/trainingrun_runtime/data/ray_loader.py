"""Batches that Ray Data loads, which a resumed training continues at the very sample."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import ray.data
import torch
from ray.exceptions import ObjectLostError, RayActorError
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.torch import get_device
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..known_errors.failure_causes import DataLost
from .position import Indices, Position, ResumableLoader, batches_from
from .ray_source import SAMPLE_INDEX, Layout, SamplesLeft

Transform = Callable[[ray.data.Dataset], ray.data.Dataset]


class ResumableRayDataLoader(ResumableLoader):
    """Has Ray Data load and transform a data set, in tasks on all nodes, ahead of the training.

    It continues where a checkpoint was made, as `ResumableDataLoader` does, also with another
    number of workers: what is left of the epoch's order is laid out anew for the ranks that are
    there, and samples that were seen are not loaded again. What counts as seen is what was handed
    out to the training. A batch is a dict of columns, and its column `sample_index` says which
    samples it has; the loader compares it with the epoch's order.

    `__getitem__` draws random numbers (PyTorch's, NumPy's and Python's) that follow from the seed,
    the epoch, the batch's place there and the rank. What `transform` draws does not repeat itself,
    unless it follows from the row.

    All ranks make it, and loop over it, alike.

    Args:
        dataset: one with `__getitem__`, which returns a dict, and `__len__`. Rank 0's is put into
            Ray's object store, so where it is large it has paths and not what the files hold.
        batch_size: samples per rank and step; see `ResumableDataLoader`.
        shuffle: whether each epoch has an order of its own.
        seed: decides order and random numbers. A restored loader has the seed, and `shuffle`, that
            it was saved with.
        transform: what Ray Data does with the rows, such as
            `lambda rows: rows.map_batches(augment)`; it returns a row for each row, in their order,
            with its `sample_index`.
        drop_last: leave out the samples at an epoch's end that do not fill every rank's batch.
        device: where the tensors of a batch are put; `auto`: this worker's device; None: the batch
            has NumPy's arrays. Columns that are no numbers stay arrays.
        prefetch_batches: batches that a rank fetches ahead.
        batches_per_block: batches that a task loads; default: as many as have 64 rows together.

    Raises:
        ValueError: there are fewer samples than ranks.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = True,
        *,
        seed: int = 0,
        transform: Transform | None = None,
        drop_last: bool = False,
        device: Any = "auto",
        prefetch_batches: int = 2,
        batches_per_block: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, shuffle, seed, drop_last, None, None)
        self._transform, self._prefetch = transform, prefetch_batches
        self._device = device
        self._per_block = batches_per_block or max(1, 64 // batch_size)
        self._dataset = dataset
        self._own: Any = None  # rank 0's handle, with which the actor ends
        self._executions: Any = None

    def _batches_from(self, position: Position) -> Iterator[Any]:
        layout = Layout(position, self._dealing, self._per_block)
        if not self._dealing.taken(position.left):
            return
        with _lost_with_a_rank():
            shard = self._shard(layout)
            rows = iter(
                shard.iter_batches(
                    batch_size=layout.rows_per_batch,
                    batch_format="numpy",
                    prefetch_batches=self._prefetch,
                )
            )
        try:
            for (batch,) in batches_from(position, self._dealing, [self._rank]):
                with _lost_with_a_rank():
                    found = next(rows, None)
                yield self._placed(_checked(found, batch.indices))
        finally:
            close = getattr(rows, "close", None)
            if close is not None:
                close()  # Ray Data loads nothing more

    def _shard(self, layout: Layout) -> ray.data.DataIterator:
        """This rank's part of an execution of Ray Data, which all ranks have together."""
        if self._executions is None:
            self._executions = self._begin_executions()
        found: ray.data.DataIterator = ray.get(
            self._executions.shard.remote(self._iteration, layout, self._rank)
        )
        return found

    def _begin_executions(self) -> Any:
        """The actor for all ranks; it is on rank 0's node and ends with rank 0's process."""
        name = f"data-{uuid.uuid4().hex}"
        if self._dealing.ranks > 1:
            name = broadcast_from_rank_zero(name)
        if self._rank == 0:
            here = NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            options = {"name": name, "num_cpus": 0, "scheduling_strategy": here}
            actor = ray.remote(Executions).options(**options)
            self._own = actor.remote([ray.put(self._dataset)], self._transform)
            ray.get(self._own.__ray_ready__.remote())
        if self._dealing.ranks > 1:
            barrier()  # the actor is there
        return ray.get_actor(name)

    def _placed(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        if self._device is None:
            return dict(rows)
        device = get_device() if self._device == "auto" else self._device
        return {name: _tensor(column, device) for name, column in rows.items()}


@contextmanager
def _lost_with_a_rank() -> Iterator[None]:
    try:
        yield
    except (RayActorError, ObjectLostError) as error:
        raise DataLost(f"the batches that Ray Data has loaded were lost: {error}") from error


def _checked(found: Mapping[str, Any] | None, wanted: Indices) -> dict[str, Any]:
    """The rows of a batch without those that fill it up.

    Raises:
        RuntimeError: the rows are not those of the samples whose turn it is.
    """
    if found is not None and SAMPLE_INDEX not in found:
        raise RuntimeError(
            f"the rows that the loader's transform returns have no column {SAMPLE_INDEX!r}, so "
            "nobody knows which samples they are; have it return that column unchanged"
        )
    rows = {name: column[: len(wanted)] for name, column in (found or {}).items()}
    if not np.array_equal(rows.get(SAMPLE_INDEX, ()), wanted):
        seen = [int(index) for index in rows.get(SAMPLE_INDEX, ())[:4]]
        raise RuntimeError(
            f"the loader's transform has returned samples {seen} where it was the turn of "
            f"{wanted[:4].tolist()}; have it return a row for each row, in their order: filter the "
            "data set before it is given to the loader"
        )
    return rows


def _tensor(column: Any, device: Any) -> Any:
    if column.dtype.kind not in "biufc":
        return column
    # Ray's arrays are views of its object store, which nobody may write to.
    own = column if column.flags.writeable else column.copy()
    return torch.as_tensor(own).to(device, non_blocking=True)


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
