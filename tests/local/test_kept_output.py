"""What processes print is uploaded beside them, from real files and processes to real stores."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cli_server import RUNS, call, running_server
from support.processes import wait_for
from support.s3 import CREDENTIALS, S3Server
from trainingrun.rendering import names
from trainingrun_protocol.contract import ContractOutput, ContractStorage, RunContract
from trainingrun_runtime.driver import last_lines
from trainingrun_runtime.masking import Masking
from trainingrun_runtime.output import announced, uploader
from trainingrun_runtime.output.uploader import Uploader
from trainingrun_runtime.store import kept_output
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.kept_output import Source
from trainingrun_runtime.store.lease import Lease

SECRET = "an-api-key/of-someone"
LEFT_OUT = re.compile(r"\.\.\. ([\d,]+) lines left out: more is printed than is kept")
NOW = 1_795_000_000.0


class Node:
    """A node whose processes print into files of its folder, with an uploader."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self.folder, self.bucket = folder, bucket
        self.copied = b""
        self.started: list[subprocess.Popen[bytes]] = []
        masking = Masking({"WANDB_API_KEY": SECRET, "HOME": "/home/someone"})
        self.uploader = Uploader(str(folder), str(folder), self._copy, masking)
        self._thread = threading.Thread(target=self.uploader.run)

    def _copy(self, lines: bytes) -> None:
        self.copied += lines

    def starts(self, code: str, job: str = "01") -> int:
        """Start a process as Ray starts its workers; its id."""
        waits = f"import os, sys, time\nsys.stdin.readline()\n{code}"
        files = [self.folder / f"{job}.{end}" for end in ("out", "err")]
        out, err = (os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND) for file in files)
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", waits], stdin=subprocess.PIPE, stdout=out, stderr=err
        )
        for descriptor, file in zip((out, err), files, strict=True):
            os.close(descriptor)
            file.rename(self._named(process.pid, job, file.suffix[1:]))
        assert process.stdin is not None
        process.stdin.close()  # its name has its process id
        self.started.append(process)
        return process.pid

    def _named(self, pid: int, job: str, end: str) -> Path:
        return self.folder / f"worker-0a-{job}-{pid}.{end}"

    def says(
        self,
        pid: int,
        rank: int | None,
        group: int = 1,
        job: str = "01",
        ended: bool = False,
        keep: ContractOutput | None = None,
    ) -> None:
        """Have a process say which rank it is."""
        one = announced.Announced(
            pid=pid,
            files=[str(self._named(pid, job, end)) for end in ("out", "err")],
            storage=ContractStorage(
                uri=self.bucket.root, endpoint=self.bucket.endpoint, region=self.bucket.region
            ),
            attempt=1,
            group=group,
            rank=rank,
            ended=ended,
            keep=keep or ContractOutput(),
        )
        (self.folder / announced.FOLDER).mkdir(exist_ok=True)
        (self.folder / announced.FOLDER / str(pid)).write_text(one.model_dump_json())

    def runs(self) -> None:
        """Start the uploader."""
        self._thread.start()

    def lines(self, rank: int | None = 0) -> list[str]:
        """What is in the bucket of a rank."""
        parts = [p for p in kept_output.parts(self.bucket) if p.source.rank == rank]
        return [line.text for line in kept_output.read(self.bucket, parts)]

    def has_ended(self, rank: int | None = 0) -> bool:
        """Whether the bucket says that the process has ended."""
        return any(p.last and p.source.rank == rank for p in kept_output.parts(self.bucket))

    def end(self) -> None:
        self.uploader.stop()
        if self._thread.is_alive():
            self._thread.join()
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are uploaded soon."""
    monkeypatch.setattr(uploader, "ROUND_S", 0.3)


@pytest.fixture
def node(tmp_path: Path, bucket: Bucket) -> Iterator[Node]:
    (tmp_path / "node").mkdir()
    found = Node(tmp_path / "node", bucket)
    yield found
    found.end()


@pytest.mark.usefixtures("quick")
def test_what_a_killed_process_has_printed_is_kept_without_secrets(node: Node) -> None:
    code = f"""
