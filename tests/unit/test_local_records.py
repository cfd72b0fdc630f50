"""What a local run keeps for other commands: written as a whole, per run, and never in its way."""

import errno
import json
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from support.builders import a_run
from support.cli_server import call
from trainingrun import Client, RunError
from trainingrun.api.status import Phase
from trainingrun.client import following
from trainingrun.local import LocalError, records
from trainingrun.local.display import Display, SteadyStream
from trainingrun.local.folder import Folder, own_run
from trainingrun_protocol.progress import Progress, RankRow, RecordKind, RunState, Seconds
from trainingrun_protocol.progress import Record as Loss
from trainingrun_runtime.store import last_progress
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease


def rows(state: RunState = RunState.TRAINING) -> Progress:
    return Progress(attempt=1, state=state, step=7, ranks=[RankRow(rank=0, node="local-1")])


@contextmanager
def a_full_disk() -> Iterator[None]:
    """No file may grow: each write fails, as on a disk without space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_resume_continues_the_latest_run_of_that_name(tmp_path: Path) -> None:
    one = Folder.prepare(a_run(name="one"), tmp_path, False)
    Folder.prepare(a_run(name="two"), tmp_path, False)
    again = Folder.prepare(a_run(name="one"), tmp_path, True)
    assert (again.uri, again.first_attempt) == (one.uri, 2)
    with again.record:
        pass
    assert Folder.prepare(a_run(name="one"), tmp_path, True).first_attempt == 3


def test_of_two_runs_of_a_name_the_one_that_was_begun_or_resumed_last_is_resumed(
    tmp_path: Path,
) -> None:
    Folder.prepare(a_run(name="one"), tmp_path, False)
    second = Folder.prepare(a_run(name="one"), tmp_path, False)
    assert Folder.prepare(a_run(name="one"), tmp_path, True).uri == second.uri


def test_a_resume_that_is_refused_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    own = Folder.prepare(a_run(name="one"), tmp_path, False)
    with own.record as record:
        record.ended(Phase.SUCCEEDED)
    before = own_run("one", tmp_path)[1]
    one, other = (Folder.prepare(a_run(name="one"), tmp_path, True) for _ in range(2))
    assert own_run("one", tmp_path)[1] == before
    with one.record as record:
        with pytest.raises(LocalError, match="another process trains"), other.record:
            pass
        record.ended(Phase.SUCCEEDED)
    assert own_run("one", tmp_path)[1]["status"]["phase"] == "Succeeded"


def test_a_run_that_was_refused_is_not_the_one_that_is_resumed(
    tmp_path: Path,
) -> None:
    first = Folder.prepare(a_run(name="one"), tmp_path, False)
    first.begin()
    manifest = {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "one"},
        "spec": {
            "training": {"script": {"configMap": "code", "file": "train.py"}},
            "storage": {"uri": "s3://runs/demo"},
        },
    }
    (tmp_path / "run.yaml").write_text(json.dumps(manifest))
    code, _, errors = call("run", str(tmp_path / "run.yaml"), "--local", "--folder", str(tmp_path))
    assert code == 1
    assert "ConfigMap code is not in the file" in errors
    resumed = Folder.prepare(a_run(name="one"), tmp_path, True)
    assert resumed.uri == first.uri
    assert resumed.begins == (
        f"{first.uri.rpartition('/')[2]} is resumed from its beginning, since it has no checkpoint"
    )
    assert json.loads((tmp_path / "latest.json").read_text())["uid"] == first.run.metadata.uid


def refused_by_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> str:
    """The error of a run that is begun while no file can be written whose name begins so."""
    write = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target.name == last:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, target)

    manifest = {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "one"},
        "spec": {
            "training": {"function": "trainingrun_runtime.examples.linear:train"},
            "storage": {"uri": "s3://runs/demo"},
        },
    }
    (tmp_path / "run.yaml").write_text(json.dumps(manifest))
    with monkeypatch.context() as full:
        full.setattr(Path, "replace", replace)
        code, _, errors = call(
            "run", str(tmp_path / "run.yaml"), "--local", "--folder", str(tmp_path)
        )
    assert code == 1
    return errors


@pytest.mark.parametrize("last", ["run.json", "latest.json"])
def test_a_run_that_a_full_disk_refuses_hides_no_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    with Folder.prepare(a_run(name="one"), tmp_path, False).record as record:
        record.ended(Phase.SUCCEEDED)
    errors = refused_by_a_full_disk(tmp_path, monkeypatch, last)
    assert errors == f"cannot write to {tmp_path}: No space left on device\n"
    assert len(list(tmp_path.glob("one-*"))) == 1, "nothing is left of it"
    assert "phase  Succeeded" in call("get", "one", "--folder", str(tmp_path))[1]


def test_a_resume_that_a_full_disk_refuses_keeps_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Folder.prepare(a_run(name="one"), tmp_path, False)
    (own,) = tmp_path.glob("one-*")
    (own / "manifests").mkdir()
    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", no_space)
        with pytest.raises(LocalError, match="cannot write to"):
            Folder.prepare(a_run(name="one"), tmp_path, True)
    assert (own / "manifests").is_dir()
    assert own_run("one", tmp_path)[1]["status"]["phase"] == "Suspended"


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_in_which_no_run_has_begun_hides_no_earlier_one(tmp_path: Path) -> None:
    """As a version before this one leaves it, or a machine that loses its power."""
    with Folder.prepare(a_run(name="one"), tmp_path, False).record as record:
        record.ended(Phase.SUCCEEDED)
    (own,) = tmp_path.glob("one-*")
    empty = tmp_path / "one-0000beef/local"
    empty.mkdir(parents=True)
    (empty / "lock").touch()
    for command in ("get", "watch"):
        assert "Succeeded" in call(command, "one", "--folder", str(tmp_path))[1]
    assert Client(folder=tmp_path).get("one").folder == own.as_uri()
    assert call("delete", "one", "-y", "--folder", str(tmp_path)) == (0, f"{own} deleted\n", "")


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files cannot be locked, as on some file systems."""

    def flock(_file: object, _kind: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", flock)


def ended_process() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.usefixtures("no_locks")
def test_where_there_are_no_locks_a_run_goes_on_while_its_process_has_its_file_open(
    tmp_path: Path,
) -> None:
    folder = Folder.prepare(a_run(name="one"), tmp_path, False)
    own = tmp_path / folder.uri.rpartition("/")[2]
    with folder.record as record:
        record.show(rows())
        assert own_run("one", tmp_path)[1]["status"]["phase"] == "Running"
        with pytest.raises(LocalError, match="a process trains the run of"):
            records.delete(own)
        with pytest.raises(LocalError, match="another process trains"):
            Folder.prepare(a_run(name="one"), tmp_path, True)
        written = (own / "local/run.json").read_text()
    (own / "local/run.json").write_text(written)  # as if it had been killed
    for pid in (ended_process(), os.getpid()):  # which has another one's number now
        (own / "local/lock").write_text(f"{pid} {socket.gethostname()}")
        assert own_run("one", tmp_path)[1]["status"]["phase"] == "Suspended"
    records.delete(own)
    assert not own.exists()


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("text", ["{pid} elsewhere", "{pid}", ""])
def test_where_there_are_no_locks_nothing_is_known_of_another_machines_process(
    tmp_path: Path, text: str
) -> None:
    folder = Folder.prepare(a_run(name="one"), tmp_path, False)
    own = tmp_path / folder.uri.rpartition("/")[2]
    folder.record.show(rows())
    (own / "local/lock").write_text(text.format(pid=ended_process()))
    assert records.trains(own) is None
    assert own_run("one", tmp_path)[1]["status"]["phase"] == "Running"
    with pytest.raises(LocalError, match="a process trains the run of"):
        records.delete(own)


@pytest.mark.usefixtures("no_locks")
def test_a_run_that_was_refused_is_deleted_where_there_are_no_locks(tmp_path: Path) -> None:
    refused = Folder.prepare(a_run(name="one"), tmp_path, False)
    refused.discard()
    assert list(tmp_path.glob("one-*")) == []


def test_a_name_of_which_there_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    Folder.prepare(a_run(name="two"), tmp_path, False)
    with pytest.raises(LocalError, match="holds no run of one to resume, only of two"):
        Folder.prepare(a_run(name="one"), tmp_path, True)
    with pytest.raises(LocalError, match="holds no run of one to resume; leave --resume out"):
        Folder.prepare(a_run(name="one"), tmp_path / "empty", True)


def test_a_run_that_a_process_trains_now_is_not_resumed_beside_it(tmp_path: Path) -> None:
    first = Folder.prepare(a_run(name="one"), tmp_path, False)
    with first.record, pytest.raises(LocalError, match=r"another process trains .*one-"):
        Folder.prepare(a_run(name="one"), tmp_path, True)
    assert Folder.prepare(a_run(name="one"), tmp_path, True).first_attempt == 2


def test_a_disk_that_is_full_costs_the_display_alone(tmp_path: Path) -> None:
    folder = Folder.prepare(a_run(name="one"), tmp_path, False)
    folder.record.show(rows())
    with a_full_disk():
        folder.record.show(Progress(attempt=1, state=RunState.TRAINING, step=8))
        folder.record.begin(2, 1)
    assert "File too large" in str(folder.record.problem)
    assert "the training goes on" in str(folder.record.problem)
    status = own_run("one", tmp_path)[1]["status"]
    assert (status["attempt"], status["progress"]["step"]) == (1, 7), "as it was written last"
    assert list(tmp_path.rglob(".*")) == [], "nothing is left of what was not written"
    folder.record.show(rows())
    assert folder.record.problem is None


def test_a_folder_that_is_gone_costs_the_display_alone(tmp_path: Path) -> None:
    folder = Folder.prepare(a_run(name="one"), tmp_path / "f", False)
    shutil.rmtree(tmp_path / "f")
    folder.record.show(rows())
    assert "No such file or directory" in str(folder.record.problem)


def test_what_tells_the_latest_run_is_never_written_in_place(tmp_path: Path) -> None:
    Folder.prepare(a_run(name="one"), tmp_path, False).begin()
    before = (tmp_path / "latest.json").read_text()
    second = Folder.prepare(a_run(name="one"), tmp_path, False)
    with a_full_disk(), pytest.raises(LocalError, match="cannot write to"):
        second.begin()
    assert (tmp_path / "latest.json").read_text() == before


def test_two_runs_in_one_folder_keep_their_ranks_apart(tmp_path: Path) -> None:
    one = Folder.prepare(a_run(name="one"), tmp_path, False)
    two = Folder.prepare(a_run(name="two"), tmp_path, False)
    one.record.show(rows())
    two.record.show(Progress(attempt=1, state=RunState.TRAINING, ranks=[RankRow(rank=5)]))
    for name, rank in (("one", 0), ("two", 5)):
        (row,) = own_run(name, tmp_path)[1]["status"]["progress"]["ranks"]
        assert row["rank"] == rank


def test_a_run_whose_process_ended_without_a_word_is_suspended(tmp_path: Path) -> None:
    folder = Folder.prepare(a_run(name="one"), tmp_path, False)
    with folder.record as record:
        record.show(rows())
        assert own_run("one", tmp_path)[1]["status"]["phase"] == "Running"
        written = (tmp_path / f"{folder.uri.rpartition('/')[2]}/local/run.json").read_text()
    assert json.loads(written)["status"]["phase"] == "Running"
    own = tmp_path / folder.uri.rpartition("/")[2]
    (own / "local/run.json").write_text(written)  # as if it had been killed
    found = records.read(own)
    assert found is not None
    assert found["status"]["phase"] == "Suspended"
    (condition,) = found["status"]["conditions"]
    assert (
        condition["message"] == "no process trains it, and the last one has not said how it ended"
    )


def test_while_the_store_does_not_answer_the_run_has_the_condition_of_a_cluster(
    tmp_path: Path,
) -> None:
    with Folder.prepare(a_run(name="one"), tmp_path, False).record as record:
        record.show(Progress(attempt=1, state=RunState.TRAINING, storage_error="a disk is full"))
        (condition,) = own_run("one", tmp_path)[1]["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("Waiting", "StorageUnavailable")
        record.show(Progress(attempt=1, state=RunState.TRAINING))
        assert own_run("one", tmp_path)[1]["status"]["conditions"] == []


def test_what_the_drivers_of_a_run_have_used_is_summed_up(tmp_path: Path) -> None:
    spent = Seconds(productive=30, startup=5, lost_work=1, recovery=2, checkpoint=4)
    for resume in (False, True):
        record = Folder.prepare(a_run(name="one"), tmp_path, resume).record
        for step in (1, 2):
            record.show(Progress(attempt=1 + resume, fencing_token=1, step=step, seconds=spent))
    used = {"training": 120.0, "saving": 16.0, "lost": 12.0, "starting": 20.0, "waiting": 0.0}
    assert own_run("one", tmp_path)[1]["status"]["cost"]["seconds"] == used
    code, output, errors = call("cost", "one", "--folder", str(tmp_path))
    _, row = output.splitlines()
    assert (code, errors) == (0, "")
    assert row.split()[:3] == ["one", "0.05", "71%"]
    assert call("cost", "--folder", str(tmp_path))[1] == output


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("ended_early", [False, True])
@pytest.mark.parametrize(
    ("resumed", "used"),
    [
        pytest.param(20, (42.0, 20.0), id="from a checkpoint"),
        pytest.param(0, (2.0, 60.0), id="from the beginning"),
    ],
)
def test_what_a_later_driver_does_again_has_not_trained_the_run(
    tmp_path: Path,
    resume: bool,
    ended_early: bool,
    resumed: int,
    used: tuple[float, float],
) -> None:
    record = Folder.prepare(a_run(name="one"), tmp_path, False).record
    spent = Seconds(productive=30)
    record.show(Progress(attempt=1, fencing_token=1, step=30, seconds=spent))
    if ended_early:  # a driver that restored nothing
        record.show(Progress(attempt=2, fencing_token=2))
    if resume:
        record = Folder.prepare(a_run(name="one"), tmp_path, True).record
    for step in (resumed, resumed + 1):
        spent = Seconds(productive=step - resumed)
        record.show(Progress(attempt=3, step=step, resumed_from_step=resumed, seconds=spent))
    seconds = own_run("one", tmp_path)[1]["status"]["cost"]["seconds"]
    assert (seconds["training"], seconds["lost"]) == used


def test_each_command_shows_a_local_run_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Folder.prepare(a_run(name="one"), None, False).record as record:
        record.show(rows())
        assert [line.split()[:2] for line in call("list", "--local")[1].splitlines()] == [
            ["NAME", "PHASE"],
            ["one", "Running"],
        ]
        assert "phase  Running" in call("get", "one", "--local")[1]
        assert "Running · step 7 · attempt 1" in call("top", "one", "--local")[1]
        code, _, errors = call("delete", "one", "--local", "--yes")
        (own,) = Path("trainingrun-local/one").glob("one-*")
        assert (code, errors) == (
            1,
            f"a process trains the run of {own}; stop it first, by `trainingrun suspend one "
            f"--folder {own}`\n",
        )
        record.ended(Phase.SUCCEEDED)
    assert "one: Succeeded · step 7 · attempt 1" in call("watch", "one", "--local")[1]
    (own,) = (tmp_path / "trainingrun-local/one").glob("one-*")
    code, output, _ = call("delete", "one", "--local", "--yes")
    assert (code, output) == (0, f"{own.relative_to(tmp_path)} deleted\n")
    assert not own.exists()
    assert call("list", "--local")[2].startswith("No TrainingRuns found in ")
    assert call("get", "one", "--local")[0] == 1


def test_delete_deletes_the_run_that_it_has_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended() -> None:
        with Folder.prepare(a_run(name="one"), tmp_path, False).record as record:
            record.ended(Phase.SUCCEEDED)

    def confirm(question: str) -> bool:
        assert f"Delete {asked} " in question
        ended()  # a later run, before the answer
        return True

    ended()
    (asked,) = tmp_path.glob("one-*")
    monkeypatch.setattr("typer.confirm", confirm)
    assert call("delete", "one", "--folder", str(tmp_path)) == (0, f"{asked} deleted\n", "")
    (kept,) = tmp_path.glob("one-*")
    assert kept != asked


def test_who_deletes_a_run_that_is_deleted_meanwhile_deletes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        with Folder.prepare(a_run(name=name), tmp_path, False).record as record:
            record.ended(Phase.SUCCEEDED)
    (own,) = tmp_path.glob("one-*")
    before = following.of_folder(own).ask()
    read = records.read

    def deleted_after_it_was_read(folder: Path) -> object:
        found = read(folder)
        if found == before:
            shutil.rmtree(own)  # by another one, just now
        return found

    with monkeypatch.context() as other:
        other.setattr(records, "read", deleted_after_it_was_read)
        code, output, errors = call("delete", "one", "-y", "--folder", str(tmp_path))
    assert (code, output) == (1, "")
    assert errors == f"{own} holds no run, or no longer; delete it yourself if it is to go\n"
    assert call("get", "two", "--folder", str(tmp_path))[0] == 0
    for folder in (tmp_path, tmp_path / "logs"):
        with pytest.raises(LocalError, match="holds no run, or no longer"):
            records.delete(folder)
    assert call("get", "two", "--folder", str(tmp_path))[0] == 0


def test_what_the_drivers_of_a_local_run_have_recorded_is_shown_as_its_events(
    tmp_path: Path,
) -> None:
    folder = Folder.prepare(a_run(name="one"), tmp_path, False)
    bucket, now = Bucket.open(folder.uri), time.time()
    Lease.take(bucket, 1, "head", now)
    place = ("one", "--folder", str(tmp_path))
    nothing = "There are no events of one: its drivers have recorded nothing.\n"
    assert call("events", *place) == (0, "", nothing)
    lost = Loss(number=1, kind=RecordKind.PREEMPTED, time=now - 90, message="local-2 is preempted")
    restored = Loss(number=2, kind=RecordKind.RESTORED, time=now - 60, step=7, message="step 7")
    last_progress.write(bucket, Progress(attempt=1, fencing_token=1, records=[lost, restored]))
    code, output, errors = call("events", *place)
    assert (code, errors) == (0, "")
    assert [line.split()[1:] for line in output.splitlines()[1:]] == [
        ["Warning", "Preempted", "1", "local-2", "is", "preempted"],
        ["Normal", "Restored", "1", "step", "7"],
    ]


def test_in_the_folder_of_one_run_no_other_name_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Folder.prepare(a_run(name="one"), None, False).record as record:
        record.ended(Phase.SUCCEEDED)
    (own,) = Path("trainingrun-local/one").glob("one-*")
    for name, place in (
        ("two", ("--folder", str(own))),
        ("", ("--folder", str(own))),
        (f"one/{own.name}", ("--local",)),
    ):
        for command in (["get"], ["watch"], ["top"], ["events"], ["metrics"], ["delete", "-y"]):
            code, output, errors = call(*command, name, *place)
            assert (code, output) == (1, "")
            assert errors == (
                f"the run in {own} is one, not {name}; name that one, or another one's --folder\n"
            )
        with pytest.raises(RunError, match="is one, not"):
            Client(folder=own).get("two").delete()
    assert "phase  Succeeded" in call("get", "one", "--folder", str(own))[1]
    assert call("delete", "one", "-y", "--folder", str(own)) == (0, f"{own} deleted\n", "")


def test_list_finds_the_run_of_an_own_folder_as_get_does(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Folder.prepare(a_run(name=name), tmp_path, False)
    (own,) = tmp_path.glob("one-*")
    assert call("get", "one", "--folder", str(own))[0] == 0
    _, *lines = call("list", "--folder", str(own))[1].splitlines()
    assert [line.split()[0] for line in lines] == ["one"]
    _, *lines = call("list", "--folder", str(tmp_path))[1].splitlines()
    assert [line.split()[0] for line in lines] == ["one", "two"], "each once"


def test_a_record_that_another_machine_has_replaced_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Folder.prepare(a_run(name="one"), tmp_path, False)
    read, stale = Path.read_bytes, [OSError(errno.ESTALE, "Stale file handle")]

    def read_bytes(path: Path) -> bytes:
        if stale:
            raise stale.pop()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert own_run("one", tmp_path)[1]["metadata"]["name"] == "one"
    assert not stale


def test_a_record_that_cannot_be_read_is_not_taken_for_one_that_is_deleted(tmp_path: Path) -> None:
    one, _ = (Folder.prepare(a_run(name=name), tmp_path, False) for name in ("one", "two"))
    (own,) = tmp_path.glob("one-*")
    record, looks = own / "local/run.json", following.looks(following.of_folder(own))
    with one.record:
        assert next(looks)
        record.rename(own / "kept")
        record.symlink_to(record)  # an error, and another one than that it is not there
        assert next(looks) is None, "it is asked again"
        code, output, errors = call("get", "one", "--folder", str(tmp_path))
        assert (code, output) == (1, "")
        assert errors == (
            f"{record} cannot be read (Too many levels of symbolic links), and nothing is known of "
            "its run; see that its disk answers, and that you may read it\n"
        )
        _, *lines = call("list", "--folder", str(tmp_path))[1].splitlines()
        assert [line.split()[0] for line in lines] == ["two"], "others are shown"
        (own / "kept").rename(record)
        assert next(looks)
    shutil.rmtree(own)
    with pytest.raises(StopIteration):
        next(looks)


@pytest.mark.parametrize("default", [True, False])
def test_each_run_that_is_listed_is_the_one_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    root = None if default else tmp_path / "runs"
    for phase in (Phase.FAILED, Phase.SUCCEEDED):
        with Folder.prepare(a_run(name="one"), root, False).record as record:
            record.ended(phase)
    older, newer = Client(local=True, folder=root).list()
    assert (older.name, newer.name) == ("one", "one")
    monkeypatch.chdir("/")
    assert (older.phase, newer.phase) == (Phase.FAILED, Phase.SUCCEEDED)
    older.delete()
    assert newer.phase == Phase.SUCCEEDED
    with pytest.raises(RunError, match="is gone"):
        _ = older.phase


@pytest.mark.parametrize("default", [True, False])
def test_what_is_advised_about_a_local_run_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    root = None if default else tmp_path / "my runs"
    options = " --local" if default else f" --local --folder '{root}'"
    run = a_run(
        name="one",
        sweep={
            "metric": "loss",
            "mode": "min",
            "samples": 2,
            "space": [{"name": "lr", "values": [1, 2]}],
        },
    )
    with Folder.prepare(run, root, False).record as record:
        record.show(rows().model_copy(update={"ranks": []}))
        place = ["--local"] if root is None else ["--folder", str(root)]
        assert f"`trainingrun sweep one{options}` shows" in call("ranks", "one", *place)[2]
        record.ended(Phase.SUSPENDED, "attempt 1 was stopped")
        assert f"`trainingrun run FILE{options} --resume`" in call("watch", "one", *place)[2]


def test_the_page_of_a_local_run_has_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Folder.prepare(a_run(name="one"), None, False)
    Lease.take(Bucket.open(folder.uri), 1, "head", time.time())
    folder.record.show(rows())  # and then its process is killed
    assert call("report", "one", "--html", "--local", "--to", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "Suspended" in page
    assert "no process trains it, and the last one has not said how it ended" in page


def test_no_value_of_a_variable_is_in_the_record(tmp_path: Path) -> None:
    run = a_run(
        name="one",
        training={"function": "f:train", "env": [{"name": "WANDB_API_KEY", "value": "hush-hush"}]},
    )
    Folder.prepare(run, tmp_path, False)
    assert "hush-hush" not in "".join(
        path.read_text() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_a_line_that_cannot_be_shown_ends_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` once it has read enough
    stream = SteadyStream(os.fdopen(writing, "w"))
    display = Display(Console(file=stream, width=80), "one")  # type: ignore[arg-type]
    record = Folder.prepare(a_run(name="one"), tmp_path, False).record
    for step in range(3):
        display.note(f"step {step}")
        record.show(Progress(attempt=1, step=step))
        display.show(record.run)
    stream.settle()
    stream.close()  # what Python does at its end
