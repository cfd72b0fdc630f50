"""What of the user's leaves a rank can be read by every other process."""

import datetime
import decimal
import io
import json
import math
import os
import pickle
import subprocess
import sys
import threading
import traceback
import urllib.error
from collections.abc import Callable
from email.message import Message
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pandas
import pydantic
import pytest
import torch
from ray._private.utils import Unbuffered
from ray.exceptions import ActorDiedError
from ray.train import WorkerGroupError

from support import cannot_travel
from support.cannot_travel import NeedsTwo
from trainingrun_runtime import stacks
from trainingrun_runtime.known_errors.failure_causes import (
    FailureCause,
    PeerLost,
    Preempted,
    RaisedOnRank,
    Suspended,
    classify,
)
from trainingrun_runtime.store.storage_errors import CredentialsError, StorageError
from trainingrun_runtime.worker import leaving_a_rank


class HasLock(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it is locked")
        self.lock = threading.Lock()


class Hostile(Exception):
    """Has no text, and says so by another error."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Lr(pydantic.BaseModel):
    lr: float


def fail(error: BaseException) -> None:
    raise error


def group() -> None:
    raise ExceptionGroup("two", [ValueError("a"), NeedsTwo(1, "b")])


def caused() -> None:
    try:
        fail(NeedsTwo(7, "no column y"))
    except NeedsTwo as error:
        raise HasLock from error


def on_rank(call: Callable[[], object]) -> BaseException:
    """What a rank raises in place of what the call raises."""
    try:
        call()
    except BaseException as error:
        return leaving_a_rank.as_text(error)
    raise AssertionError("it raised nothing")


REFUSED = urllib.error.HTTPError("http://host/x", 404, "Not Found", Message(), None)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(lambda: fail(NeedsTwo(7, "no y")), "NeedsTwo: 7: no y", id="two arguments"),
        pytest.param(lambda: fail(HasLock()), "HasLock: it is locked", id="lock"),
        pytest.param(lambda: fail(REFUSED), "HTTPError: HTTP Error 404: Not Found", id="download"),
        pytest.param(lambda: fail(Hostile()), "Hostile: raise error", id="no text"),
        pytest.param(
            lambda: cannot_travel.asserts({"column": "x"}),
            'AssertionError: assert config["column"] == "y"',
            id="bare assert",
        ),
        pytest.param(group, "ExceptionGroup: two (2 sub-exceptions)", id="group"),
        pytest.param(caused, "HasLock: it is locked", id="with a cause"),
        pytest.param(lambda: fail(SystemExit("it is NaN")), "SystemExit: it is NaN", id="exit"),
        pytest.param(lambda: {}["x"], "KeyError: 'x'", id="key"),
        pytest.param(lambda: Lr(lr="x"), "ValidationError: 1 validation error", id="pydantic"),
        pytest.param(
            lambda: subprocess.run(["false"], check=True),
            "CalledProcessError: Command '['false']' returned non-zero exit status 1.",
            id="subprocess",
        ),
        pytest.param(
            lambda: torch.zeros(2) @ torch.zeros(3),
            "RuntimeError: inconsistent tensor size, expected tensor [2] and src [3]",
            id="PyTorch",
        ),
    ],
)  # fmt: skip
def test_an_error_travels_as_text_with_its_line_and_traceback(
    call: Callable[[], object], said: str
) -> None:
    travelled = pickle.loads(pickle.dumps(on_rank(call)))
    found = classify(WorkerGroupError("it failed", {1: travelled}))
    assert found.cause is FailureCause.APPLICATION
    assert found.message.startswith(f"rank 1 raised {said}")
    assert isinstance(travelled, RaisedOnRank)
    assert f"({travelled.place})" in found.message
    assert travelled.place is not None
    file, line = travelled.place.split(":")
    assert file in (Path(__file__).name, "cannot_travel.py")
    assert 'File "' in found.traceback
    assert f"line {line}, in " in found.traceback
    assert travelled.kind in found.traceback


def test_the_traceback_has_the_causes() -> None:
    told = on_rank(caused)
    assert isinstance(told, RaisedOnRank)
    assert "no column y" in told.trace


def test_what_is_known_of_an_error_or_its_cause_travels_with_it() -> None:
    def loads() -> None:
        try:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        except RuntimeError as error:
            raise NeedsTwo(1, "a step failed") from error

    travelled = pickle.loads(pickle.dumps(on_rank(loads)))
    message = classify(WorkerGroupError("it failed", {0: travelled})).message
    assert "a step failed (test_runtime_leaving_a_rank.py:" in message
    assert "make the batch smaller" in message


def called_in(*files: Path | str) -> TracebackType | None:
    """The traceback of an error that was raised in the last of these, called by the others."""
    scope: dict[str, Any] = {"call": partial(int, "no number")}
    for file in reversed(files):
        code = "def outer(call=call):\n    call()\ncall = outer"
        exec(compile(code, str(file), "exec"), scope)
    with pytest.raises(ValueError, match="no number") as met:
        scope["call"]()
    assert met.tb is not None
    return met.tb.tb_next


SITE = "/usr/lib/python3/site-packages"
CALLER = Path(stacks.__file__).with_name("worker") / "training_function.py"


@pytest.mark.parametrize(
    ("files", "line"),
    [
        pytest.param([CALLER, "/code/train.py", f"{SITE}/torch/x.py"], "train.py:2", id="a script"),
        pytest.param(
            [CALLER, f"{SITE}/mine/loop.py", f"{SITE}/torch/x.py"],
            "loop.py:2",
            id="a package",
        ),
        pytest.param([CALLER], None, id="the runtime itself"),
    ],
)
def test_the_line_is_the_last_one_of_the_users_own(
    files: list[Path | str], line: str | None
) -> None:
    found = stacks.own_line(called_in(*files))
    assert (f"{Path(found[0]).name}:{found[1]}" if found else None) == line


@pytest.mark.parametrize("text", ["a" * 5000, "CUDA out of memory " + "a" * 5000])
def test_a_long_text_leaves_room_for_the_line(text: str) -> None:
    told = on_rank(lambda: fail(RuntimeError(text)))
    message = classify(WorkerGroupError("it failed", {0: told})).message  # type: ignore[dict-item]
    assert "… (test_runtime_leaving_a_rank.py:" in message
    assert len(message) <= 500, "what the status keeps of it"


@pytest.mark.parametrize("kind", [Preempted, Suspended, PeerLost, CredentialsError])
def test_what_the_runtime_raises_itself_stays_what_it_is(kind: type[Exception]) -> None:
    error = kind("saved")
    assert on_rank(lambda: fail(error)) is error


def test_an_error_of_the_store_travels_as_one() -> None:
    full = on_rank(lambda: fail(OSError(28, "No space left on device")))
    assert isinstance(full, StorageError)
    missing = FileNotFoundError("No space left on device.txt")
    told = on_rank(lambda: fail(missing))
    found = classify(WorkerGroupError("it failed", {0: told}))  # type: ignore[dict-item]
    assert found.cause is FailureCause.APPLICATION


def test_an_actor_that_died_is_a_lost_peer_of_the_rank_that_asked_it() -> None:
    assert isinstance(on_rank(lambda: fail(ActorDiedError())), PeerLost)


def test_an_error_whose_text_is_no_utf_8_is_one_that_ray_can_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ray's worker logs it to a stream of UTF-8; where that raises, its function has succeeded."""
    name = os.fsdecode(b"m\xe4dchen.wav")
    error = ValueError(f"{name} is no recording")
    told = leaving_a_rank.as_text(error)
    assert str(told) == r"m\udce4dchen.wav is no recording"
    told.__cause__ = leaving_a_rank.shown_cause(error)
    assert "".join(traceback.format_exception(told)).encode()
    assert r"m\udce4dchen.wav is no recording" in caplog.text
    other = ValueError("m\xe4dchen.wav")
    assert leaving_a_rank.shown_cause(other) is other


def test_a_rank_prints_the_name_of_any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
        monkeypatch.setattr(sys, name, Unbuffered(stream))
    leaving_a_rank.print_any_text()
    for stream in (sys.stdout, sys.stderr):
        print("m\udce4dchen", file=stream)
        assert stream.buffer.getvalue() == rb"m\udce4dchen" + b"\n"  # type: ignore[attr-defined]


def test_reported_text_is_such_that_pandas_can_hold_it() -> None:
    """Ray's controller makes a table of the metrics of all checkpoints at the end."""
    name = os.fsdecode(b"m\xe4dchen.wav")
    found = leaving_a_rank.report({name: np.str_(name), "umlaut": "m\xe4dchen.wav"})
    assert found == {r"m\udce4dchen.wav": r"m\udce4dchen.wav", "umlaut": "m\xe4dchen.wav"}
    pandas.DataFrame([found])


class Color(Enum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        1, 0.5, True, None, "text", math.nan, [1, [2]], {"a": {"b": 0.5}}, (1, 2), b"x",
        np.float32(0.5), np.ones(3), decimal.Decimal("0.1"), datetime.date(2026, 1, 1), Path("/a"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_every_process_knows_is_reported_as_it_is(value: Any) -> None:
    found = leaving_a_rank.report({"value": value})["value"]
    assert found is value


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), lambda: 1, Color.RED, Lr(lr=1), HasLock()],
    ids=lambda value: type(value).__name__,
)
def test_what_another_process_may_not_know_is_reported_as_text(value: Any) -> None:
    found = leaving_a_rank.report({"value": value, "list": [1, value], "tree": {"a": value}})
    json.dumps(found)
    assert found == {"value": repr(value), "list": [1, repr(value)], "tree": {"a": repr(value)}}