print("begins with {SECRET} and https://me:word@index.org/simple")
print("to stderr", file=sys.stderr)
print("its last words", end="")
os.kill(os.getpid(), {signal.SIGKILL})
"""
    node.runs()
    node.says(node.starts(code), rank=0)
    wait_for(node.has_ended)
    said = ["begins with *** and https://***@index.org/simple", "its last words", "to stderr"]
    assert sorted(node.lines()) == said
    assert sorted(node.copied.decode().splitlines()) == [f"[rank 0] {line}" for line in said]
    key = kept_output.parts(node.bucket)[0].key
    assert key.startswith("logs/1/1/rank-0/")


def test_a_line_is_in_the_bucket_within_five_seconds_while_the_process_runs(node: Node) -> None:
    node.runs()
    node.says(node.starts('print("first"); sys.stdout.flush(); time.sleep(600)'), rank=3)
    wait_for(lambda: b"[rank 3] first" in node.copied)
    seen = time.monotonic()
    wait_for(lambda: node.lines(3) == ["first"])
    assert time.monotonic() - seen < 5
    assert not node.has_ended(3)


@pytest.mark.usefixtures("quick")
def test_what_a_prestarted_process_prints_is_copied_and_later_its_ranks(node: Node) -> None:
    code = 'print(":actor_name:RayTrainWorker"); print("imported"); time.sleep(600)'
    pid = node.starts(code)
    node.runs()
    wait_for(lambda: node.copied == f"[pid {pid}] imported\n".encode())
    assert kept_output.parts(node.bucket) == []
    node.says(pid, rank=1, group=2)
    wait_for(lambda: node.lines(1) == ["imported"])
    assert kept_output.parts(node.bucket)[0].source == Source(1, 2, 1)


def test_of_a_flood_the_beginning_and_the_end_are_kept(node: Node) -> None:
    code = "print(*(f'line {n} ' + 80 * 'x' for n in range(200_000)), sep='\\n')"
    pid = node.starts(code)
    node.started[0].wait()
    node.says(pid, rank=0)
    node.runs()
    wait_for(node.has_ended)
    lines = node.lines()
    assert lines[0].startswith("line 0 ")
    assert lines[-1].startswith("line 199999 ")
    said = map(LEFT_OUT.match, lines)
    left_out = [int(found[1].replace(",", "")) for found in said if found]
    assert sum(left_out) + len(lines) - len(left_out) == 200_000, "each line is counted"
    assert sum(map(len, lines)) < uploader.MOST_PER_ROUND + uploader.KEPT_END
    assert len(node.copied) < 2 * uploader.MOST_PER_ROUND


@pytest.mark.parametrize("line", [b"x\n", b"loss 0.125, 31 samples a second\n", 200 * b"y" + b"\n"])
def test_of_50000_lines_a_second_each_is_counted_and_few_are_read(
    line: bytes, tmp_path: Path
) -> None:
    files = [tmp_path / "worker.out", tmp_path / "worker.err"]
    for file in files:
        file.touch()
    masking = Masking({"WANDB_API_KEY": SECRET})
    stream, copied = (
        uploader.Stream(os.getpid(), [str(file) for file in files], masking),
        bytearray(),
    )
    seconds, now, used_s = 12, NOW, 0.0
    with files[0].open("ab") as out:
        for _ in range(seconds * 5):
            out.write(10_000 * line)
            out.flush()
            now += uploader.POLL_S
            began = time.thread_time()
            stream.read(now, copied.extend)
            used_s += time.thread_time() - began
            assert stream._files[0].waiting() < 4 * 50_000 * len(line), "nothing piles up"
    assert used_s < uploader.CPU_SHARE * seconds / 2
    files[1].write_bytes(b"ValueError: the last words\n")
    stream.read(now + uploader.ROUND_S, copied.extend)
    lines = copied.decode().splitlines()
    assert lines[-1].endswith("ValueError: the last words")
    said = [LEFT_OUT.search(text) for text in lines]
    left_out = sum(int(found[1].replace(",", "")) for found in said if found)
    kept = len(lines) - 1 - sum(map(bool, said))
    assert left_out + kept == seconds * 50_000
    assert kept < (seconds / uploader.ROUND_S + 2) * (
        uploader.MOST_LINES + uploader.KEPT_LAST_LINES
    )
    assert len(stream._part) < 2 * uploader.MOST_WAITING


def test_more_than_can_be_counted_is_told_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "MOST_COUNTED", 1_000_000)
    file, copied = tmp_path / "worker.out", bytearray()
    file.write_bytes(1_000_000 * b"x\n")
    uploader.Stream(os.getpid(), [str(file)], Masking({})).read(NOW, copied.extend)
    assert b"bytes left out: more is printed than is kept" in copied


def test_the_more_cpu_a_look_takes_the_later_is_the_next() -> None:
    assert uploader.pause_after(0.001) == uploader.POLL_S
    assert uploader.pause_after(0.3) == 0.3 / uploader.CPU_SHARE


@pytest.mark.usefixtures("quick")
def test_while_a_store_is_away_printing_goes_on_and_is_uploaded_later(
    store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(uploader, "MOST_WAITING", 64 * 1024)
    node = Node(tmp_path, Bucket.open("s3://runs/away/digits-1", store.url, "us-east-1"))
    code = """
