"""`trainingrun metrics` and `checkpoints` with a real S3 server, and on folders of this machine."""

import csv
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.checkpoints import saved
from support.cli_server import RUNS, Server, call, running_server
from support.s3 import S3Server
from support.sweeps import a_trial, note
from trainingrun.cli import pod_commands
from trainingrun.cli.main import app
from trainingrun.reconciling.bookkeeping import Bookkeeping
from trainingrun_protocol.contract import STACKS_REQUEST_FILE, STATE_DIRECTORY_ENV
from trainingrun_protocol.progress import ProgressResult
from trainingrun_runtime.coordinator.inbox import Inbox
from trainingrun_runtime.store import kept_stacks, manifest, run_result, start_traces, verification
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.store.metrics_writer import ReportWriter
from trainingrun_runtime.store.reported_metrics import Row
from trainingrun_runtime.store.start_traces import ProcessTimes, RankTimes, StartTrace

UID = "1a2b3c4d-0000-0000-0000-000000000000"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a store is asked for again without a pause."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, 0.0))


class StoredRun:
    """A run in a bucket, with the API server that knows it."""

    def __init__(self, bucket: Bucket, server: Server, folder: Path) -> None:
        self.bucket, self.server, self._folder = bucket, server, folder
        self.lease = Lease.take(bucket, 1, "pod", 1000)

    def save(self, step: int, index: int, **metrics: float) -> manifest.Manifest:
        return saved(self.bucket, self._folder, step, index=index, **metrics)

    def steps(self) -> list[int]:
        return [one.step for one in manifest.committed(self.bucket)]


def as_object(name: str, uri: str, endpoint: str, **status: Any) -> dict[str, Any]:
    storage = {"uri": uri, "endpoint": endpoint, "region": "us-east-1"}
    metadata = {"name": name, "namespace": "team-a", "uid": UID}
    return {"metadata": metadata, "spec": {"storage": storage}, "status": status}


@pytest.fixture
def run(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoredRun]:
    uri = f"s3://runs/{tmp_path.name}"
    monkeypatch.chdir(tmp_path)
    with running_server(tmp_path, monkeypatch) as server:
        found = as_object("digits", uri, s3.url)
        server.answers[f"{RUNS}/digits"] = [(200, found)]
        server.answers[RUNS] = [(200, {"items": [found]})]
        bucket = Bucket.open(f"{uri}/digits-{UID[:8]}", s3.url, "us-east-1")
        yield StoredRun(bucket, server, tmp_path / "files")


def report(bucket: Bucket, last: int) -> None:
    inbox = Inbox()
    inbox.begin(1, None)
    rows = [
        Row(s, 1000.0 + s, {"loss": 1 / s, "note": "a,b", "none": None}) for s in range(1, last)
    ]
    inbox.add_rows(1, rows)
    ReportWriter(bucket, 1, 1, inbox.rows).write()


def test_metrics_shows_the_last_rows_and_csv_has_all_of_them(run: StoredRun) -> None:
    report(run.bucket, 41)
    code, output, errors = call("metrics", "digits", "--tail", "3")
    heads, *lines = output.splitlines()
    assert (code, errors) == (0, "The last 3 of 40 rows; --csv prints all.\n")
    assert heads.split() == ["step", "time", "attempt", "loss", "note", "none"]
    assert [line.split()[0] for line in lines] == ["38", "39", "40"]
    code, output, errors = call("metrics", "digits", "--csv")
    assert (code, errors) == (0, "")
    rows = list(csv.DictReader(io.StringIO(output)))
    assert [int(row["step"]) for row in rows] == list(range(1, 41))
    assert (float(rows[2]["loss"]), rows[2]["note"], rows[2]["none"]) == (1 / 3, "a,b", "")
    code, output, errors = call("metrics", "digits", "--csv", "--tail", "2")
    assert (code, errors) == (0, "")
    assert [int(row["step"]) for row in csv.DictReader(io.StringIO(output))] == [39, 40]


