"""Tables at the widths of terminals, and in a pipe: every name and every number is whole."""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from support.cli_server import RUNS, Server, call, running_server
from trainingrun.cli import views
from trainingrun.local import terminal_text
from trainingrun_runtime.store.manifest import Manifest

GIB = 2**30
NODE = "gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2"
POD = "digits-large-batch-2-gpu-workers-worker-9vxkq"
RANKS = [
    {
        "rank": rank,
        "node": NODE,
        "pod": POD,
        "stepSeconds": 1.0123,
        "dataWaitShare": 0.02,
        "communicationWaitShare": 0.75,
        "usedBytes": 103 * GIB,
        "limitBytes": 128 * GIB,
        "bytesPerHour": GIB // 2,
        "acceleratorShare": 0.97,
    }
    for rank in (7, 1023)
]
RUN = {
    "metadata": {
        "name": "digits-with-a-large-batch-and-a-long-name",
        "namespace": "machine-learning-team",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "status": {
        "phase": "Recovering",
        "attempt": 12,
        "progress": {"step": 148000, "totalSteps": 1200000, "percent": 12},
        "disruptions": {"preemptions": 104},
        "goodput": {"percent": 91},
    },
}
TRIALS = [
    {
        "number": number,
        "state": "Succeeded",
        "config": {"learning_rate": 0.0178343, "weight_decay": 0.000123, "momentum": 0.9},
        "step": 44000,
        "value": 0.9611,
    }
    for number in (1, 200)
]


def of_ranks(width: int | None) -> str:
    return views.ranks(RANKS, width)


def of_runs(width: int | None) -> str:
    return views.listing([RUN], datetime(2026, 1, 4, tzinfo=UTC), False, width)


def of_runs_everywhere(width: int | None) -> str:
    return views.listing([RUN], datetime(2026, 1, 4, tzinfo=UTC), True, width)


def of_trials(width: int | None) -> str:
    return views.trials(TRIALS, 200, "validation_accuracy", width)


def of_metrics(width: int | None) -> str:
    columns = ["step", *(f"validation/loss_of_task_{n}" for n in range(12))]
    return views.metrics_table([dict.fromkeys(columns, 1.23456789)], columns, width)


def of_large_numbers(width: int | None) -> str:
    large = {"stepSeconds": 54321.98, "usedBytes": 98765 * GIB, "bytesPerHour": 4321 * GIB}
    return views.ranks([{**RANKS[0], **large, "rank": 123456}], width)


def of_a_run(width: int | None) -> str:
    slow = {"rank": 1023, "node": NODE, "ownSeconds": 54321.98, "medianSeconds": 1.0123}
    checkpoint = {"step": 148000, "uri": "s3://bucket-of-a-team/runs/" + "digits-large/" * 6}
    progress = {**RUN["status"]["progress"], "slowestRank": slow}
    status = {**RUN["status"], "progress": progress, "checkpoint": checkpoint}
    return views.details({**RUN, "status": status}, width)


TABLES = [of_ranks, of_large_numbers, of_runs, of_runs_everywhere, of_trials, of_metrics]
VIEWS = [*TABLES, of_a_run]
SNAPSHOTS = {
    (of_a_run, 80): """\
name          machine-learning-team/digits-with-a-large-batch-and-a-long-name
phase         Recovering
step          148000/1200000
slowest rank  1023 on node gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2: 54322
              s of its own in a step, the others' median is 1.01 s
checkpoint    step 148000,
              s3://bucket-of-a-team/runs/digits-large/digits-large/digits-large/digits-large/digits-large/digits-large/
preemptions   104
goodput       91%""",
    (of_large_numbers, 80): """\
RANK    STEP     OWN      DATA%  COMM%  MEMORY       LIMIT      GROWTH/H    GPU%
123456  54322 s  13580 s  2%     75%    98765.0 GiB  128.0 GiB  4321.0 GiB  97%

RANK    NODE
123456  gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2

RANK    POD
123456  digits-large-batch-2-gpu-workers-worker-9vxkq""",
    (of_ranks, 60): """\
RANK  STEP    OWN      DATA%  COMM%  MEMORY     LIMIT
7     1.01 s  0.253 s  2%     75%    103.0 GiB  128.0 GiB
1023  1.01 s  0.253 s  2%     75%    103.0 GiB  128.0 GiB

RANK  GROWTH/H  GPU%
7     0.5 GiB   97%
1023  0.5 GiB   97%

RANK  NODE
7     gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2
1023  gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2

RANK  POD
7     digits-large-batch-2-gpu-workers-worker-9vxkq
1023  digits-large-batch-2-gpu-workers-worker-9vxkq""",
    (of_ranks, 80): """\
RANK  STEP    OWN      DATA%  COMM%  MEMORY     LIMIT      GROWTH/H  GPU%
7     1.01 s  0.253 s  2%     75%    103.0 GiB  128.0 GiB  0.5 GiB   97%
1023  1.01 s  0.253 s  2%     75%    103.0 GiB  128.0 GiB  0.5 GiB   97%

RANK  NODE
7     gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2
1023  gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2

RANK  POD
7     digits-large-batch-2-gpu-workers-worker-9vxkq
1023  digits-large-batch-2-gpu-workers-worker-9vxkq""",
    (of_ranks, 120): """\
RANK  STEP    OWN      DATA%  COMM%  MEMORY     LIMIT      GROWTH/H  GPU%  NODE
7     1.01 s  0.253 s  2%     75%    103.0 GiB  128.0 GiB  0.5 GiB   97%   gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2
1023  1.01 s  0.253 s  2%     75%    103.0 GiB  128.0 GiB  0.5 GiB   97%   gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2

RANK  POD
7     digits-large-batch-2-gpu-workers-worker-9vxkq
1023  digits-large-batch-2-gpu-workers-worker-9vxkq""",  # noqa: E501
    (of_runs, 60): """\
NAME                                       PHASE
digits-with-a-large-batch-and-a-long-name  Recovering

NAME                                       PROGRESS
digits-with-a-large-batch-and-a-long-name  12%

NAME                                       STEP
digits-with-a-large-batch-and-a-long-name  148000/1200000

NAME                                       ATTEMPT
digits-with-a-large-batch-and-a-long-name  12

NAME                                       PREEMPTIONS
digits-with-a-large-batch-and-a-long-name  104

NAME                                       GOODPUT  AGE
digits-with-a-large-batch-and-a-long-name  91%      3d""",
    (of_runs, 80): """\
NAME                                       PHASE       PROGRESS  STEP
digits-with-a-large-batch-and-a-long-name  Recovering  12%       148000/1200000

NAME                                       ATTEMPT  PREEMPTIONS  GOODPUT  AGE
digits-with-a-large-batch-and-a-long-name  12       104          91%      3d""",
    (of_trials, 80): """\
TRIAL  STATE      STEP   validation_accuracy  learning_rate  weight_decay
1      Succeeded  44000  0.9611               0.0178343      0.000123
200    Succeeded  44000  0.9611               0.0178343      0.000123

TRIAL  momentum  BEST
1      0.9
200    0.9       *""",
}


@pytest.mark.parametrize(
    ("view", "width"), SNAPSHOTS, ids=[f"{view.__name__}-{width}" for view, width in SNAPSHOTS]
)
def test_a_table_at_this_width(view: Callable[[int | None], str], width: int) -> None:
    assert view(width) == SNAPSHOTS[view, width]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("view", VIEWS)
def test_every_name_and_number_is_whole(view: Callable[[int | None], str], width: int) -> None:
    in_one = view(None)
    assert set(view(width).split()) == set(in_one.split())
    if view is not of_a_run and (view, width) != (of_runs_everywhere, 60):
        # There a word is longer: the two names alone take 66.
        assert max(map(len, view(width).splitlines())) <= width


@pytest.mark.parametrize("width", [None, 60, 80, 120, 200])
@pytest.mark.parametrize("view", VIEWS)
def test_no_line_ends_in_spaces(view: Callable[[int | None], str], width: int | None) -> None:
    assert [line for line in view(width).splitlines() if line != line.rstrip()] == []


def test_wide_characters_take_two_columns() -> None:
    text = terminal_text.table(["NAME", "LOSS"], [["損失", 1], ["a", 2]], None)
    assert text.splitlines() == ["NAME  LOSS", "損失  1", "a     2"]


def test_what_a_run_reports_cannot_control_the_terminal() -> None:
    assert "\x1b" not in terminal_text.table(["a\x1b[31m"], [["\x1b]0;title\x07b"]], 80)
    assert "\x1b" not in terminal_text.pairs([("a", "\x1b[31mb")])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def a_run() -> dict[str, Any]:
    progress = {"step": 1, "ranks": RANKS}
    return {**RUN, "spec": {"workers": {"count": 2}}, "status": {"progress": progress}}


def test_a_pipe_gets_all_columns_in_one_table(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run())]
    assert call("ranks", "digits")[1] == of_ranks(None) + "\n"


