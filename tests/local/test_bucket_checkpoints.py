"""A checkpoint counts once its manifest is committed, and only while its files are as committed."""

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from support.checkpoints import saved
from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV, ContractCheckpoints
from trainingrun_runtime.driver.committer import digests
from trainingrun_runtime.store import bucket as bucket_module
from trainingrun_runtime.store import manifest, verification
from trainingrun_runtime.store.bucket import Bucket, StorageError
from trainingrun_runtime.store.manifest import (
    FileDigest,
    Manifest,
    commit,
    committed,
    digest_folder,
)
from trainingrun_runtime.store.retention import sweep
from trainingrun_runtime.store.storage_errors import AbsentError, UnreachableError, UnusableError
from trainingrun_runtime.store.storage_retry import StorageRetry
from trainingrun_runtime.store.verification import newest_intact, verify


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a store is asked for again without a pause."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, 0.0))


def test_what_is_committed_is_restored(bucket: Bucket, tmp_path: Path) -> None:
    saved(bucket, tmp_path, step=10, index=1)
    newest = saved(bucket, tmp_path, step=20, index=2, loss=0.5)
    assert newest_intact(bucket) == (newest, [])
    assert [m.step for m in committed(bucket)] == [10, 20]


def test_nothing_committed_means_from_scratch(bucket: Bucket) -> None:
    bucket.put("checkpoints/0001-000001/step-10/state.pt", b"uploaded, but never committed")
    assert newest_intact(bucket) == (None, [])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (b"weights of step", "bytes instead of"),
        (b"weights of step 21" * 100, "BLAKE3 differs"),
        (None, "is missing"),
    ],
    ids=["truncated", "altered", "removed"],
)
def test_a_damaged_checkpoint_is_passed_over_with_the_reason(
    bucket: Bucket, tmp_path: Path, damage: bytes | None, said: str
) -> None:
    older = saved(bucket, tmp_path, step=10, index=1)
    torn = saved(bucket, tmp_path, step=20, index=2)
    key = f"{torn.path}/rank-0/state.pt"
    if damage is None:
        bucket.delete([key])
    else:
        bucket.put(key, damage)
    found, skipped = newest_intact(bucket)
    assert found == older
    assert [entry.manifest for entry in skipped] == [torn]
    assert f"the checkpoint of step 20 is damaged: {key}" in skipped[0].reason
    assert said in skipped[0].reason


@pytest.mark.parametrize("deep", [True, False], ids=["deep", "shallow"])
@pytest.mark.parametrize(
    ("of", "method", "wrong"),
    [
        pytest.param("state.pt", "size", lambda _: None, id="no file"),
        pytest.param("state.pt", "size", lambda size: size - 1, id="a smaller file"),
        pytest.param("state.pt", "read", lambda part: part[:-1], id="a body that is cut off"),
        pytest.param(
            "state.pt", "read", lambda part: memoryview(bytes(part[::-1])), id="another body"
        ),
        pytest.param(".json", "get", lambda content: content[:-1], id="half a manifest"),
        pytest.param(".json", "get", lambda _: None, id="no manifest, which is listed"),
    ],
)
def test_a_wrong_answer_of_the_store_refuses_no_checkpoint(
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of: str,
    method: str,
    wrong: Callable[[Any], Any],
    deep: bool,
) -> None:
    saved(bucket, tmp_path, step=10, index=1)
    newest = saved(bucket, tmp_path, step=20, index=2)
    answers, asked = [wrong, wrong], getattr(type(bucket), method)

    def answer(self: Bucket, key: str, *arguments: int) -> Any:
        right = asked(self, key, *arguments)
        newest_own = key.endswith(of) and ("-2/" in key or key == newest.key)
        return answers.pop()(right) if newest_own and answers else right

    monkeypatch.setattr(type(bucket), method, answer)
    assert newest_intact(bucket, deep=deep) == (newest, [])
    assert not answers or (method == "read" and not deep), "it was asked for again"


def test_a_shallow_check_finds_what_is_torn_but_reads_nothing(
    bucket: Bucket, tmp_path: Path
) -> None:
    manifest = saved(bucket, tmp_path, step=10)
    key = f"{manifest.path}/rank-0/state.pt"
    bucket.put(key, b"weights of step 11" * 100)
    assert verify(bucket, manifest, deep=False) is None
    assert "BLAKE3 differs" in (verify(bucket, manifest) or "")


