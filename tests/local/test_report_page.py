"""The page of a run with a real S3 server: by the driver at its end, and by the command."""

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from support.cli_server import RUNS, Server, call, running_server
from support.report_runs import BEGAN, FAILURE, failed_run
from support.s3 import S3Server
from trainingrun_protocol.progress import Progress, RunState
from trainingrun_runtime.report_page import writing
from trainingrun_runtime.store import last_progress
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease, Superseded

UID = "1a2b3c4d-0000-0000-0000-000000000000"


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path) -> Bucket:
    return Bucket.open(f"s3://runs/{tmp_path.name}/demo-{UID[:8]}", s3.url, "us-east-1")


@pytest.fixture
def server(
    bucket: Bucket, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """An API server that knows the run."""
    monkeypatch.chdir(tmp_path)
    uri = bucket.root.rpartition("/")[0]
    run = {
        "metadata": {"name": "demo", "namespace": "team-a", "uid": UID},
        "spec": {"storage": {"uri": uri, "endpoint": s3.url, "region": "us-east-1"}},
        "status": {
            "phase": "Failed",
            "conditions": [{"type": "Failed", "status": "True", "message": "all budgets are used"}],
            "attempts": [{"number": 4, "outcome": "Lost", "reason": "HeadLost", "message": ""}],
        },
    }
    with running_server(tmp_path, monkeypatch) as found:
        found.answers[f"{RUNS}/demo"] = [(200, run)]
        found.answers[RUNS] = [(200, {"items": [run]})]
        yield found


def test_the_driver_s_page_is_one_that_a_browser_shows(bucket: Bucket) -> None:
    failed_run(bucket)
    lease = Lease.take(bucket, 4, "demo-4-head", BEGAN + 800)
    progress = Progress(
        attempt=4, fencing_token=lease.fencing_token, state=RunState.SUCCEEDED, time=BEGAN + 900
    )
    assert writing.write(lease, "demo", progress) == f"{bucket.root}/report.html"
    found = obstore.get(bucket.store, "report.html")
    assert found.attributes["Content-Type"] == "text/html; charset=utf-8"
    text = bytes(found.bytes()).decode()
    assert "<h1>demo <span" in text
    assert "By the driver of attempt 4, from the run&#39;s folder." in text
    assert FAILURE.partition(";")[0] in text, "what ended an earlier attempt is there too"
    assert last_progress.drivers(bucket)[-1].progress == progress


def test_a_superseded_driver_does_not_replace_the_page(bucket: Bucket) -> None:
    failed_run(bucket)
    old = Lease.take(bucket, 4, "demo-4-head", BEGAN + 800)
    new = Lease.take(bucket, 5, "demo-5-head", BEGAN + 900)

    def document(lease: Lease) -> Progress:
        return Progress(attempt=lease.attempt, fencing_token=lease.fencing_token)

    writing.write(new, "demo", document(new))
    with pytest.raises(Superseded):
        writing.write(old, "demo", document(old))
    assert b"By the driver of attempt 5" in (bucket.get("report.html") or b"")


def test_the_command_joins_the_status_and_the_folder(
    bucket: Bucket, server: Server, tmp_path: Path
) -> None:
    failed_run(bucket)
    code, output, errors = call("report", "demo", "--html")
    (page,) = tmp_path.glob("demo-20*Z.html")
    assert (code, output, errors) == (0, f"{page.name} written\n", "")
    text = page.read_text()
    assert "all budgets are used" in text
    assert "HeadLost" in text
    assert "<h3>loss</h3>" in text
    assert "From the run&#39;s folder and its status." in text


def test_a_colleague_without_the_cluster_has_the_page_from_the_folder(
    bucket: Bucket, s3: S3Server, tmp_path: Path
) -> None:
    failed_run(bucket)
    target = tmp_path / "page.html"
    code, _, errors = call(
        "report", bucket.root, "--endpoint", s3.url, "--html", "--to", str(target)
    )
    assert (code, errors) == (0, "")
    assert FAILURE in target.read_text()
    code, _, errors = call("report", f"{bucket.root}x", "--endpoint", s3.url, "--html")
    assert (code, errors.startswith("there is no run in")) == (1, True)


def test_without_its_bucket_a_run_in_the_cluster_still_has_a_page(
    server: Server, tmp_path: Path
) -> None:
    target = tmp_path / "page.html"
    code, _, errors = call("report", "demo", "--html", "--to", str(target))
    assert (code, errors) == (0, "")
    text = target.read_text()
    assert "all budgets are used" in text
    assert "Nothing of the bucket is on this page: there is nothing in" in text


def test_what_keeps_the_page_from_being_written_is_said(bucket: Bucket, server: Server) -> None:
    failed_run(bucket)
    assert call("report", "demo", "--local")[2] == (
        "an archive is of a run in the cluster; --html writes a page of a folder\n"
    )
    code, _, errors = call("report", "demo", "--html", "--to", "no/such/folder.html")
    assert (code, errors) == (
        1,
        "no/such/folder.html cannot be written: No such file or directory\n",
    )
