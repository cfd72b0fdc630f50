"""What each rank downloads of a checkpoint before it is restored, and that it verifies it."""

from pathlib import Path

import pytest

from support.checkpoints import saved
from trainingrun_runtime.checkpoints import restore_source
from trainingrun_runtime.checkpoints.bucket import Bucket
from trainingrun_runtime.checkpoints.fetching import Fetched, Share, share_of

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