def test_a_run_is_found_by_the_uri_of_its_folder_after_its_object_is_gone(
    run: StoredRun, s3: S3Server
) -> None:
    report(run.bucket, 3)
    run.server.answers.clear()
    uri = run.bucket.root
    code, output, _ = call("metrics", uri, "--endpoint", s3.url, "--csv")
    assert (code, len(output.splitlines())) == (0, 3)
    code, _, errors = call("metrics", f"{uri}x", "--endpoint", s3.url)
    assert code == 1
    assert errors.startswith(f"there is no run in {uri}x; name a run's own folder")
    above, _, own = uri.rpartition("/")
    _, _, errors = call("checkpoints", "list", above, "--endpoint", s3.url)
    assert errors == f"there is no run in {above}; name a run's own folder in it: {own}\n"


def test_a_run_that_has_not_begun_says_so(run: StoredRun) -> None:
    run.bucket.delete_folder("lease")
    _, _, errors = call("checkpoints", "list", "digits")
    assert errors.endswith("yet: digits has not begun to train\n")


def test_a_local_run_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "trainingrun-local" / "digits"
    for uid in ("0" * 8, UID[:8]):
        bucket = Bucket.open(f"file://{root}/digits-{uid}")
        Lease.take(bucket, 1, "", 0)
    report(bucket, 3)
    (root / "latest.json").write_text(f'{{"uid": "{UID}", "attempt": 1}}')
    assert len(call("metrics", "digits", "--local", "--csv")[1].splitlines()) == 3
    folder = ("--folder", str(root))
    assert len(call("metrics", "digits", *folder, "--csv")[1].splitlines()) == 3
    assert "not other" in call("metrics", "other", *folder)[2]
    assert "there is no folder" in call("metrics", "nothing", "--local")[2]
    assert not (tmp_path / "trainingrun-local" / "nothing").exists()


def test_list_names_the_newest_and_the_best(run: StoredRun) -> None:
    assert "No checkpoints" in call("checkpoints", "list", "digits")[2]
    for index, (step, error) in enumerate([(10, 0.5), (20, 0.1), (30, 0.2)], 1):
        run.save(step, index, error=error)
    rate_by_error(run)
    code, output, errors = call("checkpoints", "list", "digits")
    _, *lines = output.splitlines()
    assert (code, errors) == (0, "")
    assert [line.split()[0] for line in lines] == ["10", "20", "30", "40"]
    assert ["best" in line.split() for line in lines] == [False, True, False, False]
    assert ["newest" in line.split() for line in lines] == [False, False, False, True]
    assert "error=0.1" in lines[1]
    assert f"{run.bucket.root}/checkpoints/0001-000001/step-0000000010-1" in lines[0]


def rate_by_error(run: StoredRun) -> None:
    """Make the newest checkpoint, and have it name the metric of `checkpoints.best`."""
    made = run.save(40, 4)
    rated = made.model_copy(update={"best_metric": "error", "best_order": "min"})
    run.bucket.put(made.key, rated.model_dump_json(by_alias=True).encode())


def damage(run: StoredRun, one: manifest.Manifest) -> None:
    key = f"{one.path}/rank-0/state.pt"
    content = run.bucket.get(key)
    assert content is not None
    run.bucket.put(key, b"x" + content[1:])


def test_where_there_is_no_checkpoint_none_is_intact(run: StoredRun) -> None:
    code, printed, said = call("checkpoints", "verify", "digits")
    assert (code, printed) == (1, "")
    assert f"no checkpoints in {run.bucket.root}" in said


def test_verify_names_each_damaged_checkpoint(run: StoredRun) -> None:
    run.save(10, 1)
    assert call("checkpoints", "verify", "digits")[0] == 0
    damage(run, run.save(20, 2))
    code, output, errors = call("checkpoints", "verify", "digits")
    assert (code, output) == (1, "step 10: intact (2 files, 1.8 kB)\n")
    assert errors.startswith("step 20: damaged: checkpoints/0001-000001/step-0000000020-2/rank-0")
    assert call("checkpoints", "verify", "digits", "--step", "10")[0] == 0
    assert "choose one of: 10, 20" in call("checkpoints", "verify", "digits", "--step", "3")[2]
    run.bucket.put("manifests/000001-000003.json", b"{")
    assert call("checkpoints", "verify", "digits", "--step", "10")[0] == 1


