"""Which checkpoint a run begins from: its own, else the one of the run that it names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.checkpoints import saved
from trainingrun_protocol.contract import ContractRestore
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import Manifest
from trainingrun_runtime.store.restore_source import NothingToRestore, choose, find, folder

Source = Callable[..., ContractRestore]


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


def test_the_newest_intact_checkpoint_of_the_other_run_is_chosen(
    bucket: Bucket, source: Bucket, wanted: Source, tmp_path: Path
) -> None:
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
    assert choose(bucket, None) == (None, False, [])


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