def test_a_terminal_gets_what_fits_into_it(server: Server, tmp_path: Path) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run())]
    assert in_terminal(tmp_path, "ranks", "digits") == (0, of_ranks(80) + "\n")


def test_top_shows_each_answer_until_the_run_ends(server: Server, tmp_path: Path) -> None:
    first, second = a_run(), a_run()
    second["status"]["progress"]["step"] = 2
    ended = {**a_run(), "status": {"phase": "Succeeded", "progress": {"step": 3}}}
    server.answers[f"{RUNS}/digits"] = [(200, first), (200, second), (200, ended)]
    code, output = in_terminal(tmp_path, "top", "digits")
    frames = output.split("digits-with-a-large-batch-and-a-long-name: ")[1:]
    assert code == 0
    shown = dict.fromkeys(frame.split("\n")[0].strip() for frame in frames)
    assert list(shown) == ["Pending · step 1", "Pending · step 2", "Succeeded · step 3"]
    assert views.ranks(RANKS, 80, places=False) in frames[0]
    assert NODE not in output


def test_a_terminal_that_draws_nothing_anew_gets_one_frame_of_top(
    server: Server, tmp_path: Path
) -> None:
    ended = {**a_run(), "status": {"phase": "Succeeded", "progress": {"step": 3}}}
    server.answers[f"{RUNS}/digits"] = [(200, a_run()), (200, ended)]
    code, output = in_terminal(tmp_path, "top", "digits", kind="dumb")
    assert code == 0
    assert output.endswith(f"\n\n{views.ranks(RANKS, 80, places=False)}\n")


