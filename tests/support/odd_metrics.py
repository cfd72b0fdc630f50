"""Training functions that report every odd kind of metric, with a session and without."""

import datetime
import json
import os
import tempfile
from collections import Counter, deque
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
from ray.train import Checkpoint
from ray.train.v2._internal.execution.worker_group import thread_runner

from trainingrun_runtime import Session

STEPS = 4
NO_UTF8 = os.fsdecode(b"m\xe4dchen.wav")
"""The name of a file as `os.listdir` returns it."""


class Color(Enum):
    """A type that the coordinator's process does not know."""

    RED = 1


class Level(IntEnum):
    """A number of such a type."""

    HIGH = 3


class Silent:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def odd(step: int) -> dict[Any, Any]:
    """The metrics of a step, whose kinds change from step to step, too."""
    circle: list[Any] = []
    circle.append(circle)
    nested: dict[str, Any] = {}
    for _ in range(300):
        nested = {"a": nested}
    return {
        "text": NO_UTF8,
        NO_UTF8: "named so",
        "\ud83d": ["\ud83d"],
        "path": Path(NO_UTF8),
        "float32": np.float32(0.5),
        "int64": np.int64(step),
        "array": np.ones(3),
        "tensor": torch.tensor(0.5, dtype=torch.bfloat16),
        "tensors": torch.ones(3),
        "bytes": b"\xe4\x00",
        "none": None,
        "large": 2**62 + step if step % 2 else float("nan"),
        "larger": 10**400,
        "infinite": float("inf"),
        "mixed": (True, 3, "text", 0.5)[step % 4],
        "date": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "color": Color.RED,
        "level": Level.HIGH,
        "silent": Silent(),
        "set": {1, 2},
        "counter": Counter("aab"),
        "deque": deque([1], maxlen=3),
        "circle": circle,
        "nested": nested,
        "escape": "\x1b[31m\u009d\x00\u202e",
        "time": 1.5,
        "reported_time": 2.5,
        "attempt": "first",
        "step": "not a number",
        "": "",
        "k" * 300: 1,
        "k" * 301: 2,
    }


def with_session(config: dict[str, Any]) -> None:
    """Reports them in each step, and as the final ones."""
    model = torch.nn.Linear(1, 1)
    session = Session(seed=0, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for step in session.steps(STEPS):
        session.report(**odd(step), loss=1 / (step + 1))
        session.save()
    session.finish(final=NO_UTF8)
    Path(config["done"]).write_text(str(session.step))


def without_session(config: dict[str, Any]) -> None:
    """Reports them with each checkpoint, also under names that are no text."""
    found, first = ray.train.get_checkpoint(), 0
    if found is not None:
        with found.as_directory() as folder:
            first = json.loads(Path(folder, "step.json").read_text())
    with Path(config["begun"]).open("a") as begun:
        begun.write(f"{first}\n")
    for step in range(first, STEPS):
        metrics = {**odd(step), "step": step + 1, 1: "one", "1": "text", (2, 3): "two"}
        metrics["tensor"] = np.float16(0.5)
        del metrics["tensors"], metrics["circle"]  # which Ray refuses
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.json").write_text(str(step + 1))
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def fails(_config: dict[str, Any]) -> None:
    """Prints the name of such a file, and raises an error about it."""
    print("it reads", NO_UTF8)
    raise ValueError(f"{NO_UTF8} is no recording")


def fails_untold(_config: dict[str, Any]) -> None:
    """Rank 1 raises an error that Ray's worker cannot tell."""
    if ray.train.get_context().get_world_rank() == 1:
        thread_runner.construct_user_exception_with_traceback = None
        raise ValueError("nobody hears of it")
