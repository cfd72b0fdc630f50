"""A run's folder on a claim: on real mounts that are shared, full, read-only, absent, and hang."""

import contextlib
import errno
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import claim_race, mounts
from support.binaries import skipping_unavailable
from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV
from trainingrun_runtime.driver.background import keep_lease
from trainingrun_runtime.store import claims, in_time
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_check import check
from trainingrun_runtime.store.lease import Lease, Superseded, newest_fencing_token
from trainingrun_runtime.store.storage_errors import (
    DeniedError,
    LackingError,
    NotMountedError,
    StorageError,
    StoreFullError,
    UnreachableError,
    UnusableError,
)

KEYS = 300


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pods have the claim `runs`: a folder on which nothing is mounted yet."""
    folder = tmp_path / "claims" / "runs"
    folder.mkdir(parents=True)
    monkeypatch.setattr(claims, "CLAIMS_FOLDER", str(folder.parent))
    return folder


@pytest.fixture
def volume(tmp_path: Path, place: Path) -> Iterator[Path]:
    """What is on the claim, which is mounted."""
    folder = tmp_path / "volume"
    folder.mkdir()
    with skipping_unavailable(), mounts.mounted(folder, place):
        yield folder


@pytest.fixture
def bucket() -> Bucket:
    """A run's folder on it."""
    return Bucket.open("pvc://runs/team-a/digits-1a2b3c4d")


@contextlib.contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests that wait for a short time."""
    with monkeypatch.context() as patch:
        patch.setattr(claims, "_LIMIT_S", 0.3)
        patch.setattr(claims, "_DATA_LIMIT_S", 0.3)
        yield


def refusal(bucket: Bucket, kind: type[StorageError]) -> str:
    with pytest.raises(kind) as caught:
        check(bucket)
    assert type(caught.value) is kind
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


def test_the_objects_are_files_of_the_claim(volume: Path, bucket: Bucket) -> None:
    check(bucket)
    bucket.put("lease/000001.json", b"{}")
    assert bucket.path.endswith("/claims/runs/team-a/digits-1a2b3c4d")
    assert bucket.uri("lease/000001.json") == "pvc://runs/team-a/digits-1a2b3c4d/lease/000001.json"
    files = [str(path.relative_to(volume)) for path in volume.rglob("*") if path.is_file()]
    assert files == ["team-a/digits-1a2b3c4d/lease/000001.json"]


def test_of_two_processes_one_creates_each_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two drivers on two nodes would, for each of many fencing tokens."""
    (tmp_path / "claim" / "lost+found").mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, f"runs={tmp_path}/claim")
    with context.Pool(2, claim_race.begin, (together,)) as pool:
        won = pool.map(claim_race.wins, [("a", KEYS), ("b", KEYS)], chunksize=1)
    assert won[0] & won[1] == set()
    assert won[0] | won[1] == set(range(KEYS))