for n in range(4000):
    print(f"line {n} " + 50 * "x")
    time.sleep(0.0005)
time.sleep(600)
"""
    store.stop()
    try:
        node.runs()
        node.says(node.starts(code), rank=0)
        wait_for(lambda: b"line 3999 " in node.copied)
        (stream,) = node.uploader._streams.values()
        assert len(stream._part) < 2 * uploader.MOST_WAITING
    finally:
        store.start()
    wait_for(lambda: node.lines() and node.lines()[-1].startswith("line 3999 "))
    assert node.lines()[0].startswith("line 0 ")
    assert any("could not be uploaded in time" in line for line in node.lines())
    node.end()


@pytest.mark.usefixtures("quick")
def test_beyond_its_bound_the_oldest_parts_of_a_run_are_deleted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "PRUNE_EVERY_S", 0.0)
    for attempt in (1, 2, 3):
        put(node.bucket, Source(attempt, 1, 0), NOW + attempt, 400 * "x")
    node.bucket.put("logs/1/failed.json", b"{}")
    node.runs()
    pid = node.starts('print("begins"); time.sleep(600)')
    node.says(pid, rank=None, group=0, keep=ContractOutput(most_bytes=1000))
    wait_for(lambda: node.lines(None) == ["begins"])
    wait_for(lambda: [p.source.attempt for p in kept_output.parts(node.bucket)] == [2, 3, 1])
    assert node.bucket.get("logs/1/failed.json") == b"{}"


@pytest.mark.usefixtures("quick")
def test_parts_of_which_each_line_is_too_old_are_deleted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "PRUNE_EVERY_S", 0.0)
    now, day = time.time(), 86400.0
    for days in (9, 8, 2, 1):
        put(node.bucket, Source(1, 1, 0), now - days * day, f"{days} days ago")
    put(node.bucket, Source(1, 1, 1), now - 9 * day, "the last part, which may still be written")
    pid = node.starts('print("begins"); time.sleep(600)')
    node.runs()
    node.says(pid, rank=0, keep=ContractOutput(most_seconds=day))
    wait_for(lambda: "begins" in node.lines(0))
    assert "9 days ago" in node.lines(0), "a rank of a run deletes nothing"
    driver = node.starts('print("drives"); time.sleep(600)', job="02")
    node.says(driver, rank=None, group=0, job="02", keep=ContractOutput(most_seconds=5 * day))
    # What was printed 8 days ago may go on until the next part begins.
    wait_for(lambda: node.lines(0) == ["8 days ago", "2 days ago", "1 days ago", "begins"])
    assert node.lines(1) == ["the last part, which may still be written"]


@pytest.fixture
def follow(tmp_path: Path) -> Callable[[bytes], list[bytes]]:
    """What is read of a file to which something is appended."""
    file = tmp_path / "worker.out"
    file.touch()
    followed = uploader.Followed(str(file), Masking({"SOME_TOKEN": SECRET}))

    def append(content: bytes) -> list[bytes]:
        with file.open("ab") as opened:
            opened.write(content)
        return uploader.lines_of(followed.read(followed.waiting())[1])

    return append


def test_a_progress_bar_is_its_last_state(follow: Callable[[bytes], list[bytes]]) -> None:
    assert follow(b"\r 10%\r 50%") == []
    assert follow(b"\r100%\r\nnext\n\n") == [b"100%", b"next"]


def test_a_secret_that_is_read_in_two_pieces_is_masked(
    follow: Callable[[bytes], list[bytes]],
) -> None:
    begin, rest = SECRET.encode()[:8], SECRET.encode()[8:]
    assert follow(b"key: " + begin) == []
    assert follow(rest + b"\n") == [b"key: ***"]
    long = b"x" * uploader.LONGEST_LINE
    assert SECRET.encode()[:8] not in b"".join(follow(long + begin))
    assert b"".join(follow(rest + b"\n")).endswith(b"***")


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_secret_that_begins_with_another_one_is_masked_in_any_two_pieces(
    cut: int, tmp_path: Path
) -> None:
    line = b"x hunter2-longer-tail y hunter2 redis://me:p@ss/w0rd@host:1/0\n"
    secrets = {"DB_PASSWORD": "hunter2", "API_TOKEN": "hunter2-longer-tail"}
    for begin in (b"", b"z" * (uploader.LONGEST_LINE - 10)):
        file = tmp_path / f"{len(begin)}.out"
        file.touch()
        followed, found = uploader.Followed(str(file), Masking(secrets)), b""
        for piece in ((begin + line)[: len(begin) + cut], line[cut:]):
            with file.open("ab") as opened:
                opened.write(piece)
            found += followed.read(followed.waiting())[1].replace(b"\n", b"")
        assert found == begin + b"x *** y *** redis://***@host:1/0"


@pytest.mark.parametrize("secrets", [("hunter2-longer-tail",), ("hunter2", "hunter2-longer-tail")])
def test_a_process_that_ends_within_a_secret_has_not_printed_its_beginning(
    secrets: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "worker.out"
    file.write_bytes(b"x hunter2-longer-ta")
    followed = uploader.Followed(str(file), Masking({f"TOKEN_{s}": s for s in secrets}))
    assert followed.read(100, all_of_it=True)[1] == b"x ***\n".rstrip()


def test_of_a_long_line_that_is_left_out_no_end_of_a_secret_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "worker.out"
    file.write_bytes(b"x" * 100_000 + SECRET.encode() + b"y" * 2000)
    followed = uploader.Followed(str(file), Masking({"SOME_TOKEN": SECRET}))
    followed.skip(2000 + len(SECRET) - 3)
    assert set(followed.read(10_000, all_of_it=True)[1]) == set(b"y")


def test_a_secret_that_is_no_utf_8_or_printed_as_json_is_masked() -> None:
    secret = 'gehei"m\udce4-horse'
    masking = Masking({"SOME_TOKEN": secret})
    assert masking(b'a gehei"m\xe4-horse b') == b"a *** b"
    assert masking(rb'{"token": "gehei\"m\udce4-horse"}') == b'{"token": "***"}'


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        (b"step 1\r\x1b[Kstep 2\r\x1b[K\n", [b"step 2"]),
        (b"\x1b[2K\x1b[1G 10%\x1b[2K\x1b[1G100%\nnext\n", [b"100%", b"next"]),
        (b"\r\x1b[2K\x1b[1A\x1b[2Kfirst bar\n\x1b[2Ksecond bar\n", [b"first bar", b"second bar"]),
        (b"\x1b[K\n\x1b[2K\r\n", []),
        (b"\x1b[31mred\x1b[0m\n", [b"\x1b[31mred\x1b[0m"]),
    ],
)
def test_a_bar_that_clears_its_line_is_its_last_state(printed: bytes, kept: list[bytes]) -> None:
    assert uploader.lines_of(printed) == kept


def test_a_file_that_is_truncated_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "worker.out"
    file.write_text("a long first line\n")
    followed = uploader.Followed(str(file), Masking({}))
    assert followed.read(followed.waiting())[1] == b"a long first line"
    file.write_text("short\n")
    assert followed.read(followed.waiting())[1] == b"short"


def a_contract(bucket: Bucket) -> RunContract:
    storage = ContractStorage(uri=bucket.root, endpoint=bucket.endpoint, region=bucket.region)
    return RunContract(name="digits", namespace="a", uid="1", attempt=2, storage=storage)


def test_a_process_says_who_it_is_by_a_file_of_its_node(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAININGRUN_STATE_DIRECTORY", str(tmp_path))
    announced.announce(a_contract(bucket), ["/tmp/a.out"], 3, 1)
    content = (tmp_path / announced.FOLDER / str(os.getpid())).read_bytes()
    found = announced.Announced.model_validate_json(content)
    assert found.source == Source(2, 3, 1)
    assert (found.label, found.files, found.pid) == ("rank 1", ["/tmp/a.out"], os.getpid())


def test_what_a_process_has_printed_takes_no_memory_once_it_is_uploaded(node: Node) -> None:
    """A head may live for months, and has the processes of each worker group and trial."""
    pid = node.starts('print("its last words")')
    node.says(pid, rank=0)
    wait_for(lambda: not uploader._is_alive(pid))
    node.uploader.poll(NOW)
    (stream,) = node.uploader._streams.values()
    assert stream._part
    node.uploader._upload(stream)
    assert node.lines() == ["its last words"]
    assert stream.done
    assert not stream._part


def put(bucket: Bucket, source: Source, began: float, *texts: str) -> None:
    content = "".join(kept_output.written(began + n, text) for n, text in enumerate(texts))
    bucket.put(kept_output.key(source, began), content.encode())


def test_once_a_training_function_has_ended_its_last_lines_are_kept_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "ROUND_S", 60.0)
    put(node.bucket, Source(1), NOW, "the driver trains")
    node.runs()
    pid = node.starts('print(*range(200), sep="\\n"); sys.stdout.flush(); time.sleep(600)')
    node.says(pid, rank=1)
    wait_for(lambda: b"[rank 1] 199\n" in node.copied)
    node.says(pid, rank=1, ended=True)
    lines = last_lines.keep(node.bucket, Source(1, 1, 1), "rank 1 raised an error", time.time())
    assert lines == [str(number) for number in range(150, 200)]
    found = kept_output.failed(node.bucket, 1)
    assert found is not None
    assert (found.rank, found.group, found.lines) == (1, 1, lines)
    assert kept_output.failed(node.bucket, 2) is None


def test_of_a_rank_whose_node_is_lost_the_lines_that_are_there_are_kept(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_lines, "_WAIT_S", 0.0)
    assert last_lines.keep(bucket, Source(1, 1, 0), "rank 0 died", NOW) == []
    put(bucket, Source(1, 1, 0), NOW, "of the former group")
    put(bucket, Source(1, 2, 0), NOW, "so far")
    assert last_lines.keep(bucket, Source(1, 2, 0), "rank 0 died", NOW) == ["so far"]


def test_the_lines_of_a_lost_heads_worker_group_are_not_those_of_the_same_number(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each driver counts its groups from 1, and a head is replaced within the attempt."""
    monkeypatch.setattr(last_lines, "_WAIT_S", 0.0)
    rank, next_driver = Source(1, 1, 0), NOW + 60
    put(bucket, rank, NOW, "CUDA error")
    bucket.put(kept_output.key(rank, NOW + 30, last=True), b"")
    assert last_lines.read(bucket, rank, next_driver) == [], "it has printed nothing yet"
    put(bucket, rank, next_driver - 3, "by a clock that is behind the head's")
    lines = ["by a clock that is behind the head's"]
    assert last_lines.read(bucket, rank, next_driver) == lines
    assert last_lines.keep(bucket, rank, "rank 0 died", next_driver) == lines


