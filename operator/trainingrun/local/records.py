"""What a local run keeps of itself for the commands with `--local`, and whether it goes on.

It is the TrainingRun as a cluster would give it, beside what is trained, and nothing is decided by
it: where it cannot be written, a display is older, and the training goes on. While a process
trains the run it holds a lock, which the kernel frees however the process ends, and which has its
PID and the name of its machine.
"""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self

import psutil

from trainingrun_protocol.progress import Progress, RunState, done_again

from ..api.errors import UnreachableError
from ..api.status import AcceleratorSeconds, Cost, Phase, SweepStatus
from ..api.v1alpha1 import API_VERSION, KIND, TrainingRun
from ..reconciling.diagnosis import blockers
from ..reconciling.status import cost, progress_status
from .machine import LocalError
from .run_line import LOCAL_FOLDER

ENDS = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED})
"""Phases after which nothing happens by itself to a run of this machine."""

_FOLDER = "local"
_RECORD = "run.json"
_LOCK = "lock"
UID = re.compile(r"[0-9a-f]{8}")
"""The part of a UID that the name of a run's folder ends with."""
_LOCK_TRIES = 20
"""Each 0.05 s: whoever looks whether a run goes on holds its lock for a moment."""
_POLL_S = 0.1


class UnreadableError(UnreachableError):
    """The record of a run cannot be read, and is there for all that is known."""


def write(file: Path, content: str | bytes) -> None:
    """Write a file as a whole or not at all: whoever reads it finds the former or the new content.

    Raises:
        OSError: It cannot be written; the former one is still there.
    """
    # A name of its own: two runs may write to one folder.
    part = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    try:
        with part.open("xb") as opened:
            opened.write(content.encode() if isinstance(content, str) else content)
        part.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


_OF_RANKS = ("ranks", "warnings")
"""Of status.progress: what the ranks report."""
_LEFT_OUT: Any = {
    "pod_template": True,
    "head": True,
    "training": {"env"},
    "workers": {"pod_template"},
}
"""Of the spec: what may hold a secret, and says nothing here."""