def test_what_is_committed_was_flushed_before(
    volume: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a power failure leaves of a checkpoint is there as a whole."""
    called: list[tuple[str, str]] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def call(what: int | Path, *more: Path) -> None:
            place = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(more[0])
            called.append((name, re.sub("[.]staged-.*", "STAGED", place).partition("1a2b3c4d")[2]))
            real(what, *more)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "replace", "link"):
        noted(name)
    with bucket.writing("checkpoints/1/model", 0) as append:
        append(b"weights")
    assert bucket.create("manifests/1", b"manifest")
    assert called[-8:] == [
        ("fsync", "/checkpoints"),  # has the new folder 1
        ("fsync", "/checkpoints/1/STAGED"),
        ("replace", "/checkpoints/1/model"),
        ("fsync", "/checkpoints/1"),
        ("fsync", ""),  # has the new folder manifests
        ("fsync", "/manifests/STAGED"),
        ("link", "/manifests/1"),
        ("fsync", "/manifests"),
    ]


def test_nobody_sees_an_object_that_is_being_written(volume: Path, bucket: Bucket) -> None:
    with bucket.writing("checkpoints/1/model", 0) as append:
        append(b"half")
        assert bucket.list() == []
        assert bucket.size("checkpoints/1/model") is None
        append(b" and half")
    assert bucket.get("checkpoints/1/model") == b"half and half"
    with pytest.raises(RuntimeError, match="killed"):
        _begin(bucket)
    names = [path.name for path in volume.rglob("*") if path.is_file()]
    assert names == ["model"]


def _begin(bucket: Bucket) -> None:
    with bucket.writing("checkpoints/1/b", 0) as append:
        append(b"half")
        raise RuntimeError("killed")


def test_what_a_killed_process_was_writing_is_deleted_by_a_later_driver(
    volume: Path, bucket: Bucket
) -> None:
    folder = volume / "team-a" / "digits-1a2b3c4d" / "checkpoints" / "1"
    folder.mkdir(parents=True)
    old, new = folder / ".staged-old", folder / ".staged-new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 4000,) * 2)
    check(bucket)
    assert [path.name for path in folder.iterdir()] == [".staged-new"]
    bucket.delete_folder("checkpoints/1")
    assert not folder.exists()


@pytest.mark.parametrize(
    "key", ["../other", "a//b", "a/./b", "/etc/x", "a\nb", "\udce4", ".staged-x", ""]
)
def test_no_key_leads_out_of_the_folder(bucket: Bucket, key: str) -> None:
    for write in (lambda: bucket.put(key, b"x"), lambda: bucket.get(key)):
        with pytest.raises(ValueError, match="can have such a name"):
            write()


@pytest.mark.parametrize("name", [b"m\xe4dchen.pt", b"a\nb", b"m\xe4dchen/weights.pt"])
def test_a_file_that_can_be_no_object_is_none_and_is_deleted_with_its_folder(
    volume: Path, bucket: Bucket, name: bytes
) -> None:
    """Such as one that a script has written past the runtime."""
    bucket.put("checkpoints/1/model", b"x")
    folder = volume / "team-a" / "digits-1a2b3c4d" / "checkpoints" / "1"
    file = folder / os.fsdecode(name)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x")
    assert [entry.key for entry in bucket.list()] == ["checkpoints/1/model"]
    bucket.delete_folder("checkpoints/1")
    assert not folder.exists()


def test_no_symbolic_link_leads_out_of_the_folder(
    volume: Path, bucket: Bucket, tmp_path: Path
) -> None:
    """Whoever may write to the claim would read files of the pods, or of whoever runs a command."""
    (tmp_path / "secret").write_text("hunter2")
    bucket.put("there", b"x")
    run = volume / "team-a" / "digits-1a2b3c4d"
    (run / "manifest").symlink_to(tmp_path / "secret")
    (run / "lease").symlink_to(tmp_path)
    for key in ("manifest", "lease/secret"):
        for ask in (lambda key=key: bucket.get(key), lambda key=key: bucket.size(key)):
            with pytest.raises(UnusableError, match="cannot be used: "):
                ask()
    with pytest.raises(UnusableError, match="is a symbolic link"):
        bucket.put("lease/secret", b"y")
    with pytest.raises(UnusableError, match="is a symbolic link"):
        bucket.delete(["lease/secret"])
    for ask in (bucket.list, bucket.has_folder, bucket.delete_folder):
        with pytest.raises(UnusableError, match="is a symbolic link"):
            ask("lease")
    assert [entry.key for entry in bucket.list()] == ["there"]
    assert (tmp_path / "secret").read_text() == "hunter2"


@pytest.mark.parametrize("uri", ["pvc://", "pvc:///a", "pvc://runs/../a", "pvc://runs/%2e%2e/a"])
def test_no_uri_leads_out_of_the_claim(uri: str) -> None:
    with pytest.raises(UnusableError, match="write pvc://claim/path"):
        Bucket.open(uri).list()


def test_a_claim_that_is_not_mounted_is_not_an_empty_one(place: Path, bucket: Bucket) -> None:
    assert "claim runs of pvc://runs/team-a/digits-1a2b3c4d is not mounted at" in refusal(
        bucket, NotMountedError
    )
    place.rmdir()
    refusal(bucket, NotMountedError)


def test_a_mount_that_goes_away_leaves_nothing_absent(
    tmp_path: Path, place: Path, bucket: Bucket
) -> None:
    folder = tmp_path / "volume"
    folder.mkdir()
    with skipping_unavailable(), mounts.mounted(folder, place):
        lease = Lease.take(bucket, 1, "pod-a", 100)
    for ask in (
        lambda: bucket.get("lease/000001.json"),
        lambda: bucket.size("lease/000001.json"),
        lambda: bucket.list("lease"),
        lambda: bucket.has_folder("lease"),
        lambda: bucket.create("lease/000002.json", b"x"),
        lambda: bucket.delete(["lease/000001.json"]),
        lambda: Lease.take(bucket, 2, "pod-b", 110),
        lease.require,
    ):
        with pytest.raises(NotMountedError):
            ask()
    with mounts.mounted(folder, place):
        lease.require()
        assert newest_fencing_token(bucket) == 1
        second = Lease.take(bucket, 2, "pod-b", 120)
        assert second.fencing_token == 2
        with pytest.raises(Superseded):
            lease.require()


def test_an_empty_folder_that_a_reader_names_is_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, f"other=/nowhere,runs={tmp_path}")
    with pytest.raises(NotMountedError, match=f"is not mounted at {tmp_path}; mount it, and"):
        bucket.list()
    (tmp_path / "lost+found").mkdir()
    assert bucket.list() == []
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, "runs")
    with pytest.raises(UnusableError, match="has 'runs'; write claim=/folder"):
        Bucket.open("pvc://runs/a").list()


def test_a_full_claim_is_said(place: Path, bucket: Bucket) -> None:
    with skipping_unavailable(), mounts.small(place):
        check(bucket)
        with pytest.raises(StoreFullError), bucket.writing("large", 0) as append:
            append(bytes(3 * 2**20))
        assert bucket.list() == [], "what did not fit is gone"
        bucket.upload("most", bytes(2**20))
        with pytest.raises(StoreFullError):
            bucket.upload("too much", bytes(2 * 2**20))
        with pytest.raises(OSError, match="No space left"):
            _fill(Path(bucket.path, "rest"))
        assert "is full (ENOSPC); free space there" in refusal(bucket, StoreFullError)
        bucket.delete(["most"])
        check(bucket)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_read_only_claim_is_said(place: Path, bucket: Bucket) -> None:
    with skipping_unavailable(), mounts.small(place):
        bucket.put("there", b"x")
        mounts.mount("-o", "remount,ro", place)
        assert "is mounted read-only; have the claim mounted" in refusal(bucket, DeniedError)
        assert bucket.get("there") == b"x"


def test_a_claim_of_another_user_is_said(tmp_path: Path) -> None:
    (tmp_path / "claim" / "lost+found").mkdir(parents=True)
    (tmp_path / "claim").chmod(0o555)
    for folder in [tmp_path, *tmp_path.parents[:-2]]:
        folder.chmod(0o755)
    environment = {**os.environ, CLAIM_FOLDERS_ENV: f"runs={tmp_path}/claim"}
    user = os.getuid() or 12345
    done = subprocess.run(
        [sys.executable, "-c", CHECK, f"{user}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    said = f"user {user} may not use pvc://runs/a (EACCES); give the claim's folder"
    assert done.stdout.startswith(f"DeniedError {said}")


CHECK = """
import os, sys
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_check import check
try:
    if os.getuid() == 0:
        check(Bucket.open("pvc://runs/a"))
    os.setuid(int(sys.argv[1]))
    check(Bucket.open("pvc://runs/a"))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "error", [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT], ids=errno.errorcode.get
)
def test_a_mount_that_fails_does_not_answer(place: Path, bucket: Bucket, error: int) -> None:
    with skipping_unavailable(), mounts.failing(place, error):
        said = refusal(bucket, UnreachableError)
        assert said.startswith(f"{bucket.root} does not answer ({errno.errorcode[error]}); check")
        for ask in (lambda: bucket.get("a"), lambda: bucket.list("a"), lambda: bucket.size("a")):
            with pytest.raises(UnreachableError):
                ask()


