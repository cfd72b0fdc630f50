"""When the folders into which scripts write are a checkpoint, and what is in it."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV
from trainingrun_runtime.checkpoints import downloads
from trainingrun_runtime.coordinator.checkpoints import Command
from trainingrun_runtime.coordinator.scripts import (
    GRACE_S,
    SAVING_S,
    FinishedSave,
    FolderState,
    Orders,
    Save,
    Scripts,
    Told,
    parts,
)
from trainingrun_runtime.driver.committer import digests
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import Manifest
from trainingrun_runtime.store.storage_retry import StorageRetry
from trainingrun_runtime.worker import script_folder
from trainingrun_runtime.worker.script_folder import SETTLED_S, ScriptFolder, is_temporary

LATER = SETTLED_S + 1
RETRY = StorageRetry(lambda _: None)
KEY = "checkpoints/0001-000001/folder-000001-1"


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket.open(f"file://{tmp_path}/run")


class Clock:
    """One that goes on as a test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Folder(ScriptFolder):
    """One that was empty when the scripts began, with a clock of its own."""

    def __init__(self, path: Path, bucket: Bucket) -> None:
        self.clock = Clock()
        super().__init__(path, self.clock)
        self.prepare(bucket, None, RETRY)

    def later(self, ended: Mapping[int, tuple[int, float]] | None = None) -> FolderState:
        """What it is once looks have seen the same for as long as it takes."""
        self.state(ended or {}, 2)
        self.clock.now += LATER
        return self.state(ended or {}, 2)


@pytest.fixture
def folder(tmp_path: Path, bucket: Bucket) -> Folder:
    return Folder(tmp_path / "pod", bucket)


def committed(bucket: Bucket, **files: str) -> Manifest:
    for name, text in files.items():
        bucket.put(f"{KEY}/{name}", text.encode())
    return Manifest(
        path=KEY,
        step=1,
        world_size=2,
        attempt=1,
        fencing_token=1,
        index=1,
        files=digests(bucket, KEY),
        time=0.0,
    )


def test_a_file_counts_once_it_has_not_changed_for_some_seconds(folder: Folder) -> None:
    (folder.path / "last.pt").write_text("a")
    folder.clock.now += LATER
    assert not folder.state({}, 2).settled
    folder.clock.now += SETTLED_S - 0.1
    assert not folder.state({}, 2).settled
    folder.clock.now += 0.2
    found = folder.state({}, 2)
    assert found.settled
    assert found.files == {"last.pt": True}


def test_a_folder_that_was_renamed_has_changed_though_no_time_of_its_files_has(
    folder: Folder,
) -> None:
    """Each pod renames its part of a checkpoint, and another pod may be about to."""
    (folder.path / "step-10.tmp").mkdir()
    (folder.path / "step-10.tmp/rank-0.pt").write_text("a")
    folder.later()
    (folder.path / "step-10.tmp").rename(folder.path / "step-10")
    assert not folder.state({}, 2).settled
    assert folder.later().settled


def test_a_deletion_is_a_change(folder: Folder) -> None:
    """A script may delete its last checkpoint, gather its state, and write the next one."""
    for name in ("last.pt", "config.json"):
        (folder.path / name).write_text("a")
    assert folder.later().settled
    (folder.path / "last.pt").unlink()
    assert not folder.state({}, 2).settled
    assert folder.later().settled