class Record:
    """The record of a run that this process trains; a context manager that holds the run's lock."""

    def __init__(self, folder: Path, run: TrainingRun, attempt: int) -> None:
        """Write it for the first time, that of a new run.

        Args:
            folder: The run's own, of those in `Folder.root`.
            run: As it is trained here.
            attempt: The first one that this process makes.

        Raises:
            LocalError: Another process trains this run.
            UnreadableError: The record of a run that is resumed cannot be read.
            OSError: It cannot be written.
        """
        if trains(folder):
            raise _in_use(folder)
        self._folder = folder / _FOLDER
        self._lock: IO[bytes] | None = None
        former = _read(folder) or {}
        created = former.get("metadata", {}).get("creationTimestamp") or _now()
        spec = run.spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_LEFT_OUT)
        self._workers = run.spec.workers.count
        self._unit: Any = "accelerator" if run.spec.workers.accelerator else "worker"
        self._devices = run.spec.total_workers * cost.devices_per_worker(run)
        self._run: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": run.metadata.name,
                "namespace": run.metadata.namespace,
                "uid": run.metadata.uid,
                "annotations": {LOCAL_FOLDER: str(folder.parent)},
                "creationTimestamp": created,
            },
            "spec": spec,
        }
        self._status: dict[str, Any] = {**(former.get("status") or {}), "startTime": created}
        self._status.pop("completionTime", None)
        self._status["conditions"] = []
        self._driver: tuple[int, int] | None = None
        self._used: dict[str, float] = dict((self._status.get("cost") or {}).get("seconds") or {})
        self._before = self._used
        step = (self._status.get("progress") or {}).get("step") or 0
        self._newest = self._former = (self._used.get("training", 0.0), 0, int(step))
        self._shown: Progress | None = None
        self.stopped: str | None = None
        """How the user has stopped it, in a sentence; None: that is not known."""
        self.problem: str | None = None
        """Why the record could not be written last, in a sentence; None: it was."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._attempt_begins(attempt)
        if not former:  # else what it says stays true until nothing is refused any more
            self._first_write()

    def _first_write(self) -> None:
        (self._folder / _LOCK).touch()  # the run that was begun or resumed last
        write(self._folder / _RECORD, self._text())

    def __enter__(self) -> Self:
        """Take the lock, and write the record of a run that is resumed.

        Raises:
            LocalError: Another process trains this run, or the folder cannot be written.
        """
        try:
            self._lock = (self._folder / _LOCK).open("ab", buffering=0)
        except OSError as error:
            raise LocalError(f"cannot write to {self._folder}: {error.strerror}") from None
        for _ in range(_LOCK_TRIES):
            if _locks(self._lock, fcntl.LOCK_EX) is not False:
                self._resumes(self._lock)
                return self
            time.sleep(0.05)
        self._lock.close()
        raise _in_use(self._folder.parent)

    def _resumes(self, lock: IO[bytes]) -> None:
        try:
            lock.truncate(0)
            lock.write(f"{os.getpid()} {socket.gethostname()}".encode())
            self._first_write()
        except OSError as error:
            raise LocalError(f"cannot write to {self._folder}: {error.strerror}") from None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, LocalError):
            self.ended(Phase.FAILED, str(error))
        elif self._status["phase"] not in ENDS:
            self.ended(Phase.SUSPENDED, self.stopped or f"attempt {self._attempt} was stopped")
        if self._lock is not None:
            self._lock.close()

    def begin(self, attempt: int, restarts: int) -> None:
        """Another attempt begins: no rank of it has reported anything yet."""
        self._attempt_begins(attempt)
        self._status["restarts"] = restarts
        self._write()

    def _attempt_begins(self, attempt: int) -> None:
        self._attempt: int = attempt
        self._of_ranks: dict[str, Any] = {name: [] for name in _OF_RANKS}
        self._status |= {"phase": Phase.STARTING.value, "attempt": attempt}
        if "progress" in self._status:
            self._status["progress"] = {**self._status["progress"], **self._of_ranks}

    def show(self, progress: Progress) -> None:
        """Keep what a driver reports."""
        if progress is self._shown:
            return
        self._shown = progress
        found = progress_status.run_progress(progress, None).to_dict()
        # A driver that recovers has none: those that it had are shown until the next ones.
        if found.get("ranks"):
            self._of_ranks = {name: found.get(name, []) for name in _OF_RANKS}
        waits = blockers.of_storage(progress) or blockers.of_ranks(progress)
        status: dict[str, Any] = {
            "phase": _phase(progress.state).value,
            "conditions": [_condition("Waiting", waits.reason, waits.message)] if waits else [],
        }
        if progress.resumed_from_step is None and not progress.step:  # nothing is restored yet
            found["step"] = (self._status.get("progress") or {}).get("step", 0)
        status["progress"] = {**found, **self._of_ranks}
        if progress.has_session is not None:
            status["progress"]["hasSession"] = progress.has_session
        if progress.world_size:
            there = progress.world_size
            status["workers"] = {"training": there, "ready": there, "wanted": self._workers}
        status["cost"] = self._cost(progress)
        if progress.checkpoint is not None:
            made = progress.checkpoint
            status["checkpoint"] = {
                "uri": made.uri,
                "step": made.step,
                "time": _time(made.time),
            }
        if progress.restored_from is not None:
            status["restoredFrom"] = {
                "uri": progress.restored_from,
                "step": progress.resumed_from_step,
            }
        table = progress.trials
        if table is not None:
            status["sweep"] = progress_status.sweep(table).to_dict()
        if progress.result is not None:
            status["result"] = progress_status.result(progress).to_dict()
        if progress.report_uri is not None:
            status["reportUri"] = progress.report_uri
        self._status |= status
        self._write()

    @property
    def run(self) -> dict[str, Any]:
        """The TrainingRun as other commands read it."""
        return {**self._run, "status": self._status}

    def no_trial_runs(self) -> None:
        """The driver has ended."""
        if "sweep" in self._status:
            known = SweepStatus.model_validate(self._status["sweep"])
            self._status["sweep"] = progress_status.waiting(known).to_dict()
            self._write()

    def _cost(self, progress: Progress) -> dict[str, Any]:
        """What the run has used, over all its drivers: each reports its own seconds, from zero."""
        driver = (progress.attempt, progress.fencing_token)
        if driver != self._driver:
            self._driver, self._before, self._former = driver, self._used, self._newest
        own, resumed = progress.seconds, progress.resumed_from_step
        again = 0.0 if resumed is None else done_again(*self._former, resumed)
        if resumed is not None or progress.step:  # else its checkpoint is not restored yet
            self._newest = (own.productive * self._devices, resumed or 0, progress.step)
        of_driver = {
            "training": own.productive * self._devices - again,
            "saving": own.checkpoint * self._devices,
            "lost": (own.lost_work + own.recovery) * self._devices + again,
            "starting": own.startup * self._devices,
        }
        self._used = {
            cause: round(self._before.get(cause, 0.0) + spent, 1)
            for cause, spent in of_driver.items()
        }
        used = AcceleratorSeconds(**self._used)
        whole = round(sum(self._used.values()), 1)
        return Cost(unit=self._unit, total_seconds=whole, seconds=used).to_dict()

    def ended(self, phase: Phase, message: str = "") -> None:
        """This process trains the run no more.

        Args:
            phase: One of `ENDS`.
            message: Why, in a sentence.
        """
        kind = "Failed" if phase is Phase.FAILED else "Suspended"
        conditions = [] if phase is Phase.SUCCEEDED else [_condition(kind, "LocalRun", message)]
        self._status |= {"phase": phase.value, "conditions": conditions}
        self._status.pop("workers", None)
        if phase is not Phase.SUSPENDED:
            self._status["completionTime"] = _now()
        self._write()

    def _write(self) -> None:
        file = self._folder / _RECORD
        try:
            write(file, self._text())
        except OSError as error:
            self.problem = (
                f"{file} cannot be written ({error.strerror}): what other commands show of this "
                "run with --local is older; the training goes on"
            )
        else:
            self.problem = None

    def _text(self) -> str:
        return json.dumps(self.run)


def _phase(state: RunState) -> Phase:
    """Of a run whose driver is in this state."""
    if state is RunState.FAILED:
        return Phase.RECOVERING  # another attempt may follow
    # Ray's nodes are still there, which upload what was printed.
    return Phase.RUNNING if state.final else Phase(state.phase)


def folders(root: Path, name: str | None = None) -> list[Path]:
    """The folders of the local runs below `root`, the one that was begun or resumed last last.

    Args:
        root: Of `trainingrun run --folder`.
        name: Of runs of this name alone.
    """
    found = []
    for lock in root.glob(f"*/{_FOLDER}/{_LOCK}"):
        own, _, uid = lock.parent.parent.name.rpartition("-")
        if UID.fullmatch(uid) and name in (None, own):
            with contextlib.suppress(OSError):  # it was deleted meanwhile
                found.append((lock.stat().st_mtime_ns, lock.parent.parent))
    return [folder for _, folder in sorted(found)]


def trains(folder: Path) -> bool | None:
    """Whether a process trains the run of this folder now; None: nobody knows."""
    try:
        with (folder / _FOLDER / _LOCK).open() as lock:
            free = _locks(lock, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return _lives(folder) if free is None else not free


def _lives(folder: Path) -> bool | None:
    """The same where the file system has no locks; None: it is a process of another machine or user
    that has said last that it trains the run.
    """
    try:
        pid, machine = (folder / _FOLDER / _LOCK).read_text().split()
        return _holds(psutil.Process(int(pid)), folder) if machine == socket.gethostname() else None
    except psutil.NoSuchProcess:
        return False
    except (OSError, ValueError, psutil.Error):
        return None


def goes_on(folder: Path) -> bool:
    """Whether a process trains the run of this folder now, as far as that is known.

    Raises:
        UnreadableError: Nobody knows.
    """
    alive = trains(folder)
    if alive is not None:
        return alive
    found = _read(folder) or {}
    return (found.get("status") or {}).get("phase") not in ENDS


def stop(folder: Path) -> None:
    """End the process that trains the run of this folder as Ctrl-C does, and wait for its end.

    Raises:
        LocalError: None trains it, or none that this user may end here.
        UnreadableError: Nobody knows whether one does.
    """
    if not goes_on(folder):
        raise LocalError(f"no process trains the run of {folder} now; there is nothing to stop")
    process = _holder(folder)
    if process is None:
        if not goes_on(folder):
            return  # it has ended meanwhile
        raise LocalError(
            f"the process that trains the run of {folder} is none of this user on this machine; "
            "stop it where it was begun"
        )
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # else one that Ctrl-Z has stopped never sees it
    while _holder(folder) == process:  # another one may resume the run at once
        time.sleep(_POLL_S)


def _holder(folder: Path) -> psutil.Process | None:
    """The process that has the run's lock; None: it is none of this user on this machine.

    By its open file, and not by its PID alone: that is another process's once the one that trained
    has ended, or on another machine with the same disk.
    """
    try:
        pid, *_ = (folder / _FOLDER / _LOCK).read_text().split()
        process = psutil.Process(int(pid))
        return process if _holds(process, folder) else None
    except (OSError, ValueError, psutil.Error):
        return None


def _holds(process: psutil.Process, folder: Path) -> bool:
    """Whether a process has the lock of this folder open, as while it trains the run.

    Raises:
        psutil.Error: It has ended, or is another user's.
    """
    held = str((folder / _FOLDER / _LOCK).resolve())
    return any(each.path == held for each in process.open_files())


def read(folder: Path) -> dict[str, Any] | None:
    """The TrainingRun of a folder; None: there is no record of it.

    One whose process ended without saying so is suspended: nothing trains it, and it can be
    resumed.

    Raises:
        UnreadableError: It cannot be read, and may be there.
    """
    alive = trains(folder)  # first, so that the last thing that a process has written is read
    found = _read(folder)
    if found is None:
        return None
    status = found["status"]
    if alive is False and status.get("phase") not in ENDS:
        message = "no process trains it, and the last one has not said how it ended"
        status |= {
            "phase": Phase.SUSPENDED.value,
            "conditions": [_condition("Suspended", "LocalRun", message)],
        }
    return found


def all_runs(roots: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each local run that can be read with its own folder.

    Args:
        roots: Folders of runs, or the own ones of some.
    """
    for root in roots:
        for folder in (root, *folders(root)):
            with contextlib.suppress(UnreadableError):  # as another user's may be
                if (found := read(folder)) is not None:
                    yield folder, found