def test_what_a_function_returns_travels_or_is_left_out() -> None:
    returned = {"loss": 0.5, "rule": lambda: 1}
    found = leaving_a_rank.unpacked(leaving_a_rank.packed(returned))
    assert found["loss"] == 0.5
    assert found["rule"]() == 1
    assert leaving_a_rank.packed(None) is None
    assert leaving_a_rank.packed((torch.nn.Linear(1, 1), threading.Lock())) is None
    assert leaving_a_rank.unpacked(b"of a module that is not here") is None


def test_a_secret_of_the_pod_stays_in_the_rank_whatever_an_error_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sentence goes to the status, to events and webhooks, the traceback to the run's page."""
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    try:
        raise ValueError(f"bad token {os.environ['HF_TOKEN']} at https://me:pw123456@db/x")
    except ValueError as error:
        raised = leaving_a_rank.as_text(error)
    told = classify(WorkerGroupError("", {0: raised}))
    assert told.message.startswith("rank 0 raised ValueError: bad token *** at https://***@db/x")
    assert isinstance(raised, RaisedOnRank)
    shown = f"{told} {raised!r} {raised.text} {raised.trace}"
    assert "bad token ***" in raised.trace
    assert "hf_abcdefghijkl" not in shown
    assert "pw123456" not in shown