def test_what_changes_during_a_look_is_not_settled(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk through a large folder takes a while, at the end of which a file is closed."""
    look = ScriptFolder._look

    def takes_long(self: ScriptFolder) -> tuple[dict[str, script_folder.Stamp], bool]:
        folder.clock.now += LATER
        return look(self)

    (folder.path / "last.pt").write_text("a")
    monkeypatch.setattr(ScriptFolder, "_look", takes_long)
    assert not folder.state({}, 2).settled
    assert not folder.state({}, 2).settled, "the first look that saw it has just ended"


def test_a_file_that_is_open_for_writing_does_not_count(folder: Folder) -> None:
    with (folder.path / "last.pt").open("w") as file:
        file.write("half")
        file.flush()
        assert not folder.later().settled
        assert not folder.later().settled
    assert folder.later().settled


def test_a_deleted_file_that_is_still_written_to_holds_nothing_up(folder: Folder) -> None:
    """Such as a log that was rotated, or a temporary file."""
    (folder.path / "last.pt").write_text("weights")
    for name in ("train.out", "train.out (deleted)"):
        with (folder.path / name).open("w") as file:
            assert not folder.later().settled
            (folder.path / name).unlink()
            file.write("more")
            file.flush()
            assert folder.later().settled
    with (folder.path / "train.out (deleted)").open("w"):
        assert not folder.later().settled, "that is its name"


def test_a_file_that_keeps_all_from_being_committed_is_named_once(
    folder: Folder, tmp_path: Path, bucket: Bucket
) -> None:
    said: list[str] = []
    folder._advise = said.append
    with (folder.path / "train.out").open("w"):
        folder.state({}, 2)
        folder.clock.now += script_folder.HELD_UP_S - 1
        assert not folder.state({}, 2).settled
    assert folder.later().settled
    with (folder.path / "train.out").open("w"):
        for _ in range(2):
            (folder.path / "last.pt").write_text("weights")
            folder.state({}, 2)
            folder.clock.now += script_folder.HELD_UP_S - 1
            assert said == [], "a large checkpoint takes a while, and so does the next one"
            folder.state({}, 2)
        folder.clock.now += script_folder.HELD_UP_S
        folder.state({}, 2)
    assert said == [
        "no checkpoint is committed while train.out is open for writing in "
        "$TRAININGRUN_CHECKPOINT_DIR, as it has been for 5 minutes; close it, write it elsewhere, "
        "or give it a name that ends in .log"
    ]


def test_a_file_counts_some_seconds_after_it_was_closed(folder: Folder) -> None:
    """It may be about to be renamed, or the script was just ended by a signal."""
    with (folder.path / "last.pt").open("w") as file:
        file.write("half")
        file.flush()
        folder.state({}, 2)
    folder.clock.now += LATER  # looks through a large folder are as far apart
    assert not folder.state({}, 2).settled
    assert folder.later().settled


def test_nothing_is_settled_while_a_file_is_written_that_is_to_be_renamed(folder: Folder) -> None:
    """A rank of another pod may have renamed its file of the same checkpoint before."""
    (folder.path / "old.pt").write_text("a")
    assert folder.later().settled
    for name, holds_up in (("rank-1.pt.tmp", True), ("tmp-3/a.pt", True), ("out.log", False)):
        file = folder.path / name
        file.parent.mkdir(exist_ok=True)
        with file.open("w"):
            assert folder.state({}, 2).settled is not holds_up
            assert folder.later().settled is not holds_up
        assert folder.state({}, 2).settled is not holds_up, "it may be renamed next"
        assert folder.later().settled


def test_a_file_that_was_moved_or_copied_with_its_times_has_changed(
    folder: Folder, tmp_path: Path
) -> None:
    for file in (tmp_path / "other", folder.path / "last.pt"):
        file.write_text("a")
        os.utime(file, (1, 1))
    assert folder.later().settled
    os.replace(tmp_path / "other", folder.path / "last.pt")
    assert not folder.state({}, 2).settled


def test_what_scripts_wrote_that_have_ended_with_0_is_whole_at_once(folder: Folder) -> None:
    (folder.path / "last.pt").write_text("a")
    now = time.time()
    assert not folder.state({0: (0, now)}, 2).settled
    assert folder.state({0: (0, now), 1: (0, now)}, 2).settled


@pytest.mark.parametrize("code", [1, -15])
def test_what_changed_shortly_before_a_script_ended_otherwise_never_counts(
    folder: Folder, code: int
) -> None:
    (folder.path / "last.pt").write_text("half")
    folder.state({}, 2)
    folder.clock.now += SETTLED_S - 1
    folder.state({}, 2)
    now = time.time()
    assert not folder.later({0: (code, now)}).settled, "nor while another one runs"
    assert not folder.later({0: (code, now), 1: (0, now)}).settled


@pytest.mark.parametrize("code", [1, -15])
def test_what_was_settled_before_a_script_ended_otherwise_counts(folder: Folder, code: int) -> None:
    (folder.path / "last.pt").write_text("whole")
    assert folder.later().settled
    assert folder.state({0: (code, time.time()), 1: (code, time.time())}, 2).settled


@pytest.mark.parametrize("code", [1, -15])
def test_what_another_script_did_after_one_has_ended_otherwise_counts(
    folder: Folder, code: int
) -> None:
    """A rank without a handler of SIGTERM; another one saves, and deletes what is older."""
    for name in ("1.pt", "config.json"):
        (folder.path / name).write_text("whole")
    folder.later()
    ended = {0: (code, time.time() - 60)}
    (folder.path / "2.pt").write_text("whole")
    assert not folder.state(ended, 2).settled, "it is being written"
    (folder.path / "1.pt").unlink()
    assert folder.state({**ended, 1: (0, time.time())}, 2).settled


def test_a_file_that_was_open_when_a_signal_ended_its_script_never_counts(folder: Folder) -> None:
    """It may have been written to long before, by a script that waits for its store."""
    with (folder.path / "big.pt").open("w") as file:
        file.write("half")
        file.flush()
        folder.later()
        folder.later()
    now = time.time()
    assert not folder.later({0: (-15, now)}).settled
    assert not folder.later({0: (-15, now), 1: (0, now)}).settled


def test_a_folder_that_was_renamed_shortly_before_a_signal_never_counts(folder: Folder) -> None:
    (folder.path / "step-10.tmp").mkdir()
    (folder.path / "step-10.tmp/rank-0.pt").write_text("a")
    folder.later()
    (folder.path / "step-10.tmp").rename(folder.path / "step-10")
    now = time.time() + LATER  # by its times it has not changed for long
    assert not folder.later({0: (-15, now), 1: (-15, now)}).settled


def test_a_folder_in_which_a_file_was_deleted_shortly_before_a_signal_never_counts(
    folder: Folder,
) -> None:
    for name in ("last.pt", "config.json"):
        (folder.path / name).write_text("a")
    folder.later()
    (folder.path / "last.pt").unlink()
    now = time.time() + LATER
    assert not folder.later({0: (-15, now), 1: (-15, now)}).settled


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        ("last.pt", False),
        ("checkpoint-500/model.safetensors", False),
        ("last.pt.tmp", True),
        (".last.pt", True),
        ("tmp-checkpoint-500/model.safetensors", True),
        ("runs/events.out.tfevents.1.host", True),
        ("train.log", True),
        ("step-10/.metadata", False),
        ("step-10/.metadata.tmp", True),
        ("tmp-step-10/.metadata", True),
        (".metadata/0.pt", True),
    ],
)
def test_temporary_names_are_left_out(name: str, temporary: bool) -> None:
    assert is_temporary(name) is temporary


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_of_torch_distributed_is_loaded_as_it_was_saved(
    folder: Folder, bucket: Bucket, tmp_path: Path
) -> None:
    weights = {"weight": torch.arange(4.0)}
    dcp.save(weights, checkpoint_id=folder.path / "step-10")
    state = folder.later()
    assert state.settled
    save = Save(1, state.fingerprint, tuple(sorted(state.files)))
    assert folder.upload(save, bucket, KEY, 0, RETRY)
    manifest = committed(bucket)

    for restored in (folder, ScriptFolder(tmp_path / "another pod")):
        restored.prepare(bucket, manifest, RETRY)
        found = {"weight": torch.zeros(4)}
        dcp.load(found, checkpoint_id=restored.path / "step-10")
        assert torch.equal(found["weight"], weights["weight"])


def test_a_folder_gets_what_was_committed_and_keeps_what_is_the_same(
    folder: Folder, bucket: Bucket
) -> None:
    manifest = committed(bucket, **{"a/x.pt": "new", "same.pt": "same", "gone.pt": "back"})
    (folder.path / "a").mkdir()
    (folder.path / "a/x.pt").write_text("old")
    (folder.path / "same.pt").write_text("same")
    (folder.path / "half.pt.tmp").write_text("half")
    (folder.path / "b/c").mkdir(parents=True)
    before = (folder.path / "same.pt").stat()

    folder.prepare(bucket, manifest, RETRY)

    found = {p.relative_to(folder.path).as_posix(): p for p in folder.path.rglob("*")}
    assert sorted(found) == ["a", "a/x.pt", "gone.pt", "same.pt"]
    assert found["a/x.pt"].read_text() == "new"
    assert found["gone.pt"].read_text() == "back"
    assert found["same.pt"].stat().st_ino == before.st_ino
    state = folder.state({}, 1)
    assert not any(state.files.values()), "nothing was written since"
    (folder.path / "same.pt").write_text("more")
    assert folder.state({}, 1).files["same.pt"]
    downloads.complete(bucket, None, folder.path)
    assert list(folder.path.iterdir()) == []


def test_the_newest_file_and_the_newest_folder_are_the_same_after_a_loss_on_all_pods(
    folder: Folder, bucket: Bucket, tmp_path: Path
) -> None:
    """A script that takes the newest one would go on from an old checkpoint, or ranks disagree."""
    names = ("step-3/model.pt", "step-20/model.pt", "step-100/model.pt", "best.pt")
    for at, name in enumerate(names):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text(name)
        os.utime(folder.path / name, ns=(0, 1_700_000_000_000_000_001 + at))
    state = folder.state({}, 1)
    assert folder.upload(Save(1, state.fingerprint, names), bucket, KEY, 0, RETRY)
    found = Manifest.model_validate_json(committed(bucket).model_dump_json(by_alias=True))
    (folder.path / "best.pt").unlink()
    for at, name in enumerate(reversed(names)):
        if (folder.path / name).exists():
            os.utime(folder.path / name, ns=(at, at))

    for pod in (folder, ScriptFolder(tmp_path / "another pod")):
        pod.prepare(bucket, found, RETRY)
        times = [(pod.path / name).stat().st_mtime_ns for name in names]
        assert times == [1_700_000_000_000_000_001 + at for at in range(4)]
        folders = sorted(pod.path.glob("step-*"), key=lambda one: one.stat().st_mtime_ns)
        assert [one.name for one in folders] == ["step-3", "step-20", "step-100"]
        assert not any(pod.state({}, 1).files.values()), "nothing was written since"


@pytest.mark.parametrize("time_ns", [None, 10**30, -(10**30)])
def test_a_checkpoint_is_restored_whatever_its_manifest_says_of_times(
    folder: Folder, bucket: Bucket, time_ns: int | None
) -> None:
    found = committed(bucket, **{"last.pt": "weights"})
    files = {name: replace(each, mtime_ns=time_ns) for name, each in found.files.items()}
    folder.prepare(bucket, found.model_copy(update={"files": files}), RETRY)
    assert (folder.path / "last.pt").read_text() == "weights"


def test_a_manifest_of_a_later_version_may_say_more_of_a_file(bucket: Bucket) -> None:
    document = committed(bucket, **{"last.pt": "weights"}).model_dump(by_alias=True, mode="json")
    document["files"]["last.pt"]["owner"] = "root"
    assert Manifest.model_validate(document).files.keys() == {"last.pt"}


def test_a_part_is_uploaded_with_its_digests(folder: Folder, bucket: Bucket) -> None:
    (folder.path / "last.pt").write_text("weights")
    state = folder.state({}, 1)
    save = Save(1, state.fingerprint, ("last.pt",))
    assert folder.upload(save, bucket, KEY, 3, RETRY)
    assert bucket.get(f"{KEY}/last.pt") == b"weights"
    assert list(digests(bucket, KEY, [3])) == ["last.pt"]


@pytest.mark.parametrize("store", ["s3", "file", "pvc"])
@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"m\xe4dchen.pt", r"m\udce4dchen.pt"), (b"last\nstep.pt", r"last\nstep.pt")],
)
def test_a_file_whose_name_no_store_takes_fails_the_rank_in_a_sentence(
    folder: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    name: bytes,
    shown: str,
) -> None:
    """To wait for the store would be in vain, and what is committed without it not restored."""
    (tmp_path / "claim" / "lost+found").mkdir(parents=True)
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, f"runs={tmp_path}/claim")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "no request is made")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "no request is made")
    root = {"s3": "s3://runs/a", "file": f"file://{tmp_path}/run", "pvc": "pvc://runs/a"}[store]
    bucket = Bucket.open(root, "http://127.0.0.1:1" if store == "s3" else None, "us-east-1")
    Path(os.fsdecode(bytes(folder.path) + b"/" + name)).write_text("weights")
    state = folder.state({}, 1)

    def waits(message: str | None) -> None:
        raise AssertionError(f"it waits for the store: {message}")

    said = rf"^no object of {root} can have such a name: .*{re.escape(shown)}.*; use another one$"
    with pytest.raises(ValueError, match=said):
        folder.upload(
            Save(1, state.fingerprint, tuple(state.files)), bucket, KEY, 0, StorageRetry(waits)
        )


def test_a_part_that_changed_since_it_was_planned_is_no_part(
    folder: Folder, bucket: Bucket
) -> None:
    (folder.path / "last.pt").write_text("weights")
    state = folder.state({}, 1)
    (folder.path / "last.pt").write_text("weightz")
    assert not folder.upload(Save(1, state.fingerprint, ("last.pt",)), bucket, KEY, 0, RETRY)
    (folder.path / "last.pt").unlink()
    assert not folder.upload(Save(1, state.fingerprint, ()), bucket, KEY, 0, RETRY)


def test_a_part_is_no_part_while_a_file_is_written_that_is_to_be_renamed(
    folder: Folder, bucket: Bucket
) -> None:
    """Another pod may have renamed its part of the next checkpoint, and be uploading it."""
    (folder.path / "step-10").mkdir()
    (folder.path / "step-10/a").write_text("old")
    state = folder.later()
    assert state.settled
    save = Save(1, state.fingerprint, ("step-10/a",))
    (folder.path / "step-20.tmp").mkdir()
    with (folder.path / "step-20.tmp/a").open("w"):
        assert not folder.upload(save, bucket, KEY, 0, RETRY)
        assert bucket.list() == []
    assert folder.upload(save, bucket, KEY, 0, RETRY), "a file that was left holds nothing up"


def test_a_folder_that_the_script_has_deleted_is_an_empty_part(
    folder: Folder, bucket: Bucket
) -> None:
    folder.path.rmdir()
    state = folder.state({}, 1)
    assert folder.upload(Save(1, state.fingerprint, ()), bucket, KEY, 0, RETRY)


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> Callable[..., bool]:
    """Uploads all of a folder; the script does something just before the file `at` is read.

    The files are written before, in the order of `of`, and each has its name as content.
    """
    writing = Bucket.writing

    def upload(folder: Folder, does: Callable[[], object], *of: str, at: str) -> bool:
        for name in of:
            file = folder.path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(name)
            time.sleep(0.02)  # more than the precision of a file's times
        state = folder.state({}, 1)

        @contextmanager
        def and_does(
            self: Bucket, key: str, size: int, part: int | None = None
        ) -> Iterator[Callable[[bytes | memoryview], object]]:
            with writing(self, key, size, part) as append:
                if key == f"{KEY}/{at}":
                    does()
                yield append

        monkeypatch.setattr(Bucket, "writing", and_does)
        save = Save(1, state.fingerprint, tuple(sorted(state.files)))
        return folder.upload(save, bucket, KEY, 0, RETRY)

    return upload


def test_a_file_that_appears_while_others_are_uploaded_is_in_the_next_checkpoint(
    folder: Folder, bucket: Bucket, during: Callable[..., bool]
) -> None:
    def writes() -> None:
        (folder.path / "2").mkdir()
        (folder.path / "2/model.pt").write_text("new")

    assert during(folder, writes, "1/model.pt", "1/state.pt", at="1/state.pt")
    assert sorted(digests(bucket, KEY, [0])) == ["1/model.pt", "1/state.pt"]


@pytest.mark.parametrize("changed", ["1/model.pt", "1/state.pt"], ids=["later", "now"])
def test_a_saved_file_that_is_written_to_before_it_is_uploaded_makes_no_checkpoint(
    folder: Folder, during: Callable[..., bool], changed: str
) -> None:
    def writes() -> None:
        (folder.path / changed).write_text("other")

    assert not during(folder, writes, "1/model.pt", "1/state.pt", at="1/state.pt")


def test_a_file_that_is_overwritten_with_each_checkpoint_is_uploaded_before_the_others(
    folder: Folder, bucket: Bucket, during: Callable[..., bool]
) -> None:
    def writes() -> None:
        (folder.path / "latest").write_text("2")

    assert during(folder, writes, "1/a.pt", "1/z.pt", "latest", at="1/z.pt")
    assert bucket.get(f"{KEY}/latest") == b"latest"


def deletes(folder: Folder) -> None:
    shutil.rmtree(folder.path / "1")


def renames(folder: Folder) -> None:
    (folder.path / "1").rename(folder.path / "best")


def replaces(folder: Folder) -> None:
    (folder.path / "new.tmp").write_text("1/same.pt")
    (folder.path / "new.tmp").rename(folder.path / "1/model.pt")


@pytest.mark.parametrize("does", [deletes, renames, replaces])
def test_what_is_deleted_or_replaced_meanwhile_is_in_the_checkpoint_as_it_was(
    folder: Folder,
    bucket: Bucket,
    during: Callable[..., bool],
    does: Callable[[Folder], None],
) -> None:
    assert during(folder, lambda: does(folder), "1/model.pt", "2/model.pt", at="2/model.pt")
    assert bucket.get(f"{KEY}/1/model.pt") == b"1/model.pt"
    assert sorted(digests(bucket, KEY, [0])) == ["1/model.pt", "2/model.pt"]


def test_a_file_that_is_written_to_and_then_deleted_makes_no_checkpoint(
    folder: Folder, during: Callable[..., bool]
) -> None:
    def does() -> None:
        (folder.path / "1/model.pt").write_text("1/wrong.pt")
        deletes(folder)

    assert not during(folder, does, "1/model.pt", "2/model.pt", at="2/model.pt")


def test_so_many_files_are_held_open_for_that_and_those_that_are_uploaded_last(
    folder: Folder, during: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_folder, "_MOST_HELD", 1)
    names = ("1/model.pt", "2/model.pt", "3/model.pt")
    assert during(folder, lambda: deletes(folder), *names, at="3/model.pt")

    def deletes_another() -> None:
        (folder.path / "2/model.pt").unlink()

    assert not during(folder, deletes_another, *names, at="3/model.pt")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no second filesystem")
def test_no_file_of_a_volume_is_held_open_since_its_folder_could_not_be_deleted_on_nfs(
    tmp_path: Path, bucket: Bucket, during: Callable[..., bool]
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as volume:
        (tmp_path / "pod").symlink_to(volume)
        folder = Folder(tmp_path / "pod", bucket)

        def is_open() -> list[str]:
            return [
                file
                for link in Path("/proc/self/fd").iterdir()
                if (file := os.path.realpath(link)).startswith(f"{volume}/")
            ]

        found: list[str] = []
        names = ("1/model.pt", "2/model.pt")
        assert during(folder, lambda: found.extend(is_open()), *names, at="2/model.pt")
        assert found == [f"{volume}/2/model.pt"], "the one that is uploaded"
        assert not during(folder, lambda: deletes(folder), *names, at="2/model.pt")


def test_the_second_discarded_checkpoint_in_a_row_is_said_with_what_to_do(
    folder: Folder, during: Callable[..., bool], caplog: pytest.LogCaptureFixture
) -> None:
    texts = iter(["other", "another", "one more", "the last"])

    def writes() -> None:
        (folder.path / "last.pt").write_text(next(texts))

    def upload(does: Callable[[], object]) -> bool:
        return during(folder, does, "last.pt", "1/model.pt", at="1/model.pt")

    assert not upload(writes)
    assert upload(lambda: None), "not in a row"
    assert not upload(writes)
    assert caplog.messages == []
    assert not upload(writes)
    assert caplog.messages == [
        "rank 0: the second checkpoint in a row is discarded, since the script changed or deleted "
        "last.pt in the 0 s that the upload of 2 files (0.00 GB) has taken; keep fewer "
        "checkpoints, write them less often, or replace files by renaming new ones"
    ]
    assert not upload(writes)
    assert len(caplog.messages) == 1, "once"


class Group:
    """Two pods with two ranks each, as their ranks call the coordinator."""

    def __init__(self) -> None:
        self.scripts, self.command, self.now = Scripts(), Command.NONE, 1000.0
        self.finished: list[FinishedSave] = []
        for rank in range(4):
            self.meeting = self.scripts.meet(
                1, rank, 4, f"node-{rank // 2}", ("10.0.0.1", 4000) if rank == 0 else None
            )
        for rank in (0, 2):
            self.tell(rank, Told(folder=self.folder()))

    def folder(self, settled: bool = True, running: int = 2, **files: bool) -> FolderState:
        return FolderState(files, str(sorted(files)), settled, running)

    def tell(self, rank: int, told: Told) -> Orders:
        orders, finished = self.scripts.told(1, rank, told, self.command, self.now)
        if finished is not None:
            self.finished.append(finished)
        return orders

    def save_of(self, rank: int) -> Save:
        save = self.tell(rank, Told()).save
        assert save is not None
        return save


@pytest.fixture
def group() -> Group:
    return Group()


def test_ranks_meet_once_all_are_there() -> None:
    scripts = Scripts()
    assert scripts.meet(1, 1, 2, "b", None) is None
    found = scripts.meet(1, 0, 2, "a", ("10.0.0.1", 4000))
    assert found is not None
    assert (found.nodes, found.address, found.port) == (("a", "b"), "10.0.0.1", 4000)
    assert scripts.meet(2, 0, 2, "a", ("10.0.0.1", 4001)) is None, "the next group meets anew"
    assert scripts.meet(1, 1, 2, "b", None) is None, "the former one no more"


def test_a_checkpoint_is_uploaded_once_all_folders_are_settled(group: Group) -> None:
    assert group.tell(0, Told(folder=group.folder(a=True))).save is not None
    group = Group()
    group.tell(2, Told(folder=group.folder(settled=False, b=True)))
    assert group.tell(0, Told(folder=group.folder(a=True))).save is None
    group.tell(2, Told(folder=group.folder(b=True)))
    one, other = group.save_of(0), group.save_of(2)
    assert (one.files, other.files) == (("a",), ("b",))
    assert group.tell(1, Told()).save is None, "the lowest rank of a pod uploads"
    group.tell(0, Told(uploaded=(1, "x/1")))
    assert group.finished == []
    group.tell(2, Told(uploaded=(1, "x/1")))
    assert group.finished == [FinishedSave("x/1", 1, 4, (0, 2))]
    assert group.tell(0, Told()).save is None, "nothing has changed since"
    group.tell(0, Told(folder=group.folder(a=True, c=True)))
    assert group.save_of(0).number == 2


def test_what_changed_while_it_was_uploaded_is_deleted_and_uploaded_again(group: Group) -> None:
    group.tell(0, Told(folder=group.folder(a=True)))
    group.save_of(2)
    group.tell(2, Told(uploaded=(1, "x/1")))
    orders = group.tell(0, Told(uploaded=(1, None)))
    assert orders.unused == 1
    assert group.finished == []
    assert group.save_of(0).number == 2
    assert group.tell(0, Told()).unused is None, "once"


def test_folders_that_are_as_they_were_at_first_are_no_new_checkpoint(group: Group) -> None:
    assert group.tell(0, Told(folder=group.folder(settled=True))).save is None


def test_a_group_is_over_once_what_its_scripts_wrote_is_uploaded(group: Group) -> None:
    for rank in range(4):
        group.tell(rank, Told(ended=(0, 1000.0)))
    assert not group.tell(1, Told()).over, "the folders may have more"
    group.tell(0, Told(folder=group.folder(running=0, a=True)))
    orders = group.tell(2, Told(folder=group.folder(running=0)))
    assert not orders.over
    assert group.tell(0, Told(uploaded=(1, "x/1"))).over is False
    assert group.tell(2, Told(uploaded=(1, "x/1"))).over
    assert group.finished == [FinishedSave("x/1", 1, 4, (0,))]


def test_what_is_half_written_at_the_end_is_not_waited_for(group: Group) -> None:
    for rank in range(4):
        group.tell(rank, Told(ended=(-15, 1000.0)))
    group.tell(0, Told(folder=group.folder(settled=False, running=0, a=True)))
    assert group.tell(2, Told(folder=group.folder(running=0))).over
    assert group.finished == []


def test_all_ranks_end_with_the_command_of_the_first_that_is_told_to_end(group: Group) -> None:
    for rank in range(4):
        group.tell(rank, Told(ended=(0, 1000.0)))
    group.tell(2, Told(folder=group.folder(running=0)))
    first = group.tell(0, Told(folder=group.folder(running=0)))
    group.command = Command.SUSPEND
    later = group.tell(2, Told(folder=group.folder(running=0, a=True)))
    assert first.over
    assert (later.over, later.command, later.save) == (True, first.command, None)


def test_a_call_that_began_before_a_command_does_not_end_its_rank_in_another_way(
    group: Group,
) -> None:
    for rank in range(4):
        group.tell(rank, Told(ended=(0, 1000.0)))
    group.tell(0, Told(folder=group.folder(running=0)))
    group.command = Command.CHECKPOINT_AND_EXIT
    assert group.tell(1, Told()).command == Command.CHECKPOINT_AND_EXIT
    group.command = Command.NONE  # read before, and late
    last = group.tell(2, Told(folder=group.folder(running=0)))
    assert (last.over, last.command) == (True, Command.CHECKPOINT_AND_EXIT)


def test_ranks_of_a_pod_know_how_their_scripts_have_ended(group: Group) -> None:
    group.tell(1, Told(ended=(0, 5.0)))
    group.tell(3, Told(ended=(1, 6.0)))
    assert group.tell(0, Told()).ended == {1: (0, 5.0)}


def test_scripts_have_until_shortly_before_the_deadline(group: Group) -> None:
    group.command = Command.SUSPEND
    assert group.tell(0, Told()).left_s == GRACE_S
    group.now += 10
    assert group.tell(3, Told(left_s=190.0)).left_s == 190.0 - SAVING_S
    group.now += 10
    assert group.tell(0, Told()).left_s == 180.0 - SAVING_S
    assert group.tell(3, Told(left_s=185.0)).left_s == 180.0 - SAVING_S, "the call was slow"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({0: {"a": True}, 2: {"a": True}}, {0: ("a",), 2: ()}),
        ({0: {"a": False}, 2: {"a": True}}, {0: (), 2: ("a",)}),
        ({0: {"a": False}, 2: {"a": False}}, {0: ("a",), 2: ()}),
        ({0: {}, 2: {"a": False}}, {0: (), 2: ()}),
    ],
    ids=["the lowest rank's", "the one that was written", "the same", "deleted on one pod"],
)
def test_which_pod_uploads_a_file(
    files: dict[int, dict[str, bool]], expected: dict[int, tuple[str, ...]]
) -> None:
    states = {rank: FolderState(each, "", True, 1) for rank, each in files.items()}
    assert parts(states) == expected