def test_download_takes_the_newest_intact_checkpoint_and_all_of_it(
    run: StoredRun, tmp_path: Path
) -> None:
    older = run.save(10, 1)
    damage(run, run.save(20, 2))
    code, output, errors = call("checkpoints", "download", "digits")
    target = tmp_path / f"digits-{UID[:8]}-step-10"
    assert (code, output) == (0, f"step 10 downloaded to {target.name}, 1.8 kB\n")
    assert "step 20: " in errors
    assert "has another content than was committed" in errors
    assert manifest.digest_folder(target) == older.files
    assert not [found for found in tmp_path.iterdir() if "step-20" in found.name]
    code, _, errors = call("checkpoints", "download", "digits", "--step", "10")
    assert (code, "is there already" in errors) == (1, True)
    place = ("--to", str(tmp_path / "a" / "b"))
    assert call("checkpoints", "download", "digits", "--step", "20", *place)[0] == 1
    assert not (tmp_path / "a" / "b").exists()
    assert call("checkpoints", "download", "digits", "--step", "10", *place)[0] == 0
    assert manifest.digest_folder(tmp_path / "a" / "b") == older.files


def test_download_of_the_best_checkpoint(run: StoredRun, tmp_path: Path) -> None:
    best = run.save(10, 1, error=0.1)
    run.save(20, 2, error=0.2)
    assert "checkpoints.best" in call("checkpoints", "download", "digits", "--best")[2]
    rate_by_error(run)
    assert call("checkpoints", "download", "digits", "--best", "--to", "here")[0] == 0
    assert manifest.digest_folder(tmp_path / "here") == best.files


def prune(*options: str, answer: str = "", of: str = "digits") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["checkpoints", "prune", of, *options], input=answer)
    return result.exit_code, result.stdout, result.stderr


def test_prune_asks_and_keeps_what_the_run_needs(run: StoredRun) -> None:
    for index, (step, error) in enumerate([(10, 0.5), (20, 0.1), (30, 0.2)], 1):
        one = run.save(step, index, error=error)
        manifest.add_metrics(run.bucket, one.name, 1, {"accuracy": 0.5})
    rate_by_error(run)
    code, output, errors = prune(answer="n\n")
    assert (code, errors) == (1, "nothing is deleted\n")
    assert "step 10, 1.8 kB: checkpoints/0001-000001/step-0000000010-1\n" in output
    assert "Delete 2 checkpoints (3.6 kB)" in output
    assert "and keep 20, 40?" in output
    assert prune(answer="")[0] == 1, "nobody answers"
    assert run.steps() == [10, 20, 30, 40]
    assert prune("--yes", "--keep", "2")[1].endswith("deleted; steps kept: 20, 30, 40\n")
    assert prune(answer="y\n")[0] == 0
    assert run.steps() == [20, 40]
    folders = {entry.key.split("/")[2] for entry in run.bucket.list("checkpoints")}
    assert folders == {"step-0000000020-2", "step-0000000040-4"}
    assert [e.key.split("/")[1] for e in run.bucket.list("metrics")] == ["000001-000002"]
    assert call("checkpoints", "verify", "digits")[0] == 0
    assert prune()[1] == "Nothing to delete; checkpoints: 20, 40.\n"


def test_prune_keeps_the_newest_intact_checkpoint_where_newer_ones_are_damaged(
    run: StoredRun,
) -> None:
    run.save(10, 1)
    run.save(20, 2)
    for index in (3, 4):
        damage(run, run.save(10 * index, index))
    assert prune("--yes")[0] == 0
    assert run.steps() == [20, 40]
    damage(run, manifest.committed(run.bucket)[0])
    code, _, errors = prune("--yes")
    assert (code, "is intact" in errors) == (1, True)
    assert run.steps() == [20, 40]