def delete(folder: Path) -> None:
    """Delete a run's folder with its checkpoints, and its logs.

    Raises:
        LocalError: A process trains it now, it is no run's, or it cannot be deleted.
        UnreadableError: Nobody knows whether one does.
    """
    if _read(folder) is None:
        raise LocalError(f"{folder} holds no run, or no longer; delete it yourself if it is to go")
    if goes_on(folder):
        name = folder.name.rpartition("-")[0]
        raise LocalError(
            f"a process trains the run of {folder}; stop it first, by `trainingrun suspend {name} "
            f"--folder {shlex.quote(str(folder))}`"
        )
    remove(folder)


def remove(folder: Path) -> None:
    """Delete a run's folder and its logs, whoever trains it.

    Raises:
        LocalError: It cannot be deleted.
    """
    uid = folder.name.rpartition("-")[2]
    try:
        shutil.rmtree(folder)
        for beside in ("logs", "scripts"):
            shutil.rmtree(folder.parent / beside / uid, ignore_errors=True)
    except OSError as error:
        raise LocalError(f"{folder} cannot be deleted: {error.strerror}") from None


def _in_use(folder: Path) -> LocalError:
    return LocalError(
        f"another process trains {folder} now; wait for its end, or leave --resume out to begin a "
        "new run"
    )


def _read(folder: Path) -> dict[str, Any] | None:
    """The record as it was written last; None: there is none.

    Raises:
        UnreadableError: There may be one.
    """
    file = folder / _FOLDER / _RECORD
    try:
        found = json.loads(_content(file))
        return found if isinstance(found["metadata"], dict) and found["status"] else None
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    except OSError as error:
        raise UnreadableError(
            f"{file} cannot be read ({error.strerror}), and nothing is known of its run; see that "
            "its disk answers, and that you may read it"
        ) from None


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        # Of NFS, where another machine has replaced the file: whoever opens the folder makes this
        # one ask for its names again.
        os.close(os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY))
        return file.read_bytes()


def _locks(file: IO[Any], kind: int) -> bool | None:
    """Whether the lock could be had; None: the file system has none."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _condition(kind: str, reason: str, message: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": _now(),
    }


def _now() -> str:
    return _time(time.time())


def _time(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%dT%H:%M:%SZ}"
