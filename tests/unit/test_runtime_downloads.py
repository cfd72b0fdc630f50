"""What each rank downloads of a checkpoint before it is restored, and that it verifies it."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from support.checkpoints import put, saved
from trainingrun_runtime.checkpoints import downloads
from trainingrun_runtime.checkpoints.downloads import Fetched, Share, share_of
from trainingrun_runtime.checkpoints.restored_tensors import readable
from trainingrun_runtime.checkpoints.tensor_files import TensorsOfFile
from trainingrun_runtime.store import manifest, restore_source, verification
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import Manifest
from trainingrun_runtime.store.storage_errors import AbsentError, DamagedError, StorageError

ONES = 300_000
FOUR_RANKS = [
    "session.pt",
    *(f"random-{rank}.pt" for rank in range(4)),
    *(f"state-{rank}.safetensors" for rank in range(2)),
    *(f"rank-{rank}.safetensors" for rank in range(4)),
]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a store is asked for again without a pause."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, 0.0))


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket.open(f"file://{tmp_path}/run")


def own(rank: int, world_size: int) -> set[str]:
    """The files of former ranks that a rank downloads, and no other one does."""
    share = share_of(FOUR_RANKS, rank, world_size, former=4)
    assert share.verified == []
    assert set(share.common) == {"session.pt", "state-0.safetensors", "state-1.safetensors"}
    return set(share.kept)


def test_a_rank_downloads_its_own_files_and_what_all_need() -> None:
    assert own(2, 4) == {"rank-2.safetensors", "random-2.pt"}


def test_of_fewer_ranks_each_downloads_neighboring_parts() -> None:
    assert own(1, 2) == {
        "rank-2.safetensors", "rank-3.safetensors", "random-1.pt", "random-3.pt"
    }  # fmt: skip


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    "files", [FOUR_RANKS, ["model.bin", "a/b", "rank-9.safetensors", "random-9.pt"]]
)
def test_all_ranks_together_read_every_file(files: list[str], world_size: int) -> None:
    shares = [share_of(files, rank, world_size, former=4) for rank in range(world_size)]
    assert {name for share in shares for part in share for name in part} == set(files)


def test_what_no_session_has_saved_is_read_once_and_not_kept() -> None:
    files = ["model.bin", "optimizer.bin", "rank-1.safetensors"]
    assert [share_of(files, rank, 2, former=2) for rank in (0, 1)] == [
        Share([], ["model.bin", "rank-1.safetensors"]),
        Share([], ["optimizer.bin"]),
    ]


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where files are downloaded to."""
    free = float("inf") if request.param == "memory" else 0.0
    monkeypatch.setattr(downloads, "_free_memory", lambda: free)
    return str(request.param)


@pytest.mark.parametrize("ranks", [1, 2])
def test_files_are_downloaded_verified_and_removed(
    bucket: Bucket, tmp_path: Path, place: str, ranks: int
) -> None:
    found = saved(bucket, tmp_path / "local", step=10)
    common = "rank-0/state.pt"
    fetched = Fetched(bucket, found, ranks=ranks)
    assert fetched.fetch(Share([], ["empty"], [common])) is None
    files = [path for path in fetched.folder.rglob("*") if path.is_file()]
    if place == "memory" and ranks == 1:
        assert files == [], "nobody else maps it"
    else:
        assert [file.is_symlink() for file in files] == [place == "memory"]
    wanted = bucket.get(f"{found.path}/{common}")
    bucket.delete([f"{found.path}/{common}"])
    assert fetched.content(common).open().read() == wanted
    targets = [os.path.realpath(file) for file in files]
    fetched.close()
    assert not fetched.folder.exists()
    assert not any(map(os.path.exists, targets))