def test_prune_keeps_what_the_result_names_and_what_other_runs_begin_from(
    run: StoredRun, s3: S3Server
) -> None:
    made = [run.save(10 * index, index) for index in range(1, 6)]
    best = run.bucket.uri(made[1].path)
    run_result.write(run.lease, ProgressResult(best_checkpoint_uri=best))
    items = run.server.answers[RUNS][0][1]["items"]
    for name, source, status in (
        ("waits", {"run": "digits", "step": 10}, {}),
        ("trains", {"uri": run.bucket.root, "step": 30}, {"checkpoint": {"step": 99}}),
        ("ended", {"run": "digits", "step": 30}, {"phase": "Failed"}),
    ):
        other = as_object(name, "s3://runs/others", s3.url, **status)
        other["spec"]["storage"]["restoreFrom"] = source
        items.append(other)
    assert prune("--yes")[0] == 0
    assert run.steps() == [10, 20, 50]


def test_prune_of_a_uri_keeps_what_runs_begin_from_or_says_which_are_not_known(
    run: StoredRun, s3: S3Server
) -> None:
    for index in range(1, 6):
        run.save(10 * index, index)
    everywhere, uri = "/apis/trainingrun.dev/v1alpha1/trainingruns", run.bucket.root
    other = as_object("waits", "s3://runs/others", s3.url)
    other["spec"]["storage"]["restoreFrom"] = {"uri": uri, "step": 10}
    named = as_object("named", "s3://runs/others", s3.url)
    named["spec"]["storage"]["restoreFrom"] = {"run": "digits", "step": 20}
    ours = run.server.answers[RUNS]
    ours[0][1]["items"].append(named)

    run.server.answers[everywhere] = [(200, {"items": [other, named]})]
    options = ("--endpoint", s3.url)
    code, output, errors = prune(*options, "--keep", "2", answer="n\n", of=uri)
    assert "and keep 10, 20, 40, 50?" in output
    assert (code, errors) == (1, "nothing is deleted\n")

    run.server.answers[everywhere] = [(403, {"message": "forbidden"})]
    _, output, errors = prune(*options, answer="n\n", of=uri)
    assert "and keep 20, 50?" in output
    assert errors.startswith("Only runs of namespace team-a are known: a checkpoint from which")

    run.server.answers[everywhere] = [(500, {"message": "broken"})]
    _, output, errors = prune(*options, answer="n\n", of=uri)
    assert "and keep 50?" in output
    assert errors.startswith("Other runs are not known (")
    assert prune(*options, "--local", answer="n\n", of=uri)[2].startswith(
        "Other runs are not known:"
    )


BEST = "Trial 2 of the 3 of this sweep, the best one so far; --trial names another one.\n"


def test_of_a_sweep_the_best_trial_is_shown_and_each_one_on_demand(
    run: StoredRun, tmp_path: Path
) -> None:
    trials = note(run.lease, a_trial(1, 0.5), a_trial(2, 0.1), a_trial(3, None))
    for number, bucket in trials.items():
        report(bucket, 10 * number)
        saved(bucket, tmp_path / str(number), number)
    code, output, errors = call("metrics", "digits", "--csv")
    assert (code, len(output.splitlines()), errors) == (0, 20, BEST)
    code, output, errors = call("metrics", "digits", "--csv", "--trial", "1")
    assert (code, len(output.splitlines()), errors) == (0, 10, "")
    code, output, errors = call("checkpoints", "list", "digits")
    assert (code, errors) == (0, BEST)
    assert f"{trials[2].root}/checkpoints/" in output
    assert call("checkpoints", "verify", "digits", "--trial", "1")[1].startswith("step 1: intact")
    assert call("checkpoints", "download", "digits")[0] == 0
    assert (tmp_path / f"digits-{UID[:8]}-trial-0002-step-2" / "rank-0").is_dir()
    assert call("metrics", trials[1].root, "--endpoint", run.bucket.endpoint or "")[0] == 0


def test_a_trial_that_cannot_be_shown_is_named_with_those_that_there_are(run: StoredRun) -> None:
    assert "is no sweep, so it has no trial 1" in call("metrics", "digits", "--trial", "1")[2]
    note(run.lease, a_trial(1, None), a_trial(2, None))
    code, _, errors = call("metrics", "digits")
    assert code == 1
    assert errors.endswith(
        "no trial of it has reported 'error' yet; name a trial, from 1 to 2 with --trial\n"
    )
    assert "trial 2 of the sweep" in call("metrics", "digits", "--trial", "2")[2]
    assert "has no trial 3; name one from 1 to 2" in call("metrics", "digits", "--trial", "3")[2]


