"""What each rank downloads of a checkpoint before it is restored, and that it verifies it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import pytest

from support.checkpoints import put, saved
from trainingrun_runtime.checkpoints import manifest, restore_source, verification
from trainingrun_runtime.checkpoints.bucket import Bucket
from trainingrun_runtime.checkpoints.fetching import Fetched, Share, share_of
from trainingrun_runtime.checkpoints.manifest import Manifest
from trainingrun_runtime.checkpoints.storage_errors import StorageError
from trainingrun_runtime.coordination.shared_downloads import SharedDownloads

FOUR_RANKS = [
    "state.pt",
    *(f"random-{rank}.pt" for rank in range(4)),
    *(f"shard-{rank}.pt" for rank in range(4)),
    *(f"shard-{rank}.json" for rank in range(4)),
]


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket.open(f"file://{tmp_path}/run")


def own(rank: int, world_size: int) -> set[str]:
    """The files of former ranks that a rank downloads, and no other one does."""
    share = share_of(FOUR_RANKS, rank, world_size, former=4)
    assert share.verified == []
    assert set(share.common) == {"state.pt", *(n for n in FOUR_RANKS if n.endswith(".json"))}
    return set(share.kept)


def test_a_rank_downloads_its_own_files_and_what_all_need() -> None:
    assert own(2, 4) == {"shard-2.pt", "random-2.pt"}


def test_of_fewer_ranks_each_downloads_neighboring_shards() -> None:
    assert own(1, 2) == {"shard-2.pt", "shard-3.pt", "random-1.pt", "random-3.pt"}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("files", [FOUR_RANKS, ["model.bin", "a/b", "shard-9.pt", "random-9.pt"]])
def test_all_ranks_together_read_every_file(files: list[str], world_size: int) -> None:
    shares = [share_of(files, rank, world_size, former=4) for rank in range(world_size)]
    assert {name for share in shares for part in share for name in part} == set(files)


def test_what_no_session_has_saved_is_read_once_and_not_kept() -> None:
    files = ["model.bin", "optimizer.bin", "shard-1.pt"]
    assert [share_of(files, rank, 2, former=2) for rank in (0, 1)] == [
        Share([], ["model.bin", "shard-1.pt"]),
        Share([], ["optimizer.bin"]),
    ]


def test_files_are_downloaded_verified_and_removed(bucket: Bucket, tmp_path: Path) -> None:
    found = saved(bucket, tmp_path / "local", step=10)
    kept = "rank-0/state.pt"
    fetched = Fetched(bucket, found)
    assert fetched.fetch(Share([kept], ["empty"])) is None
    (file,) = [path for path in fetched.folder.rglob("*") if path.is_file()]
    assert file.read_bytes() == bucket.get(f"{found.path}/{kept}")
    fetched.close()
    assert not fetched.folder.exists()


@pytest.mark.parametrize("kept", [True, False])
def test_a_damaged_file_is_named_and_not_kept(bucket: Bucket, tmp_path: Path, kept: bool) -> None:
    found = saved(bucket, tmp_path / "local", step=10)
    name = "rank-0/state.pt"
    content = bucket.get(f"{found.path}/{name}") or b""
    bucket.put(f"{found.path}/{name}", bytes([content[0] ^ 1]) + content[1:])
    fetched = Fetched(bucket, found)
    reason = fetched.fetch(Share([name], []) if kept else Share([], [name]))
    assert reason == f"{found.path}/{name} has another content than was committed (SHA-256 differs)"
    assert not (fetched.folder / name).exists()
    bucket.delete([f"{found.path}/{name}"])
    assert fetched.fetch(Share([], [name])) == f"{found.path}/{name} is missing"
    fetched.close()


def common_files(bucket: Bucket, folder: Path) -> Manifest:
    """A checkpoint of a large file, two smaller ones and twenty small ones, for all ranks."""
    sizes = {"state.pt": 9000, "state-1.pt": 8000, "state-2.pt": 7000}
    sizes |= {f"shard-{rank}.json": 10 + rank for rank in range(20)}
    folder.mkdir()
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    put(bucket, folder, step=10, index=1)
    return manifest.committed(bucket)[0]


def test_ranks_of_a_machine_that_ask_in_turn_download_each_file_once(
    bucket: Bucket, tmp_path: Path
) -> None:
    found = common_files(bucket, tmp_path / "files")
    downloads = SharedDownloads()
    search, turns = downloads.begin(), Barrier(2)
    share = share_of(found.files, 0, 1, 1)
    asked: list[list[tuple[int, list[str]]]] = [[], []]

    def fetch(rank: int) -> Fetched:
        fetched = Fetched(bucket, found)

        def claim(names: list[str], most: int) -> list[str]:
            if most == 1:
                turns.wait(10)  # both begin before one has finished a file
            with lock:
                mine = downloads.claim(search, "here", names, most)
            asked[rank].append((most, mine))
            return mine

        assert fetched.fetch(share, claim) is None
        return fetched

    lock = Lock()
    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(fetch, (0, 1)))
    claimed = [name for rank in ranks for name in rank.claimed]
    assert sorted(claimed) == sorted(found.files)
    for rank in ranks:
        assert {path.name for path in rank.folder.iterdir()} == set(rank.claimed)
        rank.close()
    assert {asked[0][0][1][0], asked[1][0][1][0]} == {"state.pt", "state-1.pt"}
    for calls in asked:
        assert [most for most, _ in calls] in ([1, 4, 16], [1, 4, 16, 64]), "few for many files"


def test_what_was_claimed_before_an_outage_is_downloaded_after_it(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = common_files(bucket, tmp_path / "files")
    downloads = SharedDownloads()
    search = downloads.begin()
    fetched, share = Fetched(bucket, found), share_of(found.files, 0, 1, 1)

    def claim(names: list[str], most: int) -> list[str]:
        return downloads.claim(search, "here", names, most)

    content = verification.wrong_content

    def outage(*arguments: Any) -> str | None:
        if arguments[2] == "state-1.pt":
            raise StorageError("the store does not answer")
        return content(*arguments)

    monkeypatch.setattr(verification, "wrong_content", outage)
    with pytest.raises(StorageError, match="does not answer"):
        fetched.fetch(share, claim)
    monkeypatch.undo()
    assert fetched.fetch(share, claim) is None
    assert {path.name for path in fetched.folder.iterdir()} == set(found.files)
    fetched.close()


def test_a_checkpoint_that_a_rank_refused_is_skipped(bucket: Bucket, tmp_path: Path) -> None:
    older = saved(bucket, tmp_path / "older", step=10, index=1)
    newest = saved(bucket, tmp_path / "newest", step=20, index=2)
    assert restore_source.choose(bucket, None, {}) == (newest, False, [])
    refused = {bucket.uri(newest.key): "shard-1.pt is missing"}
    found, _, skipped = restore_source.choose(bucket, None, refused)
    assert found == older
    assert [one.reason for one in skipped] == [
        "the checkpoint of step 20 is damaged: shard-1.pt is missing"
    ]
