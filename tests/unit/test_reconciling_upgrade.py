"""What an earlier operator wrote into status.seen is read under its former names."""

from typing import Any

import pytest

from trainingrun.reconciling.bookkeeping import Bookkeeping

TIME = "2026-11-21T12:00:00Z"
LOSS = {"reason": "OutOfMemory", "time": TIME}


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        pytest.param({"fruitless": 2}, "attempts_without_progress", 2, id="fruitless"),
        pytest.param(
            {"attemptsWithoutProgress": 2}, "attempts_without_progress", 2, id="present name"
        ),
        pytest.param({"bestStep": 7}, "best_step", 7, id="never renamed"),
        pytest.param({"epoch": 3}, "fencing_token", 3, id="epoch"),
        pytest.param({"driverEpoch": 3}, "driver_fencing_token", 3, id="driverEpoch"),
    ],
)
def test_a_number_is_read(written: dict[str, Any], field: str, value: int):
    read = Bookkeeping.read(written)
    assert getattr(read, field) == value
    assert Bookkeeping.read(read.write()) == read


@pytest.mark.parametrize(
    ("former", "present"),
    [
        pytest.param("born", "created_at", id="born"),
        pytest.param("words", "termination_message", id="words"),
    ],
)
def test_a_counted_loss_is_read_and_written_under_its_present_names(former: str, present: str):
    read = Bookkeeping.read({"charges": {"uid-1": {**LOSS, former: TIME}}})
    assert getattr(read.counted["uid-1"], present) == TIME
    assert former not in read.write()["counted"]["uid-1"]
    assert Bookkeeping.read(read.write()) == read
