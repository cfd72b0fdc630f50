"""Whatever an object's state holds comes back as it was, or is refused at the first save."""

import copy
import math
import tempfile
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import checkpoints
from trainingrun_runtime.checkpoints import snapshot
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.checkpoints.encoding import NotSavable
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.state_comparison import Comparison
from trainingrun_runtime.checkpoints.stateful_objects import without_scheduler
from trainingrun_runtime.session.session_context import SavedObjects

# PyTorch casts an optimizer's state to its parameter's type, which is undone afterwards.
pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values to real")

Pair = namedtuple("Pair", "a b")


class Mode(Enum):
    WARM = 1


def restored(saved: Any, fresh: Any) -> Any:
    """`fresh` with the state of `saved`, from a checkpoint."""
    states = snapshot.encoded({"it": saved}, {"it"})
    snapshot.try_out(states)
    with tempfile.TemporaryDirectory() as folder:
        files = snapshot.take(states, Comparison(set(), {}), Position(step=7), 0, 1)
        checkpoints.write(files, Path(folder))
        snapshot.restore(LocalFiles(Path(folder)), {"it": fresh}, 0, 1)
    return fresh


def same(one: Any, other: Any) -> bool:
    """Whether nothing tells them apart: types, order, limits and every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        dense = one.dtype == other.dtype and one.shape == other.shape
        return dense and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and same_settings(one, other) and all(
            same(a, c) and same(b, d) for (a, b), (c, d) in pairs
        )  # fmt: skip
    if isinstance(one, list | tuple | deque):
        if len(one) != len(other) or not same_settings(one, other):
            return False
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def same_settings(one: Any, other: Any) -> bool:
    names = ("maxlen", "default_factory")
    return all(getattr(one, name, None) == getattr(other, name, None) for name in names)


NUMBERS = st.one_of(st.booleans(), st.integers(), st.floats(), st.complex_numbers(allow_nan=False))
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
HASHABLE = st.one_of(st.none(), NUMBERS.filter(lambda n: n == n), TEXT, st.binary(max_size=5))
SINGLE = [
    range(3), slice(1, None, 2), Decimal("0.10"), Fraction(1, 3), UUID(int=7), date(2026, 1, 2),
    datetime(2026, 1, 2, tzinfo=UTC), timedelta(days=1), Path("/data"), PurePosixPath("a/b"),
    torch.Size([2, 3]), torch.float16, torch.device("cpu"), np.float32(2), np.str_("text"),
    np.datetime64("2026-01-02"), np.dtype("int8"), np.arange(3.0), np.zeros((0, 4), np.int16),
    np.array(["a", "bc"]), torch.arange(3.0), torch.ones(2, dtype=torch.float64),
    torch.tensor([2**53 + 1]), torch.tensor([2**63 + 5], dtype=torch.uint64),
    torch.tensor([True]), torch.tensor([1 + 2j]), torch.Generator().get_state(),
    "warm-up", b"abc", bytearray(b"abc"), ["a", "bc"], {"mode": "x"}, Counter("aab"), (1, 2.5),
    deque([1, 2], maxlen=2), Pair(1, "b"), {1, 2}, OrderedDict(b=1), defaultdict(list, a=[1]),
]  # fmt: skip
"""Of each type of value that a checkpoint can hold one."""
NOT_SAVABLE = [object(), Mode.WARM, len, memoryview(b"a"), torch.Generator()]
LEAVES = st.one_of(
    HASHABLE,
    NUMBERS,
    st.binary(max_size=3).map(bytearray),
    st.sampled_from(SINGLE).map(copy.deepcopy),
    st.sampled_from(NOT_SAVABLE),
)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3).map(OrderedDict),
        st.dictionaries(TEXT, inner, max_size=3).map(lambda d: defaultdict(list, d)),
        st.lists(TEXT, max_size=3).map(Counter),
        st.tuples(st.lists(inner, max_size=3), st.integers(3, 5)).map(lambda p: deque(*p)),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.sets(HASHABLE, max_size=3),
        st.frozensets(HASHABLE, max_size=3),
    ),
    max_leaves=6,
)


def an_optimizer(weight: Any = None) -> torch.optim.SGD:
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)) if weight is None else weight
    return torch.optim.SGD([weight], lr=0.1)


def of(optimizer: torch.optim.Optimizer, place: str) -> Any:
    (group,) = optimizer.param_groups
    own = optimizer.state
    return {"parameter": own[group["params"][0]], "group": group, "global": own}[place]


PLACES = ["parameter", "group", "global"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", SINGLE, ids=lambda value: repr(value)[:40])
def test_a_value_of_each_type_comes_back_to_an_optimizer(value: Any, place: str) -> None:
    first = an_optimizer()
    of(first, place)["value"] = copy.deepcopy(value)
    assert same(of(restored(first, an_optimizer()), place)["value"], value)


@pytest.mark.parametrize("value", NOT_SAVABLE, ids=lambda value: type(value).__name__)
def test_what_no_checkpoint_can_hold_is_refused_at_the_first_save(value: Any) -> None:
    first = an_optimizer()
    of(first, "parameter")["value"] = [value]
    with pytest.raises(NotSavable, match=r"^it: state_dict\(\).*\['value'\]\[0\] is a"):
        restored(first, an_optimizer())


@given(value=STATES, place=st.sampled_from(PLACES))
def test_what_an_optimizer_keeps_comes_back_or_is_refused(value: Any, place: str) -> None:
    first = an_optimizer()
    of(first, place)["value"] = value
    try:
        second = restored(first, an_optimizer())
    except NotSavable:
        return
    assert same(of(second, place)["value"], value)


class Holder(torch.nn.Module):
    """A model with more than tensors in its state."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value

    def get_extra_state(self) -> Any:
        return self.value

    def set_extra_state(self, state: Any) -> None:
        self.value = state


