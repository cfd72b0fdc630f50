"""When a downloaded checkpoint is kept in memory, and that its memory is given back."""

import gc
import hashlib
import mmap
import os
from pathlib import Path

import pytest
import torch

from support.checkpoints import saved
from trainingrun_runtime.checkpoints import fetching, memory_files
from trainingrun_runtime.checkpoints.bucket import Bucket
from trainingrun_runtime.checkpoints.fetching import Fetched, Share
from trainingrun_runtime.checkpoints.manifest import FileDigest
from trainingrun_runtime.checkpoints.memory_files import MemoryFiles, fits, free_memory

KEPT = "rank-0/state.pt"


def in_memory() -> list[Path]:
    """Files in memory that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if "memfd:state.pt" in str(link.readlink())]


@pytest.fixture
def kernel(tmp_path: Path) -> tuple[Path, Path]:
    """Folders for control groups and processes of a machine with 1000 KiB of free memory."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:   1000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/pod/container\n0::/\n")
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup", tmp_path / "proc"


def limit_version_1(folder: Path, limit: int) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.usage_in_bytes").write_text("500000\n")
    (folder / "memory.stat").write_text(
        f"total_inactive_file 100000\ntotal_active_file 200000\nhierarchical_memory_limit {limit}\n"
    )


def test_a_checkpoint_is_downloaded_into_memory_which_is_free_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "fits", lambda own, common, ranks: True)
    bucket = Bucket.open(f"file://{tmp_path}/run")
    found = saved(bucket, tmp_path / "local", step=10)
    fetched = Fetched(bucket, found)
    assert fetched.fetch(Share([KEPT], [])) is None
    file = fetched.folder / KEPT
    assert file.is_symlink()
    assert len(in_memory()) == 1
    assert file.read_bytes() == bucket.get(f"{found.path}/{KEPT}")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        fetched.close()
        assert mapped[:] == bucket.get(f"{found.path}/{KEPT}")  # as a state that is still in use
    gc.collect()
    assert in_memory() == []
    assert not fetched.folder.exists()


def test_a_state_in_memory_is_loaded_as_one_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "fits", lambda own, common, ranks: True)
    bucket, values = Bucket.open(f"file://{tmp_path}/run"), torch.rand(100_000)
    torch.save({"weight": values}, tmp_path / "state.pt")
    content = (tmp_path / "state.pt").read_bytes()
    found = saved(bucket, tmp_path / "local", step=10)
    digest = FileDigest(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    found = found.model_copy(update={"files": {**found.files, "state.pt": digest}})
    bucket.put(f"{found.path}/state.pt", content)
    fetched = Fetched(bucket, found)
    assert fetched.fetch(Share(["state.pt"], [])) is None
    loaded = torch.load(fetched.folder / "state.pt", weights_only=True, mmap=True)["weight"]
    fetched.close()
    assert torch.equal(loaded, values)  # it keeps its memory
    assert in_memory() == []


def test_a_damaged_file_is_not_kept_in_memory_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "fits", lambda own, common, ranks: True)
    bucket = Bucket.open(f"file://{tmp_path}/run")
    found = saved(bucket, tmp_path / "local", step=10)
    content = bucket.get(f"{found.path}/{KEPT}") or b""
    bucket.put(f"{found.path}/{KEPT}", bytes([content[0] ^ 1]) + content[1:])
    fetched = Fetched(bucket, found)
    assert "SHA-256 differs" in str(fetched.fetch(Share([KEPT], [])))
    assert not (fetched.folder / KEPT).exists()
    bucket.put(f"{found.path}/{KEPT}", content)  # a request that is repeated uses the same memory
    assert fetched.fetch(Share([KEPT], [])) is None
    assert (fetched.folder / KEPT).read_bytes() == content
    fetched.close()
    assert in_memory() == []


def test_where_memory_is_short_a_checkpoint_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_files, "free_memory", lambda: 0)
    bucket = Bucket.open(f"file://{tmp_path}/run")
    found = saved(bucket, tmp_path / "local", step=10)
    fetched = Fetched(bucket, found)
    assert fetched.fetch(Share([KEPT], [])) is None
    assert not (fetched.folder / KEPT).is_symlink()
    assert in_memory() == []
    fetched.close()


def test_where_the_kernel_refuses_memory_a_checkpoint_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, flags: int) -> int:
        raise PermissionError(13, f"no file in memory for {name}")

    monkeypatch.setattr(fetching, "fits", lambda own, common, ranks: True)
    monkeypatch.setattr(os, "memfd_create", refused)
    bucket = Bucket.open(f"file://{tmp_path}/run")
    found = saved(bucket, tmp_path / "local", step=10)
    fetched = Fetched(bucket, found)
    assert fetched.fetch(Share([KEPT], [])) is None
    assert not (fetched.folder / KEPT).is_symlink()
    assert (fetched.folder / KEPT).read_bytes() == bucket.get(f"{found.path}/{KEPT}")
    fetched.close()


def test_room_is_needed_for_all_ranks_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_files, "free_memory", lambda: 8 * 100)
    assert [fits(100, 0, ranks) for ranks in (1, 2, 3)] == [True, True, False]


def test_what_ranks_have_together_needs_room_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the files each of two ranks needs three times their size."""
    monkeypatch.setattr(memory_files, "free_memory", lambda: 100 + 2 * 3 * 100)
    assert fits(0, 100, 2)
    assert not fits(100, 0, 2)
    assert not fits(1, 100, 2)


def test_without_a_limit_the_machine_has_the_last_word(kernel: tuple[Path, Path]) -> None:
    assert free_memory(*kernel) == 1000 * 1024


@pytest.mark.parametrize("own", ["memory/pod/container", "memory"])
def test_a_limit_of_version_1_counts_without_the_cache(kernel: tuple[Path, Path], own: str) -> None:
    limit_version_1(kernel[0] / own, 900_000)
    assert free_memory(*kernel) == 900_000 - (500_000 - 300_000)


def test_a_version_1_without_a_limit_leaves_what_the_machine_has(
    kernel: tuple[Path, Path],
) -> None:
    limit_version_1(kernel[0] / "memory", 2**63 - 4096)
    assert free_memory(*kernel) == 1000 * 1024


def test_what_cannot_be_read_is_no_room(kernel: tuple[Path, Path]) -> None:
    (kernel[0] / "memory").mkdir()
    assert free_memory(*kernel) == 0


def test_a_file_is_placed_once(tmp_path: Path) -> None:
    files = MemoryFiles()
    files.place(tmp_path / "state.pt")
    target = (tmp_path / "state.pt").readlink()
    files.place(tmp_path / "state.pt")
    assert (tmp_path / "state.pt").readlink() == target
    files.close()
    assert in_memory() == []
