"""`python -m trainingrun_runtime.output.uploader PARENT STATES [LOGS]`: keeps what is printed.

A process of its own on each node, since it has to outlive the ranks: what a killed one has printed
is uploaded by it. It follows the files that Ray makes of the output of its processes, copies each
line to its own stdout, which is the container's, and uploads it in parts (`store.kept_output`).
Which file is which rank's, the rank says (`output.announced`).

It takes a bounded amount of CPU, memory and network whatever is printed: of a process that prints
faster, the beginning and the end of every few seconds is kept. It runs behind training, and what
goes wrong in it ends nothing.
"""

import glob
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..masking import Masking
from ..store import kept_output
from .announced import FOLDER, Announced

if TYPE_CHECKING:
    from ..store.bucket import Bucket

log = logging.getLogger(__name__)

POLL_S = 0.2
ROUND_S = 3.0
"""Between two uploads of a process's output."""
LAST_UPLOAD_S = 5.0
"""For the last upload, once it is asked to end."""
NICENESS = 10
MOST_PER_ROUND = 512 * 1024
"""Bytes of a process that are kept in each round; what is beyond is left out."""
MOST_LINES = 6000
"""Lines of a process that are kept in each round, however short they are."""
KEPT_END = 32 * 1024
"""Bytes from the end of a round that are kept then."""
KEPT_LAST_LINES = 500
"""Lines from the end of a round that are kept then."""
MOST_COUNTED = 32 * 1024 * 1024
"""Bytes of a process that are left out in a round whose lines are counted."""
CPU_SHARE = 0.1
"""Share of a CPU that following takes at most: the more a look has taken, the later is the next."""
FULL_PART = 64 * 1024
"""Bytes after which the next part begins: a part is uploaded as a whole each time."""
MOST_WAITING = 1024 * 1024
"""Bytes that wait for the bucket, or for a process to say which rank it is."""
LONGEST_LINE = 16 * 1024
"""Bytes; a longer line is divided."""
PRUNE_EVERY_S = 300.0
"""Between two looks of the driver's uploader for parts to delete, and of rank 0's of a trial."""
UPLOADS_AT_ONCE = 4
_READS_AFTER_END = 2
"""Of a process whose training function has ended: Ray prints the error after that."""

_OF_RAY = (b":actor_name:", b":task_name:", b":job_id:")
"""Lines that Ray writes for its own log monitor begin so."""
_CLEARED = re.compile(rb"\x1b\[[0-3]?[JK]")
"""With it a progress bar clears its line, or what is below it."""
_LINE_BEGIN = re.compile(rb"\x1b\[[01]?G|\x1b\[\d{0,3}[ABEF]")
"""It goes to the beginning of its line, or of another one, to write over it."""
_WORKER = re.compile(r"worker-[0-9a-f]+-[0-9a-f]+-(\d+)\.out")


class Followed:
    """A file of which the new lines are read."""

    def __init__(self, path: str, masking: Masking) -> None:
        self._file = os.open(path, os.O_RDONLY)  # it stays readable when it is moved
        self._masking, self._position, self._begun = masking, 0, b""

    def waiting(self) -> int:
        """Bytes that are there to be read."""
        size = os.fstat(self._file).st_size
        if size < self._position:  # it was truncated
            self._position, self._begun = 0, b""
        return size - self._position

    def read(self, most: int, all_of_it: bool = False) -> tuple[int, bytes]:
        """Bytes read, and the lines that are whole; the last one too if `all_of_it`."""
        content = os.pread(self._file, most, self._position)
        self._position += len(content)
        whole, newline, self._begun = (self._begun + content).rpartition(b"\n")
        # Masked as a whole line: of its beginning nobody knows which secret it is.
        whole = self._masking(whole)
        if all_of_it and self._begun:
            whole, newline = whole + newline + self._masking.end(self._begun), b"\n"
            self._begun = b""
        elif len(self._begun) > LONGEST_LINE:
            told, self._begun = self._masking.beginning(self._begun)
            whole, newline = whole + newline + told, b"\n"
        return len(content), whole if newline else b""

    def skip(self, keep: int) -> "LeftOut":
        """Leave out what is there but for about its last `keep` bytes."""
        skipped = self.waiting() - keep
        if skipped <= 0:
            return LeftOut()
        begin = self._position
        self._position += skipped
        ahead = os.pread(self._file, keep, self._position)
        # Where no line begins, it may be within a secret.
        self._position += ahead.find(b"\n") + 1 or min(self._masking.longest, len(ahead))
        left_out = LeftOut(self._position - begin + len(self._begun))
        self._begun = b""
        if left_out.size > MOST_COUNTED:
            left_out.counted = False
            return left_out
        while begin < self._position:
            most = min(1024 * 1024, self._position - begin)
            content = os.pread(self._file, most, begin)
            if not content:  # it was truncated meanwhile
                break
            left_out.lines += content.count(b"\n")
            begin += len(content)
        return left_out

    def close(self) -> None:
        """Nothing is read any more."""
        os.close(self._file)