def test_files_larger_than_one_read_are_verified_whole(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_RANGE", 64)
    assert verify(bucket, saved(bucket, tmp_path, step=10)) is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="truncated"),
        pytest.param(b'{"version": 2}', id="another version"),
        pytest.param(b"\xff", id="not UTF-8"),
    ],
)
def test_an_unreadable_manifest_is_reported_and_not_fatal(
    bucket: Bucket, tmp_path: Path, content: bytes
) -> None:
    older = saved(bucket, tmp_path, step=10, index=1)
    bucket.put("manifests/000001-000002.json", content)
    found, skipped = newest_intact(bucket)
    assert found == older
    assert [entry.manifest for entry in skipped] == [None]
    assert "manifests/000001-000002.json cannot be read" in skipped[0].reason
    assert committed(bucket) == [older]


@pytest.mark.parametrize(
    "name", [".DS_Store", "notes.txt", "000001-000002.json.bak", "old/000001-000002.json"]
)
def test_what_is_no_manifest_by_its_name_is_no_damaged_checkpoint(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nor is it asked for again, which would make each recovery slower."""
    read: list[str] = []
    get, lists = type(bucket).get, type(bucket).list
    monkeypatch.setattr(type(bucket), "get", lambda self, key: read.append(key) or get(self, key))
    monkeypatch.setattr(type(bucket), "list", lambda self, of: asked.append(of) or lists(self, of))
    asked: list[str] = []
    bucket.put(f"manifests/{name}", b"of somebody else")
    assert newest_intact(bucket) == (None, [])
    assert (read, asked.count("manifests")) == ([], 2), "one search, and whether it has changed"
    made = saved(bucket, tmp_path, step=10)
    assert newest_intact(bucket) == (made, [])
    assert read == [made.key]


def test_a_result_names_the_newest_checkpoint_though_the_store_once_denies_it(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newest = (saved(bucket, tmp_path, step=10 * n, index=n) for n in (1, 2))
    denied, get = [newest.key], type(bucket).get

    def denies_once(self: Bucket, key: str) -> bytes | None:
        if key in denied:
            denied.remove(key)
            return None
        return get(self, key)

    monkeypatch.setattr(type(bucket), "get", denies_once)
    assert committed(bucket) == [older, newest]
    assert denied == []


def test_a_listed_manifest_that_the_store_keeps_denying_is_reported(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newest = (saved(bucket, tmp_path, step=10 * n, index=n) for n in (1, 2))
    get = type(bucket).get
    monkeypatch.setattr(
        type(bucket), "get", lambda self, key: None if key == newest.key else get(self, key)
    )
    saved(bucket, tmp_path, step=30, index=1, fencing_token=2)
    sweep(bucket, 2, ContractCheckpoints(keep=2))
    bucket.delete(["manifests/000002-000001.json"])
    assert bucket.list(newest.path) != [], "a sweep takes its files for nobody's"
    found, skipped = newest_intact(bucket)
    assert found == older
    assert [one.reason for one in skipped] == [
        f"{newest.key} cannot be read: it is listed, and the store answers that there is none"
    ]


def test_manifests_and_later_metrics_are_read_many_at_once_and_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other a thousand of them would take half a minute, at each recovery."""
    bucket = Bucket.open((tmp_path / "run").as_uri())
    first = saved(bucket, tmp_path, step=1)
    for index in range(1, 101):
        one = first.model_copy(update={"index": index})
        bucket.put(one.key, one.model_dump_json(by_alias=True).encode())
        manifest.add_metrics(bucket, one.name, 1, {"accuracy": index})
    under_way, most, get = set[str](), {"manifests": 0, "metrics": 0}, Bucket.get

    def slow(self: Bucket, key: str) -> bytes | None:
        under_way.add(key)
        folder = key.partition("/")[0]
        most[folder] = max(most[folder], len(under_way))
        time.sleep(0.01)
        under_way.remove(key)
        return get(self, key)

    monkeypatch.setattr(Bucket, "get", slow)
    found = [(one.index, one.metrics["accuracy"]) for one in committed(bucket)]
    assert found == [(index, index) for index in range(1, 101)]
    assert all(1 < count <= 16 for count in most.values()), most


def test_a_store_that_goes_away_while_manifests_are_read_is_an_error(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [saved(bucket, tmp_path, step=10 * n, index=n) for n in (1, 2, 3)]
    away, get = [made[1].key], type(bucket).get

    def goes_away(self: Bucket, key: str) -> bytes | None:
        if key in away:
            away.remove(key)
            raise UnreachableError("the store cannot be reached")
        return get(self, key)

    monkeypatch.setattr(type(bucket), "get", goes_away)
    told: list[str | None] = []
    retry = StorageRetry(told.append, sleep=lambda _: None)
    assert retry(lambda: committed(bucket)) == made
    assert told == ["the store cannot be reached", None]


def test_a_manifest_under_another_name_does_not_count(bucket: Bucket, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, step=10)
    bucket.put("manifests/000009-000001.json", bucket.get(manifest.key) or b"")
    found, skipped = newest_intact(bucket)
    assert found == manifest
    assert "it says that it is manifests/000001-000001.json" in skipped[0].reason


def test_a_manifest_that_nobody_would_read_is_not_committed(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = saved(bucket, tmp_path, step=10, index=1)
    size = len(bucket.get(found.key) or b"")
    monkeypatch.setattr(manifest, "LARGEST", size)
    commit(bucket, found.model_copy(update={"index": 2}))
    monkeypatch.setattr(manifest, "LARGEST", size - 1)
    with pytest.raises(UnusableError, match=r"of 2 files is too large .*; write fewer and larger"):
        commit(bucket, found.model_copy(update={"index": 3}))
    assert [entry.key[-6:] for entry in bucket.list("manifests")] == ["1.json", "2.json"]


def test_two_drivers_in_one_fencing_token_cannot_both_commit(
    bucket: Bucket, tmp_path: Path
) -> None:
    first = saved(bucket, tmp_path, step=10)
    commit(bucket, first)  # the same again is the retry of an answer that was lost
    with pytest.raises(StorageError, match="another driver writes here too"):
        commit(bucket, first.model_copy(update={"step": 11}))


def test_the_newest_fencing_token_wins_even_with_fewer_steps(
    bucket: Bucket, tmp_path: Path
) -> None:
    saved(bucket, tmp_path, step=500, fencing_token=1)
    after_fallback = saved(bucket, tmp_path, step=300, fencing_token=2)
    assert newest_intact(bucket)[0] == after_fallback


def test_metrics_that_json_cannot_carry_are_committed_all_the_same(
    bucket: Bucket, tmp_path: Path
) -> None:
    manifest = saved(bucket, tmp_path, step=10, loss=math.nan, gain=math.inf)
    assert committed(bucket)[0].metrics == {"loss": "NaN", "gain": "Infinity"}
    assert manifest.number("loss") is None


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("../other", id="parent"),
        pytest.param("/etc", id="absolute"),
        pytest.param("checkpoints/../../x", id="out of checkpoints"),
        pytest.param("", id="empty"),
    ],
)
def test_a_manifest_names_nothing_outside_the_run(path: str) -> None:
    with pytest.raises(ValueError, match="leads out of the run's folder"):
        Manifest(
            path=path, step=1, world_size=1, attempt=1, fencing_token=1, index=1,
            files={"x": FileDigest(1, "0" * 64)}, time=0,
        )  # fmt: skip


def test_a_sweep_keeps_the_newest_and_the_best(bucket: Bucket, tmp_path: Path) -> None:
    best = saved(bucket, tmp_path, step=10, index=1, accuracy=0.9)
    dropped = saved(bucket, tmp_path, step=20, index=2, accuracy=0.5)
    newer = saved(bucket, tmp_path, step=30, index=3, accuracy=0.6)
    newest = saved(bucket, tmp_path, step=40, index=4, accuracy=0.7)
    assert sweep(
        bucket, 1, ContractCheckpoints(keep=2, best_metric="accuracy", best_order="max")
    ) == [dropped]
    assert committed(bucket) == [best, newer, newest]
    assert bucket.list(dropped.path) == []
    assert all(verify(bucket, m) is None for m in committed(bucket))


def test_a_sweep_that_ends_before_the_files_leaves_no_manifest_of_them(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped, kept = (saved(bucket, tmp_path, step=10 * n, index=n) for n in (1, 2))

    def refused(self: Bucket, folder: str) -> None:
        raise StorageError(f"{folder} is not deleted")

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "delete_folder", refused)
        with pytest.raises(StorageError, match="is not deleted"):
            sweep(bucket, 1, ContractCheckpoints(keep=1))
    assert committed(bucket) == [kept]
    assert bucket.list(dropped.path) != []
    assert newest_intact(bucket) == (kept, [])


def test_a_sweep_deletes_what_a_former_one_has_left_but_for_what_is_kept(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, rule = list[Manifest](), ContractCheckpoints(keep=1)

    def refused(self: Bucket, folder: str) -> None:
        raise StorageError(f"{folder} is not deleted")

    gone, again = saved(bucket, tmp_path, step=10, index=1), saved(bucket, tmp_path, 20, index=2)
    kept = saved(bucket, tmp_path, step=30, index=3)
    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "delete_folder", refused)
        for there in ([again, kept], [kept]):
            with pytest.raises(StorageError, match="is not deleted"):
                sweep(bucket, 1, rule, left=left)
            assert committed(bucket) == there, "one that cannot be deleted keeps no other from it"
    # Code may use a folder again, whose files are then those of another checkpoint.
    same = kept.model_copy(update={"path": again.path, "files": again.files, "index": 4})
    commit(bucket, same)
    assert sweep(bucket, 1, rule, left=left) == [kept]
    assert [bucket.list(one.path) for one in (gone, kept)] == [[], []]
    assert newest_intact(bucket) == (same, [])
    assert left == []


def test_metrics_that_are_reported_later_decide_which_checkpoint_is_the_best(
    bucket: Bucket, tmp_path: Path
) -> None:
    checkpoints = [saved(bucket, tmp_path, step=step, index=step, loss=0.1) for step in (1, 2, 3)]
    manifest.add_metrics(bucket, checkpoints[0].name, 1, {"accuracy": 0.9})
    manifest.add_metrics(bucket, checkpoints[1].name, 1, {"accuracy": 0.5})
    manifest.add_metrics(bucket, checkpoints[0].name, 1, {"recall": 0.8})
    assert [m.metrics for m in committed(bucket)] == [
        {"loss": 0.1, "accuracy": 0.9, "recall": 0.8},
        {"loss": 0.1, "accuracy": 0.5},
        {"loss": 0.1},
    ]
    saved(bucket, tmp_path, step=4, index=4)
    assert [
        m.step
        for m in sweep(
            bucket, 1, ContractCheckpoints(keep=2, best_metric="accuracy", best_order="max")
        )
    ] == [2]
    assert [entry.key for entry in bucket.list("metrics")] == ["metrics/000001-000001/000001.json"]


def test_what_a_later_driver_measured_counts_and_a_superseded_one_overwrites_nothing(
    bucket: Bucket, tmp_path: Path
) -> None:
    name = saved(bucket, tmp_path, step=10, fencing_token=3).name
    manifest.add_metrics(bucket, name, 4, {"accuracy": 0.6})
    manifest.add_metrics(bucket, name, 3, {"accuracy": 0.9, "recall": 0.8})
    assert committed(bucket)[0].metrics == {"accuracy": 0.6, "recall": 0.8}
    saved(bucket, tmp_path, step=20, fencing_token=5)
    later = "metrics/000005-000002/000005.json"  # of a checkpoint that it has not listed
    manifest.add_metrics(bucket, "000005-000002", 5, {"accuracy": 0.7})
    saved(bucket, tmp_path, step=5, fencing_token=2)
    sweep(bucket, 2, ContractCheckpoints(keep=3))
    assert committed(bucket)[1].metrics["accuracy"] == 0.6, "a superseded driver does not know it"
    assert later in [entry.key for entry in bucket.list("metrics")]
    sweep(bucket, 5, ContractCheckpoints(keep=1))
    assert later not in [entry.key for entry in bucket.list("metrics")]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="truncated"),
        pytest.param(b"[0.9]", id="a list"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b" " * (2**20 + 1), id="too large"),
    ],
)
def test_metrics_that_cannot_be_read_leave_the_checkpoint_as_it_is(
    bucket: Bucket, tmp_path: Path, content: bytes
) -> None:
    manifest = saved(bucket, tmp_path, step=10, loss=0.5)
    bucket.put(f"metrics/{manifest.name}/000001.json", content)
    assert newest_intact(bucket) == (manifest, [])


