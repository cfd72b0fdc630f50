"""States in a form that is read back without executing code from the checkpoint.

Unpickling an object from a bucket executes the code in it. `torch.load(weights_only=True)` does
not, but supports few types. Other types are written as tagged dicts and restored from a closed
list of types. A type that is not on the list is refused when it is saved, so the error is raised at
the first step.
"""

import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import torch

TAG = "__trainingrun__"
OPAQUE = ("array",)
"""Tags of values that are kept as bytes in a tensor of their own."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_KEYS = (type(None), bool, int, float, str, bytes)
_MADE: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (date, datetime, time, timedelta, timezone, Decimal, Fraction, range, slice, bytearray),
        lambda value: value.__reduce_ex__(4)[1],  # as pickle would make them
    ),
    **dict.fromkeys((type(Path()), PurePosixPath, UUID), lambda value: (str(value),)),
    ZoneInfo: lambda value: (value.key,),
}
"""Types of which the same value is made from a few arguments, and which these are."""
_MAKERS = {kind.__name__: kind for kind in _MADE}
_FACTORIES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set)}
_SEQUENCES: dict[str, Any] = {
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}

_DEPTH = 100
"""Containers within each other. What reads them calls itself for each."""
_MANY = 1_000
"""Numbers from which on a list of them is written as bytes: one by one they take seconds."""
_LARGEST_INT = 2_000
"""Bits of a number; of larger ones PyTorch's reader without code knows none."""
_NUMBERS = {float: "d", int: "q", bool: "b"}
"""Types of numbers in a list, and how `array` keeps them."""
_TYPES_OF_NUMBERS = {code: kind for kind, code in _NUMBERS.items()}
_LISTS = {"list": list, "tuple": tuple}
_LAYOUTS = (
    torch.strided,
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)
_SHOWN = 200
"""Characters of a place that an error names."""


class NotSavable(TypeError):
    """A state holds something that no checkpoint can hold."""


class UnknownForm(ValueError):
    """A checkpoint holds what a later version has written: it is not damaged."""


def unknown(what: str, of: str = "trainingrun") -> UnknownForm:
    """The error to raise, with one sentence.

    Args:
        what: the checkpoint holds.
        of: what has a version that is too old.
    """
    return UnknownForm(
        f"the checkpoint holds {what}, which this version of {of} does not know; resume with the "
        "version that wrote it"
    )


def encode(value: Any, where: str) -> Any:
    """`value` from plain types and tagged dicts; tensors stay what they are, not copied.

    Args:
        value: a state.
        where: what to call it in an error.

    Raises:
        NotSavable: with one sentence that names what cannot be saved, and where it is.
    """
    return _encode(value, where, _DEPTH)


def _encode(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if kind is int and value.bit_length() > _LARGEST_INT:
        return {TAG: "int", "text": hex(value)}
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value, where)
    if depth == 0:
        raise NotSavable(
            f"{where[:_SHOWN]}… is nested in more than {_DEPTH} containers; let state_dict() "
            "return a flat list or dict"
        )
    if kind in (list, tuple):
        if len(value) >= _MANY and (numbers := _numbers(value, kind)) is not None:
            return numbers
        items = [_encode(item, f"{where}[{i}]", depth - 1) for i, item in enumerate(value)]
        return items if kind is list else tuple(items)
    if kind is dict:
        return _mapping(value, where, depth)
    encoded = _container(value, kind, where, depth)
    if encoded is None:
        encoded = _leaf(value, kind, where, depth)
    if encoded is None:
        raise NotSavable(
            f"{where} is {_a_name(kind)}, which a checkpoint cannot hold safely; let state_dict() "
            "return numbers, text, lists, dicts, arrays and tensors instead"
        )
    return encoded


def _numbers(value: Any, kind: type) -> dict[str, Any] | None:
    """A list or tuple of numbers of one type as their bytes; None: it is none."""
    types = set(map(type, value))
    code = _NUMBERS.get(types.pop()) if len(types) == 1 else None
    if code is None:
        return None
    try:
        content = array(code, value).tobytes()
        return {TAG: "numbers", "of": kind.__name__, "as": code, "bytes": content}
    except OverflowError:  # of more than 64 bits
        return None


def decode(value: Any) -> Any:
    """What `encode` was given.

    Raises:
        UnknownForm: it holds what this version does not know.
    """
    kind = type(value)
    if kind is list:
        return [decode(item) for item in value]
    if kind is tuple:
        return tuple(decode(item) for item in value)
    if kind is not dict:
        return value
    if TAG not in value:
        return {key: decode(item) for key, item in value.items()}
    return _decode_tagged(value[TAG], value)


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors in what `encode` returned."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(item)