@dataclass
class LeftOut:
    """What is not kept."""

    size: int = 0
    """Bytes."""
    lines: int = 0
    """Lines."""
    counted: bool = True
    """Whether all of its lines were counted."""

    def add(self, other: "LeftOut") -> None:
        """Together with another one."""
        self.size, self.lines = self.size + other.size, self.lines + other.lines
        self.counted = self.counted and other.counted

    @property
    def sentence(self) -> str:
        """What stands in its place."""
        what = f"{self.lines:,} lines" if self.counted else f"{self.size:,} bytes"
        return f"... {what} left out: more is printed than is kept"


def _first(text: bytes, most: int) -> tuple[bytes, LeftOut]:
    """Its first lines, and what the others are."""
    if text.count(b"\n") < most:
        return text, LeftOut()
    rest = text.split(b"\n", most)[most] if most > 0 else text
    return text[: len(text) - len(rest)], LeftOut(len(rest), len(rest) and rest.count(b"\n") + 1)


def _last(text: bytes, most: int) -> tuple[bytes, LeftOut]:
    """Its last lines, and what the others are."""
    if text.count(b"\n") < most:
        return text, LeftOut()
    rest = text.rsplit(b"\n", most)[0]
    return text[len(rest) :], LeftOut(len(rest), rest.count(b"\n") + 1)


def lines_of(text: bytes) -> list[bytes]:
    """Its lines; of one that a progress bar has written over, what is seen last."""
    found: list[bytes] = []
    for line in text.split(b"\n"):
        if b"\x1b[" in line:
            line = _LINE_BEGIN.sub(b"\r", _CLEARED.sub(b"", line))
        seen = line.rstrip()
        if b"\r" in seen:
            seen = seen.rpartition(b"\r")[2]
        if not seen or (seen.startswith(b":") and seen.startswith(_OF_RAY)):
            continue
        if len(seen) <= LONGEST_LINE:
            found.append(seen)
        else:
            found += [seen[at : at + LONGEST_LINE] for at in range(0, len(seen), LONGEST_LINE)]
    return found


def _marked(mark: str, text: bytes) -> bytes:
    """Lines, each after a mark."""
    begin = mark.encode()
    return begin + text.replace(b"\n", b"\n" + begin) + b"\n"


