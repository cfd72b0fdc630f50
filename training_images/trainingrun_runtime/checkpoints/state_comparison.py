"""How the ranks' states differ: what one of them saves for all, and what each saves for itself.

The ranks exchange digests, a few numbers for each object, and never the states. All of a state is
digested, in some 40 ms of CPU for 100 MB: ranks whose states differ in a single element save one
each.

What all ranks hold alike, every rank could save. So each copies, digests and uploads some of the
tensors of a large state, about as many bytes as the others, into its `state-<rank>.safetensors`,
and `session.pt` says in whose file each of them is. Which rank saves which tensor follows from
their sizes, which are the same on all ranks.
"""

import hashlib
import heapq
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from . import sharded_state, tensor_files
from .sharded_state import Encoded, described, taken_out
from .tensor_files import STATE_TENSORS, Part

_WORDS = 127
"""64-bit words in a row; a row is digested to one word."""
_WEIGHTS = np.frombuffer(hashlib.shake_128(b"weights").digest(8 * _WORDS), np.uint64) | np.uint64(1)
"""Of the words of a row: so their order counts."""
_MIX = 29
"""Bits by which a word is moved before it is added to itself: no multiple of a number's size, so
that changes of two numbers in a word do not cancel out."""
_ROWS = 256
"""Rows that are read at once: they fit into a processor's cache."""
_ROWS_OF_DEVICE = 2**15
"""The same on an accelerator, which needs as much more memory: 33 MB, three times."""
LEAST = 2**16
"""Bytes of a tensor up to which rank 0 saves it."""
LEAST_FILE = 2**24
"""Bytes that are worth a file of their own."""


def fingerprint(state: Any) -> int:
    """63 bits that say what an encoded state (`encoding.encode`) holds."""
    digest = hashlib.blake2b(digest_size=8)
    _add(digest, state)
    return int.from_bytes(digest.digest(), "big") >> 1


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        digest.update(_content(value))
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)};".encode())
        for key, item in value.items():
            digest.update(repr(key).encode())
            _add(digest, item)
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__} {len(value)};".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, bytes):
        digest.update(f"bytes {len(value)};".encode())
        digest.update(value)
    else:
        digest.update(f"{type(value).__name__} {value!r};".encode())


def _content(value: torch.Tensor) -> bytes:
    """Bytes that are others where the tensor has another content, and much fewer."""
    if value.layout is not torch.strided or value.is_quantized:
        file = io.BytesIO()
        torch.save(value, file)
        return file.getvalue()
    if value.is_cpu and value.nbytes < 8 * _WORDS:  # as `rest` below: there may be many of them
        return bytes(value.contiguous().view(-1).view(torch.uint8).numpy())
    flat = value.contiguous().reshape(-1)
    if flat.storage_offset() * flat.element_size() % 8:
        flat = flat.clone()  # words have to begin where a word can
    content = flat.view(torch.uint8)
    whole = len(content) // (8 * _WORDS) * (8 * _WORDS)
    rest = bytes(content[whole:].cpu().numpy())
    if not whole:
        return rest
    rows = content[:whole].view(torch.int64).reshape(-1, _WORDS)
    sums = _sums(rows.numpy()) if rows.device.type == "cpu" else sums_of_device(rows)
    return bytes(sums.tobytes() + rest)