def test_a_mount_that_hangs_keeps_nobody_waiting(
    tmp_path: Path, place: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the calls that hang there is a bounded number, and all go on once it answers."""
    monkeypatch.setattr(in_time, "_slots", threading.BoundedSemaphore(3))
    before = threading.active_count()
    with skipping_unavailable(), mounts.failing(place, None), impatient(monkeypatch):
        for _ in range(6):
            began = time.monotonic()
            with pytest.raises(UnreachableError, match="does not answer"):
                bucket.list("lease")
            assert time.monotonic() - began < 5
        assert threading.active_count() <= before + 4  # and the file server's
    folder = tmp_path / "volume"
    folder.mkdir()
    with mounts.mounted(folder, place):
        check(bucket)


def test_the_lease_is_reported_as_unknown_while_its_mount_hangs(
    tmp_path: Path, place: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "volume"
    folder.mkdir()
    with skipping_unavailable(), mounts.mounted(folder, place):
        lease = Lease.take(bucket, 1, "pod-a", 100)
    ended, said = threading.Event(), list[str | None]()

    def report(problem: str | None) -> None:
        said.append(problem)
        ended.set()

    with mounts.failing(place, None), impatient(monkeypatch):
        keep_lease(lease, lambda: None, report, ended)
        assert said == [f"{bucket.root} does not answer (no answer); check the server of the "
                        "claim's volume and the network"]  # fmt: skip


def test_a_write_that_comes_too_late_has_no_effect(
    volume: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that has given up on a write must not find it done by a call that hung."""
    answers, left = threading.Event(), threading.Event()
    flush, discard = os.fsync, claims._Staged.discard

    def hangs(file: int) -> None:
        answers.wait(60)
        flush(file)

    def discarded(staged: claims._Staged) -> None:
        discard(staged)
        left.set()

    bucket.put("lease/000001.json", b"first")
    monkeypatch.setattr(os, "fsync", hangs)  # a stand-in for a mount that hangs just there
    monkeypatch.setattr(claims._Staged, "discard", discarded)
    with impatient(monkeypatch), pytest.raises(UnreachableError):
        bucket.put("lease/000001.json", b"late")
    answers.set()
    assert left.wait(60)
    assert bucket.get("lease/000001.json") == b"first"
    assert [path.name for path in volume.rglob("*") if path.is_file()] == ["000001.json"]


@pytest.mark.parametrize(
    "error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, None], ids=["ENOSPC", "EDQUOT", "EIO", "hangs"]
)
def test_a_file_whose_last_flush_fails_leaves_nothing_of_it(
    volume: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, error: int | None
) -> None:
    """A claim that was full for a moment would be filled by the copies of all retries."""
    answers, flush = threading.Event(), os.fsync

    def fails(file: int) -> None:
        if error is not None and not os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(error, os.strerror(error))
        answers.wait(0 if error is not None else 60)
        with contextlib.suppress(OSError):  # the file was closed meanwhile
            flush(file)

    bucket.put("checkpoints/1/other", b"there")
    monkeypatch.setattr(os, "fsync", fails)
    for _ in range(2):
        with (
            impatient(monkeypatch) if error is None else contextlib.nullcontext(),
            pytest.raises(StorageError),
            bucket.writing("checkpoints/1/model", 0) as write,
        ):
            write(b"weights")
    assert [path.name for path in volume.rglob("*") if path.is_file()] == ["other"]
    answers.set()
    monkeypatch.setattr(os, "fsync", flush)
    with bucket.writing("checkpoints/1/model", 0) as write:
        write(b"weights")
    assert bucket.get("checkpoints/1/model") == b"weights"


def test_a_write_that_was_given_up_reaches_no_other_file(
    volume: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the next try has the number that the one of the first try had."""
    answers, left = threading.Event(), threading.Event()
    append = claims._Staged.append

    def hangs(staged: claims._Staged, content: bytes | memoryview) -> None:
        answers.wait(60)
        try:
            append(staged, content)
        finally:
            left.set()

    with impatient(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(claims._Staged, "append", hangs)
        with pytest.raises(UnreachableError), bucket.writing("model", 0) as write:
            write(b"late")
    with bucket.writing("model", 0) as write:
        write(b"right")
        answers.set()
        assert left.wait(60)
    assert bucket.get("model") == b"right"
    assert [path.name for path in volume.rglob("*") if path.is_file()] == ["model"]


def test_a_file_system_without_hard_links_is_refused(
    volume: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)  # a stand-in for such a file system, as of SMB
    said = refusal(bucket, LackingError)
    assert "makes no hard links (EPERM), so it cannot keep two drivers apart; use one" in said