def test_a_sweep_removes_what_former_drivers_left_uncommitted(
    bucket: Bucket, tmp_path: Path
) -> None:
    kept = saved(bucket, tmp_path, step=10, fencing_token=1)
    bucket.put("checkpoints/0001-000001/step-0000000020-2/state.pt", b"never committed")
    bucket.put("checkpoints/0001-000002/step-0000000020-1/state.pt", b"never committed")
    coming = "checkpoints/0001-000003/step-0000000020-1/state.pt"
    bucket.put(coming, b"on its way")
    before = bucket.list("checkpoints")
    assert sweep(bucket, 3, ContractCheckpoints(keep=2)) == []
    assert bucket.list("checkpoints") == before, "it has no checkpoint yet, or none is listed"
    own = saved(bucket, tmp_path, step=20, fencing_token=3, index=2)
    assert sweep(bucket, 3, ContractCheckpoints(keep=2)) == []
    assert [entry.key for entry in bucket.list("checkpoints")] == [
        f"{kept.path}/empty",
        f"{kept.path}/rank-0/state.pt",
        coming,
        f"{own.path}/empty",
        f"{own.path}/rank-0/state.pt",
    ]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("step-0000000020-1", id="session"),
        pytest.param("step-0000000020-1.2", id="the same step again"),
        pytest.param("step-0000000020-1.alone-1", id="survivors"),
        pytest.param("folder-000002-1", id="torchrun"),
        pytest.param("checkpoint_2026-11-27_10-00-00.123456-1", id="Ray"),
    ],
)
def test_a_sweep_removes_what_a_former_worker_group_left_uncommitted(
    bucket: Bucket, tmp_path: Path, name: str
) -> None:
    own = saved(bucket, tmp_path, step=10)
    left = f"checkpoints/0001-000001/{name}"
    bucket.put(f"{left}/state.pt", b"cut off")
    rule = ContractCheckpoints(keep=2)
    for group, used in ((1, ()), (2, (left,)), (2, (f"{left}/deep",))):
        sweep(bucket, 1, rule, used, group=group)
        assert bucket.list(left) != []
    sweep(bucket, 1, rule, group=2)
    assert bucket.list(left) == []
    assert verify(bucket, own) is None


