"""Whatever follows a run ends with it: in each state in which it is found or that it reaches."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.builders import a_run
from support.cli_server import RUNS, call, running_server
from support.deadlines import ends_within
from trainingrun.api.status import Phase
from trainingrun.client import kept_logs, log_lines, pod_logs
from trainingrun.client.log_lines import Selection
from trainingrun.client.places import Place
from trainingrun.local.folder import Folder
from trainingrun.local.records import Record
from trainingrun_protocol.progress import Progress, ProgressResult, RunState
from trainingrun_runtime.store import kept_output, run_result
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.kept_output import Source
from trainingrun_runtime.store.lease import Lease

DEADLINE_S = 30
LONG_AGO = 1_700_000_000.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "POLL_S", 0.05)


def put(bucket: Bucket, began: float, *texts: str, attempt: int = 1) -> None:
    content = "".join(kept_output.written(began, text) for text in texts)
    bucket.put(kept_output.key(Source(attempt, 1, 0), began), content.encode())


def follow(bucket: Bucket, *more: str) -> tuple[int, list[str], str]:
    endpoint = ["--endpoint", bucket.endpoint] if bucket.endpoint else []
    with ends_within(DEADLINE_S):
        code, output, errors = call("logs", bucket.root, "--follow", *endpoint, *more)
    return code, output.splitlines(), errors


def test_the_logs_of_a_folder_whose_run_has_succeeded_end(bucket: Bucket) -> None:
    lease = Lease.take(bucket, 1, "pod", time.time())
    put(bucket, time.time(), "the last line")
    run_result.write(lease, ProgressResult())
    assert follow(bucket) == (0, ["[rank 0] the last line"], "")


def test_the_logs_of_a_folder_to_which_nobody_writes_any_more_end_with_a_sentence(
    bucket: Bucket,
) -> None:
    Lease.take(bucket, 1, "pod", LONG_AGO)
    put(bucket, LONG_AGO, "the last line")
    code, lines, errors = follow(bucket)
    assert (code, lines) == (0, ["[rank 0] the last line"])
    assert errors.startswith(f"Nothing was written to {bucket.root} for ")


def test_of_a_former_attempt_no_line_of_a_later_one_is_waited_for(bucket: Bucket) -> None:
    Lease.take(bucket, 1, "pod", time.time())
    put(bucket, time.time(), "of attempt 1")
    Lease.take(bucket, 2, "pod", time.time())
    put(bucket, time.time(), "of attempt 2", attempt=2)
    assert follow(bucket, "--attempt", "1") == (0, ["[rank 0] of attempt 1"], "")


@pytest.mark.parametrize(("tail", "shown"), [(1000, ["of attempt 2"]), (0, [])])
def test_after_the_lines_of_the_last_attempt_those_of_the_next_follow_and_none_of_former_ones(
    bucket: Bucket, tail: int, shown: list[str]
) -> None:
    said: list[str] = []
    now = time.time()
    for attempt in (1, 2):
        lease = Lease.take(bucket, attempt, "pod", now)
        put(bucket, now + attempt, f"of attempt {attempt}", attempt=attempt)
    place = Place(bucket.root, bucket.endpoint, bucket.region)
    with ends_within(DEADLINE_S):
        found = kept_logs.batches(place, Selection(tail=tail), True, said.append)
        lines = [line.text for line in next(found).lines]
        put(bucket, now + 1.5, "of attempt 1, later", attempt=1)
        lease = Lease.take(bucket, 3, "pod", now)
        put(bucket, now + 3, "of attempt 3", attempt=3)
        run_result.write(lease, ProgressResult())
        lines += [line.text for batch in found for line in batch.lines]
    assert (lines, said) == ([*shown, "of attempt 3"], [])


@pytest.fixture
def local(tmp_path: Path) -> tuple[Record, Bucket]:
    """A local run that has begun to print, and the folder of its output."""
    folder = Folder.prepare(a_run(), tmp_path, False)
    bucket = Bucket.open(folder.uri)
    Lease.take(bucket, 1, "head", time.time())
    put(bucket, time.time() - 5, "epoch 1")
    return folder.record, bucket


ENDS = {
    "succeeded": lambda record: record.ended(Phase.SUCCEEDED),
    "failed": lambda record: record.ended(Phase.FAILED, "rank 0 raised ValueError"),
    "stopped by Ctrl-C": lambda record: record.ended(Phase.SUSPENDED, "attempt 1 was stopped"),
    "killed": lambda record: None,
}


@pytest.mark.parametrize("end", ENDS)
def test_the_logs_of_a_local_run_that_has_ended_end(
    local: tuple[Record, Bucket], end: str, tmp_path: Path
) -> None:
    record, bucket = local
    record.show(Progress(attempt=1, state=RunState.TRAINING, step=3))
    ENDS[end](record)
    assert follow(bucket) == (0, ["[rank 0] epoch 1"], "")
    with ends_within(DEADLINE_S):
        found = call("logs", "digits", "--folder", str(tmp_path), "--follow", "--tail", "1")
    assert found == (0, "[rank 0] epoch 1\n", "")


@pytest.mark.parametrize("end", ENDS)
def test_watch_of_a_local_run_that_has_ended_ends(
    local: tuple[Record, Bucket], end: str, tmp_path: Path
) -> None:
    record, _ = local
    record.show(Progress(attempt=1, state=RunState.TRAINING, step=3))
    ENDS[end](record)
    with ends_within(DEADLINE_S):
        code, _, errors = call("watch", "digits", "--folder", str(tmp_path))
    assert (code == 0) is (end == "succeeded")
    assert (errors == "") is (end == "succeeded")


def test_what_a_local_run_prints_before_its_end_is_shown_and_then_it_ends(
    local: tuple[Record, Bucket], tmp_path: Path
) -> None:
    record, bucket = local
    code = (
        "from trainingrun.client import log_lines; log_lines.POLL_S = 0.2; "
        "from trainingrun.cli.main import app; app()"
    )
    command = [sys.executable, "-u", "-c", code, "logs", "digits"]
    command += ["--folder", str(tmp_path), "--follow"]
    with record, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[rank 0] epoch 1\n"
        put(bucket, time.time(), "epoch 2")
        assert process.stdout.readline() == "[rank 0] epoch 2\n"
        assert process.poll() is None, "the run goes on"
        put(bucket, time.time() + 1, "epoch 3")
        record.ended(Phase.SUCCEEDED)
        assert process.communicate(timeout=60)[0] == "[rank 0] epoch 3\n"
    assert process.returncode == 0


def a_cluster_run(bucket: Bucket, phase: str, attempt: int = 1) -> tuple[int, dict[str, Any]]:
    name = bucket.root.rpartition("/")[2].rpartition("-")[0]
    return 200, {
        "metadata": {"name": name, "namespace": "team-a", "uid": "1a2b3c4d-0"},
        "spec": {
            "storage": {
                "uri": bucket.root.rpartition("/")[0],
                "endpoint": bucket.endpoint,
                "region": bucket.region,
            }
        },
        "status": {"phase": phase, "attempt": attempt},
    }


GONE = (404, {"message": "gone"})


@pytest.mark.parametrize(
    "phases",
    [
        pytest.param(["Failed"], id="has ended"),
        pytest.param(["Recovering", "Recovering", "Running", "Succeeded"], id="between attempts"),
        pytest.param(["Suspended", "Suspended", "Running", "Failed"], id="suspended"),
        pytest.param(["Running", "Running", "Deleting"], id="held by a finalizer"),
        pytest.param(["Running", "Running", None], id="deleted"),
        pytest.param(["Pending", "Queued", "Running", "Succeeded"], id="has not begun"),
    ],
)
def test_the_logs_of_a_run_in_a_cluster_end_with_it(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phases: list[str | None]
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    bucket = Bucket.open(f"s3://runs/{tmp_path.name}/digits-1a2b3c4d", s3.url, "us-east-1")
    Lease.take(bucket, 1, "pod", time.time())
    put(bucket, time.time(), "epoch 1")
    with running_server(tmp_path, monkeypatch) as server:
        server.answers["/api/v1/namespaces/team-a/pods"] = [(200, {"items": []})]
        server.answers[f"{RUNS}/digits"] = [
            GONE
            if phase is None
            else a_cluster_run(bucket, phase, 0 if phase in ("Pending", "Queued") else 1)
            for phase in phases
        ]
        with ends_within(DEADLINE_S):
            code, output, errors = call("logs", "digits", "--follow")
    assert (code, output) == (0, "[rank 0] epoch 1\n")
    assert ("digits is suspended" in errors) is ("Suspended" in phases)
    assert ("digits is Pending: nothing is printed yet." in errors) is ("Pending" in phases)


def test_the_log_of_a_node_that_is_lost_is_not_waited_for_once_the_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unit.test_cli_logs import PODS, a_pod
    from unit.test_cli_logs import a_run as an_object

    monkeypatch.setattr(pod_logs, "_LAST_LINES_S", 0.5)
    stays_open = threading.Event()
    with running_server(tmp_path, monkeypatch) as server:
        server.answers[f"{RUNS}/digits"] = [(200, an_object()), (200, an_object("Failed"))]
        server.answers[PODS] = [(200, {"items": [a_pod("head", "head")]})]
        server.answers[f"{PODS}/head/log"] = [
            (200, b"2026-01-01T00:00:02Z [driver] attempt 1 begins\n"),
            (200, stays_open),
        ]
        try:
            with ends_within(DEADLINE_S):
                found = call("logs", "digits", "--follow")
        finally:
            stays_open.set()
    assert found == (0, "[driver] attempt 1 begins\n", "")