@pytest.fixture
def kept(bucket: Bucket) -> Bucket:
    """Two attempts of two ranks, of which the second attempt lost a worker group."""
    Lease.take(bucket, 1, "pod", NOW)
    put(bucket, Source(1), NOW, "the driver of attempt 1")
    put(bucket, Source(1, 1, 0), NOW + 1, "rank 0 of attempt 1")
    for rank in (0, 1):
        put(bucket, Source(2, 1, rank), NOW + 100, "epoch 1", f"loss of rank {rank}")
        put(bucket, Source(2, 2, rank), NOW + 200, "epoch 1", "epoch 2", "epoch 2")
    put(bucket, Source(2, 1, 1), NOW + 110, "only the lost pod has printed this")
    bucket.put(kept_output.key(Source(2, 1, 1), NOW + 111, last=True), b"")
    bucket.put("logs/2/driver/notes.txt", b"of somebody else")
    bucket.put(kept_output.key(Source(2, 3, 0), NOW + 300), b"\xff no time\n")
    put(bucket, Source(2), NOW + 90, "\x1b[31mof the driver")
    return bucket


def logs(bucket: Bucket, *arguments: str) -> tuple[int, list[str], str]:
    endpoint = ["--endpoint", bucket.endpoint] if bucket.endpoint else []
    code, output, errors = call("logs", bucket.root, *endpoint, *arguments)
    return code, output.splitlines(), errors


