"""A store that refuses something in the middle, forgets, or lets two win: nothing rests on it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train
from blake3 import blake3
from pyarrow import fs

from support.s3 import CREDENTIALS
from support.stub_s3 import Request, StubS3, stub_s3
from trainingrun_protocol.contract import (
    ContractCheckpoints,
    ContractParameter,
    ContractRestore,
    ContractSweep,
)
from trainingrun_runtime.driver.committer import digests
from trainingrun_runtime.ray_internals import training
from trainingrun_runtime.ray_internals.filesystem import for_ray
from trainingrun_runtime.store import clients, restore_source, retention
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_check import check
from trainingrun_runtime.store.lease import Lease, Superseded
from trainingrun_runtime.store.manifest import FileDigest, Manifest, commit, digest_folder
from trainingrun_runtime.store.storage_errors import (
    AbsentError,
    DamagedError,
    LackingError,
    StorageError,
    UnusableError,
)
from trainingrun_runtime.store.storage_retry import StorageRetry
from trainingrun_runtime.sweep import record
from trainingrun_runtime.sweep.record import Trial

FOLDER = "checkpoints/0001-000001/one"
SMALL, LARGE = 100_000, 20_000_000
"""Bytes: of one request, and of three parts."""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubS3]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(clients.RETRIES, "max_retries", 0)
    with stub_s3() as running:
        yield running


def opened(stub: StubS3) -> Bucket:
    return Bucket.open("s3://runs/run", stub.url, "us-east-1")


def a_manifest() -> Manifest:
    return Manifest(
        path=FOLDER, step=1, world_size=1, attempt=1, fencing_token=1, index=1, files={}, time=0
    )


def reported(tmp_path: Path, size: int) -> Path:
    """A rank's folder, as code reports it without a session."""
    folder = tmp_path / "reported"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.bin").write_bytes(os.urandom(size))
    (folder / "deep" / "small.txt").write_bytes(b"1")
    (folder / "empty").write_bytes(b"")
    return folder


def upload(bucket: Bucket, folder: Path) -> None:
    """What a worker does with it."""
    storage = SimpleNamespace(storage_filesystem=for_ray(bucket))
    context = SimpleNamespace(storage_context=storage, get_world_rank=lambda: 0)
    known = {name: asdict(each) for name, each in digest_folder(folder).items()}
    checkpoint = ray.train.Checkpoint(str(folder))
    training._upload(context, checkpoint, f"{bucket.path}/{FOLDER}", known)


def refusing_model(stub: StubS3, status: int, code: str, last: bool = False) -> None:
    """What would write model.bin is refused; of several parts the last one."""

    def fault(request: Request) -> tuple[int, str] | None:
        writes = request.method == "PUT" and request.key.endswith("model.bin")
        if writes and (not last or request.query.get("partNumber") == "3"):
            return status, code
        return None

    stub.fault = fault


def test_a_checkpoint_that_is_downloaded_changed_and_reported_can_be_restored(
    stub: StubS3, tmp_path: Path
) -> None:
    """Ray downloads the digests of the former one with it."""
    bucket, folder = opened(stub), reported(tmp_path, SMALL)
    for content in (b"1", b"22", b"33"):
        (folder / "deep" / "small.txt").write_bytes(content)
        upload(bucket, folder)
        files = digests(bucket, FOLDER)
        assert files == digest_folder(folder)
        assert sorted(files) == ["deep/small.txt", "empty", "model.bin"]
        for entry in bucket.list(FOLDER):
            local = folder / entry.key.removeprefix(f"{FOLDER}/")
            local.parent.mkdir(exist_ok=True)
            local.write_bytes(bucket.get(entry.key) or b"")


@pytest.mark.parametrize(("size", "last"), [(SMALL, False), (LARGE, True)], ids=["one", "parts"])
@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AccessDenied"), (503, "SlowDown"), (411, "MissingContentLength"), (409, "Conflict")],
)
def test_an_upload_that_the_store_refuses_at_its_end_fails_and_may_be_repeated(
    stub: StubS3, tmp_path: Path, size: int, last: bool, status: int, code: str
) -> None:
    bucket, folder = opened(stub), reported(tmp_path, size)
    refusing_model(stub, status, code, last)
    with pytest.raises(StorageError):
        upload(bucket, folder)
    assert bucket.size(f"{FOLDER}/model.bin") is None
    stub.fault = lambda _: None
    upload(bucket, folder)
    assert digests(bucket, FOLDER) == digest_folder(folder)
    for name, digest in digest_folder(folder).items():
        stored = b"".join(bucket.stream(f"{FOLDER}/{name}"))
        assert blake3(stored).hexdigest() == digest.blake3


