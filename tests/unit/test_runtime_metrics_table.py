"""The table of what was reported: which rows count, and what a part of it may hold."""

import math
from dataclasses import replace
from typing import Any

import pytest

from trainingrun_runtime.coordinator.inbox import Inbox
from trainingrun_runtime.store import metrics_table
from trainingrun_runtime.store.metrics_table import Part, UnreadablePart
from trainingrun_runtime.store.reported_metrics import Origin, Row


def rows(first: int, last: int, value: float) -> list[Row]:
    return [Row(step, 1000.0 + step, {"loss": value}) for step in range(first, last + 1)]


def a_part(
    token: int, group: int, made: list[Row], origin: Origin | None = None, number: int = 1
) -> Part:
    return Part(token, group, number, origin, metrics_table.table_of(made, attempt=token))


def shown(*found: Part) -> dict[int, float]:
    """The loss of each step in the table, which has each step once."""
    table = metrics_table.merged(found)
    steps = table["step"].to_pylist()
    assert steps == sorted(set(steps))
    return dict(zip(steps, table["loss"].to_pylist(), strict=True))


def values(first: int, last: int, value: float) -> dict[int, float]:
    return dict.fromkeys(range(first, last + 1), value)


def test_steps_after_the_restored_one_are_those_of_the_next_group() -> None:
    first = a_part(1, 1, rows(1, 17, 1.0))
    second = a_part(1, 2, rows(11, 20, 2.0), Origin(1, 1, 10))
    assert shown(second, first) == {**values(1, 10, 1.0), **values(11, 20, 2.0)}


def test_a_group_that_begins_from_scratch_supersedes_all_before_it() -> None:
    first = a_part(1, 1, rows(1, 9, 1.0))
    assert shown(first, a_part(1, 2, rows(1, 3, 2.0))) == values(1, 3, 2.0)


def test_a_group_that_reported_nothing_and_saved_is_a_link_of_the_chain() -> None:
    first = a_part(1, 1, rows(1, 12, 1.0))
    silent = a_part(1, 2, [], Origin(1, 1, 10))
    third = a_part(2, 1, rows(16, 20, 3.0), Origin(1, 2, 15))
    assert shown(first, silent, third) == {**values(1, 10, 1.0), **values(16, 20, 3.0)}


def test_a_superseded_driver_that_goes_on_writing_changes_nothing() -> None:
    old = a_part(1, 1, rows(1, 10, 1.0))
    new = a_part(2, 1, rows(11, 30, 2.0), Origin(1, 1, 10))
    before = shown(old, new)
    late = a_part(1, 1, rows(11, 25, 9.0), number=2)
    again = a_part(1, 2, rows(9, 40, 9.0), Origin(1, 1, 8))
    assert shown(old, late, again, new) == before


def test_a_checkpoint_that_a_superseded_driver_commits_late_brings_its_own_rows() -> None:
    """Driver 2 made none before it was lost, so driver 3 begins from driver 1's."""
    old = a_part(1, 1, rows(1, 80, 1.0))
    lost = a_part(2, 1, rows(51, 60, 2.0), Origin(1, 1, 50))
    third = a_part(3, 1, rows(71, 90, 3.0), Origin(1, 1, 70))
    assert shown(old, lost, third) == {**values(1, 70, 1.0), **values(71, 90, 3.0)}


def test_a_fallback_to_an_older_checkpoint_takes_the_steps_after_it_away_for_good() -> None:
    first = a_part(1, 1, rows(1, 100, 1.0))
    second = a_part(2, 1, rows(51, 60, 2.0), Origin(1, 1, 50))
    third = a_part(3, 1, [], Origin(2, 1, 60))
    assert shown(first, second, third) == {**values(1, 50, 1.0), **values(51, 60, 2.0)}


def test_origins_in_a_circle_end() -> None:
    one = a_part(1, 1, rows(1, 2, 1.0), Origin(1, 2, 5))
    two = a_part(1, 2, rows(3, 4, 2.0), Origin(1, 1, 2))
    assert shown(one, two) == {**values(1, 2, 1.0), **values(3, 4, 2.0)}


