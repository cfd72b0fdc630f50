"""Ranks of one machine restore a file that one of them has downloaded; no Ray is started."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from support import sharing_rank
from support.checkpoints import saved
from support.s3 import S3Server
from trainingrun_runtime.checkpoints import memory_files, shard_files
from trainingrun_runtime.checkpoints.bucket import Bucket
from trainingrun_runtime.checkpoints.fetching import Fetched, share_of
from trainingrun_runtime.checkpoints.manifest import Manifest, commit, digest_folder
from trainingrun_runtime.checkpoints.shared_files import SharedFile

ONES = 300_000


@dataclass
class Owner:
    """Another rank, a process of its own, which has downloaded the checkpoint."""

    process: "subprocess.Popen[str]"
    offered: dict[str, SharedFile]

    def digest(self) -> str:
        """SHA-256 of its file."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """`kill -9`."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path) -> Bucket:
    """An empty run folder."""
    return Bucket.open(f"s3://runs/shared/{tmp_path.name}", s3.url, "us-east-1")


@pytest.fixture
def newest(bucket: Bucket, tmp_path: Path) -> Manifest:
    """A checkpoint of two ranks."""
    local = tmp_path / "local"
    local.mkdir()
    torch.save({"weight": torch.ones(ONES)}, local / "state.pt")
    for rank in (0, 1):
        torch.save({}, local / f"random-{rank}.pt")
    found = saved(bucket, tmp_path / "older", step=10)
    found = found.model_copy(update={"index": 2, "files": digest_folder(local)})
    for name in found.files:
        bucket.put(f"{found.path}/{name}", (local / name).read_bytes())
    commit(bucket, found)
    return found


@pytest.fixture
def owner(bucket: Bucket, newest: Manifest) -> Iterator[Owner]:
    """It has downloaded the checkpoint; what it shares is gone from the bucket since."""
    command = [sys.executable, sharing_rank.__file__, bucket.root, str(bucket.endpoint)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        offers = json.loads(process.stdout.readline())
        bucket.delete(f"{newest.path}/{name}" for name in offers)
        yield Owner(process, {name: SharedFile(*file) for name, file in offers.items()})
        process.kill()


@pytest.fixture
def fetched(bucket: Bucket, newest: Manifest) -> Iterator[Fetched]:
    """Rank 1, which has downloaded what it alone needs."""
    made = Fetched(bucket, newest, ranks=2)
    share = share_of(newest.files, rank=1, world_size=2, former=2)
    assert made.fetch(share, lambda names, most: []) is None
    assert [path.name for path in made.folder.iterdir()] == ["random-1.pt"]
    yield made
    made.close()


def weight(fetched: Fetched) -> torch.Tensor:
    """As a session reads it."""
    found: torch.Tensor = shard_files.loaded(fetched.folder / "state.pt")["weight"]
    return found


def test_a_rank_restores_what_another_one_has_downloaded(owner: Owner, fetched: Fetched) -> None:
    assert owner.offered.keys() == {"state.pt"}
    fetched.adopt(owner.offered)
    assert (fetched.folder / "state.pt").stat().st_ino == owner.offered["state.pt"].inode
    assert weight(fetched).sum() == ONES


def test_what_one_rank_changes_no_other_one_sees(
    owner: Owner, fetched: Fetched, newest: Manifest
) -> None:
    fetched.adopt(owner.offered)
    mine = weight(fetched)
    mine.zero_()
    assert owner.digest() == newest.files["state.pt"].sha256
    assert mine.sum() == 0
    assert weight(fetched).sum() == ONES


def test_nobody_can_change_a_shared_file(owner: Owner, fetched: Fetched) -> None:
    fetched.adopt(owner.offered)
    for path in (fetched.folder / "state.pt", Path(owner.offered["state.pt"].path)):
        with pytest.raises(PermissionError), path.open("r+b", buffering=0) as file:
            file.write(b"other")
        with pytest.raises(PermissionError):
            os.truncate(path, 5)
    assert weight(fetched).sum() == ONES


def test_a_file_stays_when_the_rank_that_downloaded_it_is_killed(
    owner: Owner, fetched: Fetched
) -> None:
    fetched.adopt(owner.offered)
    owner.kill()
    assert weight(fetched).sum() == ONES


def test_of_a_rank_that_was_killed_before_nothing_is_taken(owner: Owner, fetched: Fetched) -> None:
    owner.kill()
    fetched.adopt(owner.offered)
    assert not (fetched.folder / "state.pt").exists()


def test_another_file_at_the_same_place_is_not_taken(
    owner: Owner, fetched: Fetched, tmp_path: Path
) -> None:
    """As when the number of a process that has ended is used again."""
    file = owner.offered["state.pt"]
    other, pipe = tmp_path / "other", tmp_path / "pipe"
    other.write_bytes(b"x" * file.size)
    os.mkfifo(pipe)
    for place in (other, pipe):
        fetched.adopt({"state.pt": file._replace(path=str(place))})
        assert not os.path.lexists(fetched.folder / "state.pt")


def test_a_file_on_the_disk_is_shared_as_well(
    bucket: Bucket, newest: Manifest, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_files, "free_memory", lambda: 0)
    first = Fetched(bucket, newest, ranks=2)
    assert first.fetch(share_of(newest.files, rank=0, world_size=2, former=2)) is None
    assert not (first.folder / "state.pt").is_symlink()
    fetched.adopt(first.offered(["state.pt"]))
    first.close()
    assert not first.folder.exists()
    assert weight(fetched).sum() == ONES