def test_the_last_attempt_is_shown_and_equal_lines_of_ranks_are_one(kept: Bucket) -> None:
    assert logs(kept) == (
        0,
        [
            "[driver] of the driver",
            "[ranks 0-1] epoch 1",
            "[rank 0] loss of rank 0",
            "[rank 1] loss of rank 1",
            "[rank 1] only the lost pod has printed this",
            "[ranks 0-1] epoch 1",
            "[ranks 0-1] epoch 2",
            "[ranks 0-1] epoch 2",
            "[rank 0] \N{REPLACEMENT CHARACTER} no time",
        ],
        "",
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rank", "1", "--tail", "2"], ["[rank 1] epoch 2", "[rank 1] epoch 2"]),
        (["--rank", "1", "--tail", "0"], []),
        (["--driver"], ["[driver] of the driver"]),
        (
            ["--attempt", "1"],
            ["[driver] the driver of attempt 1", "[rank 0] rank 0 of attempt 1"],
        ),
        (["--grep", "lost p.d"], ["[rank 1] only the lost pod has printed this"]),
    ],
)
def test_options_choose_lines(kept: Bucket, arguments: list[str], expected: list[str]) -> None:
    code, lines, _ = logs(kept, *arguments)
    assert (code, lines) == (0, expected)


def test_lines_are_chosen_by_their_age(bucket: Bucket) -> None:
    Lease.take(bucket, 1, "pod", NOW)
    put(bucket, Source(1, 1, 0), time.time() - 1000, "old")
    put(bucket, Source(1, 1, 0), time.time() - 100, "new", "newer")
    assert logs(bucket, "--since", "10m")[1] == ["[rank 0] new", "[rank 0] newer"]