def test_a_file_named_as_the_begun_one_of_another_is_kept(bucket: Bucket, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    contents = {"a.pt": b"whole" * 100, "a.pt.part": b"begun"}
    for name, content in contents.items():
        (local / name).write_bytes(content)
    found = put(bucket, local, step=10, index=1)
    downloads.download(bucket, found, tmp_path / "copy")
    (tmp_path / "completed").mkdir()
    downloads.complete(bucket, found, tmp_path / "completed")
    for folder in ("copy", "completed"):
        files = {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()}
        assert files == contents


def test_a_file_of_another_size_is_not_copied(bucket: Bucket, tmp_path: Path, place: str) -> None:
    found = saved(bucket, tmp_path / "local", step=10)
    name = "rank-0/state.pt"
    bucket.put(f"{found.path}/{name}", (bucket.get(f"{found.path}/{name}") or b"") + b"more")
    fetched, share = Fetched(bucket, found), Share([name], [])
    for _ in range(2):  # also where it was read before
        assert "another content" in (fetched.fetch(share) or "")
    fetched.close()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("read", ["once", "by one rank", "by all"])
def test_a_damaged_file_is_named_and_not_kept(
    bucket: Bucket, tmp_path: Path, place: str, ranks: int, read: str
) -> None:
    found = saved(bucket, tmp_path / "local", step=10)
    name = "rank-0/state.pt"
    content = bucket.get(f"{found.path}/{name}") or b""
    bucket.put(f"{found.path}/{name}", bytes([content[0] ^ 1]) + content[1:])
    fetched = Fetched(bucket, found, ranks=ranks)
    share = {
        "once": Share([], [name]), "by one rank": Share([name], []), "by all": Share([], [], [name])
    }[read]  # fmt: skip
    reason = f"{found.path}/{name} has another content than was committed (BLAKE3 differs)"
    assert fetched.fetch(share) == reason
    assert fetched.fetch(share) == reason, "what is kept is not read again"
    bucket.delete([f"{found.path}/{name}"])
    assert fetched.fetch(share) == f"{found.path}/{name} is missing"
    fetched.close()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("wrong", ["cut off", "another body", "missing"])
def test_a_file_of_which_a_store_gives_a_wrong_answer_is_downloaded_as_it_was_committed(
    bucket: Bucket,
    tmp_path: Path,
    place: str,
    ranks: int,
    wrong: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, name = saved(bucket, tmp_path / "local", step=10), "rank-0/state.pt"
    content, read, answers = bucket.get(f"{found.path}/{name}"), Bucket.read, [wrong]

    def answer(self: Bucket, key: str, start: int, end: int) -> memoryview:
        right = read(self, key, start, end)
        match answers and answers.pop():
            case "cut off":
                return right[:-1]
            case "another body":
                return memoryview(bytes(right[::-1]))
            case "missing":
                raise AbsentError(f"there is no {key}")
        return right

    monkeypatch.setattr(Bucket, "read", answer)
    fetched = Fetched(bucket, found, ranks=ranks)
    assert fetched.fetch(Share([], [], [name])) is None
    assert fetched.content(name).open().read() == content
    assert not answers
    fetched.close()


@pytest.fixture
def newest(bucket: Bucket, tmp_path: Path) -> Manifest:
    """A checkpoint of two ranks."""
    folder = tmp_path / "files"
    folder.mkdir()
    save_file({"weight": torch.ones(ONES)}, folder / "state-0.safetensors")
    for name in ("session.pt", "random-0.pt", "random-1.pt"):
        (folder / name).write_bytes(b"x" * 100)
    put(bucket, folder, step=10, index=1)
    return manifest.committed(bucket)[0]


def first_of_its_pod(bucket: Bucket, newest: Manifest) -> Fetched:
    """Rank 0, which has downloaded what both ranks need."""
    first = Fetched(bucket, newest, ranks=2)
    assert first.fetch(share_of(newest.files, 0, 2, former=2)) is None
    return first


def test_what_one_rank_of_a_pod_has_downloaded_the_others_map(
    bucket: Bucket, newest: Manifest, place: str
) -> None:
    first, other = first_of_its_pod(bucket, newest), Fetched(bucket, newest, ranks=2)
    share = share_of(newest.files, 1, 2, former=2)
    assert other.fetch(share._replace(common=())) is None
    assert [p.name for p in other.folder.iterdir()] == ["random-1.pt"] * (place == "disk")
    bucket.delete(f"{newest.path}/{name}" for name in newest.files)
    other.take_over(first.folder, share.common)
    name = "state-0.safetensors"
    assert (other.folder / name).stat().st_ino == (first.folder / name).stat().st_ino
    first.close()
    weight = TensorsOfFile(other.content(name)).tensor("weight")
    weight.zero_()
    again = TensorsOfFile(other.content(name))
    assert again.tensor("weight").sum() == ONES, "no other rank sees it"
    again.release("weight")
    assert TensorsOfFile(other.content(name)).tensor("weight").sum() == ONES
    with pytest.raises(KeyError):
        again.tensor("weight")
    other.close()
    assert not other.folder.exists()


def test_what_the_first_rank_no_longer_has_is_downloaded(
    bucket: Bucket, newest: Manifest, place: str
) -> None:
    first, other = first_of_its_pod(bucket, newest), Fetched(bucket, newest)
    first.close()
    other.take_over(first.folder, ["session.pt"])
    assert other.content("session.pt").open().read() == b"x" * 100
    bucket.put(f"{newest.path}/random-0.pt", b"y" * 100)
    with pytest.raises(DamagedError, match="another content than was committed"):
        other.content("random-0.pt")
    other.close()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("missing", "in_memory"), [(0, True), (1, False)])
def test_memory_is_used_where_a_pod_has_enough_for_all_its_ranks(
    bucket: Bucket,
    newest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    missing: int,
    in_memory: bool,
) -> None:
    share = share_of(newest.files, 0, 2, former=2)
    own, common = (sum(newest.files[n].size for n in names) for names in (share.kept, share.common))
    free = 2.5 * (own * ranks + common) - missing
    monkeypatch.setattr(downloads, "_free_memory", lambda: free)
    fetched = Fetched(bucket, newest, ranks=ranks)
    assert fetched.fetch(share) is None
    on_disk = [path.name for path in fetched.folder.iterdir() if not path.is_symlink()]
    assert sorted(on_disk) == ([] if in_memory else sorted([*share.kept, *share.common]))
    fetched.close()


def test_a_file_of_memory_of_another_process_is_mapped(
    bucket: Bucket, newest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_free_memory", lambda: float("inf"))
    first, name = first_of_its_pod(bucket, newest), "state-0.safetensors"
    code = (
        "import sys; from safetensors import safe_open; "
        "print(float(safe_open(sys.argv[1], 'pt').get_tensor('weight').sum()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(first.folder / name)], capture_output=True, check=True
    )
    assert float(found.stdout) == ONES
    first.close()


def test_what_was_downloaded_before_an_outage_is_not_downloaded_again(
    bucket: Bucket, newest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, share = Fetched(bucket, newest), share_of(newest.files, 0, 1, former=2)
    content, read = verification.wrong_content, []
    outages = [StorageError("the store does not answer")]

    def outage(*arguments: Any) -> str | None:
        # Files are read side by side: another one may be read before this one.
        if arguments[2] == "state-0.safetensors" and outages:
            raise outages.pop()
        read.append(arguments[2])
        return content(*arguments)

    monkeypatch.setattr(verification, "wrong_content", outage)
    with pytest.raises(StorageError, match="does not answer"):
        fetched.fetch(share)
    assert fetched.fetch(share) is None
    assert sorted(read) == sorted(newest.files), "each once"
    fetched.close()


def test_the_header_of_a_file_that_is_not_here_is_read_alone(
    bucket: Bucket, newest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "state-0.safetensors"
    whole = bucket.get(f"{newest.path}/{name}") or b""
    for first in (downloads._FIRST, 8, 50):
        monkeypatch.setattr(downloads, "_FIRST", first)
        fetched = Fetched(bucket, newest)
        header = fetched.header(name)
        assert whole.startswith(header)
        assert len(header) == 8 + int.from_bytes(whole[:8], "little")
        assert list(fetched.folder.iterdir()) == []
        fetched.content(name)
        assert fetched.header(name) == header
        fetched.close()


def test_an_empty_file_has_no_header(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "state-0.safetensors").touch()
    fetched = Fetched(bucket, put(bucket, tmp_path / "files", step=10, index=1))
    with pytest.raises(ValueError, match="it ends within its header"):
        fetched.header("state-0.safetensors")
    fetched.close()


RESTORING = """
import sys
from trainingrun_runtime.checkpoints.downloads import Fetched
from trainingrun_runtime.store import manifest
from trainingrun_runtime.store.bucket import Bucket
bucket = Bucket.open(sys.argv[1])
fetched = Fetched(bucket, manifest.committed(bucket)[0])
fetched.content("state-0.safetensors")
print(fetched.folder.name, flush=True)
sys.stdin.read()
"""


Restoring = tuple[subprocess.Popen[str], Path]


@pytest.fixture
def restoring(
    bucket: Bucket, newest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Restoring]:
    """Another rank with the same temporary folder, and where its files are."""
    shared = tmp_path / "temporary"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with subprocess.Popen(
        [sys.executable, "-c", RESTORING, bucket.root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(shared), "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        yield process, shared / process.stdout.readline().strip()
        process.kill()


def restore_again(bucket: Bucket, newest: Manifest) -> None:
    Fetched(bucket, newest).close()


@pytest.mark.parametrize("waited_for", [True, False])
def test_what_a_killed_rank_has_downloaded_is_removed_by_the_next_one(
    bucket: Bucket, newest: Manifest, restoring: Restoring, waited_for: bool
) -> None:
    process, folder = restoring
    restore_again(bucket, newest)
    assert (folder / "state-0.safetensors").exists(), "it still restores"
    process.kill()
    if waited_for:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    restore_again(bucket, newest)
    assert not folder.exists()


def test_a_killed_rank_is_known_though_another_process_has_its_number(
    bucket: Bucket, newest: Manifest, restoring: Restoring
) -> None:
    process, folder = restoring
    taken = folder.with_name(folder.name.replace(f"-{process.pid}-", f"-{os.getpid()}-"))
    folder.rename(taken)
    restore_again(bucket, newest)
    assert not taken.exists()


def elsewhere(called: Callable[..., Any], where: str) -> Callable[..., Any]:
    """What the kernel tells this process of itself, but for one answer."""

    def answer(place: Any, **options: Any) -> Any:
        if str(place) != where:
            return called(place, **options)
        if where == "/proc/self":
            raise FileNotFoundError(where)
        return "another one"

    return answer


@pytest.mark.parametrize(
    ("owner", "call", "where"),
    [
        pytest.param(socket, "gethostname", None, id="another pod"),
        pytest.param(os, "readlink", "/proc/self/ns/pid", id="another container"),
        pytest.param(Path, "read_text", "/proc/sys/kernel/random/boot_id", id="another machine"),
        pytest.param(os, "readlink", "/proc/self", id="nobody knows"),
    ],
)
def test_files_whose_process_may_live_elsewhere_are_kept(
    bucket: Bucket,
    newest: Manifest,
    restoring: Restoring,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    call: str,
    where: str | None,
) -> None:
    """A volume may be the temporary folder of several containers, pods and machines."""
    process, folder = restoring
    process.kill()
    process.wait()
    with monkeypatch.context() as there:
        answer = elsewhere(getattr(owner, call), where) if where else lambda: "digits-1-worker-1"
        there.setattr(owner, call, answer)
        restore_again(bucket, newest)
        assert folder.exists()
    restore_again(bucket, newest)
    assert not folder.exists()


def test_a_checkpoint_that_a_rank_refused_is_skipped(bucket: Bucket, tmp_path: Path) -> None:
    older = saved(bucket, tmp_path / "older", step=10, index=1)
    newest = saved(bucket, tmp_path / "newest", step=20, index=2)
    assert restore_source.choose(bucket, None, {}) == (newest, False, [])
    refused = {bucket.uri(newest.key): "rank-1.safetensors is missing"}
    found, _, skipped = restore_source.choose(bucket, None, refused)
    assert found == older
    assert [one.reason for one in skipped] == [
        "the checkpoint of step 20 is damaged: rank-1.safetensors is missing"
    ]


def test_a_full_disk_is_no_damage(
    bucket: Bucket, newest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an intact checkpoint would be passed over for an older one."""
    fetched = Fetched(bucket, newest)
    content = fetched.content("state-0.safetensors")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(OSError, match="gone"), readable("state-0.safetensors"):
        TensorsOfFile(content)
    fetched.close()