@given(value=STATES)
def test_what_a_model_has_beside_its_tensors_comes_back_or_is_refused(value: Any) -> None:
    try:
        found = restored(Holder(value), Holder())
    except NotSavable:
        return
    assert same(found.value, value)


@given(value=STATES)
def test_what_a_scheduler_keeps_comes_back_or_is_refused(value: Any) -> None:
    first, second = (torch.optim.lr_scheduler.StepLR(an_optimizer(), 3) for _ in range(2))
    first.value = value
    try:
        restored(first, second)
    except NotSavable:
        return
    assert same(second.value, value)


class SteppedBySetState(torch.optim.SGD):
    """An optimizer that looks at what it has loaded, as Adam does."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for values in self.state.values():
            assert values.get("mode") == "warm-up"


def test_a_class_that_looks_at_its_loaded_state_sees_what_was_saved() -> None:
    first, second = (
        SteppedBySetState([torch.nn.Parameter(torch.zeros(2))], lr=0.1) for _ in range(2)
    )
    (group,) = first.param_groups
    first.state[group["params"][0]]["mode"] = "warm-up"
    (values,) = restored(first, second).state.values()
    assert values == {"mode": "warm-up"}


def test_the_number_of_steps_stays_the_number_that_it_was() -> None:
    """A subclass of Adam may count in Python; Adam's own `__setstate__` makes it a tensor."""
    first, second = (torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))]) for _ in range(2))
    (group,) = first.param_groups
    first.state[group["params"][0]] = {"step": 3, "exp_avg": torch.ones(2)}
    (values,) = restored(first, second).state.values()
    assert same(values["step"], 3)