def test_top_ends_by_ctrl_c(server: Server, tmp_path: Path) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run())]
    code, output = in_terminal(tmp_path, "top", "digits", stop_at="1023")
    assert code == 0
    assert "Traceback" not in output


def test_a_pipe_gets_one_frame_of_top(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run())]
    code, output, errors = call("top", "digits")
    assert (code, errors) == (0, "")
    assert output.endswith(f"\n\n{views.ranks(RANKS, None, places=False)}\n")
    assert [line for line in output.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("width", [80, 200])
def test_top_fits_in_one_table(width: int) -> None:
    run = {**a_run(), "metadata": {"name": "digits"}}
    frame = views.top(run, datetime(2026, 1, 4, tzinfo=UTC), width)
    assert frame.count("RANK") == 1
    assert max(map(len, frame.splitlines())) <= 80


def test_a_terminal_that_is_too_low_for_all_ranks_shows_what_is_wrong(
    server: Server, tmp_path: Path
) -> None:
    wide, said = [{**RANKS[0], "rank": rank} for rank in range(40)], "rank 7 is slow"
    progress = {"step": 1, "ranks": wide, "warnings": [said]}
    run = {**a_run(), "status": {"phase": "Running", "progress": progress}}
    ended = {**run, "status": {"phase": "Succeeded"}}
    server.answers[f"{RUNS}/digits"] = [(200, run), (200, ended)]
    code, output = in_terminal(tmp_path, "top", "digits")
    assert (code, said in output) == (0, True)


def in_terminal(
    tmp_path: Path, *arguments: str, stop_at: str = "\0", kind: str = "xterm"
) -> tuple[int, str]:
    """Exit code and output of a command in a terminal of 80 columns; Ctrl-C after `stop_at`."""
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "TERM": kind}
    environment.pop("COLUMNS", None)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "trainingrun", *arguments]
    with Popen(command, stdout=theirs, env=environment, stdin=theirs) as process:
        os.close(theirs)
        output = b""
        while piece := _read(ours):
            output += piece
            if stop_at.encode() in output:
                process.send_signal(signal.SIGINT)
                stop_at = "\0"
    os.close(ours)
    return process.returncode, output.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux ends a terminal by an error
        return b""


def test_checkpoints_fit_a_terminal_and_a_pipe_has_whole_uris() -> None:
    made = [
        Manifest(
            path=f"checkpoints/0001-000001/step-{step:010d}-{index}",
            step=step,
            world_size=64,
            attempt=1,
            fencing_token=1,
            index=index,
            metrics={"loss": 0.123456789, "validation_accuracy": 0.987654321, "perplexity": 12.5},
            files={},
            time=1_795_000_000.0,
        )
        for index, step in ((1, 148000), (2, 149000))
    ]
    root, now = "s3://bucket-of-a-team/runs/digits-1a2b3c4d", datetime(2026, 11, 20, tzinfo=UTC)
    lines = views.checkpoints_table(made, None, now, root, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == f"Folders are below {root}"
    assert any(line.endswith(made[1].path) for line in lines)
    _, first, _ = views.checkpoints_table(made, None, now, root, None).splitlines()
    assert first.split()[0] == "148000"
    assert first.endswith(f"{root}/{made[0].path}")