def test_an_evaluation_is_added_to_the_row_of_its_step() -> None:
    made = [Row(1, 1.0, {"loss": 0.5}), Row(2, 2.0, {"loss": 0.4}), Row(2, 3.0, {"error": 0.1})]
    again = a_part(1, 2, [Row(2, 9.0, {"error": 0.2})], Origin(1, 1, 2))  # it was cut off
    table = metrics_table.merged([a_part(1, 1, made), again]).to_pylist()
    assert [(row["step"], row["loss"], row["error"]) for row in table] == [
        (1, 0.5, None),
        (2, 0.4, 0.2),
    ]


def test_without_a_part_the_table_is_empty_and_has_its_columns() -> None:
    table = metrics_table.merged([])
    assert table.column_names == ["step", "time", "attempt"]
    assert len(table) == 0


@pytest.mark.parametrize(
    ("reported", "kind", "read"),
    [
        ([1, 2], "int64", [1, 2]),
        ([1, 0.5], "double", [1.0, 0.5]),
        ([0.5, "Infinity"], "double", [0.5, math.inf]),
        (["-Infinity"], "double", [-math.inf]),
        ([True, False], "bool", [True, False]),
        (["warm", 3], "string", ["warm", "3"]),
        ([True, 3], "string", ["true", "3"]),
        ([None, None], "null", [None, None]),
        ([2**62, 0.5], "double", [float(2**62), 0.5]),
    ],
)
def test_values_have_the_type_that_they_share(
    reported: list[Any], kind: str, read: list[Any]
) -> None:
    made = a_part(1, 1, [Row(i, 0.0, {"value": v}) for i, v in enumerate(reported, 1)])
    table = metrics_table.decoded(made.key, metrics_table.encoded(made)).table
    assert str(table.schema.field("value").type) == kind
    assert table["value"].to_pylist() == read


def test_nan_is_a_number() -> None:
    table = metrics_table.table_of([Row(1, 0.0, {"loss": "NaN"})], 1)
    assert math.isnan(table["loss"][0].as_py())


def test_a_metric_may_have_another_type_in_another_part() -> None:
    first = a_part(1, 1, [Row(1, 0.0, {"a": 1, "b": 1, "c": None})])
    second = a_part(1, 1, [Row(2, 0.0, {"a": 0.5, "b": "text", "c": True})], number=2)
    table = metrics_table.merged([first, second])
    assert [str(table.schema.field(name).type) for name in "abc"] == ["double", "string", "bool"]
    assert table.select(["a", "b", "c"]).to_pylist() == [
        {"a": 1.0, "b": "1", "c": None},
        {"a": 0.5, "b": "text", "c": True},
    ]


KINDS: list[list[Any]] = [
    [1_764_000_000_123_456_789, 2**62],
    [0.5, 2.0**63],
    ["NaN", "Infinity"],
    [True, False],
    ["text", r"m\udce4"],
    [None, None],
]
"""Values of each type that a part's column may have; text may be that of any other value."""


@pytest.mark.parametrize("second", KINDS, ids=str)
@pytest.mark.parametrize("first", KINDS, ids=str)
def test_each_type_may_meet_each_other_one(first: list[Any], second: list[Any]) -> None:
    one = a_part(1, 1, [Row(n, 0.0, {"value": value}) for n, value in enumerate(first, 1)])
    more = [Row(n, 0.0, {"value": value}) for n, value in enumerate(second, 3)]
    two = a_part(2, 1, [*more, Row(4, 0.0, {"other": 1})], Origin(1, 1, 2))
    found = [metrics_table.decoded(each.key, metrics_table.encoded(each)) for each in (one, two)]
    table = metrics_table.merged(found)
    assert table["step"].to_pylist() == [1, 2, 3, 4]
    alone = [metrics_table.merged([part])["value"].to_pylist() for part in found]
    for read, value in zip(table["value"].to_pylist(), [*alone[0], *alone[1]], strict=True):
        if isinstance(read, str):
            assert isinstance(value, str) or read.lower() in (str(value).lower(), f"{value:.0f}")
        elif isinstance(read, float):
            assert str(read) == str(float(value)), "the next float, or NaN"
        else:
            assert read == value