def _sums(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The weighted sum of each row's words: some twenty times as fast as a digest of all of it.

    A word's upper bits are mixed into its lower ones first: the sum loses what overflows, and two
    changes of highest bits, such as signs, would cancel out.
    """
    words, by = rows.view(np.uint64), np.uint64(_MIX)
    sums = np.empty(len(words), np.uint64)
    mixed = np.empty((min(_ROWS, len(words)), _WORDS), np.uint64)
    for begin in range(0, len(words), _ROWS):
        some = words[begin : begin + _ROWS]
        into = mixed[: len(some)]
        np.right_shift(some, by, out=into)
        np.bitwise_xor(into, some, out=into)
        np.matmul(into, _WEIGHTS, out=sums[begin : begin + _ROWS])
    return sums


def sums_of_device(rows: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same where the rows are: copying them to the host would take far longer."""
    weights = torch.from_numpy(_WEIGHTS.view(np.int64)).to(rows.device)
    sums = []
    for some in rows.split(_ROWS_OF_DEVICE):
        mixed = (some >> _MIX).bitwise_and_(2 ** (64 - _MIX) - 1).bitwise_xor_(some)
        sums.append(mixed.mul_(weights).sum(1))
    found: np.ndarray[Any, Any] = torch.cat(sums).cpu().numpy()
    return found


class Fingerprints(NamedTuple):
    """Short digests of a state."""

    common: int
    """Of what should be the same on all ranks."""
    layout: int
    """Which parts this rank has of tensors that are on some ranks alone."""
    copies: int
    """Of the content of these parts: ranks of one layout should have the same."""
    replicated_layout: int
    """Which parts this rank has of tensors of all ranks that are on several of them."""
    replicas: int
    """Of the content of these."""


class Comparison(NamedTuple):
    """How the ranks' states differ."""

    own: set[str]
    """Names of the objects whose state is not the same on every rank."""
    same_parts: Mapping[str, Sequence[int]]
    """Ranks whose `Fingerprints.layout` is this rank's, by the object's name."""
    buffers: Mapping[str, Collection[str]] = MappingProxyType({})
    """Places of the buffers that rank 0 decides, by the model's name."""


def compare(
    names: Sequence[str],
    ranks: Sequence[Sequence[int]],
    rank: int,
    buffers: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Comparison:
    """Compare all ranks' fingerprints.

    Args:
        names: of the objects.
        ranks: of each rank, for each object, the numbers of its `Fingerprints`.
        rank: of this process.
        buffers: see `Comparison`.
    """
    own, same_parts, size = set(), {}, len(Fingerprints._fields)
    for index, name in enumerate(names):
        every = [Fingerprints(*numbers[size * index : size * (index + 1)]) for numbers in ranks]
        if (
            len({one.common for one in every}) > 1
            or _differ((one.layout, one.copies) for one in every)
            or _differ((one.replicated_layout, one.replicas) for one in every)
        ):
            own.add(name)
        same_parts[name] = [r for r, one in enumerate(every) if one.layout == every[rank].layout]
    return Comparison(own, same_parts, buffers)


def _differ(contents: Iterable[tuple[int, int]]) -> bool:
    """Whether a layout has more than one content."""
    found: dict[int, int] = {}
    return any(found.setdefault(layout, content) != content for layout, content in contents)


def fingerprints(
    states: Mapping[str, Encoded],
    buffers: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> dict[str, Fingerprints]:
    """Short digests of each state.

    Args:
        states: encoded, by name.
        buffers: see `Comparison`; of those models the other tensors alone are compared.
    """
    found = {}
    for name, state in states.items():
        some, replicas = sharded_state.parts_of_some(state), sharded_state.replicas(state)
        common = state.tree
        if name in buffers:
            common = _without(state.tree, name, buffers[name])
        found[name] = Fingerprints(
            common=fingerprint([state.notes, common]),
            layout=_layout(some),
            copies=fingerprint([part.local for part in some.values()]),
            replicated_layout=_layout(replicas),
            replicas=fingerprint([part.local for part in replicas.values()]),
        )
    return found


def buffers_in(name: str, model: torch.nn.Module, state: Encoded) -> set[str]:
    """Places in a model's encoded state at which its buffers are.

    Found by their memory as well: `state_dict()` may name a tensor in another way than its model
    does, as with layers in PyTorch's `checkpoint_wrapper`.
    """
    named = {f"{name}.{key}" for key, _ in model.named_buffers(remove_duplicate=False)}
    memory = set(map(_memory, model.buffers())) - {None, *map(_memory, model.parameters())}
    return {
        place
        for place, value in sharded_state.entries(state.tree, name)
        if place in named or _memory(value) in memory
    }


def _memory(value: Any) -> tuple[int, torch.Size] | None:
    """Where a tensor of this process is; None: that says nothing of its content."""
    if not isinstance(value, torch.Tensor) or sharded_state.is_sharded(value):
        return None
    plain = value.layout is torch.strided and value.nbytes
    return (value.data_ptr(), value.shape) if plain else None


def _without(tree: Any, name: str, places: Collection[str]) -> dict[str, Any]:
    """The tensors and descriptions in an encoded state that are elsewhere, by place."""
    found = sharded_state.entries(tree, name)
    return {place: value for place, value in found if place not in places}


def layout(states: Mapping[str, Encoded]) -> int:
    """A digest of which parts of which tensors this rank has; 0: it holds everything whole."""
    found = [item for state in states.values() for item in sharded_state.parts(state).items()]
    return _layout(dict(found)) if found else 0


def _layout(parts: Mapping[str, Part]) -> int:
    return fingerprint({p: [*part.offsets, *part.local.shape] for p, part in parts.items()})


def divided(
    trees: Mapping[str, Any],
    buffers: Mapping[str, Collection[str]],
    ranks: int,
    leave: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> tuple[Mapping[str, Any], Mapping[int, Mapping[str, Part]]]:
    """Which rank saves which tensor; nothing is copied.

    Args:
        trees: encoded states that are the same on all ranks, by the objects' names.
        buffers: see `Comparison`.
        ranks: how many there are.
        leave: see `taken_out`.

    Returns:
        The states with descriptions of the tensors, for `session.pt`; and what each rank saves, by
        rank and by key.
    """
    saved_by = _divided(trees, buffers, ranks) if ranks > 1 else {}
    tensors: dict[int, dict[str, Part]] = {}

    def put(place: str, tensor: torch.Tensor) -> Mapping[str, Any]:
        rank = saved_by.get(place, 0)
        tensors.setdefault(rank, {})[place] = tensor_files.whole(tensor)
        return described(place, tensor, tensor_files.file_name(STATE_TENSORS, rank))

    found = {name: taken_out(tree, name, put, leave) for name, tree in trees.items()}
    return found, tensors


def _divided(
    trees: Mapping[str, Any], buffers: Mapping[str, Collection[str]], ranks: int
) -> Mapping[str, int]:
    """The rank that saves each large tensor, by place; rank 0 saves the others."""
    found = {
        place: tensor
        for name, tree in trees.items()
        for place, tensor in _movable(name, tree, buffers.get(name, ()))
    }
    files = min(ranks, sum(tensor.nbytes for tensor in found.values()) // LEAST_FILE)
    if files < 2:
        return {}
    # Over all pods, where there are more ranks than files.
    filled = [(0, number * ranks // files) for number in range(files)]
    saved_by: dict[str, int] = {}
    for place in sorted(found, key=lambda place: (-found[place].nbytes, place)):
        size, rank = heapq.heappop(filled)
        saved_by[place] = rank
        heapq.heappush(filled, (size + found[place].nbytes, rank))
    return saved_by


def _movable(name: str, tree: Any, buffers: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Large tensors that are the same on all ranks, by place."""
    for place, value in _without(tree, name, buffers).items():
        plain = isinstance(value, torch.Tensor) and tensor_files.fits(value)
        if plain and value.nbytes > LEAST:
            yield place, value