class OwnGradients(torch.optim.SGD):
    """An optimizer with a state of the name under which a session notes its own."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "gradients": self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.kept = state_dict.pop("gradients")
        super().load_state_dict(state_dict)


def test_an_optimizers_own_gradients_are_its_own() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    first, second = (OwnGradients([weight], lr=0.1) for weight in weights)
    first.kept = [[0, 0], "of its own"]
    weights[0].grad = torch.ones(2)
    assert restored(first, second).kept == [[0, 0], "of its own"]
    assert torch.equal(weights[1].grad, torch.zeros(2)), "there was one, so there is one"


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (0, "it keeps a state under 0, which is also the number of one of its parameters"),
        (0.0, "it keeps a state under 0.0, which is also the number of one of its parameters"),
        (torch.zeros(2), "it keeps a state for a tensor of shape .2,. that is in none of its"),
    ],
    ids=["a parameter's number", "as a float", "a tensor of no group"],
)
def test_an_optimizers_state_of_no_parameter_is_refused(key: Any, sentence: str) -> None:
    optimizer = an_optimizer()
    optimizer.state[key]["value"] = 1
    with pytest.raises(NotSavable, match=f"^{sentence}"):
        snapshot.encoded({"it": optimizer}, {"it"})


def test_an_expanded_buffer_is_refused_at_the_first_step() -> None:
    """PyTorch copies into no tensor of which several elements have the same memory."""
    model = torch.nn.Linear(2, 2)
    model.register_buffer("scale", torch.zeros(1).expand(5))
    with pytest.raises(NotSavable, match=r"^model\.scale has elements that share memory.*clone"):
        snapshot.try_out(snapshot.encoded({"model": model}, {"model"}))
    model.register_buffer("scale", torch.zeros(1, 5).expand(1, 5).t())
    restored(model, model)


def test_tensors_in_any_container_are_where_the_parameter_is() -> None:
    first, second = an_optimizer(), an_optimizer(torch.nn.Parameter(torch.zeros(2, device="meta")))
    values = first.state[first.param_groups[0]["params"][0]]
    values["plain"] = [torch.zeros(2)]
    values["in"] = OrderedDict(a=Pair([torch.zeros(2)], deque([torch.zeros(2)], maxlen=1)))
    (found,) = restored(first, second).state.values()
    inner = found["in"]["a"]
    tensors = [found["plain"][0], inner.a[0], inner.b[0]]
    assert [str(tensor.device) for tensor in tensors] == ["meta"] * 3
    assert (type(found["in"]), type(inner), inner.b.maxlen) == (OrderedDict, Pair, 1)


OPTIMIZERS, SCHEDULES = torch.optim, torch.optim.lr_scheduler


def an_optimizer_of(kind: str) -> Any:
    return getattr(OPTIMIZERS, kind)([torch.nn.Parameter(torch.ones(2))])


def schedulers(*names: str) -> Any:
    """A scheduler of schedulers."""
    optimizer = an_optimizer()
    made = [getattr(SCHEDULES, name)(optimizer) for name in names]
    return SCHEDULES.SequentialLR(optimizer, made, milestones=list(range(1, len(made))))


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    ("then", "now", "types"),
    [
        *(
            pytest.param(
                partial(an_optimizer_of, then),
                partial(an_optimizer_of, now),
                (then, now),
                id=f"{then} to {now}",
            )
            for then, now in [
                ("AdamW", "SGD"), ("SGD", "AdamW"), ("Adam", "AdamW"), ("AdamW", "NAdam"),
                ("Adam", "RMSprop"), ("AdamW", "RAdam"), ("RMSprop", "Adagrad"),
            ]
        ),
        pytest.param(
            lambda: SCHEDULES.StepLR(an_optimizer(), 3),
            lambda: SCHEDULES.ExponentialLR(an_optimizer(), 0.5),
            ("StepLR", "ExponentialLR"),
            id="scheduler",
        ),
        pytest.param(
            lambda: schedulers("ConstantLR", "LinearLR"),
            lambda: schedulers("LinearLR", "ConstantLR"),
            ("SequentialLR(ConstantLR, LinearLR)", "SequentialLR(LinearLR, ConstantLR)"),
            id="schedulers in a scheduler",
        ),
    ],
)  # fmt: skip
def test_the_state_of_another_type_is_refused_in_one_sentence(
    then: Callable[[], Any], now: Callable[[], Any], types: tuple[str, str]
) -> None:
    restored(then(), then())
    with pytest.raises(ValueError, match=r"^the checkpoint of step 7 does not fit it") as refused:
        restored(then(), now())
    assert str(refused.value).endswith(
        f"does not fit it (it was {types[0]} then, and is {types[1]} now); make it as {types[0]} "
        "again, or begin a new run"
    )


def test_a_model_of_another_name_with_the_same_layers_is_restored() -> None:
    class Renamed(torch.nn.Linear):
        pass

    first, second = torch.nn.Linear(2, 2), Renamed(2, 2)
    assert torch.equal(restored(first, second).weight, first.weight)


def test_an_object_that_is_each_ranks_own_has_its_own_type(tmp_path: Path) -> None:
    """As the optimizers of a pipeline's stages."""
    made = ("SGD", "AdamW")
    for rank, kind in enumerate(made):
        states = snapshot.encoded({"it": an_optimizer_of(kind)}, {"it"})
        files = snapshot.take(states, Comparison({"it"}, {}), Position(step=7), rank, 2)
        checkpoints.write(files, tmp_path)
    for rank, kind in enumerate(made):
        snapshot.restore(LocalFiles(tmp_path), {"it": an_optimizer_of(kind)}, rank, 2)
    with pytest.raises(ValueError, match=r"it was AdamW then, and is SGD now"):
        snapshot.restore(LocalFiles(tmp_path), {"it": an_optimizer_of("SGD")}, 1, 2)