def test_the_rank_that_failed_first_comes_first(kept: Bucket) -> None:
    failed = kept_output.Failed(
        group=2, rank=1, message="rank 1 raised\x1b[2J ValueError: x", time=NOW, lines=["y", "x"]
    )
    kept_output.write_failed(kept, 2, failed)
    assert logs(kept)[1][:5] == [
        "==> rank 1 failed first: rank 1 raised ValueError: x <==",
        "[rank 1] y",
        "[rank 1] x",
        "==> all ranks and the driver <==",
        "[driver] of the driver",
    ]
    assert logs(kept, "--driver")[1] == ["[driver] of the driver"]


def test_what_is_not_there_is_said(kept: Bucket) -> None:
    code, output, errors = logs(kept, "--rank", "7")
    assert (code, output) == (1, [])
    assert "rank 7 has printed nothing in attempt 2" in errors
    code, output, errors = logs(kept, "--attempt", "9")
    assert (code, output) == (0, [])
    assert errors == f"There is nothing of this of attempt 9 in {kept.root}.\n"


def test_of_a_pod_that_was_replaced_the_lines_are_those_of_the_folder(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = "1a2b3c4d-0000-0000-0000-000000000000"
    bucket = Bucket.open(f"s3://runs/{tmp_path.name}/digits-{uid[:8]}", s3.url, "us-east-1")
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "x", "uid": "c1"}
    metadata = {
        "name": "w1",
        "uid": "w1",
        "creationTimestamp": "2026-01-01T00:01:02Z",
        "labels": {names.ROLE_LABEL: names.WORKER},
        "ownerReferences": [{**owner, "controller": True}],
    }
    run = {
        "metadata": {"name": "digits", "namespace": "team-a", "uid": uid},
        "spec": {
            "storage": {
                "uri": bucket.root.rpartition("/")[0],
                "endpoint": bucket.endpoint,
                "region": bucket.region,
            }
        },
        "status": {
            "phase": "Running",
            "attempt": 2,
            "seen": {"rayCluster": "c1"},
            "attempts": [{"number": 2, "startTime": "2026-01-01T00:00:00Z"}],
            "disruptions": {"history": [{"time": "2026-01-01T00:01:00Z", "pods": ["w0"]}]},
        },
    }
    Lease.take(bucket, 2, "pod", NOW)
    began = 1_767_225_600.0  # of the attempt
    put(bucket, Source(1, 1, 0), began - 60, "of the former attempt")
    put(bucket, Source(2, 1, 0), began + 10, "of the pod that is gone")
    put(bucket, Source(2, 2, 0), began + 70, "of the pod that is there")
    text = b"2026-01-01T00:01:10.200000000Z [rank 0] of the pod that is there\n"
    pods = "/api/v1/namespaces/team-a/pods"
    with running_server(tmp_path, monkeypatch) as server:
        server.answers[f"{RUNS}/digits"] = [(200, run)]
        server.answers[pods] = [(200, {"items": [{"metadata": metadata, "status": {}}]})]
        server.answers[f"{pods}/w1/log"] = [(200, text)]
        code, output, errors = call("logs", "digits")
    assert (code, errors) == (0, "")
    lines = "[rank 0] of the pod that is gone\n[rank 0] of the pod that is there\n"
    assert output == lines
    why = "rank 0 died: pod w1 used more memory than its limit"
    ended = {"number": 2, "outcome": "Failed", "message": why}
    run = {**run, "status": {"phase": "Failed", "attempt": 2, "attempts": [ended]}}
    with running_server(tmp_path, monkeypatch) as server:
        server.answers[f"{RUNS}/digits"] = [(200, run)]
        assert call("logs", "digits") == (0, f"==> the attempt ended: {why} <==\n{lines}", "")
