"""Files with the parts of sharded tensors: each rank writes `shard-<rank>.pt` and `.json`.

The first has tensors by key, as `torch.save` writes them, and is read without executing code from
it (`weights_only`). The second says which part of which tensor each of them is. Both come from a
bucket, so what they say is compared before anything is copied.
"""

import math
import mmap
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from trainingrun.api.base import Wire

from .fetching import SHARDS
from .restored_files import RestoredFiles
from .sharded_state import Part

_NAME = re.compile(SHARDS + r"(0|[1-9][0-9]{0,6})\.json")
LARGEST_INDEX = 2**26
"""Bytes of a file that says what is in another one; a larger one is not read."""
LARGEST_GRID = 2**24
"""Cells into which the edges of a tensor's parts may divide it."""

_Length = Annotated[int, Field(ge=0, lt=2**62)]


class DamagedShards(ValueError):
    """The files of a sharded state do not hold what they have to; a sentence says what is wrong."""


@dataclass(frozen=True)
class SavedPart:
    """One part of a tensor in a file."""

    shape: tuple[_Length, ...]
    """Of the whole tensor."""
    dtype: str
    """Such as `float32`."""
    offsets: tuple[_Length, ...]
    """Where the part begins in the whole tensor."""
    sizes: tuple[Annotated[_Length, Field(gt=0)], ...]
    """Of the part; a rank that has no element of a tensor saves none of it."""

    @property
    def kind(self) -> torch.dtype | None:
        """The type; none: PyTorch has no such type."""
        found = getattr(torch, self.dtype, None)
        return found if isinstance(found, torch.dtype) else None


class ShardIndex(Wire):
    """What is in one rank's file of tensors."""

    version: Literal[1] = 1
    """Of this format. A newer one is refused."""
    parts: dict[str, SavedPart]
    """By the tensors' keys."""


class Source(NamedTuple):
    """A part of a tensor, and the file that has it."""

    part: SavedPart
    rank: int


def shard_file(rank: int) -> str:
    """Name of the file with the parts that one rank has saved."""
    return f"{SHARDS}{rank}.pt"


def index_file(rank: int) -> str:
    """Name of the file that says what they are."""
    return f"{SHARDS}{rank}.json"


def contents(
    parts: Mapping[str, Part], rank: int, placed: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    """This rank's files, by name.

    Args:
        parts: what it saves.
        rank: of this process.
        placed: gives each part a place in host memory.
    """
    index = ShardIndex(
        parts={
            key: SavedPart(
                part.shape,
                str(part.local.dtype).removeprefix("torch."),
                part.offsets,
                tuple(part.local.shape),
            )
            for key, part in parts.items()
        }
    )
    copies = {key: placed(part.local) for key, part in parts.items()}
    return {shard_file(rank): copies, index_file(rank): index.model_dump_json().encode()}


def loaded(file: Path) -> Any:
    """What a file holds; its tensors are not in memory until they are read, and keep the file.

    Whoever changes them has a copy of its own: several ranks may map one file.
    """
    with torch.serialization.set_default_mmap_options(mmap.MAP_PRIVATE):
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)


def opened(files: RestoredFiles, name: str) -> Any:
    """What a file of the checkpoint holds, see `loaded`.

    Raises:
        DamagedShards: it cannot be read.
    """
    path = files.path(name)
    try:
        return loaded(path)
    except Exception as error:
        line = str(error).partition("\n")[0]
        raise DamagedShards(f"{name} cannot be read: {line}") from error


def sources_in(files: RestoredFiles) -> dict[str, list[Source]]:
    """All parts in a checkpoint, by the tensors' keys.

    Raises:
        DamagedShards: a file cannot be read, or says what cannot be.
    """
    found: dict[str, dict[SavedPart, Source]] = {}
    names = set(files.names())
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        rank = int(match[1])
        if shard_file(rank) not in names:
            raise DamagedShards(f"the checkpoint has {name} and no {shard_file(rank)}")
        for key, part in _index(files.path(name)).parts.items():
            # Two ranks may have saved the same part; one of them is enough.
            found.setdefault(key, {}).setdefault(part, Source(part, rank))
    sources = {key: list(parts.values()) for key, parts in found.items()}
    for key, several in sources.items():
        _require_one_tensor(key, several)
    return sources