def test_a_copy_that_drops_the_error_of_a_file_fails_its_report(
    stub: StubS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pyarrow.fs.copy_files`, with which a script's own function uploads."""
    bucket, folder = opened(stub), reported(tmp_path, SMALL)
    filesystem = for_ray(bucket)

    def copies(checkpoint: Any, name: str) -> Any:
        path = f"{bucket.path}/checkpoints/0001-000001/{name}"
        fs.copy_files(
            checkpoint.path, path, source_filesystem=checkpoint.filesystem,
            destination_filesystem=filesystem,
        )  # fmt: skip
        return ray.train.Checkpoint(path, filesystem)

    made: list[Any] = []

    def report(metrics: Any, checkpoint: Any = None, checkpoint_upload_fn: Any = None) -> None:
        made.append(checkpoint_upload_fn(checkpoint, "one") if checkpoint_upload_fn else None)

    storage = SimpleNamespace(storage_filesystem=filesystem)
    context = SimpleNamespace(storage_context=storage, report=report)
    monkeypatch.setattr(training, "train_context", lambda: context)
    training.check_uploads()
    context.report({})
    refusing_model(stub, 403, "AccessDenied")
    with pytest.raises(StorageError, match=r"model\.bin was not written"):
        context.report({}, ray.train.Checkpoint(str(folder)), copies)
    stub.fault = lambda _: None
    context.report({}, checkpoint=ray.train.Checkpoint(str(folder)), checkpoint_upload_fn=copies)
    assert made[-1].path == f"{bucket.path}/{FOLDER}"
    assert digests(bucket, FOLDER) == digest_folder(folder)


def test_a_checkpoint_whose_file_the_store_has_lost_is_not_committed(
    stub: StubS3, tmp_path: Path
) -> None:
    bucket, folder = opened(stub), reported(tmp_path, SMALL)
    stub.forgets = lambda key: key.endswith("model.bin")
    upload(bucket, folder)
    for ranks in (None, [0]):
        with pytest.raises(AbsentError, match=r"model\.bin is missing"):
            digests(bucket, FOLDER, ranks)


def test_a_checkpoint_whose_file_is_shorter_than_uploaded_is_not_committed(
    stub: StubS3, tmp_path: Path
) -> None:
    bucket, folder = opened(stub), reported(tmp_path, SMALL)
    stub.keeps = SMALL - 1
    upload(bucket, folder)
    for ranks in (None, [0]):
        with pytest.raises(DamagedError, match=f"model.bin has {SMALL - 1} bytes"):
            digests(bucket, FOLDER, ranks)


def test_a_conflict_that_passes_is_tried_again_and_never_taken_for_another_driver(
    stub: StubS3,
) -> None:
    bucket, said = opened(stub), list[str | None]()
    answers = iter([(409, "ConditionalRequestConflict")])
    stub.fault = lambda request: next(answers, None) if request.creates else None
    StorageRetry(said.append, sleep=lambda _: None)(lambda: commit(bucket, a_manifest()))
    assert bucket.get(a_manifest().key) is not None
    first, after = said
    assert first is not None
    assert "ConditionalRequestConflict" in first
    assert after is None
    other = a_manifest().model_copy(update={"step": 2})
    with pytest.raises(UnusableError, match="another driver writes here too"):
        commit(bucket, other)


def test_a_conflict_is_an_error_of_the_store_whatever_was_asked(stub: StubS3) -> None:
    bucket = opened(stub)
    lease = Lease.take(bucket, 1, "pod", 100)

    def append() -> None:
        with bucket.writing("k", 1) as write:
            write(b"1")

    asked = [
        lambda: bucket.put("k", b"1"),
        lambda: bucket.get("k"),
        lambda: bucket.size("k"),
        lambda: bucket.list(),
        lambda: bucket.delete(["k"]),
        lambda: bucket.create("k", b"1"),
        append,
        lease.require,
        lambda: lease.renew(1),
    ]
    stub.fault = lambda _: (409, "OperationAborted")
    for request in asked:
        with pytest.raises(StorageError) as caught:
            request()
        assert not caught.value.lasting


KEEPS_LEASE = """
import sys, threading
from trainingrun_runtime.driver import background
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease
background._CHECK_S = 0.05
lease = Lease.take(Bucket.open("s3://runs/run", sys.argv[1], "us-east-1"), 1, "pod", 0)
print("taken", flush=True)
def report(problem):
    if problem and sys.argv[2] == "broken":
        raise ZeroDivisionError
    print("problem" if problem else "well", flush=True)
def keep(ended):
    background.keep_lease(lease, lambda: None, report, ended)
running = background.Background()
running.start(lease=keep)
threading.Event().wait(60)
"""


def watches_lease(stub: StubS3, how: str) -> subprocess.Popen[str]:
    """A process that holds the lease, and checks it."""
    command = [sys.executable, "-c", KEEPS_LEASE, stub.url, how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


def said(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"it ended without a {word!r}")


def test_a_driver_still_finds_that_it_is_superseded_after_a_conflict(stub: StubS3) -> None:
    with watches_lease(stub, "") as process:
        try:
            said(process, "well")
            stub.fault = lambda request: (409, "OperationAborted") if request.query else None
            said(process, "problem")
            stub.fault = lambda _: None
            said(process, "well")
            Lease.take(opened(stub), 2, "pod", 0)
            assert process.wait(30) == 3
        finally:
            process.kill()


def test_a_driver_ends_whose_check_of_the_lease_has_ended(stub: StubS3) -> None:
    with watches_lease(stub, "broken") as process:
        try:
            said(process, "well")
            stub.fault = lambda _: (409, "OperationAborted")
            assert process.wait(30) == 1
        finally:
            process.kill()


def test_of_two_drivers_with_one_fencing_token_one_ends(stub: StubS3) -> None:
    bucket = opened(stub)
    first = Lease.take(bucket, 1, "pod-a", 100)
    mine = stub.objects["run/lease/000001.json"]
    del stub.objects["run/lease/000001.json"]
    second = Lease.take(bucket, 1, "pod-b", 100)
    assert first.fencing_token == second.fencing_token
    with pytest.raises(Superseded, match="another driver has the fencing token 1, too"):
        first.renew(110)
    second.renew(110)
    assert stub.objects["run/lease/000001.json"] != mine


def test_a_token_that_another_one_has_written_meanwhile_is_not_taken(stub: StubS3) -> None:
    """The store says that both have created it, and keeps the last one's."""
    bucket = opened(stub)
    key = "run/lease/000001.json"

    def overtaken(request: Request) -> None:
        if request.method == "GET" and request.key == key and stub.objects.get(key) != b"{}":
            stub.objects[key] = b'{"nonce": "of another driver", "attempt": 1}'

    stub.fault = overtaken
    assert Lease.take(bucket, 1, "pod", 100).fencing_token == 2


def test_a_store_that_lets_two_create_one_object_is_refused_at_once(stub: StubS3) -> None:
    stub.atomic = False
    began = time.monotonic()
    with pytest.raises(LackingError, match="lets several create one object at once"):
        StorageRetry(lambda _: None)(lambda: check(opened(stub)))
    assert time.monotonic() - began < 60, "it has not waited for the store to change"
    assert not stub.objects, "it leaves nothing"


@pytest.mark.parametrize(
    ("refuses", "said"),
    [
        pytest.param(
            lambda request: "list-type" in request.query, "a list of objects (ListObjectsV2)",
            id="list",
        ),
        pytest.param(
            lambda request: "delete" in request.query,
            "a delete of several objects (DeleteObjects)", id="delete",
        ),
        pytest.param(
            lambda request: "uploads" in request.query,
            "an upload in parts (CreateMultipartUpload)", id="parts",
        ),
        pytest.param(lambda request: request.method == "PUT", "a PUT of an object", id="put"),
    ],
)  # fmt: skip
def test_each_request_that_a_store_does_not_know_is_named(
    stub: StubS3, refuses: Any, said: str
) -> None:
    stub.fault = lambda request: (501, "NotImplemented") if refuses(request) else None
    with pytest.raises(UnusableError) as caught:
        check(opened(stub))
    assert said in str(caught.value)
    assert "If-None-Match" not in str(caught.value)


def test_a_store_that_takes_no_large_files_is_found_before_a_run(stub: StubS3) -> None:
    """What Ray and sessions do with files of more than 8 MiB."""
    stub.fault = lambda request: (
        (411, "MissingContentLength") if "partNumber" in request.query else None
    )
    with pytest.raises(StorageError, match="MissingContentLength"):
        check(opened(stub))


def test_a_large_create_that_is_refused_by_a_closed_connection_is_no_outage(
    stub: StubS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = opened(stub)
    assert bucket.create("result", b"first")

    def closes(request: Request) -> None:
        if request.creates:
            raise ConnectionAbortedError  # the handler ends, and with it the connection

    stub.fault = closes
    assert not bucket.create("result", b"second" * 1_000_000)
    assert bucket.create("result", b"first")
    with pytest.raises(StorageError, match="cannot be reached"):
        bucket.create("another", b"1")


PAGE = b"<html><head><title>runs</title></head><body><h1>Back in a moment</h1></body></html>"


def shows_a_page(stub: StubS3, *folders: str) -> None:
    """A proxy answers each list of one of these folders, or of any, with a page and 200."""

    def fault(request: Request) -> tuple[int, bytes] | None:
        of = request.query.get("prefix", "").removeprefix("run/").strip("/")
        asked = "list-type" in request.query and (not folders or of in folders)
        return (200, PAGE) if asked else None

    stub.fault = fault


def test_a_superseded_driver_that_gets_a_page_for_the_leases_does_not_go_on(stub: StubS3) -> None:
    bucket = opened(stub)
    first = Lease.take(bucket, 1, "pod-a", 100)
    Lease.take(bucket, 1, "pod-b", 110)
    shows_a_page(stub, "lease")
    with pytest.raises(StorageError, match=r"does not list lease/000001\.json, which") as unknown:
        first.require()
    assert unknown.value.lasting
    stub.fault = lambda _: None
    with pytest.raises(Superseded):
        first.require()


@pytest.mark.parametrize("pages", [(), ("manifests",)], ids=["all", "manifests"])
def test_a_run_does_not_begin_anew_for_a_page_in_place_of_its_checkpoints(
    stub: StubS3, pages: tuple[str, ...]
) -> None:
    bucket = opened(stub)
    Lease.take(bucket, 1, "pod", 100)
    assert restore_source.choose(bucket, None) == (None, False, []), "it begins from scratch"
    bucket.put(f"{FOLDER}/model.bin", b"weights")
    files = {"model.bin": FileDigest(7, blake3(b"weights").hexdigest())}
    made = a_manifest().model_copy(update={"files": files})
    commit(bucket, made)
    other = ContractRestore(uri=f"{bucket.root}-other", endpoint=stub.url, region="us-east-1")
    shows_a_page(stub, *pages)
    for wanted in (None, other):
        with pytest.raises(StorageError, match=r"does not list .*, which") as unknown:
            restore_source.choose(bucket, wanted)
        assert unknown.value.lasting
    stub.fault = lambda _: None
    assert restore_source.choose(bucket, other).manifest == made


def test_a_sweep_that_gets_a_page_for_the_manifests_deletes_nothing(stub: StubS3) -> None:
    bucket = opened(stub)
    for token in (1, 2):
        path = f"checkpoints/0001-{token:06d}/step-1"
        bucket.put(f"{path}/model.bin", b"weights")
        commit(bucket, a_manifest().model_copy(update={"path": path, "fencing_token": token}))
    before = dict(stub.objects)
    shows_a_page(stub, "manifests")
    assert retention.sweep(bucket, 2, ContractCheckpoints(keep=2)) == []
    assert stub.objects == before


def test_the_trials_of_a_sweep_are_not_drawn_anew_for_a_page_in_place_of_their_record(
    stub: StubS3,
) -> None:
    bucket, space = opened(stub), [ContractParameter(name="lr", values=[0.1])]
    first = Lease.take(bucket, 1, "pod-a", 100)
    assert record.read(bucket, first.fencing_token) is None
    trials = {1: Trial(number=1, config={"lr": 0.1}, leg=3)}
    record.write(first, trials, ContractSweep(metric="loss", mode="min", space=space))
    second = Lease.take(bucket, 2, "pod-b", 200)
    shows_a_page(stub, "sweep")
    with pytest.raises(StorageError, match="does not list what is in sweep/, which"):
        record.read(bucket, second.fencing_token)
    assert record.read(bucket) is None, "who only shows it has nothing to show"
    stub.fault = lambda _: None
    noted = record.read(bucket, second.fencing_token)
    assert noted is not None
    assert noted.trials == [trials[1]]
