"""The rows of the page of all runs: words, order, filter and pages."""

from datetime import UTC, datetime
from typing import Any

import pytest

from trainingrun.cli import views
from trainingrun.cli.ui.fleet import ON_A_PAGE, Attention, Wanted, rows_of, shown
from trainingrun.local.run_line import reasons

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def condition(kind: str, reason: str, message: str = "", status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def a_run(
    name: str,
    phase: str | None = None,
    *conditions: dict[str, str],
    namespace: str = "a",
    **status: Any,
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = {"phase": phase, "conditions": list(conditions), **status}
    return {"metadata": metadata, "spec": {}, "status": found if phase else {}}


def test_what_needs_a_look_comes_first_and_what_ended_last_before_what_ended_earlier() -> None:
    runs = [
        a_run("old", "Failed", completionTime="2026-01-01T01:00:00Z"),
        a_run("done", "Succeeded", completionTime="2026-01-01T02:00:00Z"),
        a_run("paused", "Suspended", condition("Suspended", "Suspended")),
        a_run("trains", "Running"),
        a_run("starts", "Starting"),
        a_run("new"),
        a_run("spent", "Suspended", condition("Suspended", "BudgetSpent")),
        a_run("queued", "Queued", condition("Waiting", "Queued")),
        a_run("slow", "Running", condition("Waiting", "RanksWait")),
        a_run("hangs", "Running", condition("Waiting", "Hang")),
        a_run("refused", "Running", condition("Accepted", "InvalidSpec", status="False")),
        a_run("lost", "Recovering"),
        a_run("image", "Starting", condition("Stalled", "ImageCannotBePulled")),
    ]
    rows = rows_of(runs, NOW)
    assert [(row.cells["NAME"], row.attention.name) for row in rows] == [
        ("image", "FAILING"),
        ("lost", "FAILING"),
        ("refused", "FAILING"),
        ("hangs", "HANGING"),
        ("slow", "HANGING"),
        ("new", "WAITING"),
        ("queued", "WAITING"),
        ("spent", "WAITING"),
        ("starts", "RUNNING"),
        ("trains", "RUNNING"),
        ("paused", "RESTING"),
        ("done", "ENDED"),
        ("old", "ENDED"),
    ]
    tones = {row.cells["NAME"]: row.tone for row in rows}
    assert tones["image"] == tones["old"] == "bad"
    assert (tones["hangs"], tones["trains"], tones["done"]) == ("warning", "busy", "good")


def test_a_row_says_what_the_commands_say() -> None:
    run = a_run(
        "digits",
        "Running",
        condition("Waiting", "Hang", "no step for 300 s"),
        progress={"step": 5, "totalSteps": 10, "percent": 50, "secondsLeft": 90},
        goodput={"percent": 97},
        cost={"currency": "USD", "amount": 3.5},
    )
    run["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    (row,) = rows_of([run], NOW)
    assert row.cells == views.cells(run, NOW)
    assert views.listing([run], NOW, True, None).split()[-1] == row.cells["AGE"] == "24h"
    assert (row.queue, row.left, row.cost) == ("gpus", "90s", "3.50 USD")
    assert "90s" in views.details(run, None)
    assert list(row.sentences) == reasons(run) == ["no step for 300 s"]
    assert row.reason == "Hang"


def test_a_silent_run_has_no_time_left_and_no_warning_of_before() -> None:
    measured = {"step": 5, "stepSeconds": 1.0, "secondsLeft": 90, "warnings": ["rank 3 is slow"]}
    fresh, old = (
        a_run("digits", "Running", progress={**measured, "updateTime": at})
        for at in ("2026-01-01T23:59:00Z", "2026-01-01T12:00:00Z")
    )
    now, before = rows_of([fresh], NOW) + rows_of([old], NOW)
    assert (now.left, now.sentences, now.cells["REPORTED"]) == ("90s", ("rank 3 is slow",), "")
    assert (before.left, before.sentences, before.cells["REPORTED"]) == ("", (), "12h ago")


def test_an_interrupted_training_says_what_was_lost_last() -> None:
    lost = {"number": 2, "reason": "NodeLost", "pods": ["w-1"], "node": "spot-1", "lostSteps": 0}
    run = a_run("digits", "Recovering", disruptions={"history": [{"reason": "Hang"}, lost]})
    (row,) = rows_of([run], NOW)
    assert row.sentences == (views.loss(lost),)
    assert row.sentences[0].startswith("NodeLost w-1 on node spot-1")


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "conditions": [{"kind": "Ready"}]},
        {"phase": "Running", "progress": [1, 2]},
        {"phase": "Failed", "completionTime": "yesterday"},
        {"phase": "Recovering", "disruptions": {"history": [7]}},
        ["Running"],
    ],
)
def test_a_run_that_cannot_be_read_is_a_row_with_a_sentence_and_the_rest_stays(status: Any) -> None:
    odd = a_run("odd") | {"status": status}
    rows = rows_of([odd, a_run("digits", "Running")], NOW)
    assert [(row.cells["NAME"], row.state) for row in rows] == [
        ("odd", "Unknown"),
        ("digits", "Running"),
    ]
    assert "is not as this version of trainingrun knows it" in rows[0].sentences[0]
    assert rows[0].attention is Attention.FAILING


def test_namespace_and_text_leave_rows_out_and_the_states_of_the_rest_are_counted() -> None:
    runs = [
        a_run("digits", "Running", condition("Waiting", "Hang", "Rank 3 hangs in read")),
        a_run("digits-2", "Failed", completionTime="2026-01-01T02:00:00Z"),
        a_run("other", "Running", namespace="b"),
    ]
    rows = rows_of(runs, NOW)
    found = shown(rows, Wanted(namespace="a"))
    assert found.counts == [("Running", 1), ("Failed", 1)]
    assert found.namespaces == ["a", "b"]
    named = [row.cells["NAME"] for row in shown(rows, Wanted(text="RANK hangs")).rows]
    assert named == ["digits"]
    failed = shown(rows, Wanted(state="Failed"))
    assert [row.cells["NAME"] for row in failed.rows] == ["digits-2"]
    assert failed.counts == [("Running", 2), ("Failed", 1)], "the others can be chosen next"


def test_the_address_has_what_is_wanted() -> None:
    wanted = Wanted.of({"namespace": " a ", "text": "x&y", "page": "3", "unknown": "1"})
    assert wanted == Wanted("a", "", "x&y", 3)
    assert wanted.address() == "/?namespace=a&text=x%26y"
    assert wanted.address(page=4).endswith("&page=4")
    assert Wanted().address() == "/"
    assert [Wanted.of({"page": page}).page for page in ("-1", "²", "9" * 50, "")] == [1, 1, 1, 1]


def test_rows_are_on_pages_and_a_page_behind_the_last_is_the_last() -> None:
    rows = rows_of([a_run(f"run-{number:04}", "Running") for number in range(250)], NOW)
    first, last = shown(rows, Wanted()), shown(rows, Wanted(page=99))
    assert (len(first.rows), first.page, first.pages, first.found) == (ON_A_PAGE, 1, 3, 250)
    assert (len(last.rows), last.page) == (50, 3)
    assert last.rows[-1].cells["NAME"] == "run-0249"
