"""`trainingrun ranks`: a line for each rank of the status."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.builders import a_run
from support.cli_server import RUNS, Server, call, running_server
from trainingrun.local import folder
from trainingrun_protocol.progress import Progress, RankRow, RunState

GIB = 2**30
RANKS = [
    {
        "rank": 0,
        "node": "a",
        "pod": "digits-1-w-0",
        "stepSeconds": 0.4,
        "dataWaitShare": 0.02,
        "communicationWaitShare": 0.75,
        "usedBytes": 3 * GIB,
        "limitBytes": 8 * GIB,
        "bytesPerHour": GIB // 2,
    },
    {"rank": 1, "node": "b\x1b[31m", "usedBytes": GIB},
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def answer(server: Server, spec: dict[str, Any], **status: Any) -> None:
    run = {"metadata": {"name": "digits", "namespace": "team-a"}, "spec": spec, "status": status}
    server.answers[f"{RUNS}/digits"] = [(200, run)]


def test_each_rank_has_a_line_and_warnings_follow(server: Server) -> None:
    progress = {"step": 9, "ranks": RANKS, "warnings": ["rank 0 on node a is slow"]}
    answer(server, {"workers": {"count": 2}}, phase="Running", progress=progress)
    code, output, errors = call("ranks", "digits")
    heads, first, second, warning = (line.rstrip() for line in output.splitlines())
    assert (code, errors) == (0, "")
    assert " ".join(heads.split()) == "RANK STEP OWN DATA% COMM% MEMORY LIMIT GROWTH/H NODE POD"
    assert " ".join(first.split()) == (
        "0 0.4 s 0.1 s 2% 75% 3.0 GiB 8.0 GiB 0.5 GiB a digits-1-w-0"
    )
    assert " ".join(second.split()) == "1 1.0 GiB b"
    assert warning == "rank 0 on node a is slow"


def test_without_step_times_it_is_said_what_they_need(server: Server) -> None:
    plain = [{"rank": 0, "usedBytes": GIB}]
    reported = {"ranks": plain, "step": 1, "updateTime": "2026-11-21T12:00:00Z"}
    answer(server, {"workers": {"count": 1}}, phase="Running", progress=reported)
    assert call("ranks", "digits")[2] == (
        "Step times and waits need a session: see docs/training.md.\n"
    )
    answer(server, {"workers": {"count": 2}}, phase="Running", progress={"ranks": RANKS})
    assert call("ranks", "digits")[2] == ""


def test_of_a_run_that_trains_with_fewer_workers_no_rank_is_missing(server: Server) -> None:
    spec, progress = {"workers": {"count": 3, "minimum": 2}}, {"ranks": RANKS}
    workers = {"wanted": 3, "ready": 2, "training": 2}
    answer(server, spec, phase="Running", progress=progress, workers=workers)
    assert call("ranks", "digits")[2] == ""
    answer(server, spec, phase="Running", progress=progress)
    assert call("ranks", "digits")[2] == "2 of 3 ranks have reported.\n"


def test_the_use_of_gpus_has_a_column_where_a_rank_measures_it(server: Server) -> None:
    ranks = [{"rank": 0, "acceleratorShare": 0.07}, {"rank": 1}]
    answer(server, {"workers": {"count": 2}}, phase="Running", progress={"ranks": ranks})
    heads, first, second = (line.split() for line in call("ranks", "digits")[1].splitlines())
    assert heads[-3:] == ["GPU%", "NODE", "POD"]
    assert (first, second) == (["0", "7%"], ["1"])


def test_json_is_what_the_status_has(server: Server) -> None:
    answer(server, {"workers": {"count": 2}}, phase="Running", progress={"ranks": RANKS})
    assert json.loads(call("ranks", "digits", "-o", "json")[1]) == RANKS
    answer(server, {"workers": {"count": 2}}, phase="Queued")
    assert json.loads(call("ranks", "digits", "-o", "json")[1]) == []


@pytest.mark.parametrize(
    ("shown", "workers", "sentence"),
    [
        pytest.param(1, 2, "1 of 2 ranks have reported.\n", id="some have not reported"),
        pytest.param(
            16,
            1000,
            "16 of 1000 ranks: those that are slowest, wait most for data, have the fullest "
            "memory or the idlest accelerators.\n",
            id="more than the status has",
        ),
    ],
)
def test_it_is_said_which_ranks_are_not_shown(
    server: Server, shown: int, workers: int, sentence: str
) -> None:
    rows = [{"rank": rank, "stepSeconds": 1.0} for rank in range(shown)]
    answer(server, {"workers": {"count": workers}}, phase="Running", progress={"ranks": rows})
    assert call("ranks", "digits")[2] == sentence


@pytest.mark.parametrize(
    ("spec", "status", "sentence"),
    [
        pytest.param({}, {}, "digits is Pending; ranks report while they train.\n", id="new"),
        pytest.param(
            {},
            {"phase": "Recovering"},
            "digits is Recovering; ranks report while they train.\n",
            id="not training",
        ),
        pytest.param(
            {},
            {"phase": "Running", "progress": {"step": 1}},
            "No rank of digits has reported yet; each one does 10 s after its start.\n",
            id="just begun",
        ),
        pytest.param(
            {"sweep": {"metric": "accuracy"}},
            {"phase": "Running"},
            "The status has no ranks of trials; `trainingrun sweep digits` shows the trials.\n",
            id="sweep",
        ),
    ],
)
def test_where_there_are_no_ranks_the_reason_is_said(
    server: Server, spec: dict[str, Any], status: dict[str, Any], sentence: str
) -> None:
    answer(server, spec, **status)
    assert call("ranks", "digits") == (0, "", sentence)


def test_the_ranks_of_a_local_run_are_shown_as_they_last_reported(tmp_path: Path) -> None:
    rows = [RankRow(rank=0, node="local-1", step_seconds=0.25)]
    slow = Progress(
        attempt=1, state=RunState.TRAINING, ranks=rows, warnings=["rank 0 on node local-1 is slow"]
    )
    place = ("digits", "--local", "--folder", str(tmp_path))
    with folder.Folder.prepare(a_run(workers={"count": 1}), tmp_path, False).record as record:
        record.show(slow)
        code, output, errors = call("ranks", *place)
        _, first, warning = (line.rstrip() for line in output.splitlines())
        assert (code, errors) == (0, "")
        assert first.split() == ["0", "0.25", "s", "local-1"]
        assert warning == "rank 0 on node local-1 is slow"
        record.show(Progress(attempt=1, state=RunState.RECOVERING))
        code, output, errors = call("ranks", *place)
    _, first = (line.rstrip() for line in output.splitlines())
    assert (code, first.split()) == (0, ["0", "0.25", "s", "local-1"])
    assert errors == "digits is Recovering: these are the last measurements of its ranks.\n"


@pytest.mark.parametrize("phase", ["Queued", "Suspended", "Recovering", "Failed"])
def test_of_a_run_that_does_not_train_ranks_and_top_say_that_they_measured_before(
    server: Server, phase: str
) -> None:
    ago = (datetime.now(UTC) - timedelta(hours=2, minutes=5)).isoformat()
    progress = {"ranks": RANKS, "warnings": ["rank 0 runs out of memory"], "updateTime": ago}
    answer(server, {"workers": {"count": 2}}, phase=phase, progress=progress)
    said = (
        f"digits is {phase}: these are the last measurements of its ranks; it last reported 2h ago."
    )
    code, output, errors = call("ranks", "digits")
    assert (code, len(output.splitlines()), errors) == (0, 3, f"{said}\n")
    frame = call("top", "digits")[1]
    assert said in frame.splitlines()
    assert "runs out of memory" not in output + frame


@pytest.mark.parametrize(
    ("has_session", "said"), [(False, True), (True, False), (None, False)], ids=str
)
def test_of_a_session_before_its_first_step_it_is_not_said_that_there_is_none(
    server: Server, tmp_path: Path, has_session: bool | None, said: bool
) -> None:
    first = Progress(
        attempt=1,
        state=RunState.TRAINING,
        has_session=has_session,
        ranks=[RankRow(rank=0, used_bytes=GIB)],
    )
    needed = "Step times and waits need a session: see docs/training.md."
    run = a_run(workers={"count": 1})
    with folder.Folder.prepare(run, tmp_path, False).record as record:
        record.show(first)
        place = ("digits", "--local", "--folder", str(tmp_path))
        assert call("ranks", *place)[2] == (f"{needed}\n" if said else "")
        assert (needed in call("top", *place)[1]) is said
    progress = {"ranks": [{"rank": 0, "usedBytes": GIB}]}
    answer(server, {"workers": {"count": 1}}, phase="Running", progress=progress)
    assert call("ranks", "digits")[2] == "", "of a cluster it is not known"


def test_a_local_run_that_begins_has_no_ranks_of_the_former_one(tmp_path: Path) -> None:
    with folder.Folder.prepare(a_run(), tmp_path, False).record as record:
        record.show(Progress(attempt=1, ranks=[RankRow(rank=0)]))
        record.begin(2, 1)
        code, output, errors = call("ranks", "digits", "--local", "--folder", str(tmp_path))
    assert (code, output) == (0, "")
    assert errors == "digits is Starting; ranks report while they train.\n"


def test_a_folder_without_a_run_of_that_name_is_named(tmp_path: Path) -> None:
    code, output, errors = call("ranks", "digits", "--local", "--folder", str(tmp_path))
    assert (code, output) == (1, "")
    assert errors.startswith(f"there is no run digits in {tmp_path}; begin one by")
