"""Which checkpoint a run begins from: its own, else the one of the run that it names."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import saved
from trainingrun_protocol.contract import ContractRestore
from trainingrun_runtime.store import restore_source, retention, verification
from trainingrun_runtime.store.bucket import Bucket, StorageError
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.store.manifest import Manifest, committed
from trainingrun_runtime.store.restore_source import NothingToRestore, choose, find, folder

Source = Callable[..., ContractRestore]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a store is asked for again without a pause."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, 0.0))


@pytest.fixture
def source(bucket: Bucket) -> Bucket:
    """The folder of the other run, beside that of this one."""
    return Bucket.open(f"{bucket.root}-source", bucket.endpoint, bucket.region)


@pytest.fixture
def wanted(source: Bucket) -> Source:
    """What `storage.restoreFrom` becomes, with a step where one is given."""

    def make(step: int | None = None) -> ContractRestore:
        return ContractRestore(
            uri=source.root, endpoint=source.endpoint, region=source.region, step=step
        )

    return make


def damage(bucket: Bucket, manifest: Manifest) -> None:
    """Cut a byte off a file."""
    key = f"{manifest.path}/rank-0/state.pt"
    content = bucket.get(key) or b""
    bucket.put(key, content[1:])


def objects(bucket: Bucket) -> dict[str, bytes | None]:
    return {entry.key: bucket.get(entry.key) for entry in bucket.list()}


def test_a_run_with_an_object_of_somebody_else_among_its_manifests_begins_anew(
    bucket: Bucket,
) -> None:
    Lease.take(bucket, 1, "pod", 0.0)
    bucket.put("manifests/notes.txt", b"of somebody else")
    assert choose(bucket, None) == (None, False, [])


def test_the_newest_intact_checkpoint_of_the_other_run_is_chosen(
    bucket: Bucket, source: Bucket, wanted: Source, tmp_path: Path
) -> None:
    Lease.take(bucket, 1, "pod", 100)
    older = saved(source, tmp_path, step=10, index=1)
    torn = saved(source, tmp_path, step=20, index=2)
    damage(source, torn)
    before = objects(source)
    found, foreign, skipped = choose(bucket, wanted())
    assert (found, foreign) == (older, True)
    assert [one.manifest for one in skipped] == [torn]
    assert objects(source) == before, "the other run's folder is only read"


def test_the_own_checkpoint_comes_first_even_if_it_is_of_an_earlier_step(
    bucket: Bucket, source: Bucket, wanted: Source, tmp_path: Path
) -> None:
    saved(source, tmp_path / "theirs", step=20)
    own = saved(bucket, tmp_path / "own", step=5)
    assert choose(bucket, wanted()) == (own, False, [])


def test_an_own_checkpoint_that_is_damaged_is_none(
    bucket: Bucket, source: Bucket, wanted: Source, tmp_path: Path
) -> None:
    theirs = saved(source, tmp_path / "theirs", step=20)
    own = saved(bucket, tmp_path / "own", step=25)
    damage(bucket, own)
    found, foreign, skipped = choose(bucket, wanted())
    assert (found, foreign, [one.manifest for one in skipped]) == (theirs, True, [own])


def test_without_a_source_a_run_begins_from_scratch(bucket: Bucket) -> None:
    Lease.take(bucket, 1, "pod", 100)
    assert choose(bucket, None) == (None, False, [])


def test_a_run_whose_manifests_a_person_has_deleted_begins_from_scratch(
    bucket: Bucket, tmp_path: Path
) -> None:
    Lease.take(bucket, 1, "pod", 100)
    bucket.delete([saved(bucket, tmp_path, step=10).key])
    assert choose(bucket, None) == (None, False, [])


def test_a_rank_whose_storage_is_not_that_of_the_driver_does_not_begin_from_scratch(
    bucket: Bucket,
) -> None:
    """As with a hostPath, which is another folder on each node."""
    with pytest.raises(StorageError, match=r"does not list lease/, which .* another node's disk"):
        choose(bucket, None)


def test_exactly_the_wanted_step_is_chosen(source: Bucket, wanted: Source, tmp_path: Path) -> None:
    older = saved(source, tmp_path, step=10, index=1)
    saved(source, tmp_path, step=20, index=2)
    assert find(wanted(step=10)) == (older, [])


def test_of_a_step_that_was_done_twice_the_newest_intact_one_is_chosen(
    source: Bucket, wanted: Source, tmp_path: Path
) -> None:
    saved(source, tmp_path, step=10, fencing_token=1)
    again = saved(source, tmp_path, step=10, fencing_token=2)
    latest = saved(source, tmp_path, step=10, fencing_token=3)
    damage(source, latest)
    assert find(wanted(step=10))[0] == again


def test_a_step_that_is_missing_is_a_sentence_with_those_that_are_there(
    source: Bucket, wanted: Source, tmp_path: Path
) -> None:
    saved(source, tmp_path, step=10, index=1)
    saved(source, tmp_path, step=20, index=2)
    with pytest.raises(NothingToRestore) as refused:
        find(wanted(step=15))
    assert "restoreFrom.step is 15, and" in str(refused.value)
    assert "of other steps only (10, 20); choose one of them" in str(refused.value)


def test_a_step_that_is_damaged_is_a_sentence_and_no_other_step_takes_its_place(
    source: Bucket, wanted: Source, tmp_path: Path
) -> None:
    saved(source, tmp_path, step=10, index=1)
    damage(source, saved(source, tmp_path, step=20, index=2))
    with pytest.raises(NothingToRestore, match=r"step is 20, .*is damaged: .* bytes instead of"):
        find(wanted(step=20))


def test_a_step_that_another_version_has_written_is_not_told_as_missing(
    source: Bucket, wanted: Source, tmp_path: Path
) -> None:
    made = saved(source, tmp_path, step=20)
    later = (source.get(made.key) or b"").replace(b'"version":2', b'"version":3')
    source.put(made.key, later)
    with pytest.raises(NothingToRestore) as refused:
        find(wanted(step=20))
    assert "cannot be read: it has version 3 of its format; go on with" in str(refused.value)


def test_a_run_without_any_intact_checkpoint_is_a_sentence(
    source: Bucket, wanted: Source, tmp_path: Path
) -> None:
    damage(source, saved(source, tmp_path, step=10))
    with pytest.raises(NothingToRestore, match=r"no checkpoint in .* is intact \(the check"):
        find(wanted())


def test_a_folder_without_a_checkpoint_is_a_sentence(source: Bucket, wanted: Source) -> None:
    source.put("lease/000001.json", b"{}")
    with pytest.raises(NothingToRestore, match=r"there is no checkpoint in .*; name a run's own"):
        find(wanted())


def test_a_local_folder_that_is_not_there_is_a_sentence_and_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(NothingToRestore, match="is no folder here"):
        folder(ContractRestore(uri=missing.as_uri()))
    assert not missing.exists()


def test_the_first_look_reads_no_file(source: Bucket, wanted: Source, tmp_path: Path) -> None:
    torn = saved(source, tmp_path, step=10)
    key = f"{torn.path}/rank-0/state.pt"
    source.put(key, b"X" + (source.get(key) or b"")[1:])
    assert find(wanted())[0] == torn


class Live(Bucket):
    """A folder in which the other run commits and deletes while it is read."""

    def __init__(self, bucket: Bucket, *events: Callable[[], None]) -> None:
        super().__init__(bucket.root, bucket.endpoint, bucket.region, bucket.store)
        self.__dict__.update(_events=list(events), _one=threading.Lock())

    def size(self, key: str) -> int | None:
        """Before a file is looked for, what happens next in the run happens."""
        with self.__dict__["_one"]:  # several files are looked for at once
            if events := self.__dict__["_events"]:
                events.pop(0)()
        return super().size(key)

    def get(self, key: str) -> bytes | None:
        if key.startswith("manifests/") and "before a manifest is read" in self.__dict__:
            self.__dict__.pop("before a manifest is read")()
        return super().get(key)


def pruned(source: Bucket, gone: Manifest, folder: Path, step: int) -> Callable[[], None]:
    """A commit, and the deletion of the checkpoint before it, as with `keepLast: 1`."""

    def happens() -> None:
        saved(source, folder, step=step, index=step)
        retention.delete(source, [gone], ())

    return happens


@pytest.fixture
def live(source: Bucket, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def make(*events: Callable[[], None], before_a_manifest_is_read: Any = None) -> None:
        # Of the same store: a claim has files of its own.
        bucket = type("Live", (Live, type(source)), {})(source, *events)
        if before_a_manifest_is_read is not None:
            bucket.__dict__["before a manifest is read"] = before_a_manifest_is_read
        monkeypatch.setattr(restore_source, "folder", lambda _: bucket)

    return make


def test_what_the_other_run_deletes_meanwhile_is_searched_for_again(
    source: Bucket, wanted: Source, tmp_path: Path, live: Callable[..., None]
) -> None:
    first = saved(source, tmp_path, step=10, index=10)
    live(pruned(source, first, tmp_path, 20))
    found, skipped = find(wanted())
    assert (found.step, skipped) == (20, []), "what was deleted in order is not damaged"


def test_a_manifest_that_goes_before_it_is_read_is_searched_for_again(
    source: Bucket, wanted: Source, tmp_path: Path, live: Callable[..., None]
) -> None:
    first = saved(source, tmp_path, step=10, index=10)
    live(before_a_manifest_is_read=pruned(source, first, tmp_path, 20))
    assert find(wanted())[0].step == 20


def test_a_wanted_step_that_is_deleted_meanwhile_is_a_sentence_with_those_that_are_there(
    source: Bucket, wanted: Source, tmp_path: Path, live: Callable[..., None]
) -> None:
    first = saved(source, tmp_path, step=10, index=10)
    live(pruned(source, first, tmp_path, 20))
    with pytest.raises(NothingToRestore, match=r"step is 10, and .* of other steps only \(20\)"):
        find(wanted(step=10))


def test_a_run_that_deletes_faster_than_it_is_read_is_a_sentence(
    source: Bucket,
    wanted: Source,
    tmp_path: Path,
    live: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "PAUSES_S", ())  # each request is another deletion
    saved(source, tmp_path, step=10, index=10)

    def happens() -> None:
        (newest,) = committed(source)
        pruned(source, newest, tmp_path, newest.step + 10)()

    live(*[happens] * 100)
    with pytest.raises(
        NothingToRestore, match=r"intact \(.*step \d+ was deleted while it was read"
    ):
        find(wanted())
