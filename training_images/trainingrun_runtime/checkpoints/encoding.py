"""States in a form that is read back without executing code from the checkpoint.

Unpickling an object from a bucket executes the code in it. `torch.load(weights_only=True)` does
not, but supports few types. Other types are written as tagged dicts and restored from a closed
list of types. A type that is not on the list is refused when it is saved, so the error is raised at
the first step.
"""

import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import torch

TAG = "__trainingrun__"
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_KEYS = (type(None), bool, int, float, str, bytes)
_TEXTS: dict[str, tuple[type, Callable[[str], Any]]] = {
    "date": (date, date.fromisoformat),
    "decimal": (Decimal, Decimal),
    "fraction": (Fraction, Fraction),
    "uuid": (UUID, UUID),
    "pure path": (PurePosixPath, PurePosixPath),
}
"""Types whose text says it all, by tag."""
_FACTORIES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set)}
_SEQUENCES: dict[str, Any] = {
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
    "bytearray": lambda parts: bytearray(parts[0]),
}


class NotSavable(TypeError):
    """A state holds something that no checkpoint can hold."""


def encode(value: Any, where: str) -> Any:
    """`value` from plain types and tagged dicts; tensors stay what they are, not copied.

    Args:
        value: a state.
        where: what to call it in an error.

    Raises:
        NotSavable: with one sentence that names what cannot be saved, and where it is.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value, where)
    if kind is list:
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if kind is tuple:
        return tuple(encode(item, f"{where}[{i}]") for i, item in enumerate(value))
    if kind is dict:
        return _mapping(value, where)
    encoded = _container(value, kind, where)
    if encoded is None:
        encoded = _leaf(value, kind)
    if encoded is None:
        raise NotSavable(
            f"{where} is {_a_name(kind)}, which a checkpoint cannot hold safely; let state_dict() "
            "return numbers, text, lists, dicts, arrays and tensors instead"
        )
    return encoded


def decode(value: Any) -> Any:
    """What `encode` was given.

    Raises:
        ValueError: a tag that this version does not have.
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
    if value.is_meta:
        raise NotSavable(f"{where} is a tensor without values (device meta); materialize it first")
    return value.detach()


def _mapping(value: Mapping[Any, Any], where: str) -> Any:
    items = {key: encode(item, f"{where}[{key!r}]") for key, item in value.items()}
    if TAG not in items and all(type(key) in _KEYS for key in items):
        return items
    pairs = [(encode(key, f"a key of {where}"), item) for key, item in items.items()]
    return {TAG: "dict", "pairs": pairs}


