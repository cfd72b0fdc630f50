"""What a state may hold comes back from a checkpoint as it was, or is refused at the first save."""

import io
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

from trainingrun_runtime.checkpoints.encoding import NotSavable, UnknownForm, decode, encode


class Point(NamedTuple):
    x: int
    y: float


Local = namedtuple("Local", "a b")


class Color(Enum):
    RED = 1


def back(value: Any) -> Any:
    """`value` as it comes out of a file in which nothing may run."""
    file = io.BytesIO()
    torch.save(encode(value, "it"), file)
    file.seek(0)
    return decode(torch.load(file, weights_only=True))


STATES = [
    None,
    True,
    3,
    2**127,
    2**2041,
    -(2**5000),
    {2**3000: 1},
    range(2**3000),
    [0.5] * 2000,
    tuple(range(2000)),
    [True, False] * 1000,
    [2**70] * 2000,
    [1, 0.5] * 1000,
    0.1,
    1j,
    "text",
    b"bytes",
    bytearray(b"bytes"),
    [1, [2]],
    (1, (2,)),
    {"a": {1: 2}},
    {(1, "x"): [3]},
    {"__trainingrun__": "a user's own key"},
    {1, 2, 3},
    frozenset({"a"}),
    OrderedDict(b=1, a=2),
    Counter("hello"),
    defaultdict(list, {"a": [1]}),
    deque([1, 2, 3], maxlen=3),
    range(2, 10, 3),
    slice(1, None),
    Point(1, 2.0),
    Local([1], {"b": 2}),
    date(2026, 1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime(2026, 1, 2, tzinfo=UTC),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    time(1, 2, 3),
    timedelta(days=1, microseconds=2),
    Path("/data/train"),
    Decimal("0.10"),
    Fraction(1, 3),
    pytest.param(Fraction(1, 10**5000), id="a long fraction"),
    PurePosixPath("data/train"),
    UUID(int=7),
    ZoneInfo("Europe/Berlin"),
    torch.Size([2, 3]),
    torch.float16,
    torch.device("cpu"),
    np.float64(0.5),
    np.int32(7),
    np.bool_(True),
    np.str_("text"),
    np.datetime64("2026-01-02"),
    np.dtype("float32"),
    np.random.default_rng(0).bit_generator.state,
]


@pytest.mark.parametrize("value", STATES, ids=lambda value: repr(value)[:60])
def test_what_a_state_holds_comes_back_as_it_was(value: Any) -> None:
    found = back(value)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, list | tuple):
        assert list(map(type, found)) == list(map(type, value)), "1, 1.0 and True are equal"


SPREAD = np.dtype(
    {"names": ["a", "b"], "formats": ["<i4", "<f8"], "offsets": [4, 16], "itemsize": 32}
)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(SPREAD, id="offsets"),
        pytest.param(np.dtype([("a", "i1"), ("b", "f8")], align=True), id="aligned"),
        pytest.param(np.dtype([("inner", SPREAD), ("matrix", "<f4", (2, 3))]), id="nested"),
        pytest.param(np.dtype("<M8[ns]"), id="moments"),
    ],
)
def test_an_array_of_any_structure_comes_back(dtype: Any) -> None:
    array = np.frombuffer(bytes(range(3 * dtype.itemsize)), dtype)
    found = back(array)
    assert found.dtype == dtype
    assert (found == array).all(), "of what is between its fields NumPy copies nothing"
    assert back(dtype) == dtype
    assert back(array[0]).dtype == dtype


def test_many_numbers_are_written_as_their_bytes() -> None:
    """One by one, a million of them stop the training for a second at each save."""
    numbers = [0.5] * 1_000_000
    encoded = encode(numbers, "it")
    assert len(encoded["bytes"]) == 8_000_000
    assert len(encoded) < 10
    assert decode(encoded) == numbers


def test_what_is_nested_in_too_many_containers_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotSavable, match=r"it\[0\].*nested in more than 100 containers") as refused:
        encode(endless, "it")
    assert len(str(refused.value)) < 400
    deep: Any = 1
    for _ in range(90):
        deep = {"in": [deep]} if isinstance(deep, dict) and len(str(deep)) % 2 else [deep]
    assert back(deep) == deep


def test_a_moment_keeps_its_zone_and_a_deque_its_limit() -> None:
    moment = back(datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1))
    assert (moment.tzinfo.key, moment.fold) == ("Europe/Berlin", 1)
    assert back(deque([1], maxlen=5)).maxlen == 5


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.arange(6, dtype=np.float64).reshape(2, 3).T,
        np.zeros((0, 4)),
        np.array(3.0),
        np.array(["a", "bc"]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8", (2,))]),
        np.array(["2026-01-02"], dtype="datetime64[D]"),
    ],
    ids=lambda a: str(a.dtype),
)
def test_an_array_comes_back_and_can_be_written(array: Any) -> None:
    found = back(array)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    found[...] = found


def test_tensors_come_back_with_every_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
        tensor = torch.arange(5).to(dtype)
        assert torch.equal(back({"t": tensor})["t"], tensor)
    assert torch.equal(back(torch.nn.Parameter(torch.ones(2))), torch.ones(2))


