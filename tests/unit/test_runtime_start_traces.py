"""Where the time of a start went: what processes tell, what is kept of it, and the spans of it."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainingrun_runtime.coordinator.start_times import StartTimes
from trainingrun_runtime.report_page import traces
from trainingrun_runtime.report_page.traces import Trace
from trainingrun_runtime.store import start_traces
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.start_traces import (
    MOST_RANKS,
    MOST_READ,
    RANK_MARKS,
    RankTimes,
    StartTrace,
)

BEGAN = 1_800_000_000.0


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket.open((tmp_path / "digits-1a2b3c4d").as_uri())


def a_rank(rank: int = 0, **seconds: float) -> RankTimes:
    """With times in seconds from `BEGAN`."""
    times = {name: BEGAN + after for name, after in seconds.items()}
    return RankTimes(rank=rank, pod=f"digits-1-{rank}", pid=100 + rank, times=times)


def whole(rank: int, since: float) -> RankTimes:
    """A rank whose marks follow each other by a second."""
    return a_rank(rank, **{name: since + after for after, name in enumerate(RANK_MARKS)})


def started(times: StartTimes, group: int, at: float, ranks: int = 2, step: int = 0) -> None:
    """A group that is asked for at `at`, and whose ranks follow."""
    times.group_asked(BEGAN + at)
    times.group_times({"created": BEGAN + at + 2})
    times.group_times({"backend": BEGAN + at + 3})
    times.group_began(group, ranks, step)
    for rank in range(ranks):
        times.rank_times(group, whole(rank, at + 1))


def a_trace(**fields: Any) -> StartTrace:
    times = {name: BEGAN + after for name, after in fields.pop("times", {}).items()}
    return StartTrace(
        **{"attempt": 1, "fencing_token": 1, "group": 1, "world_size": 1, "times": times, **fields}
    )


def only(document: StartTrace, began: dict[int, float] | None = None) -> Trace:
    (found,) = traces.of([document], began)
    return found


def spans(trace: Trace) -> dict[str, tuple[float | None, float | None]]:
    """Begin and seconds by phase, from `BEGAN`."""
    return {
        span.name: (None if span.begin is None else span.begin - BEGAN, span.seconds)
        for span in trace.spans
    }


def test_a_process_knows_when_it_began() -> None:
    code = "import time; from trainingrun_runtime.progress.process_start import process_began; "
    code += "time.sleep(0.5); print(process_began(time.time()))"
    before = time.time()
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert before - 0.02 < float(told.stdout) < time.time() - 0.5


def test_each_group_has_a_document_with_the_driver_in_the_first(bucket: Bucket) -> None:
    times = StartTimes(attempt=2, fencing_token=3)
    times.driver_times({"process": BEGAN, "main": BEGAN + 1}, "head", 7)
    times.driver_times({"fit": BEGAN + 2})
    started(times, 1, at=3)
    version, first = times.changed_after(0)
    assert times.changed_after(version) == (version, [])
    times.group_ended(BEGAN + 101, BEGAN + 100)
    times.saved(BEGAN + 102)
    started(times, 2, at=103, step=40)
    _, second = times.changed_after(version)
    for document in (*first, *second):
        start_traces.write(bucket, document)
    assert [entry.key for entry in bucket.list("trace")] == [
        "trace/000003-0001.json",
        "trace/000003-0002.json",
    ]
    assert start_traces.read(bucket) == [*first, *second]
    one, two = traces.of(start_traces.read(bucket))
    assert (one.recovery, one.origin, one.end) == (False, BEGAN, BEGAN + 12)
    assert (two.recovery, two.origin, two.end) == (True, BEGAN + 100, BEGAN + 112)
    assert one.title == "Start in attempt 2, 2 workers from step 0: 12.0 s until a step was done"
    assert two.title == (
        "Recovery in attempt 2, 2 workers from step 40: 12.0 s until a step was done"
    )
    assert [row.begin for row in traces.rows(two)][:3] == [0.0, 1.0, 2.0]
    assert "driver" not in {span.process for span in two.spans}


def test_a_group_that_fails_before_its_first_step_belongs_to_the_recovery_that_follows() -> None:
    times = StartTimes(1, 1)
    started(times, 1, at=0)
    times.group_ended(BEGAN + 51, BEGAN + 50)
    times.group_asked(BEGAN + 52)  # its ranks die before they have agreed on a checkpoint
    times.group_ended(BEGAN + 60, BEGAN + 50)
    started(times, 2, at=61)
    document = times.changed_after(0)[1][-1]
    found = only(document)
    assert (document.group, found.origin, found.end) == (2, BEGAN + 50, BEGAN + 70)
    assert spans(found)["trainingrun.loss.detect"] == (50, 1)
    assert spans(found)["ray.train.worker_group.stop"] == (51, 1)
    assert spans(found)["ray.train.worker_group.start"] == (52, 11)


def test_a_first_group_that_fails_before_its_first_step_belongs_to_the_start() -> None:
    times = StartTimes(1, 1)
    times.driver_times({"process": BEGAN, "fit": BEGAN + 1})
    times.group_asked(BEGAN + 2)
    times.group_ended(BEGAN + 10, None)
    started(times, 1, at=11)
    found = only(times.changed_after(0)[1][0])
    assert (found.recovery, found.origin, found.end) == (False, BEGAN, BEGAN + 20)
    assert spans(found)["ray.train.controller.start"] == (1, 1)
    assert spans(found)["ray.train.worker_group.start"] == (2, 11)


def test_a_rank_of_a_former_group_changes_nothing() -> None:
    times = StartTimes(1, 1)
    started(times, 1, at=0)
    times.group_ended(BEGAN + 51, None)
    started(times, 2, at=52)
    version, _ = times.changed_after(0)
    times.rank_times(1, whole(0, 500))
    assert times.changed_after(version) == (version, [])


def test_of_many_ranks_rank_0_and_the_last_ones_are_kept_in_a_document_that_is_read(
    bucket: Bucket,
) -> None:
    times = StartTimes(1, 1)
    started(times, 1, at=0, ranks=0)
    times.group_began(1, 1000, 0)
    for rank in range(1000):
        times.rank_times(1, whole(rank, rank / 100))
    (document,) = times.changed_after(0)[1]
    start_traces.write(bucket, document)
    (read,) = start_traces.read(bucket)
    assert [one.rank for one in read.ranks] == [0, *range(1000 - MOST_RANKS + 1, 1000)]
    rows = [row for row in traces.rows(only(read)) if row.phase == "training.first_step"]
    assert [row.process for row in rows] == [f"rank 999, the last of {MOST_RANKS}"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\x00", id="no text"),
        pytest.param(b"[1, 2]", id="a list"),
        pytest.param(b'{"attempt": "x"}', id="no document"),
        pytest.param(b'{"version": 2, "attempt": 1, "fencingToken": 1, "group": 1}', id="newer"),
        pytest.param(b"[" * 100_000, id="nested"),
        pytest.param(b'{"attempt": 1, "fencingToken": 1, "group": 1}' + b" " * 2**17, id="large"),
    ],
)
def test_a_document_that_cannot_be_read_is_left_out(bucket: Bucket, content: bytes) -> None:
    start_traces.write(bucket, a_trace(times={"asked": 0}))
    bucket.put("trace/000001-0002.json", content)
    bucket.put("trace/notes.json", b"{}")
    assert [one.group for one in start_traces.read(bucket)] == [1]


def test_what_a_document_says_is_bounded(bucket: Bucket) -> None:
    hostile = {
        "attempt": 1,
        "fencingToken": 10**40,
        "group": -3,
        "worldSize": 10**30,
        "times": {"asked": BEGAN, "created": 1e300, "backend": -1, "other": 5, "saved": "x"},
        "driver": {"pod": "\x1b[31m" + "p" * 5000, "pid": 1, "times": {"main": True}},
        "ranks": [{"rank": n, "times": {"called": BEGAN}} for n in range(500)],
    }
    bucket.put("trace/000001-0001.json", json.dumps(hostile).encode())
    (found,) = start_traces.read(bucket)
    assert found.times == {"asked": BEGAN}
    assert (found.group, found.driver and len(found.driver.pod)) == (0, 253)
    assert found.driver is not None
    assert found.driver.times == {}
    assert len(found.ranks) == MOST_RANKS
    assert json.loads(json.dumps(traces.chrome("digits", traces.of([found])), allow_nan=False))


def test_the_newest_documents_are_read(bucket: Bucket) -> None:
    for group in range(1, MOST_READ + 11):
        start_traces.write(bucket, a_trace(group=group, times={"asked": group}))
    found = start_traces.read(bucket)
    assert [one.group for one in found] == list(range(11, MOST_READ + 11))
    first = traces.of(found, {1: BEGAN - 100})[0]
    assert first.origin == BEGAN + 11, "the attempt's first start is not among them"


def test_the_start_of_an_attempt_is_counted_from_when_it_was_applied() -> None:
    one = a_trace(times={"asked": 5})
    again = a_trace(fencing_token=2, times={"asked": 50})
    assert [trace.origin - BEGAN for trace in traces.of([one, again], {1: BEGAN})] == [0, 50]
    assert only(one, {1: BEGAN + 9}).origin == BEGAN + 5, "by a clock that is ahead"
    run = {
        "metadata": {"creationTimestamp": "2027-01-15T08:00:00Z"},
        "status": {"attempts": [{"number": 2, "startTime": "2027-01-15T08:00:10Z"}, {}]},
    }
    assert traces.began_of(run) == {1: BEGAN, 2: BEGAN + 10}
    assert traces.began_of(None) == {}
    sweep = {**run, "spec": {"sweep": {"metric": "loss"}}}
    assert traces.began_of(sweep) == {}, "its folder is that of a trial, which has begun later"


def test_a_process_that_had_waited_for_its_rank_has_no_start() -> None:
    recovered = {"last_step": 100, "lost": 101, "asked": 102}
    ranks = [
        a_rank(0, process=10, loaded=13, called=104),
        a_rank(1, process=98, loaded=103, called=104),
        a_rank(2, process=102, loaded=105, called=106),
    ]
    found = only(a_trace(times=recovered, ranks=ranks))
    starts = [span for span in found.spans if span.name == "python.start"]
    assert [(span.process, (span.begin or 0) - BEGAN, span.seconds) for span in starts] == [
        ("rank 1", 0 + 100, 3),
        ("rank 2", 102, 3),
    ]


def test_of_a_lost_head_the_recovery_begins_with_its_last_step() -> None:
    times = StartTimes(1, 2, last_step=BEGAN)
    times.driver_times({"process": BEGAN + 40, "main": BEGAN + 41})
    started(times, 1, at=45)
    found = only(times.changed_after(0)[1][0], {1: BEGAN - 500})
    assert (found.recovery, found.origin) == (True, BEGAN)
    assert spans(found)["trainingrun.head.replace"] == (0, 40)
    assert "ray.train.worker_group.stop" not in spans(found), "nobody has seen it"


def test_no_phase_is_negative_where_clocks_differ() -> None:
    found = only(a_trace(times={"backend": 10}, ranks=[a_rank(0, called=8, imported=9)]))
    assert spans(found)["ray.train.function.call"] == (10, 0)
    assert all(event["dur"] >= 0 for event in traces.chrome("x", [found])["traceEvents"][2:])


def test_code_without_a_session_has_its_first_report() -> None:
    found = only(a_trace(times={"asked": 0, "reported": 9}, ranks=[a_rank(0, imported=1, ready=2)]))
    assert spans(found)["training.first_report"] == (2, 7)
    assert found.end == BEGAN + 9


def test_a_start_without_a_step_says_so() -> None:
    found = only(a_trace(times={"asked": 0, "created": 2}))
    assert found.title == "Start in attempt 1, 1 worker from step 0: no first step is known"
    assert traces.longest(found) == "Longest: ray.train.worker_group.start 2.0 s."
    assert traces.of([a_trace()]) == [], "of which no time is known"
    assert traces.latest([found]) == [found]


def test_the_events_are_those_of_chrome() -> None:
    driver = {"pod": "head", "pid": 7, "times": {"process": BEGAN, "main": BEGAN + 1.5}}
    document = a_trace(driver=driver, times={"asked": 2, "created": 4})
    events = traces.chrome("digits", [only(document)])["traceEvents"]
    assert events == [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 1,
            "args": {"name": "digits attempt 1 start 1-1"},
        },
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "driver"}},
        {
            "ph": "X",
            "name": "python.start",
            "cat": "start",
            "ts": BEGAN * 1e6,
            "dur": 1_500_000,
            "pid": 1,
            "tid": 1,
            "args": {"trainingrun.attempt": 1, "k8s.pod.name": "head", "process.pid": 7},
        },
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "worker group"}},
        {
            "ph": "X",
            "name": "ray.train.worker_group.start",
            "cat": "start",
            "ts": (BEGAN + 2) * 1e6,
            "dur": 2_000_000,
            "pid": 1,
            "tid": 2,
            "args": {"trainingrun.attempt": 1},
        },
    ]