class Stream:
    """The output of one process."""

    def __init__(self, pid: int, files: list[str], masking: Masking) -> None:
        self.pid = pid
        self.announced: Announced | None = None
        """Who it is; None: it has not said so."""
        self.done = False
        """Whether it has ended, and all is uploaded."""
        self._files = [Followed(path, masking) for path in files]
        self._lock = threading.Lock()
        self._part, self._key, self._put = bytearray(), "", 0
        self._left_out = LeftOut()
        self._budget, self._lines, self._round = MOST_PER_ROUND, MOST_LINES, 0.0
        self._ended = False
        self._reads_after_end, self._said = 0, False

    @property
    def label(self) -> str:
        """What stands before its lines."""
        return self.announced.label if self.announced else f"pid {self.pid}"

    def read(self, now: float, copy: Callable[[bytes], object]) -> None:
        """Read what is new.

        Args:
            now: Unix time in seconds.
            copy: Gets the new lines with their label.
        """
        if self._ended:
            return
        gone = not _is_alive(self.pid)
        if self.announced is not None and self.announced.ended:
            self._reads_after_end += 1
        ends = gone or self._reads_after_end == _READS_AFTER_END
        due = ends or now - self._round >= ROUND_S
        lines: list[bytes] = []
        for file in self._files:
            count, text = file.read(min(file.waiting(), self._budget))
            self._budget -= count
            text, beyond = _first(text, self._lines)
            found = lines_of(text)
            lines += found
            self._left_out.add(beyond)
            self._lines -= len(found)
            if beyond.size:
                self._budget = self._lines = 0  # until the next round
            if due:
                self._left_out.add(file.skip(KEPT_END))
                text, beyond = _last(file.read(KEPT_END, gone)[1], KEPT_LAST_LINES)
                self._left_out.add(beyond)
                if self._left_out.size:
                    lines.append(self._left_out.sentence.encode())
                    self._left_out = LeftOut()
                lines += lines_of(text)
        if due:
            self._budget, self._lines, self._round = MOST_PER_ROUND, MOST_LINES, now
        if lines:
            # Whatever was printed, what is uploaded is text.
            text = b"\n".join(lines).decode(errors="replace").encode()
            copy(_marked(f"[{self.label}] ", text))
            with self._lock:
                self._keep(text, now)
        if gone:
            self._ended = True
            for file in self._files:
                file.close()

    @property
    def trained(self) -> bool:
        """Whether its training function has ended, and what it has printed is read."""
        return self._reads_after_end >= _READS_AFTER_END

    def give_up(self) -> None:
        """It has ended, and was no rank: nothing of it is uploaded."""
        self._part.clear()
        self.done = True

    @property
    def ended(self) -> bool:
        """Whether its process has ended, and its output is read."""
        return self._ended

    def _keep(self, text: bytes, now: float) -> None:
        if not self._part:
            source = self.announced.source if self.announced else None
            self._key = kept_output.key(source, now) if source else ""
        self._part += _marked(kept_output.stamp(now), text)
        if len(self._part) > MOST_WAITING:
            # The bucket is away, or nobody says who this is: the beginning and the end are kept.
            half = MOST_WAITING // 4
            begin = self._part.rfind(b"\n", 0, half) + 1
            end = self._part.find(b"\n", len(self._part) - half) + 1
            said = f"... {end - begin:,} bytes left out: they could not be uploaded in time"
            self._part[begin:end] = kept_output.written(now, said).encode()
            self._put = min(self._put, begin)

    def upload(self, bucket: "Bucket", announced: Announced) -> None:
        """Upload what is new.

        Raises:
            StorageError: The store did not take it; it is uploaded the next time.
        """
        # Before the content, so that the last of it is uploaded.
        ended, trained = self._ended, self.trained
        with self._lock:
            content, before = bytes(self._part), self._put
            self._key = self._key or kept_output.key(announced.source, time.time())
            key = self._key
        if len(content) > before:
            bucket.put(key, content)
            with self._lock:
                unchanged = self._part.startswith(content)  # nothing of it was left out meanwhile
                self._put = len(content) if unchanged else 0
                if unchanged and len(content) >= FULL_PART:
                    del self._part[: len(content)]
                    self._put = 0
                    self._key = kept_output.key(announced.source, time.time()) if self._part else ""
        if ended or (trained and not self._said):
            bucket.put(kept_output.key(announced.source, time.time(), last=True), b"")
            self._said, self.done = True, ended
            if ended:  # nothing is read any more; the stream itself stays known
                self._part.clear()


