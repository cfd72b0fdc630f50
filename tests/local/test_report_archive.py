"""What `trainingrun report` finds in a real bucket, also where the cluster has nothing left."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.cli_server import RUNS, call, running_server
from support.s3 import S3Server
from trainingrun.cli.support_archive import chosen
from trainingrun_runtime.store.bucket import Bucket

UID = "1a2b3c4d-0000-0000-0000-000000000000"
SECRET = "planted-in-the-environment"
PRINTED = f"2026-01-01T00:00:00.000Z token is {SECRET}\n"


def a_run(**storage: Any) -> dict[str, Any]:
    training = {"env": [{"name": "ANY", "value": SECRET}]}
    metadata = {"name": "digits", "namespace": "team-a", "uid": UID}
    return {"metadata": metadata, "spec": {"storage": storage, "training": training}}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Calls the command for a run with this storage; its files by name."""
    monkeypatch.chdir(tmp_path)
    with running_server(tmp_path, monkeypatch) as server:

        def called(*options: str, **storage: Any) -> dict[str, str]:
            server.answers[f"{RUNS}/digits"] = [(200, a_run(**storage))]
            code, output, _ = call("report", "digits", *options)
            assert code == 0
            with tarfile.open(output.split(" written")[0]) as found:
                return {
                    member.name.partition("/")[2]: found.extractfile(member).read().decode()
                    for member in found.getmembers()
                }

        yield called


def test_what_the_bucket_has_is_there_without_secrets(s3: S3Server, report, tmp_path: Path) -> None:
    uri = f"s3://runs/{tmp_path.name}"
    bucket = Bucket.open(f"{uri}/digits-{UID[:8]}", s3.url, "us-east-1")
    progress = json.dumps({"ranks": [{"rank": n, "pod": "p" * 60} for n in range(100)]})
    for key, text in {
        "progress/3.json": progress,
        "history/2-1.json": json.dumps({"message": f"said {SECRET}"}),
        "stacks/2/20260101T000000Z/rank-0.txt": f"main({SECRET})\n",
        "logs/2/1/rank-0/a.log": "an older part\n",
        "logs/2/1/rank-0/b.log": PRINTED * 10_000,
        "logs/2/1/rank-0/b-end.log": "",
        "logs/2/driver/a.log": PRINTED,
        "checkpoints/480/model.safetensors": "w" * 100,
    }.items():
        bucket.put(key, text.encode())
    # The pods reach the service at another address than this machine does.
    files = report("--endpoint", s3.url, uri=uri, region="us-east-1", endpoint="http://s3.svc")
    kept = {name.removeprefix("bucket/") for name in files if name.startswith("bucket/")}
    assert kept == {
        "progress/3.json",
        "history/2-1.json",
        "stacks/2/20260101T000000Z/rank-0.txt",
        "logs/2/1/rank-0/b.log",
        "logs/2/driver/a.log",
    }
    assert SECRET not in str(files)
    assert files["bucket/logs/2/driver/a.log"] == "2026-01-01T00:00:00.000Z token is ***\n"
    assert len(files["bucket/logs/2/1/rank-0/b.log"]) <= 256 * 1024
    assert json.loads(files["bucket/progress/3.json"]) == json.loads(progress)
    assert "         100 checkpoints/480/model.safetensors\n" in files["bucket.txt"]
    assert "RayJobs: " in files["not-read.txt"], "the cluster has none"
    assert "bucket: " not in files["not-read.txt"]


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        pytest.param({"uri": "file:///data"}, "file:///data is a folder of the pods", id="folder"),
        pytest.param(
            {"uri": "s3://runs/x", "endpoint": "http://127.0.0.1:9"}, "s3://runs/x", id="away"
        ),
    ],
)
def test_a_bucket_that_cannot_be_read_is_named(
    report, storage: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none-either")
    files = report(**storage)
    (line,) = [line for line in files["not-read.txt"].splitlines() if line.startswith("bucket: ")]
    assert said in line
    assert [name for name in files if name.startswith("bucket")] == []


def test_the_newest_of_each_kind_are_chosen() -> None:
    stacks = [f"stacks/{n}/t/rank-0.txt" for n in range(1, 101)]
    ranks = [f"logs/{n}/1/rank-{k}/{part}.log" for n in (9, 10) for k in range(50) for part in "ab"]
    hostile = ["stacks/../../x", "stacks//x", "logs/x", "stacks/\x1b[31m", "report.html", "logs"]
    found = chosen([*stacks, *ranks, *hostile, "logs/10/driver/a.log"])
    assert found[:64] == stacks[-64:]
    parts = found[64:]
    assert len(parts) == 64
    assert parts[0] == "logs/10/driver/a.log"
    assert parts[1:51] == [f"logs/10/1/rank-{k}/b.log" for k in range(50)]
    assert parts[51:] == [f"logs/9/1/rank-{k}/b.log" for k in range(13)]


def test_of_an_attempt_the_driver_and_the_newest_worker_group_come_first() -> None:
    """Each driver numbers its groups from 1, also the one that follows a lost head."""
    hour = "20261126T{:02d}0000000Z".format
    first = [f"logs/1/{g}/rank-{k}/{hour(g)}.log" for g in (9, 10) for k in range(30)]
    again = [f"logs/1/1/rank-{k}/{hour(at)}.log" for k in range(50) for at in (1, 20)]
    others = ["logs/1/failed.json", f"logs/1/driver/{hour(0)}.log"]
    found = chosen([*first, *again, *others])
    assert len(found) == 64
    assert set(found[:2]) == set(others)
    assert found[2:52] == [f"logs/1/1/rank-{k}/{hour(20)}.log" for k in range(50)]
    assert found[52:] == [f"logs/1/10/rank-{k}/{hour(10)}.log" for k in range(12)]
