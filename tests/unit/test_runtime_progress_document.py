"""What users report becomes something that JSON and a status can hold."""

import json
import os
import threading
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainingrun_protocol.progress import Progress, RunState
from trainingrun_runtime.progress.document import read, write
from trainingrun_runtime.store import metrics_table
from trainingrun_runtime.store.manifest import Manifest
from trainingrun_runtime.store.reported_metrics import (
    MOST,
    SHOWN,
    Row,
    printable_metrics,
    shown_metrics,
)

NO_UTF8 = os.fsdecode(b"m\xe4dchen.wav")


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        pytest.param(1, 1, id="int"),
        pytest.param(0.5, 0.5, id="float"),
        pytest.param(True, True, id="bool"),
        pytest.param(None, None, id="None"),
        pytest.param("text", "text", id="str"),
        pytest.param(float("nan"), "NaN", id="NaN"),
        pytest.param(float("inf"), "Infinity", id="infinity"),
        pytest.param(float("-inf"), "-Infinity", id="negative infinity"),
        pytest.param(np.float32(0.5), 0.5, id="numpy float32"),
        pytest.param(np.float64("nan"), "NaN", id="numpy NaN"),
        pytest.param(np.int64(7), 7, id="numpy int64"),
        pytest.param(np.bool_(True), True, id="numpy bool"),
        pytest.param(torch.tensor(2.5), 2.5, id="tensor"),
        pytest.param(torch.tensor([2.5]), 2.5, id="tensor of one"),
        pytest.param(10**30, 1e30, id="large int"),
        pytest.param([1, 2], "[1, 2]", id="list"),
        pytest.param({"a": 1}, "{'a': 1}", id="dict"),
    ],
)
def test_each_metric_is_printed(value: Any, printed: Any) -> None:
    assert printable_metrics({"metric": value}) == {"metric": printed}


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_no_metric_can_break_the_progress() -> None:
    printed = printable_metrics(
        {"hostile": Hostile(), "large": np.zeros(10_000), 7: b"\xff", "huge": 10**400}
    )
    json.dumps(printed, allow_nan=False)
    assert printed["hostile"] == "<Hostile>"
    assert printed["7"] == "b'\\xff'"


class Level(IntEnum):
    HIGH = 3


class Unreadable(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [NO_UTF8, np.str_(NO_UTF8), Path(NO_UTF8), [Path(NO_UTF8)]])
def test_text_that_is_no_utf_8_is_shown_with_its_escape(value: Any) -> None:
    """As `os.listdir` returns the name of a file that another system has named."""
    printed = printable_metrics({NO_UTF8: value})
    assert r"m\udce4dchen.wav" in printed[r"m\udce4dchen.wav"].replace("\\\\", "\\")
    assert json.dumps(printed, ensure_ascii=False).encode()
    manifest = Manifest(
        path="checkpoints/one", step=1, world_size=1, attempt=1, fencing_token=1, index=1,
        metrics=printed, files={}, time=0.0,
    )  # fmt: skip
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    table = metrics_table.table_of([Row(1, 0.0, printed)], 1)
    assert table.column_names[-1] == r"m\udce4dchen.wav"


def test_text_that_is_no_utf_8_is_not_longer_than_other_text() -> None:
    printed = printable_metrics({"\udce4" * 200: "\udce4" * 200})
    assert [(len(name), len(value)) for name, value in printed.items()] == [(200, 200)]


def test_a_metric_is_of_a_type_that_every_process_knows() -> None:
    printed = printable_metrics({"level": Level.HIGH, "name": Unreadable("x"), Unreadable("y"): 1})
    assert {name: type(value) for name, value in printed.items()} == {
        "level": int,
        "name": str,
        "<Unreadable>": int,
    }


def test_a_document_with_text_that_is_no_utf_8_is_read(tmp_path: Path) -> None:
    said = Progress(attempt=1).model_copy(update={"warnings": [NO_UTF8], "storage_error": NO_UTF8})
    write(tmp_path / "progress.json", said)
    found = read(tmp_path / "progress.json")
    assert found is not None
    assert (found.warnings, found.storage_error) == ([r"m\udce4dchen.wav"], r"m\udce4dchen.wav")


def test_metrics_are_bounded() -> None:
    printed = printable_metrics({f"{n:04d}" + "k" * 500: "x" * 10_000 for n in range(MOST + 50)})
    assert len(printed) == MOST
    assert max(len(name) for name in printed) == 200
    assert max(len(value) for value in printed.values()) == 200
    assert len(shown_metrics(printed)) == SHOWN


def test_no_metric_overwrites_another_one_of_a_like_name() -> None:
    long = "k" * 200
    printed = printable_metrics({1: "number", "1": "text", (2,): 3, f"{long}a": 4, f"{long}b": 5})
    assert (printed["1 (int)"], printed["1"], printed["(2,)"]) == ("number", "text", 3)
    assert sorted(value for name, value in printed.items() if name.startswith("kkk")) == [4, 5]
    assert max(map(len, printed)) == 200
    assert printable_metrics(printed) == printed, "a name is made once"
    (alone,) = printable_metrics({f"{long}b": 6})
    assert printed[alone] == 5, "the same column, whatever else is reported"


@pytest.mark.parametrize("few", [printable_metrics, shown_metrics])
def test_a_metric_that_something_depends_on_is_kept_however_late_it_is_reported(few: Any) -> None:
    many = {f"iou/{n}": n for n in range(MOST + 50)} | {"loss": 0.5, "accuracy": 0.9}
    kept = few(many, ("accuracy", "not reported", "iou/3"))
    assert kept["accuracy"] == 0.9
    assert len(kept) in (MOST, SHOWN)
    assert "loss" not in kept
    assert "not reported" not in kept


def test_the_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "state" / "progress.json"
    assert read(path) is None
    progress = Progress(
        attempt=2, fencing_token=3, state=RunState.TRAINING, step=10, metrics={"loss": 1.5}
    )
    write(path, progress)
    assert read(path) == progress
    document = json.loads(path.read_text())
    assert (document["attempt"], document["fencingToken"]) == (2, 3)
    assert [file.name for file in path.parent.iterdir()] == ["progress.json"]


def test_a_reader_never_sees_half_a_document(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    write(path, Progress(attempt=1))
    done = threading.Event()

    def rewrite() -> None:
        try:
            for step in range(300):
                write(path, Progress(attempt=1, step=step, metrics={"text": "x" * (step % 190)}))
        finally:
            done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    while not done.is_set():
        assert read(path) is not None
    writer.join()