def _index(file: Path) -> ShardIndex:
    if file.stat().st_size > LARGEST_INDEX:
        raise DamagedShards(f"{file.name} has {file.stat().st_size} bytes, more than it may have")
    try:
        return ShardIndex.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = ".".join([*(str(part) for part in first["loc"]), str(first["msg"])])
        raise DamagedShards(f"{file.name} cannot be read: {reason}") from None


def _require_one_tensor(key: str, several: list[Source]) -> None:
    """Make sure that the parts are of one tensor and inside it."""
    first = several[0].part
    for part, rank in several:
        if (part.shape, part.dtype) != (first.shape, first.dtype):
            raise DamagedShards(
                f"{index_file(rank)} has a {key} of shape {part.shape} and type {part.dtype}, and "
                f"another rank's file one of {first.shape} and {first.dtype}"
            )
        inside = len(part.shape) == len(part.offsets) == len(part.sizes) and all(
            begin + size <= whole
            for begin, size, whole in zip(part.offsets, part.sizes, part.shape, strict=True)
        )
        if not inside:
            raise DamagedShards(
                f"{index_file(rank)} has a part of {key} at {part.offsets} of size {part.sizes}, "
                f"outside of its shape {part.shape}"
            )


def require_whole(key: str, several: list[Source]) -> None:
    """Make sure that the parts make up the whole tensor, each element once.

    Raises:
        DamagedShards: they do not.
    """
    parts = [source.part for source in several]
    shape = parts[0].shape
    # The parts' edges divide the tensor into cells; each cell has to be in exactly one part.
    edges: list[dict[int, int]] = []
    for d, whole in enumerate(shape):
        ends = {p.offsets[d] + p.sizes[d] for p in parts}
        numbers = sorted({0, whole, *ends, *(p.offsets[d] for p in parts)})
        edges.append({number: index for index, number in enumerate(numbers)})
    cells = [len(each) - 1 for each in edges]
    if math.prod(cells) > LARGEST_GRID:
        raise DamagedShards(f"the parts of {key} are not arranged in a grid")
    covered = torch.zeros(cells, dtype=torch.int32, device="cpu")
    for part in parts:
        covered[
            tuple(
                slice(each[begin], each[begin + size])
                for each, begin, size in zip(edges, part.offsets, part.sizes, strict=True)
            )
        ] += 1
    if bool((covered == 0).any()):
        files = ", ".join(shard_file(rank) for rank in sorted({source.rank for source in several}))
        raise DamagedShards(
            f"a part of {key}, of shape {shape}, is missing in the checkpoint; the others are in "
            f"{files}"
        )
    if bool((covered > 1).any()):
        raise DamagedShards(f"a part of {key}, of shape {shape}, is there twice")


class ShardFiles:
    """The files of tensors in a checkpoint; only those that are needed are fetched."""

    def __init__(self, files: RestoredFiles) -> None:
        self._files = files
        self._opened: dict[int, Mapping[str, Any]] = {}

    def tensor(self, key: str, source: Source) -> torch.Tensor:
        """A part of a tensor, not in memory until it is read.

        Raises:
            DamagedShards: the file cannot be read, or holds something else.
        """
        found: Any = self._open(source.rank).get(key)
        part = source.part
        if (
            type(found) is not torch.Tensor
            or found.layout is not torch.strided
            or tuple(found.shape) != part.sizes
            or found.dtype is not part.kind
        ):
            raise DamagedShards(
                f"{shard_file(source.rank)} does not hold the part of {key} that "
                f"{index_file(source.rank)} says"
            )
        return found

    def _open(self, rank: int) -> Mapping[str, Any]:
        if rank not in self._opened:
            name = shard_file(rank)
            found = opened(self._files, name)
            if not isinstance(found, dict):
                raise DamagedShards(f"{name} holds a {type(found).__name__} instead of tensors")
            self._opened[rank] = found
        return self._opened[rank]