@pytest.mark.parametrize(
    "name",
    ["epoch-1", "best-1", "step-20-1", "checkpoint_2026-11-27_10-00-00.123456", "folder-2-1"],
)
def test_a_sweep_keeps_a_folder_of_its_driver_that_the_users_code_may_have_named(
    bucket: Bucket, tmp_path: Path, name: str
) -> None:
    """It may be uploaded by that code itself just now."""
    saved(bucket, tmp_path, step=10)
    bucket.put(f"checkpoints/0001-000001/{name}/state.pt", b"on its way")
    sweep(bucket, 1, ContractCheckpoints(keep=2), group=100)
    assert bucket.get(f"checkpoints/0001-000001/{name}/state.pt") == b"on its way"


def test_a_sweep_of_a_claim_removes_what_was_still_being_written_when_its_writer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: str
) -> None:
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, claim)
    bucket = Bucket.open("pvc://runs/team/cut-off")
    saved(bucket, tmp_path, step=10, fencing_token=2)
    of_driver = "checkpoints/0001-00000"
    former, lost, coming = (
        f"{of_driver}{driver}/step-0000000020-{group}" for driver, group in ((1, 2), (2, 1), (2, 2))
    )
    with contextlib.ExitStack() as writers:
        for folder in (former, lost, coming):
            writers.enter_context(bucket.writing(f"{folder}/state.pt", 1))(b"x")
            assert bucket.list(folder) == []
        sweep(bucket, 2, ContractCheckpoints(keep=2), group=2)
        there = [Path(bucket.path, folder).exists() for folder in (former, lost, coming)]
        writers.pop_all()  # they were killed
    assert there == [False, False, True]