def a_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))


class Growing(torch.nn.Module):
    """A model that takes a buffer of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        self.seen = torch.zeros_like(state_dict[f"{prefix}seen"])
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def add_adapter(model: Any) -> None:
    model[0].lora_a = torch.nn.Parameter(torch.zeros(2, 1))


def lose_layer(model: Any) -> None:
    del model[1]


def widen(model: Any) -> None:
    model[0].weight = torch.nn.Parameter(torch.zeros(4, 2))


def share(model: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(model[0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (add_adapter, r"has 0\.lora_a, which it had not"),
        (lose_layer, r"has no longer 1\.weight, which it had"),
        (widen, r"has 0\.weight of shape \(4, 2\), which had shape \(2, 2\)"),
        (share, r"has 0\.parametrizations\.weight\.original0, which it had not"),
    ],
)
def test_layers_that_a_resumed_run_would_not_have_are_refused_at_the_save(
    change: Callable[[Any], None], sentence: str
) -> None:
    model = a_model()
    objects = SavedObjects({"model": model})
    objects.states()
    change(model)
    with pytest.raises(NotSavable, match=rf"^model {sentence} when the session was made: a resum"):
        objects.states()


def test_groups_that_are_added_to_an_optimizer_are_refused_at_the_save() -> None:
    model = a_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    objects = SavedObjects({"optimizer": optimizer})
    objects.states()
    optimizer.add_param_group({"params": model[1].parameters()})
    with pytest.raises(NotSavable, match=r"^optimizer has groups of \[2, 2\] parameters, .* \[2\]"):
        objects.states()


def test_a_model_that_takes_what_it_has_become_is_saved() -> None:
    model = Growing()
    objects = SavedObjects({"model": model})
    objects.states()
    model.seen = torch.ones(3)
    objects.states()
    assert torch.equal(restored(model, Growing()).seen, torch.ones(3))


def test_a_state_beside_the_tensors_may_have_any_size() -> None:
    model = torch.nn.ModuleList([Holder(torch.zeros(1))])
    objects = SavedObjects({"model": model})
    objects.states()
    model[0].value = [torch.zeros(5), torch.zeros(2)]
    objects.states()


class Wrapped:
    """As frameworks hold a scheduler."""

    def __init__(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        self.scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state)


def test_an_optimizer_whose_scheduler_is_not_saved_is_named() -> None:
    """PyTorch 2.13: a warm-up made beside restored rates ends at a tenth of the rate."""
    schedulers = torch.optim.lr_scheduler
    net = torch.nn.Linear(1, 1)
    given, free, chained, left_out = (torch.optim.SGD(net.parameters(), lr=1.0) for _ in range(4))
    schedulers.LinearLR(left_out, 0.1)
    warm_up = schedulers.LinearLR(chained, 0.1, total_iters=3)
    chain = schedulers.SequentialLR(chained, [warm_up, schedulers.ExponentialLR(chained, 0.9)], [3])

    objects = {"net": net, "given": given, "free": free, "chained": chained, "left_out": left_out}
    restorable = SavedObjects(
        {**objects, "chain": chain, "wrapper": Wrapped(schedulers.StepLR(given, 2))}
    ).objects
    assert without_scheduler(restorable) == ["left_out"]


class Both:
    """Does the steps of several optimizers, and saves them with their schedulers."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_an_optimizer_in_another_object_whose_scheduler_is_not_saved_is_named() -> None:
    schedulers = torch.optim.lr_scheduler
    net = torch.nn.Linear(1, 1)
    given, listed, left_out = (torch.optim.SGD(net.parameters(), lr=1.0) for _ in range(3))
    schedulers.LinearLR(left_out, 0.1)
    kept = [schedulers.StepLR(listed, 2)]
    both = Both(muon=left_out, each=[given, listed], again={"muon": left_out}, kept=kept)
    objects = {"both": both, "given": schedulers.StepLR(given, 2)}
    assert without_scheduler(SavedObjects(objects).objects) == ["both.muon"]
    assert without_scheduler(SavedObjects({"opt": left_out, **objects}).objects) == ["opt"]