def _tensor(value: torch.Tensor, where: str) -> torch.Tensor:
    kind = type(value)
    if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
        raise NotSavable(
            f"{where} has no values yet, since its layer is a lazy one; give the model a batch "
            "before the session is made"
        )
    sharded = any(base.__name__ == "DTensor" for base in kind.__mro__)
    if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not sharded:
        raise NotSavable(
            f"{where} is {_a_name(kind)}, a kind of tensor that a session cannot save whole; let "
            "state_dict() return plain tensors"
        )
    unusual = (
        "a nested tensor" if value.is_nested
        else "a quantized tensor" if value.is_quantized
        else "a conjugate view of a tensor" if value.is_conj()
        else "a negated view of a tensor" if value.is_neg()
        else f"a tensor of layout {value.layout}" if value.layout not in _LAYOUTS
        else None
    )  # fmt: skip
    if unusual is not None:
        raise NotSavable(
            f"{where} is {unusual}, which a session cannot save; let state_dict() return a plain "
            "tensor, as dequantize(), resolve_conj(), resolve_neg() and to_dense() make them"
        )
    if value.is_meta:
        raise NotSavable(f"{where} is a tensor without values (device meta); materialize it first")
    return value.detach()


def _mapping(value: Mapping[Any, Any], where: str, depth: int) -> Any:
    items = {key: _encode(item, f"{where}[{key!r}]", depth - 1) for key, item in value.items()}
    keys = {key: _encode(key, f"a key of {where}", depth - 1) for key in items}
    if TAG not in items and all(type(key) in _KEYS for key in keys.values()):
        return items
    pairs = [(keys[key], item) for key, item in items.items()]
    return {TAG: "dict", "pairs": pairs}


def _container(value: Any, kind: type, where: str, depth: int) -> dict[str, Any] | None:
    """A tagged collection; None: it is none."""
    if kind is OrderedDict:
        metadata = _encode(getattr(value, "_metadata", None), f"the metadata of {where}", depth - 1)
        return {TAG: "ordered", "items": _mapping(value, where, depth), "metadata": metadata}
    if kind is Counter:
        return {TAG: "counter", "items": _mapping(value, where, depth)}
    if kind is defaultdict:
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and _FACTORIES.get(name) is not factory:
            raise NotSavable(
                f"{where} is a defaultdict of {factory!r}, which a checkpoint cannot hold; "
                "let state_dict() return a dict"
            )
        return {TAG: "defaultdict", "factory": name, "items": _mapping(value, where, depth)}
    if kind is deque:
        items = [_encode(item, f"{where}[{i}]", depth - 1) for i, item in enumerate(value)]
        return {TAG: "deque", "items": items, "maxlen": value.maxlen}
    if kind in (set, frozenset):
        # In an order of its own: that of a set differs from process to process.
        items = [
            _encode(item, f"an item of {where}", depth - 1) for item in sorted(value, key=repr)
        ]
        return {TAG: kind.__name__, "items": items}
    if kind is torch.Size:
        return {TAG: "size", "items": [int(n) for n in value]}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        items = [
            _encode(item, f"{where}.{f}", depth - 1)
            for f, item in zip(kind._fields, value, strict=True)
        ]
        named = {"module": kind.__module__, "name": kind.__qualname__, "fields": list(kind._fields)}
        return {TAG: "namedtuple", **named, "items": items}
    return None