def test_a_folder_of_no_driver_keeps_no_sweep_from_its_work(bucket: Bucket, tmp_path: Path) -> None:
    own = saved(bucket, tmp_path, step=10, fencing_token=2)
    bucket.put("checkpoints/x-\N{SUPERSCRIPT TWO}/notes", b"of a person")
    bucket.put("checkpoints/0001-000001/step-0000000020-1/state.pt", b"never committed")
    assert sweep(bucket, 2, ContractCheckpoints(keep=2)) == []
    assert bucket.list("checkpoints/0001-000001") == []
    assert bucket.get("checkpoints/x-²/notes") == b"of a person"
    assert verify(bucket, own) is None


def test_nothing_expires_before_the_driver_has_a_checkpoint_of_its_own(
    bucket: Bucket, tmp_path: Path
) -> None:
    """The restored one may be the only intact one; damaged newer ones would outlive it."""
    for index in (1, 2, 3):
        saved(bucket, tmp_path, step=10 * index, index=index)
    assert sweep(bucket, 2, ContractCheckpoints(keep=2)) == []
    assert len(committed(bucket)) == 3
    saved(bucket, tmp_path, step=20, fencing_token=2)
    assert [m.step for m in sweep(bucket, 2, ContractCheckpoints(keep=2))] == [10, 20]


