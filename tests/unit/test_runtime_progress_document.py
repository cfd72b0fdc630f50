"""What users report becomes something that JSON and a status can hold."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainingrun_protocol.progress import Progress, RunState
from trainingrun_runtime.progress.document import read, write
from trainingrun_runtime.store.reported_metrics import MOST, SHOWN, printable_metrics, shown_metrics


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
        for step in range(300):
            write(path, Progress(attempt=1, step=step, metrics={"text": "x" * (step % 190)}))
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    while not done.is_set():
        assert read(path) is not None
    writer.join()