class Uploader:
    """Follows the processes of one or more nodes of this machine.

    Args:
        states: Pattern of the nodes' state directories.
        logs: Folder with the files of Ray's workers, whose lines are copied whether they are ranks
            or not; None: those of ranks alone.
        copy: Gets the lines, each with its label.
        masking: Takes secrets out.
    """

    def __init__(
        self, states: str, logs: str | None, copy: Callable[[bytes], object], masking: Masking
    ) -> None:
        self._states, self._logs, self._copy, self._masking = states, logs, copy, masking
        self._streams: dict[str, Stream] = {}  # by the first of its files
        self._seen: dict[str, int] = {}  # announcements: file -> its time of change
        self._buckets: dict[str, Bucket] = {}
        self._stopped, self._wake = threading.Event(), threading.Event()
        self._all_read = threading.Event()
        self._failing = False
        self._next_look = 0.0
        self._pruned: dict[str, float] = {}  # folder -> seconds of the monotonic clock

    def stop(self) -> None:
        """Read and upload what is there, and end `run`."""
        self._stopped.set()

    def run(self, ends: Callable[[], bool] = lambda: False) -> None:
        """Follow and upload until `stop`, or until `ends`."""
        uploads = threading.Thread(target=self._keep_uploading, name="uploads", daemon=True)
        uploads.start()
        pause_s = POLL_S
        while not self._stopped.wait(pause_s) and not ends():
            began = time.thread_time()
            try:
                self.poll(time.time())
            except Exception:
                log.exception("what is printed is not followed at this moment")
            pause_s = pause_after(time.thread_time() - began)
        self.poll(time.time())
        self._all_read.set()
        self._wake.set()
        uploads.join(LAST_UPLOAD_S)

    def poll(self, now: float) -> None:
        """Look for new processes, and read what all have printed; `now` is Unix time in seconds."""
        for path in glob.glob(f"{self._states}/{FOLDER}/[0-9]*"):
            with suppress(OSError):
                changed = os.stat(path).st_mtime_ns
                if self._seen.get(path) != changed:
                    self._seen[path] = changed
                    self._meet(Path(path))
        if self._logs is not None and now >= self._next_look:
            self._next_look = now + 1
            for path in glob.glob(f"{self._logs}/worker-*.out"):
                named = _WORKER.fullmatch(os.path.basename(path))
                out = os.path.realpath(path)
                if named is not None and out not in self._streams:
                    self._follow(int(named[1]), [out, f"{out.removesuffix('.out')}.err"])
        for stream in list(self._streams.values()):
            before = (stream.ended, stream.trained)
            stream.read(now, self._copy)
            if stream.ended and stream.announced is None:
                stream.give_up()
            if (stream.ended, stream.trained) != before:
                self._wake.set()

    def _meet(self, path: Path) -> None:
        try:
            announced = Announced.model_validate_json(path.read_bytes())
        except ValueError:
            return
        files = [os.path.realpath(file) for file in announced.files]
        stream = self._streams.get(files[0]) or self._follow(announced.pid, files)
        if stream is not None:
            stream.announced = announced

    def _follow(self, pid: int, files: list[str]) -> Stream | None:
        try:
            stream = Stream(pid, files, self._masking)
        except OSError:
            return None
        self._streams[files[0]] = stream
        return stream

    def _keep_uploading(self) -> None:
        with ThreadPoolExecutor(UPLOADS_AT_ONCE, "upload") as pool:
            last = False
            while not last:
                last = self._all_read.is_set()
                self._wake.clear()
                known = [stream for stream in self._streams.copy().values() if not stream.done]
                list(pool.map(self._upload, known))
                if not last:
                    self._wake.wait(ROUND_S)

    def _upload(self, stream: Stream) -> None:
        announced = stream.announced
        if announced is None:
            return
        try:
            bucket = self._bucket(announced)
            stream.upload(bucket, announced)
            if announced.rank == (None if announced.trial is None else 0):
                self._prune(bucket, announced)
            self._failing = False
        except Exception as error:
            if not self._failing:  # once for each outage
                log.warning("what is printed waits for the store: %s", error)
            self._failing = True

    def _prune(self, bucket: "Bucket", announced: Announced) -> None:
        now = time.monotonic()
        if now - self._pruned.setdefault(announced.storage.uri, now) < PRUNE_EVERY_S:
            return
        self._pruned[announced.storage.uri] = now
        most_s = announced.keep.most_seconds
        before = time.time() - most_s if most_s is not None else 0.0
        kept_output.prune(bucket, announced.keep.most_bytes, before)

    def _bucket(self, announced: Announced) -> "Bucket":
        from ..store.bucket import Bucket  # takes a moment to load, in which the node starts

        place = announced.storage
        found = self._buckets.get(place.uri)
        if found is None:
            found = Bucket.open(place.uri, place.endpoint, place.region)
            self._buckets[place.uri] = found
        return found


def pause_after(cpu_s: float) -> float:
    """Seconds until the next look, after one that has taken so many CPU seconds."""
    return max(POLL_S, cpu_s / CPU_SHARE)


def _is_alive(pid: int) -> bool:
    try:
        # A process that has ended, and for which nobody has waited yet, is still there.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (OSError, IndexError):
        return False


def main(parent: str, states: str, logs: str | None = None) -> None:
    """Follow and upload until SIGTERM, or the end of the process that has started this one.

    Args:
        parent: Its process id.
        states: Of `Uploader`.
        logs: Of `Uploader`.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with suppress(OSError):
        os.nice(NICENESS)

    def copy(lines: bytes) -> None:
        with suppress(OSError):  # nobody reads them
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()

    uploader = Uploader(states, logs, copy, Masking(os.environ))

    def stop(_number: int, _frame: Any) -> None:
        uploader.stop()

    signal.signal(signal.SIGTERM, stop)
    uploader.run(lambda: os.getppid() != int(parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