def test_a_sweep_keeps_what_an_unreadable_manifest_may_name(bucket: Bucket, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, step=10, fencing_token=1)
    bucket.put(manifest.key, b"{")
    saved(bucket, tmp_path, step=20, fencing_token=2)
    sweep(bucket, 2, ContractCheckpoints(keep=2))
    assert bucket.get(f"{manifest.path}/rank-0/state.pt")


def test_a_sweep_keeps_a_folder_that_a_kept_checkpoint_shares(
    bucket: Bucket, tmp_path: Path
) -> None:
    """Code that gives every checkpoint the same name has one copy, whatever was committed."""
    first = saved(bucket, tmp_path, step=10, index=1)
    commit(bucket, first.model_copy(update={"step": 20, "index": 2}))
    assert [m.step for m in sweep(bucket, 1, ContractCheckpoints(keep=1))] == [10]
    found, skipped = newest_intact(bucket)
    assert found is not None
    assert (found.step, skipped) == (20, [])


def test_a_sweep_keeps_a_kept_checkpoint_in_a_folder_of_folders(
    bucket: Bucket, tmp_path: Path
) -> None:
    deep = saved(bucket, tmp_path, step=10, fencing_token=1)
    nested = f"{deep.path}/inner"
    for name in deep.files:
        bucket.put(f"{nested}/{name}", bucket.get(f"{deep.path}/{name}") or b"")
    bucket.delete([deep.key])
    commit(bucket, deep.model_copy(update={"path": nested}))
    saved(bucket, tmp_path, step=20, fencing_token=2)
    sweep(bucket, 2, ContractCheckpoints(keep=2))
    assert [verify(bucket, one) for one in committed(bucket)] == [None, None]


def test_a_file_that_every_rank_has_uploaded_is_what_the_last_one_has_written(
    bucket: Bucket, tmp_path: Path
) -> None:
    """As Ray's callback for Keras does: each rank's file of that name has other bytes in it."""
    path = "checkpoints/0001-000001/step-1"
    for rank in (1, 0):
        folder = tmp_path / f"rank-{rank}"
        folder.mkdir()
        (folder / "model.keras").write_bytes(f"saved by rank {rank}".encode())
        (folder / f"own-{rank}").write_bytes(b"alone")
        found = {name: asdict(digest) for name, digest in digest_folder(folder).items()}
        bucket.put(f"{path}/.trainingrun/rank-{rank}.json", json.dumps(found).encode())
        for name in found:
            bucket.put(f"{path}/{name}", (folder / name).read_bytes())
    whole = {**digest_folder(tmp_path / "rank-1"), **digest_folder(tmp_path / "rank-0")}
    assert digests(bucket, path) == whole


def test_a_list_that_lacks_a_ranks_digests_leaves_no_file_out(bucket: Bucket) -> None:
    """A store's list may lag behind what was written; an object is there by its name."""
    path = "checkpoints/0001-000001/step-1"
    for rank in (0, 1):
        name = f"random-{rank}.pt"
        bucket.put(f"{path}/{name}", b"numbers")
        digest = asdict(FileDigest(7, blake3(b"numbers").hexdigest()))
        bucket.put(f"{path}/.trainingrun/rank-{rank}.json", json.dumps({name: digest}).encode())
    whole = digests(bucket, path, ranks=(0, 1))
    assert sorted(whole) == ["random-0.pt", "random-1.pt"]
    bucket.delete([f"{path}/.trainingrun/rank-1.json"])
    with pytest.raises(AbsentError, match=r"rank-1\.json is missing"):
        digests(bucket, path, ranks=(0, 1))
    assert digests(bucket, path) == whole, "of code without a session its files are read back"
