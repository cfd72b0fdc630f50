"""Parts of the table of reports in a real S3 server and in a folder."""

import pytest

from trainingrun_runtime.coordinator.inbox import Inbox
from trainingrun_runtime.store import metrics_table
from trainingrun_runtime.store import metrics_writer as writer
from trainingrun_runtime.store.bucket import Bucket, StorageError
from trainingrun_runtime.store.metrics_writer import ReportWriter
from trainingrun_runtime.store.reported_metrics import Origin, Row


class Driver:
    """What a driver's coordinator receives, and what it writes."""

    def __init__(self, bucket: Bucket, token: int) -> None:
        self.inbox = Inbox()
        self.writer = ReportWriter(bucket, token, token, lambda seen: self.inbox.rows(seen))

    def report(self, group: int, first: int, last: int) -> None:
        self.inbox.add_rows(group, [Row(s, 0.0, {"loss": s / 10}) for s in range(first, last + 1)])


def refuse(*_: object) -> None:
    raise StorageError("it does not answer")


def steps(bucket: Bucket) -> list[int]:
    return list(metrics_table.read(bucket)["step"].to_pylist())


def names(bucket: Bucket) -> list[str]:
    return [entry.key.rpartition("/")[2] for entry in bucket.list("reports")]


def test_a_part_grows_until_it_is_full(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "VALUES", 24)
    driver = Driver(bucket, 3)
    driver.inbox.begin(1, None)
    driver.report(1, 1, 6)
    driver.writer.write()
    driver.report(1, 7, 12)
    driver.writer.write()
    assert names(bucket) == ["000003-0001-0001.parquet"]
    driver.report(1, 13, 14)
    driver.writer.write()
    driver.writer.write()  # nothing is new
    assert names(bucket) == ["000003-0001-0001.parquet", "000003-0001-0002.parquet"]
    assert steps(bucket) == list(range(1, 15))


def test_a_name_for_each_step_leaves_parts_that_can_be_read(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CELLS", 400), ("COLUMNS", 60)):
        monkeypatch.setattr(writer, name, value)
    monkeypatch.setattr(metrics_table, "MOST_VALUES", 500)
    driver = Driver(bucket, 1)
    driver.inbox.begin(1, None)
    rows = [Row(step, 0.0, {f"loss_{step}": 0.5, "loss": 1.0}) for step in range(1, 101)]
    driver.inbox.add_rows(1, rows)
    with monkeypatch.context() as outage:
        outage.setattr(type(bucket), "upload", refuse)
        with pytest.raises(StorageError):
            driver.writer.write()
    driver.writer.write()
    table = metrics_table.read(bucket)
    assert table["step"].to_pylist() == list(range(1, 101))
    assert table["loss"].to_pylist() == [1.0] * 100
    assert table["loss_59"][58].as_py() == 0.5
    assert len(table.column_names) == 3 + 60, "of its own, and no further one of the reports"


def test_rows_of_a_former_group_that_arrive_late_destroy_nothing(bucket: Bucket) -> None:
    driver = Driver(bucket, 1)
    driver.inbox.begin(1, None)
    driver.report(1, 1, 10)
    driver.inbox.begin(2, Origin(1, 1, 12))
    driver.report(2, 13, 20)
    driver.writer.write()
    driver.report(1, 11, 15)
    driver.writer.write()
    assert steps(bucket) == list(range(1, 21))


def test_a_group_that_reports_nothing_keeps_what_was_reported_before_it(bucket: Bucket) -> None:
    driver = Driver(bucket, 1)
    driver.inbox.begin(1, None)
    driver.report(1, 1, 30)
    driver.writer.write()
    driver.inbox.begin(2, Origin(1, 1, 30))
    driver.writer.write()
    driver.inbox.begin(3, Origin(1, 2, 36))
    driver.report(3, 40, 40)
    driver.writer.write()
    assert steps(bucket) == [*range(1, 31), 40]


def test_what_the_bucket_did_not_take_is_written_by_the_next_call(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(bucket, 1)
    driver.inbox.begin(1, None)
    driver.report(1, 1, 5)

    with monkeypatch.context() as outage:
        outage.setattr(type(bucket), "upload", refuse)
        for _ in range(3):
            with pytest.raises(StorageError):
                driver.writer.write()
    driver.report(1, 6, 7)
    driver.writer.write()
    assert steps(bucket) == list(range(1, 8))


def test_a_superseded_driver_damages_nothing(bucket: Bucket) -> None:
    old, new = Driver(bucket, 1), Driver(bucket, 2)
    old.inbox.begin(1, None)
    old.report(1, 1, 10)
    old.writer.write()
    new.inbox.begin(1, Origin(1, 1, 10))
    new.report(1, 11, 12)
    new.writer.write()
    old.report(1, 11, 500)
    old.writer.write()
    assert steps(bucket) == list(range(1, 13))


def test_a_damaged_part_costs_its_own_rows_alone(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(bucket, 1)
    driver.inbox.begin(1, None)
    driver.report(1, 1, 10)
    driver.writer.write()
    bucket.put("reports/000001-0001-0002.parquet", b"not Parquet")
    assert steps(bucket) == list(range(1, 11))
    assert "000001-0001-0002.parquet cannot be read" in caplog.text