def test_a_models_state_keeps_its_versions() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert back(state)._metadata == state._metadata


def test_the_states_of_pytorchs_own_optimizers_and_schedulers_can_be_saved() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    schedules = torch.optim.lr_scheduler
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
        optimizer = kind([weight], lr=0.1)
        weight.grad = torch.ones(3)
        optimizer.step()
        assert str(back(optimizer.state_dict())) == str(optimizer.state_dict())
        for scheduler in (
            schedules.CosineAnnealingLR(optimizer, 10),
            schedules.OneCycleLR(optimizer, 0.1, total_steps=10, cycle_momentum=False),
            schedules.ReduceLROnPlateau(optimizer),
            schedules.MultiStepLR(optimizer, [3, 5]),
            schedules.LambdaLR(optimizer, lambda step: 0.5),
        ):
            assert back(scheduler.state_dict()) == scheduler.state_dict()


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        pytest.param(
            {"a": [lambda: 0]}, r"loader: state_dict\(\)\['a'\]\[0\] is a function", id="function"
        ),
        pytest.param({"color": Color.RED}, r"\['color'\] is a .*Color", id="enum"),
        pytest.param(
            {"rng": torch.Generator()}, r"\['rng'\] is a torch.*Generator", id="generator"
        ),
        pytest.param(np.array([object()]), "is a numpy.ndarray", id="array of objects"),
        pytest.param(defaultdict(lambda: 0), "defaultdict of", id="defaultdict of a lambda"),
        pytest.param(torch.empty(2, device="meta"), "without values", id="tensor without values"),
        pytest.param(
            {"t": torch.ones(2, dtype=torch.complex64).conj()},
            r"\['t'\] is a conjugate view of a tensor",
            id="conjugate tensor",
        ),
        pytest.param(
            torch.ones(2, dtype=torch.complex64).conj().imag,
            "is a negated view of a tensor",
            id="negated tensor",
        ),
        pytest.param(torch.ones(2, 2).to_mkldnn(), "of layout torch._mkldnn", id="other layout"),
        pytest.param(
            np.zeros(1, np.dtype({"names": ["a"], "formats": ["i4"], "titles": ["b"]})),
            "of NumPy's dtype",
            id="array with titles",
        ),
    ],
)
def test_what_cannot_come_back_is_refused_by_its_name(state: Any, sentence: str) -> None:
    with pytest.raises(NotSavable, match=sentence):
        encode(state, "loader: state_dict()")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(
            lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "a quantized tensor",
            id="quantized",
        ),
        pytest.param(
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "a nested tensor",
            id="nested",
        ),
    ],
)
def test_a_tensor_of_an_unusual_kind_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(NotSavable, match=rf"it\['t'\] is {sentence}"):
        encode({"t": make()}, "it")


def tagged(tag: str, **content: Any) -> dict[str, Any]:
    return {"__trainingrun__": tag, **content}


NOTHING = torch.empty(0, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("form", "what"),
    [
        (tagged("heap", items=[]), "a 'heap', which this version of trainingrun"),
        (tagged("made", type="Duration", arguments=[1]), "a 'Duration', which"),
        (tagged("defaultdict", factory="bytes", items={}), "a defaultdict of 'bytes', which"),
        (tagged("numbers", of="list", **{"as": "F"}, bytes=b""), "numbers of the type 'F', which"),
        (tagged("numbers", of="deque", **{"as": "d"}, bytes=b""), "numbers in a 'deque', which"),
        (tagged("dtype", text="float3"), "torch.float3, which this version of PyTorch"),
        (tagged("device", text="abacus:0"), "the device 'abacus:0', which this version of PyTorch"),
        (
            tagged("array", dtype="<f99", shape=[0], bytes=NOTHING),
            "NumPy's dtype '<f99', which this version of NumPy",
        ),
        (tagged("scalar", dtype="<f99", bytes=b""), "NumPy's dtype '<f99', which"),
        (tagged("numpy dtype", text="<f99"), "NumPy's dtype '<f99', which"),
        (
            tagged("made", type="ZoneInfo", arguments=("Mars/Utopia",)),
            "the time zone 'Mars/Utopia', which this version of Python",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_later_version_has_written_is_told_from_what_is_damaged(
    form: dict[str, Any], what: str
) -> None:
    with pytest.raises(UnknownForm) as refused:
        decode({"state": [form]})
    said = str(refused.value)
    assert said.startswith(f"the checkpoint holds {what}")
    assert said.endswith("does not know; resume with the version that wrote it")


def test_a_checkpoint_makes_nothing_but_what_is_on_the_list() -> None:
    with pytest.raises(UnknownForm, match="does not know"):
        decode({"__trainingrun__": "os.system", "items": ["true"]})
    named = {
        "__trainingrun__": "namedtuple",
        "module": "subprocess",
        "name": "Popen",
        "fields": ["a"],
        "items": ["touch /tmp/it-ran"],
    }
    found = decode(named)
    assert isinstance(found, tuple)
    assert tuple(found) == ("touch /tmp/it-ran",)