def test_a_column_of_a_type_that_no_part_has_is_refused() -> None:
    part = a_part(1, 1, rows(1, 2, 1.0))
    lists = part.table.append_column("value", [[[1], [2]]])
    other = replace(part, table=lists)
    with pytest.raises(UnreadablePart, match=r"it has a column of type list<"):
        metrics_table.decoded(other.key, metrics_table.encoded(other))


def test_metrics_with_the_names_of_moved_ones_are_kept_beside_them() -> None:
    """Also where one part has both and another one has not."""
    both = {"time": 1, "reported_time": 2, "reported_reported_time": 3, "my_time": 4}
    one, two = table_of({"reported_time": 5, "reported_steps": 6}), table_of(both)
    assert one["reported_reported_time"].to_pylist() == [5]
    assert "reported_steps" in one.column_names
    assert {name: two[name].to_pylist() for name in two.column_names[3:]} == {
        "reported_time": [1],
        "reported_reported_time": [2],
        "reported_reported_reported_time": [3],
        "my_time": [4],
    }


def table_of(metrics: dict[str, Any]) -> Any:
    return metrics_table.table_of([Row(1, 0.0, metrics)], 1)


def test_a_metric_with_the_name_of_an_own_column_is_kept_beside_it() -> None:
    table = metrics_table.table_of([Row(5, 0.0, {"step": 5, "time": 1.5, "attempt": 7})], 2)
    assert table.column_names == ["step", "time", "attempt", "reported_time", "reported_attempt"]
    assert table.to_pylist()[0]["attempt"] == 2


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("reports/other.parquet", b"", "name"),
        (a_part(1, 1, []).key, b"PAR1", "not a part"),
        (
            a_part(1, 1, [], number=2).key,
            metrics_table.encoded(a_part(1, 1, rows(1, 2, 1.0))),
            "says that it is",
        ),
    ],
)
def test_what_is_no_part_is_refused(name: str, content: bytes, why: str) -> None:
    with pytest.raises(UnreadablePart, match=why):
        metrics_table.decoded(name, content)


def test_a_part_of_very_many_rows_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = a_part(1, 1, rows(1, 30, 1.0))
    content = metrics_table.encoded(made)
    assert metrics_table.decoded(made.key, content).table == made.table
    monkeypatch.setattr(metrics_table, "MOST_VALUES", 100)
    with pytest.raises(UnreadablePart, match="it has 30 rows, too many"):
        metrics_table.decoded(made.key, content)


def test_rows_are_taken_until_the_driver_has_them() -> None:
    inbox = Inbox()
    inbox.add_rows(1, rows(1, 1, 1.0))  # of a group that never began
    inbox.begin(1, None)
    inbox.add_rows(1, rows(1, 3, 1.0))
    first = inbox.rows(0)
    assert inbox.rows(0) == first, "the driver got no answer, and asks again"
    assert [(batch.number, len(batch.rows)) for batch in first] == [(1, 0), (2, 3)]
    inbox.add_rows(1, rows(4, 4, 1.0))
    assert [batch.number for batch in inbox.rows(first[-1].number)] == [3]


def test_another_rank_adds_only_what_rank_0_had_not_sent() -> None:
    inbox = Inbox()
    inbox.begin(1, None)
    inbox.add_rows(1, rows(1, 7, 1.0))
    inbox.complete(rows(3, 12, 2.0), last_step=10)
    assert [row.step for batch in inbox.rows(0) for row in batch.rows] == list(range(1, 11))


def test_what_waits_for_a_silent_bucket_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trainingrun_runtime.coordinator.inbox.LARGEST", 20)
    inbox = Inbox()
    inbox.begin(1, None)
    for step in range(1, 101):
        inbox.add_rows(1, rows(step, step, 1.0))
    assert [row.step for batch in inbox.rows(0) for row in batch.rows] == list(range(91, 101))
    assert "1 reports are not in the table" in caplog.text