def _leaf(value: Any, kind: type, where: str, depth: int) -> dict[str, Any] | None:
    """A tagged single value; None: of no known type."""
    if kind in _MADE and getattr(value, "key", "") is not None:  # a zone of a file has no name
        arguments = _encode(_MADE[kind](value), where, depth - 1)
        return {TAG: "made", "type": kind.__name__, "arguments": arguments}
    if kind is np.ndarray and not value.dtype.hasobject:
        flat = np.frombuffer(np.ascontiguousarray(value).tobytes(), dtype=np.uint8)
        return {
            TAG: "array",
            "dtype": _dtype_text(value.dtype, where),
            "shape": list(value.shape),
            "bytes": torch.from_numpy(flat.copy()),
        }
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {TAG: "scalar", "dtype": _dtype_text(value.dtype, where), "bytes": value.tobytes()}
    if isinstance(value, np.dtype) and not value.hasobject:
        return {TAG: "numpy dtype", "text": _dtype_text(value, where)}
    if kind is torch.dtype:
        return {TAG: "dtype", "text": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {TAG: "device", "text": str(value)}
    return None


def _decode_tagged(tag: str, value: Mapping[str, Any]) -> Any:
    if tag in _SEQUENCES:
        return _SEQUENCES[tag]([decode(item) for item in value["items"]])
    if tag in _DECODERS:
        return _DECODERS[tag](value)
    raise unknown(f"a {tag!r}")


def _known(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise unknown(f"{what}{name!r}")
    return table[name]


def _ordered(value: Mapping[str, Any]) -> Any:
    found = OrderedDict(decode(value["items"]))
    if value["metadata"] is not None:
        found._metadata = decode(value["metadata"])  # type: ignore[attr-defined]
    return found


def _array(value: Mapping[str, Any]) -> Any:
    content = value["bytes"].numpy().tobytes()
    return np.frombuffer(content, _saved_dtype(value["dtype"])).reshape(value["shape"]).copy()


def _named(value: Mapping[str, Any]) -> Any:
    """The class is taken where this process has loaded it; nothing is imported for it."""
    found: Any = sys.modules.get(value["module"])
    for part in value["name"].split("."):
        found = getattr(found, part, None)
    fields = tuple(value["fields"])
    if not (isinstance(found, type) and issubclass(found, tuple)):
        found = None
    if getattr(found, "_fields", None) != fields:
        name = value["name"].rpartition(".")[2]
        found = namedtuple(name, fields, rename=True)  # type: ignore[misc,no-redef]
    return tuple.__new__(found, [decode(item) for item in value["items"]])


def _decode_numbers(value: Mapping[str, Any]) -> Any:
    kind = _known(_TYPES_OF_NUMBERS, value["as"], "numbers of the type ")
    numbers = array(value["as"], value["bytes"])
    whole = map(bool, numbers) if kind is bool else numbers
    return _known(_LISTS, value["of"], "numbers in a ")(whole)


def _dtype_of_torch(value: Mapping[str, Any]) -> torch.dtype:
    found = getattr(torch, value["text"], None)
    if not isinstance(found, torch.dtype):
        raise unknown(f"torch.{value['text']}", "PyTorch")
    return found


def _device(value: Mapping[str, Any]) -> torch.device:
    try:
        return torch.device(value["text"])
    except RuntimeError:
        raise unknown(f"the device {value['text']!r}", "PyTorch") from None


def _defaultdict(value: Mapping[str, Any]) -> Any:
    name = value["factory"]
    factory = _known(_FACTORIES, name, "a defaultdict of ") if name else None
    return defaultdict(factory, decode(value["items"]))


def _made(value: Mapping[str, Any]) -> Any:
    arguments = decode(value["arguments"])
    try:
        return _known(_MAKERS, value["type"], "a ")(*arguments)
    except ZoneInfoNotFoundError:
        raise unknown(f"the time zone {arguments[0]!r}", "Python") from None


_DECODERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "int": lambda value: int(value["text"], 16),
    "numbers": _decode_numbers,
    "dict": lambda value: {decode(key): decode(item) for key, item in value["pairs"]},
    "ordered": _ordered,
    "counter": lambda value: Counter(decode(value["items"])),
    "defaultdict": _defaultdict,
    "deque": lambda value: deque((decode(i) for i in value["items"]), value["maxlen"]),
    "namedtuple": _named,
    "array": _array,
    "scalar": lambda value: np.frombuffer(value["bytes"], _saved_dtype(value["dtype"]))[0],
    "numpy dtype": lambda value: _saved_dtype(value["text"]),
    "dtype": _dtype_of_torch,
    "device": _device,
    "made": _made,
}


def _dtype_text(dtype: Any, where: str) -> Any:
    """A dtype as NumPy's own description of it, which keeps names, places and sizes of fields.

    Raises:
        NotSavable: NumPy does not make the same one of it again.
    """
    text = _described_dtype(dtype)
    if _dtype(text) != dtype:
        raise NotSavable(
            f"{where} is of NumPy's dtype {dtype!r}, which a checkpoint cannot hold; let "
            "state_dict() return an array of a simpler one"
        )
    return text


def _described_dtype(dtype: Any) -> Any:
    if dtype.names is None:
        return (
            dtype.str
            if dtype.subdtype is None
            else [_described_dtype(dtype.base), list(dtype.shape)]
        )
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_described_dtype(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _saved_dtype(text: Any) -> Any:
    try:
        return _dtype(text)
    except TypeError:
        raise unknown(f"NumPy's dtype {text!r}", "NumPy") from None


def _dtype(text: Any) -> Any:
    if isinstance(text, str):
        return np.dtype(text)
    if isinstance(text, list):
        part, shape = text
        return np.dtype((_dtype(part), tuple(shape)))
    formats = [_dtype(part) for part in text["formats"]]
    described: Any = {**text, "formats": formats}
    return np.dtype(described)


def _a_name(kind: type) -> str:
    return f"a {kind.__module__}.{kind.__qualname__}".replace("a builtins.", "a ")