def test_prune_of_a_trial_keeps_what_other_runs_begin_from(
    run: StoredRun, s3: S3Server, tmp_path: Path
) -> None:
    trial = note(run.lease, a_trial(1, 0.5))[1]
    for index in range(1, 5):
        saved(trial, tmp_path / "files", 10 * index, index=index)
    other = as_object("waits", "s3://runs/others", s3.url)
    other["spec"]["storage"]["restoreFrom"] = {"uri": f"{trial.root}/", "step": 20}
    run.server.answers[RUNS][0][1]["items"].append(other)
    assert prune("--yes", "--trial", "1")[0] == 0
    assert [one.step for one in manifest.committed(trial)] == [20, 40]


def test_wrong_credentials_are_a_sentence(run: StoredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    code, _, errors = call("metrics", "digits")
    assert code == 1
    assert errors.startswith("the credentials for s3://runs/")
    assert errors.count("\n") == 1


def test_stacks_prints_those_that_were_kept(run: StoredRun) -> None:
    assert "has no stacks" in call("stacks", "digits")[2]
    first, second = kept_stacks.moment(1_000_000_000), kept_stacks.moment(1_000_000_060)
    kept_stacks.write(run.bucket, kept_stacks.folder_of(1, first), {0: "in old (a.py:1)"})
    texts = {0: "in all_reduce (train.py:88)\n", 1: "in read (dataset.py:41)\n\x1b[2J"}
    kept_stacks.write(run.bucket, kept_stacks.folder_of(2, second), texts)
    _, printed, said = call("stacks", "digits")
    assert printed == (
        "--- rank 0: in all_reduce (train.py:88)\n\n--- rank 1: in read (dataset.py:41)\n\n"
    )
    assert said == f"Stacks of {second}, attempt 2:\n"
    assert call("stacks", "digits", "--rank", "1")[1].startswith("--- rank 1: in read")
    assert call("stacks", "digits", "--at", first)[1] == "--- rank 0: in old (a.py:1)\n\n"
    assert call("stacks", "digits", "--list")[1] == (
        f"{first}  attempt 1  1 rank\n{second}  attempt 2  2 ranks\n"
    )
    assert "there are ranks 0, 1" in call("stacks", "digits", "--rank", "7")[2]
    assert f"there are stacks of {first}, {second}" in call("stacks", "digits", "--at", "x")[2]


def test_the_oldest_of_too_many_stacks_are_deleted(run: StoredRun) -> None:
    for minute in range(kept_stacks.MOST_KEPT + 2):
        at = kept_stacks.moment(1_000_000_000 + 60 * minute)
        kept_stacks.write(run.bucket, kept_stacks.folder_of(1, at), {0: "…"})
    found = kept_stacks.kept(run.bucket)
    assert len(found) == kept_stacks.MOST_KEPT
    assert found[-1].time == at


KUBECTL = """#!/bin/sh
[ "$1 $2 $3 $4 $5" = "--namespace=team-a exec digits-1-head --container=ray-head --" ] || exit 9
shift 5
exec "$@"
"""
"""A stand-in for kubectl: no kubelet runs here, so what would run in the head's pod runs here."""


def test_stacks_of_before_are_not_printed_as_those_of_now(
    run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(unix_time: float, text: str) -> None:
        folder = kept_stacks.folder_of(1, kept_stacks.moment(unix_time))
        kept_stacks.write(run.bucket, folder, {0: text})

    for number in range(kept_stacks.MOST_KEPT):
        keep(1_000_000_000 + number, "of before")
    monkeypatch.setattr(pod_commands, "request_stacks", lambda *_: None)
    code, printed, said = call("stacks", "digits", "--now")
    assert (code, printed) == (1, "")
    assert "no rank trains now" in said
    run.bucket.delete([kept_stacks.kept(run.bucket)[0].ranks[0]])
    # The clock of the head is behind that of the former one.
    monkeypatch.setattr(pod_commands, "request_stacks", lambda *_: keep(999_999_999, "of now"))
    assert call("stacks", "digits", "--now")[1] == "--- rank 0: of now\n\n"


def test_stacks_are_taken_now_where_the_driver_answers(
    run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl, state = tmp_path / "kubectl", tmp_path / "state"
    state.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(STATE_DIRECTORY_ENV, str(state))
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "x", "uid": "c1"}
    owners = [{**owner, "controller": True}]
    head = {"metadata": {"name": "digits-1-head", "uid": "h1", "ownerReferences": owners}}
    run.server.answers["/api/v1/namespaces/team-a/pods"] = [(200, {"items": [head]})]
    found = run.server.answers[f"{RUNS}/digits"][0][1]
    found["status"]["seen"] = Bookkeeping(ray_cluster="c1", head="h1").to_dict()

    def drive() -> None:
        request = state / STACKS_REQUEST_FILE
        while not request.exists():
            if ended.wait(0.01):
                return
        folder = kept_stacks.folder_of(1, kept_stacks.moment(1_000_000_000))
        kept_stacks.write(run.bucket, folder, {0: "in all_reduce (train.py:88)"})
        request.unlink()

    ended = threading.Event()
    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    _, printed, _ = call("stacks", "digits", "--now")
    ended.set()
    driver.join()
    assert printed == "--- rank 0: in all_reduce (train.py:88)\n\n"
    found["spec"]["sweep"] = {"metric": "loss"}
    code, _, said = call("stacks", "digits", "--now", "--trial", "1")
    assert (code, "for no sweep" in said or "no trial" in said) == (1, True), said
    del found["spec"]["sweep"]
    kubectl.write_text("#!/bin/sh\necho 'Error from server (Forbidden): pods/exec' >&2; exit 1")
    assert "cannot be asked: Error from server (Forbidden)" in call("stacks", "digits", "--now")[2]


APPLIED = 1_795_000_000.0


def at(seconds: float) -> str:
    """A time of Kubernetes, so many seconds after the run was applied."""
    return f"{datetime.fromtimestamp(APPLIED + seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def a_start(bucket: Bucket) -> None:
    """The trace of a start whose driver began 40 s after the run was applied."""
    rank = RankTimes(rank=0, pod="\x1b[31mdigits-1-worker", times={"looped": APPLIED + 58})
    rank.times["stepped"] = APPLIED + 60
    times = {"process": APPLIED + 40, "main": APPLIED + 42}
    start_traces.write(
        bucket,
        StartTrace(
            attempt=1,
            fencing_token=1,
            group=1,
            world_size=1,
            times={"asked": APPLIED + 45},
            driver=ProcessTimes(pod="digits-1-head", pid=7, times=times),
            ranks=[rank],
        ),
    )


RAY = "/apis/ray.io/v1/namespaces/team-a"
PODS = "/api/v1/namespaces/team-a/pods"


def owned_by(kind: str, uid: str, name: str, created: float, **status: Any) -> dict[str, Any]:
    owner_name = uid.removeprefix("uid-of-")
    owner = {
        "apiVersion": "x/v1",
        "kind": kind,
        "name": owner_name,
        "uid": uid,
        "controller": True,
    }
    metadata = {"name": name, "uid": f"uid-of-{name}", "ownerReferences": [owner]}
    return {"metadata": {**metadata, "creationTimestamp": at(created)}, "status": status}


def condition(kind: str, since: float, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": at(since)}


def with_objects(run: StoredRun) -> None:
    """The run's RayJob, RayCluster and a pod, as the API server has them."""
    found = run.server.answers[f"{RUNS}/digits"][0][1]
    found["metadata"]["creationTimestamp"] = at(0)
    found["status"]["seen"] = Bookkeeping(ray_cluster="uid-of-digits-1-abc").to_dict()
    pod = owned_by(
        "RayCluster",
        "uid-of-digits-1-abc",
        "digits-1-abc-head-xyz",
        8,
        conditions=[
            condition("PodScheduled", 10),
            condition("Initialized", 11),
            condition("Ready", 32),
        ],
        containerStatuses=[
            {
                "name": "ray-head",
                "image": "trainingrun:1",
                "imageID": "sha256:0",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": at(25)}},
            }
        ],
    )
    late = owned_by("RayCluster", "uid-of-digits-1-abc", "digits-1-abc-later", 500)
    ready = [condition("HeadPodReady", 30), condition("RayClusterProvisioned", 35)]
    cluster = owned_by("RayJob", "uid-of-digits-1", "digits-1-abc", 5, conditions=ready)
    run.server.answers |= {
        f"{RAY}/rayjobs": [(200, {"items": [owned_by("TrainingRun", UID, "digits-1", 2)]})],
        f"{RAY}/rayclusters": [(200, {"items": [cluster]})],
        PODS: [(200, {"items": [pod, late]})],
    }


def trace_rows(output: str) -> list[list[str]]:
    return [re.split(r"  +", line) for line in output.splitlines()[2:] if "  " in line]


def test_trace_begins_where_the_run_was_applied_with_what_kubernetes_has(run: StoredRun) -> None:
    a_start(run.bucket)
    with_objects(run)
    code, output, errors = call("trace", "digits", "--chrome", "trace.json")
    assert (code, errors) == (
        0,
        "trace.json written; ui.perfetto.dev and chrome://tracing open it\n",
    )
    title, heads = output.splitlines()[:2]
    assert title == "Start in attempt 1, 1 worker from step 0: 60.0 s until a step was done"
    assert heads.split() == ["PHASE", "PROCESS", "BEGIN", "SECONDS"]
    assert trace_rows(output) == [
        ["trainingrun.ray_job.create", "control plane", "0.00", "2.00"],
        ["kuberay.ray_cluster.create", "control plane", "2.00", "3.00"],
        ["kuberay.ray_cluster.provision", "control plane", "5.00", "30.00"],
        ["k8s.pod.schedule", "pod head-xyz", "8.00", "2.00"],
        ["k8s.pod.initialize", "pod head-xyz", "10.00", "1.00"],
        ["k8s.container.start", "pod head-xyz", "11.00", "14.00"],
        ["k8s.pod.ready", "pod head-xyz", "25.00", "7.00"],
        ["kuberay.job.submit", "control plane", "35.00", "5.00"],
        ["python.start", "driver", "40.00", "2.00"],
        ["training.first_step", "rank 0", "58.00", "2.00"],
    ]
    assert output.splitlines()[-2] == (
        "Longest: kuberay.ray_cluster.provision 30.0 s, k8s.container.start 14.0 s, "
        "k8s.pod.ready 7.0 s."
    )
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert {"digits-1-head"} <= {one["args"].get("k8s.pod.name") for one in events}
    assert call("trace", "digits", "--chrome", "trace.json")[2] == (
        "trace.json is there already; name another file with --chrome\n"
    )


def test_what_kubernetes_has_no_longer_is_not_invented(run: StoredRun) -> None:
    a_start(run.bucket)
    with_objects(run)
    job = run.server.answers[f"{RAY}/rayjobs"][0][1]["items"][0]
    job["metadata"]["ownerReferences"][0]["uid"] = "another run's of the same name"
    run.server.answers[PODS] = [(200, {"items": []})]
    code, output, errors = call("trace", "digits")
    assert (code, errors) == (0, "")
    rows = {phase: (begin, seconds) for phase, _, begin, seconds in trace_rows(output)}
    unknown = {phase for phase, row in rows.items() if "-" in row}
    assert unknown == {
        "trainingrun.ray_job.create",
        "kuberay.ray_cluster.create",
        "kuberay.ray_cluster.provision",
        "kuberay.job.submit",
        "k8s.pod.schedule",
    }
    assert rows["python.start"] == ("40.00", "2.00")


def test_what_may_not_be_read_of_the_cluster_is_said_and_the_rest_is_there(run: StoredRun) -> None:
    a_start(run.bucket)
    with_objects(run)
    run.server.answers[PODS] = [(403, {"message": "pods is forbidden"})]
    code, output, errors = call("trace", "digits")
    assert (code, errors) == (0, "not read: pods: the pods of digits: pods is forbidden\n")
    assert ["kuberay.job.submit", "control plane", "35.00", "5.00"] in trace_rows(output)


def test_a_run_without_a_trace_says_why(run: StoredRun) -> None:
    assert call("trace", "digits")[2] == (
        f"{run.bucket.root} has no trace: its first step is not done, or its image is older\n"
    )
