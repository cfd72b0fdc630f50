"""What a state may hold comes back from a checkpoint as it was, or is refused at the first save."""

import io
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

from trainingrun_runtime.checkpoints.encoding import NotSavable, decode, encode


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
    UUID(int=7),
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
    ],
)
def test_what_cannot_come_back_is_refused_by_its_name(state: Any, sentence: str) -> None:
    with pytest.raises(NotSavable, match=sentence):
        encode(state, "loader: state_dict()")


def test_a_checkpoint_makes_nothing_but_what_is_on_the_list() -> None:
    with pytest.raises(ValueError, match="does not know"):
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