def _container(value: Any, kind: type, where: str) -> dict[str, Any] | None:
    """A tagged collection; None: it is none."""
    if kind is OrderedDict:
        metadata = encode(getattr(value, "_metadata", None), f"the metadata of {where}")
        return {TAG: "ordered", "items": _mapping(value, where), "metadata": metadata}
    if kind is Counter:
        return {TAG: "counter", "items": _mapping(value, where)}
    if kind is defaultdict:
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and _FACTORIES.get(name) is not factory:
            raise NotSavable(
                f"{where} is a defaultdict of {factory!r}, which a checkpoint cannot hold; "
                "let state_dict() return a dict"
            )
        return {TAG: "defaultdict", "factory": name, "items": _mapping(value, where)}
    if kind is deque:
        items = [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return {TAG: "deque", "items": items, "maxlen": value.maxlen}
    if kind in (set, frozenset):
        # In an order of its own: that of a set differs from process to process.
        items = [encode(item, f"an item of {where}") for item in sorted(value, key=repr)]
        return {TAG: kind.__name__, "items": items}
    if kind is torch.Size:
        return {TAG: "size", "items": [int(n) for n in value]}
    if kind is range:
        return {TAG: "range", "items": [value.start, value.stop, value.step]}
    if kind is slice:
        parts = [encode(part, where) for part in (value.start, value.stop, value.step)]
        return {TAG: "slice", "items": parts}
    if kind is bytearray:
        return {TAG: "bytearray", "items": [bytes(value)]}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        items = [encode(item, f"{where}.{f}") for f, item in zip(kind._fields, value, strict=True)]
        fields = list(kind._fields)
        return {
            TAG: "namedtuple",
            "module": kind.__module__,
            "name": kind.__qualname__,
            "fields": fields,
            "items": items,
        }
    return None


def _leaf(value: Any, kind: type) -> dict[str, Any] | None:
    """A tagged single value; None: of no known type."""
    if kind is np.ndarray and not value.dtype.hasobject:
        flat = np.frombuffer(np.ascontiguousarray(value).tobytes(), dtype=np.uint8)
        return {
            TAG: "array",
            "dtype": _dtype_text(value.dtype),
            "shape": list(value.shape),
            "bytes": torch.from_numpy(flat.copy()),
        }
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {TAG: "scalar", "dtype": _dtype_text(value.dtype), "bytes": value.tobytes()}
    if isinstance(value, np.dtype) and not value.hasobject:
        return {TAG: "numpy dtype", "text": _dtype_text(value)}
    if kind is torch.dtype:
        return {TAG: "dtype", "text": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {TAG: "device", "text": str(value)}
    if kind in (datetime, time):
        return _moment(value, kind)
    if kind is timedelta:
        return {TAG: "timedelta", "parts": [value.days, value.seconds, value.microseconds]}
    if kind in (type(Path()), Path):
        return {TAG: "path", "text": str(value)}
    for tag, (text_kind, _) in _TEXTS.items():
        if kind is text_kind:
            return {TAG: tag, "text": str(value)}
    return None


def _moment(value: Any, kind: type) -> dict[str, Any] | None:
    zone = value.tzinfo
    name = zone.key if isinstance(zone, ZoneInfo) else None
    if zone is not None and name is None and type(zone).__module__ != "datetime":
        return None
    text = value.replace(tzinfo=None).isoformat() if name else value.isoformat()
    return {TAG: kind.__name__, "text": text, "zone": name, "fold": value.fold}


def _decode_tagged(tag: str, value: Mapping[str, Any]) -> Any:
    if tag in _TEXTS:
        return _TEXTS[tag][1](value["text"])
    if tag in _SEQUENCES:
        return _SEQUENCES[tag]([decode(item) for item in value["items"]])
    if tag in _DECODERS:
        return _DECODERS[tag](value)
    raise ValueError(
        f"the checkpoint holds a {tag!r}, which this version of trainingrun does not know; resume "
        "with the version that wrote it"
    )


def _ordered(value: Mapping[str, Any]) -> Any:
    found = OrderedDict(decode(value["items"]))
    if value["metadata"] is not None:
        found._metadata = decode(value["metadata"])  # type: ignore[attr-defined]
    return found


def _array(value: Mapping[str, Any]) -> Any:
    content = value["bytes"].numpy().tobytes()
    return np.frombuffer(content, _dtype(value["dtype"])).reshape(value["shape"]).copy()


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


def _moment_of(kind: Any) -> Callable[[Mapping[str, Any]], Any]:
    def made(value: Mapping[str, Any]) -> Any:
        moment = kind.fromisoformat(value["text"]).replace(fold=value["fold"])
        return moment.replace(tzinfo=ZoneInfo(value["zone"])) if value["zone"] else moment

    return made


def _dtype_of_torch(value: Mapping[str, Any]) -> torch.dtype:
    found = getattr(torch, value["text"], None)
    if not isinstance(found, torch.dtype):
        raise ValueError(
            f"the checkpoint names torch.{value['text']}, which is no dtype of PyTorch"
        )
    return found


_DECODERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "dict": lambda value: {decode(key): decode(item) for key, item in value["pairs"]},
    "ordered": _ordered,
    "counter": lambda value: Counter(decode(value["items"])),
    "defaultdict": lambda value: defaultdict(
        _FACTORIES[value["factory"]] if value["factory"] else None, decode(value["items"])
    ),
    "deque": lambda value: deque((decode(i) for i in value["items"]), value["maxlen"]),
    "namedtuple": _named,
    "array": _array,
    "scalar": lambda value: np.frombuffer(value["bytes"], _dtype(value["dtype"]))[0],
    "numpy dtype": lambda value: _dtype(value["text"]),
    "dtype": _dtype_of_torch,
    "device": lambda value: torch.device(value["text"]),
    "datetime": _moment_of(datetime),
    "time": _moment_of(time),
    "timedelta": lambda value: timedelta(*value["parts"]),
    "path": lambda value: Path(value["text"]),
}


def _dtype_text(dtype: Any) -> Any:
    """A dtype as NumPy's own description of it, which keeps the names of fields."""
    if dtype.names is None:
        return dtype.str
    return [(name, _dtype_text(dtype[name].base), list(dtype[name].shape)) for name in dtype.names]


def _dtype(text: Any) -> Any:
    if isinstance(text, str):
        return np.dtype(text)
    return np.dtype([(name, _dtype(part), tuple(shape)) for name, part, shape in text])


def _a_name(kind: type) -> str:
    return f"a {kind.__module__}.{kind.__qualname__}".replace("a builtins.", "a ")


assert issubclass(type(Path()), PurePath)  # noqa: S101 - Path() is of the system's own class
