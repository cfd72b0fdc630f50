"""`logs`: what the ranks and the driver of a run print, from its pods or from its folder.

While pods of the run are there, their own logs are read, by the right that Kubernetes' `view` has.
Later, of former attempts, and of pods that were replaced, it is what the runtime has uploaded
(`store.kept_output`).
"""

import contextlib
import queue
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import typer

from ..api.status import Phase
from ..local import records
from ..local.terminal_text import duration, plain, plain_lines
from ..rendering import names
from . import following, views
from .common import ENDED, Endpoint, NameOrUri, seconds
from .errors import CliError, NotFoundError, UnreachableError
from .result_commands import Place, folder_of, in_cluster, on_this_machine
from .sources import Source, ThisMachine, source_of, taking

if TYPE_CHECKING:
    from trainingrun_runtime.store.bucket import Bucket
    from trainingrun_runtime.store.kept_output import Failed, Line, Part

    from .kube import Kube

SAME_WITHIN_S = 10.0
"""Seconds within which the equal lines of ranks are printed as one."""
_BUCKET_S = 15.0
"""For the folder, of which the lines of former pods are, beside those of the pods."""
_LATER_S = 2.0
"""Seconds between the times of one line in the folder and in the pod's log, at most."""
_POLL_S = 2.0
_BATCH_S = 0.5
_LAST_LOOKS = 2
"""Looks in a row that bring nothing new, after which a run that has ended has printed all."""
_LAST_LINES_S = 10.0
"""For the last lines of pods once the run has ended: that of a lost node never closes its log."""
_SILENT_S = 600.0
"""After which nobody is expected to write to a folder any more of whose run nothing else is known;
a driver writes its lease every 10 s, and the next one follows within minutes."""
_LABELED = re.compile(r"\[(driver|(?:trial (\d{1,9}) )?rank (\d{1,9}))\] (.*)", re.DOTALL)


class Printed(NamedTuple):
    """A line of a rank or of the driver."""

    time: float
    """Unix time in seconds."""
    rank: int | None
    """None: the driver."""
    text: str
    """Without the end of the line."""


@dataclass
class _Folded:
    """A line that one rank or more have printed."""

    first: Printed
    ranks: set[int] = field(default_factory=set)

    @property
    def label(self) -> str:
        if not self.ranks:
            return "driver"
        return f"rank{'s' if len(self.ranks) > 1 else ''} {_ranges(self.ranks)}"


def folded(lines: Iterable[Printed]) -> list[str]:
    """The lines with who has printed them; those that ranks have in common once.

    Args:
        lines: By their time.
    """
    found: list[_Folded] = []
    alike: dict[str, deque[_Folded]] = {}
    for line in lines:
        if line.rank is None:
            found.append(_Folded(line))
            continue
        others = alike.setdefault(line.text, deque())
        while others and line.time - others[0].first.time > SAME_WITHIN_S:
            others.popleft()
        one = next((each for each in others if line.rank not in each.ranks), None)
        if one is None:
            one = _Folded(line)
            found.append(one)
            others.append(one)
        one.ranks.add(line.rank)
    return [f"[{one.label}] {one.first.text}" for one in found]


def _ranges(ranks: set[int]) -> str:
    """As `0-3,5`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ",".join("-".join(map(str, run)) for run in runs)


@dataclass(frozen=True)
class Selection:
    """Which lines are wanted."""

    rank: int | None = None
    driver: bool = False
    trial: int | None = None
    attempt: int | None = None
    since_s: float | None = None
    grep: re.Pattern[str] | None = None
    tail: int = field(default=1000, compare=False)

    def takes(self, rank: int | None) -> bool:
        """Whether lines of that rank, or of the driver, are wanted."""
        if self.driver or self.rank is not None:
            return rank == self.rank if self.rank is not None else rank is None
        return True

    def wants(self, text: str) -> bool:
        """Whether a line is wanted that says this."""
        return self.grep is None or self.grep.search(text) is not None

    @property
    def since(self) -> float:
        """Unix time in seconds; older lines are not wanted."""
        return time.time() - self.since_s if self.since_s is not None else 0


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(logs)


@taking(source_of)
def logs(
    source: Source,
    name: NameOrUri,
    rank: Annotated[int | None, typer.Option(min=0, help="Of this rank alone.")] = None,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Number of the attempt.", show_default="the last one"),
    ] = None,
    driver: Annotated[bool, typer.Option("--driver", help="Of the driver alone.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is printed from now on.")
    ] = False,
    since: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="DURATION", help="Not older than 10m, 2h …"),
    ] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Lines that contain this alone.")
    ] = None,
    tail: Annotated[
        int, typer.Option(min=1, help="Lines from the end of each rank and of the driver.")
    ] = 1000,
    trial: Annotated[
        int | None, typer.Option(min=1, help="Number of the trial of a sweep.")
    ] = None,
    endpoint: Endpoint = None,
) -> None:
    """Print what the ranks and the driver print or have printed, also once their pods are gone."""
    if driver and rank is not None:
        raise CliError("--driver and --rank exclude each other; leave one of them out")
    try:
        pattern = re.compile(grep) if grep is not None else None
    except re.error as error:
        raise CliError(f"--grep {grep} is no regular expression: {error}") from None
    selection = Selection(rank, driver, trial, attempt, since, pattern, tail)
    if "://" in name:
        _of_folder(Place(name, endpoint, trial=trial), selection, follow)
        return
    if isinstance(source, ThisMachine):
        place = on_this_machine(source, name, trial)
        _require_rank(place.run, rank)
        _of_folder(place, selection, follow)
        return
    kube, followed = source.kube, source.followed(name)
    run = _begun(followed, name, follow)
    _require_rank(run, rank)
    status = run.get("status") or {}
    newest = status.get("attempt")
    under_way = status.get("phase") not in ENDED and attempt in (None, newest)
    if under_way and (pods := kube.pods(run)):
        found = _PodLogs(kube, selection)
        lines = found.now(pods)
        if found.empty or (gone := _gone(run, pods)):
            former = f"former pods of {name}" if found.empty else ", ".join(gone)
            lines = together(lines, _of_former_pods(run, former, selection, endpoint), tail)
        _print(sorted(lines, key=lambda line: line.time))
        if follow:
            found.follow(followed)
        return
    _of_folder(in_cluster(run, [], endpoint, trial), selection, follow, followed)


def _require_rank(run: Mapping[str, Any] | None, rank: int | None) -> None:
    """Refuse the number of a rank that the run cannot have.

    Raises:
        CliError: with one sentence.
    """
    count = (((run or {}).get("spec") or {}).get("workers") or {}).get("count")
    if rank is not None and isinstance(count, int) and rank >= count:
        has = "one rank, 0" if count == 1 else f"{count} ranks, 0 to {count - 1}"
        raise CliError(f"the run has {has}, so there is no rank {rank}; name another with --rank")


def _begun(followed: following.Followed, name: str, follow: bool) -> dict[str, Any]:
    """The run, once it has begun to train; who follows waits for that.

    Raises:
        CliError: It has not begun, or it has ended before.
    """
    said = False
    for run in following.states(followed) if follow else [followed.ask()]:
        if (run.get("status") or {}).get("attempt"):
            return run
        if follow and not said:
            said = True
            typer.echo(f"{name} is {views.phase(run)}: nothing is printed yet.", err=True)
    raise CliError(f"{name} has not begun to train, so it has printed nothing yet")


def _gone(run: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of pods that the running attempt has lost, as far as its status has them."""
    status = run.get("status") or {}
    began = next(
        (
            _unix(str(one.get("startTime")))
            for one in status.get("attempts") or []
            if one.get("number") == status.get("attempt")
        ),
        0.0,
    )
    history = (status.get("disruptions") or {}).get("history") or []
    lost = (loss for loss in history if _unix(str(loss.get("time"))) >= began)
    here = {pod["metadata"]["name"] for pod in pods}
    return sorted({plain(name) for loss in lost for name in loss.get("pods") or []} - here)


def _of_former_pods(
    run: Mapping[str, Any], former: str, selection: Selection, endpoint: str | None
) -> list[Printed]:
    """What the folder has of the running attempt; nothing, and a sentence, where it cannot be read.

    Args:
        run: The TrainingRun.
        former: The pods of which something is missing.
        selection: Of what is wanted.
        endpoint: Of the bucket.
    """
    found: list[Printed] = []
    reason = f"the bucket has not answered within {_BUCKET_S:.0f} s"

    def read() -> None:
        nonlocal reason
        try:
            with folder_of(in_cluster(run, [], endpoint, selection.trial)) as folder:
                attempt = (run.get("status") or {}).get("attempt")
                found.extend(_read(folder, replace(selection, attempt=attempt))[1])
            reason = ""
        except CliError as error:
            reason = str(error)

    # Whoever has no credentials of the bucket waits for the pods' lines alone.
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(_BUCKET_S)
    if reason:
        typer.echo(
            f"What {former} printed is not shown; it is in {names.folder_of(run)}, which `logs` "
            f"takes as well: {plain(reason)}",
            err=True,
        )
        return []
    return found


def together(of_pods: Iterable[Printed], of_folder: Iterable[Printed], tail: int) -> list[Printed]:
    """The lines of pods, and those of the folder that no pod has, the last ones of each rank.

    The folder has a line's time as it was read, and the kubelet just after that.
    """
    here: dict[tuple[int | None, str], deque[float]] = {}
    by_rank: dict[int | None, list[Printed]] = {}
    for line in sorted(of_pods, key=lambda line: line.time):
        here.setdefault((line.rank, line.text), deque()).append(line.time)
        by_rank.setdefault(line.rank, []).append(line)
    for line in sorted(of_folder, key=lambda line: line.time):
        same = here.get((line.rank, line.text), deque())
        while same and same[0] < line.time - _LATER_S:
            same.popleft()
        if same and same[0] <= line.time + _LATER_S:
            same.popleft()
        else:
            by_rank.setdefault(line.rank, []).append(line)
    ordered = (sorted(lines, key=lambda line: line.time) for lines in by_rank.values())
    return [line for lines in ordered for line in lines[-tail:]]


def _print(lines: Iterable[Printed]) -> None:
    text = "".join(f"{line}\n" for line in folded(lines))
    # Into a file or a pipe the characters go unchanged.
    typer.echo(plain_lines(text) if sys.stdout.isatty() else text, nl=False)


def _of_folder(
    place: Place,
    selection: Selection,
    follow: bool,
    followed: following.Followed | None = None,
) -> None:
    """Print what is in a run's folder, and with `follow` what is added until the run ends.

    `followed`: that run; None: what is known of it is in the folder.
    """
    with folder_of(place) as run:
        from trainingrun_runtime.results import open_trial
        from trainingrun_runtime.store import kept_output

        bucket = run
        if selection.trial is not None and (trial := open_trial(run, selection.trial)) is not None:
            bucket = trial.bucket
        parts, lines = _read(bucket, selection)
        everything = selection == Selection(trial=selection.trial, attempt=selection.attempt)
        if everything and not follow and parts:
            ended = parts[0].source.attempt
            _print_failed(kept_output.failed(bucket, ended), _why_ended(place.run, ended))
        _print(lines)
        if follow:
            _follow_folder(bucket, parts, selection, followed or _by_its_folder(run))
        elif selection.rank is not None and _never_printed(parts, selection.rank):
            raise CliError(
                f"rank {selection.rank} has printed nothing in attempt {parts[0].source.attempt}; "
                "see which have by leaving out --rank"
            )
        elif not lines:
            of = f" of attempt {selection.attempt}" if selection.attempt is not None else ""
            typer.echo(f"There is nothing of this{of} in {bucket.root}.", err=True)


def _never_printed(parts: "Sequence[Part]", rank: int) -> bool:
    """Whether others have printed in an attempt, and this rank has not."""
    return bool(parts) and all(part.source.rank != rank for part in parts)


def _by_its_folder(run: "Bucket") -> following.Followed:
    """A run of which nothing but its folder is known."""
    if run.root.startswith("file://"):
        own = Path(unquote(urlsplit(run.root).path))
        if records.read(own) is not None:
            return following.of_folder(own)
    return following.Followed(lambda: _state_in(run), frozenset(ENDED))


def _state_in(run: "Bucket") -> dict[str, Any]:
    """What the folder says of the run; whoever has written nothing for long has ended.

    A run that fails in its bucket may be tried again by its operator, which nobody knows here.
    """
    from trainingrun_runtime.store import kept_output, lease, run_result

    newest = lease.newest_document(run)
    phase = Phase.RUNNING
    if run_result.read(run) is not None:
        phase = Phase.SUCCEEDED
    else:
        printed = max((part.time for part in kept_output.parts(run)), default=0.0)
        written = max(lease.time_of(newest, "renewed"), printed)
        if time.time() - written > _SILENT_S:
            phase = Phase.FAILED
            typer.echo(
                f"Nothing was written to {run.root} for {duration(time.time() - written)}, so "
                "nothing more is waited for; `logs NAME --follow` asks the cluster.",
                err=True,
            )
    status = {"phase": phase.value, "attempt": lease.attempt_of(newest)}
    return {"metadata": {"name": run.root}, "status": status}


def _read(bucket: "Bucket", selection: Selection) -> "tuple[list[Part], list[Printed]]":
    """The parts of the attempt, and the wanted lines."""
    from trainingrun_runtime.store import kept_output

    parts = kept_output.parts(bucket, selection.attempt)
    attempts = sorted({part.source.attempt for part in parts})
    if selection.attempt is None and attempts:
        parts = [part for part in parts if part.source.attempt == attempts[-1]]
    lines = kept_output.read(
        bucket,
        [part for part in parts if selection.takes(part.source.rank)],
        since=selection.since,
        tail=selection.tail,
        wanted=lambda line: selection.wants(line.text),
    )
    return parts, [_printed(line) for line in lines]


def _why_ended(run: Mapping[str, Any] | None, attempt: int) -> str:
    """What the status says of an attempt that has failed or was lost; "": nothing."""
    attempts = ((run or {}).get("status") or {}).get("attempts") or []
    found: Mapping[str, Any] = next((one for one in attempts if one.get("number") == attempt), {})
    return str(found.get("message") or "") if found.get("outcome") in ("Failed", "Lost") else ""


def _print_failed(failed: "Failed | None", why: str) -> None:
    """Print first what the rank has printed last that failed first.

    Where the driver has named none, as it was ended by the operator, that is what the status says.
    """
    if failed is None:
        if why:
            typer.echo(f"==> the attempt ended: {plain(why)} <==")
        return
    text = f"==> rank {failed.rank} failed first: {plain(failed.message)} <==\n"
    text += "".join(f"[rank {failed.rank}] {line}\n" for line in failed.lines)
    text += "==> all ranks and the driver <==\n"
    typer.echo(plain_lines(text) if sys.stdout.isatty() else text, nl=False)


def _printed(line: "Line") -> Printed:
    return Printed(line.time, line.source.rank, line.text)


def _follow_folder(
    bucket: "Bucket", parts: "list[Part]", selection: Selection, followed: following.Followed
) -> None:
    from trainingrun_runtime.store import kept_output

    sizes = {part.key: part.size for part in parts}
    shown = {
        part.key: len(kept_output.read(bucket, [part]))
        for part in _newest_of_each(parts)
        if part.size
    }

    def look() -> bool:
        """Print what is new; whether anything is."""
        lines: list[Printed] = []
        for part in kept_output.parts(bucket, selection.attempt):
            if part.size and sizes.get(part.key) != part.size and selection.takes(part.source.rank):
                all_of_it = list(map(_printed, kept_output.read(bucket, [part])))
                lines += all_of_it[shown.get(part.key, 0) :]
                shown[part.key] = len(all_of_it)
            sizes[part.key] = part.size
        lines.sort(key=lambda line: line.time)
        _print(line for line in lines if selection.wants(line.text))
        return bool(lines)

    def pause() -> None:
        time.sleep(_POLL_S)
        look()

    for _ in _until_its_end(followed, selection, pause):
        pass
    nothing = 0  # what has ended uploads its last lines
    while nothing < _LAST_LOOKS:
        time.sleep(_POLL_S)
        nothing = 0 if look() else nothing + 1


def _until_its_end(
    followed: following.Followed, selection: Selection, pause: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """The run as it is now until it ends, or the attempt that is wanted alone."""
    suspended = False
    for run in following.states(followed, pause):
        yield run
        attempt = (run.get("status") or {}).get("attempt") or 0
        if selection.attempt is not None and attempt > selection.attempt:
            return
        if (views.phase(run) == Phase.SUSPENDED) is not suspended:
            suspended = not suspended
            if suspended and Phase.SUSPENDED not in followed.ends:
                name = run["metadata"]["name"]
                typer.echo(f"{name} is suspended; its lines follow once it is resumed.", err=True)


def _newest_of_each(parts: "list[Part]") -> "list[Part]":
    return list({part.source: part for part in parts if part.size}.values())


class _PodLogs:
    """The logs of a run's pods."""

    def __init__(self, kube: "Kube", selection: Selection) -> None:
        self._kube, self._selection = kube, selection
        self._read_up_to: dict[str, str] = {}  # by pod UID: the time of the last line
        self._lines: queue.Queue[Printed] = queue.Queue()
        self._errors: list[CliError] = []
        self._followed: dict[str, threading.Thread] = {}
        self.empty = True
        """Whether no line was wanted so far."""

    def now(self, pods: list[dict[str, Any]]) -> list[Printed]:
        """What the pods have printed until now."""
        found: list[Printed] = []
        for pod in pods:
            by_rank: dict[int | None, deque[Printed]] = {}
            for line in self._read(pod, since_s=self._selection.since_s):
                kept = by_rank.setdefault(line.rank, deque(maxlen=self._selection.tail))
                kept.append(line)
            for each in by_rank.values():
                found += each
        return found

    def _read(self, pod: Mapping[str, Any], **how: Any) -> Iterator[Printed]:
        """The wanted lines of a pod that were not read before."""
        from .kube import NoLogError

        uid = pod["metadata"]["uid"]
        try:
            for text in self._kube.pod_log(pod, **how):
                stamp, _, rest = text.partition(" ")
                if stamp <= self._read_up_to.get(uid, ""):
                    continue
                self._read_up_to[uid] = stamp
                if (line := self._wanted(stamp, rest)) is not None:
                    self.empty = False
                    yield line
        except NotFoundError:
            pass  # it is gone
        except NoLogError as error:
            if not how.get("follow"):
                typer.echo(f"{plain(error)}.", err=True)

    def _wanted(self, stamp: str, text: str) -> Printed | None:
        labeled = _LABELED.fullmatch(text)
        if labeled is None:
            return None  # of Ray itself
        rank = int(labeled[3]) if labeled[3] else None
        trial = int(labeled[2]) if labeled[2] else None
        if not self._selection.takes(rank) or self._selection.trial not in (None, trial):
            return None
        return Printed(_unix(stamp), rank, labeled[4]) if self._selection.wants(text) else None

    def follow(self, followed: following.Followed) -> None:
        """Print what is printed from now on, until the run has ended.

        Raises:
            CliError: The API server refuses it.
        """

        def pause() -> None:
            until = time.monotonic() + _POLL_S
            while time.monotonic() < until:
                self._print_waiting()

        for run in _until_its_end(followed, self._selection, pause):
            with contextlib.suppress(UnreachableError):  # asked again
                for pod in self._kube.pods(run):
                    self._begin(pod)
        until = time.monotonic() + _LAST_LINES_S
        while any(thread.is_alive() for thread in self._followed.values()) or self._lines.qsize():
            if self._print_waiting():
                until = time.monotonic() + _LAST_LINES_S
            elif time.monotonic() > until:
                return

    def _print_waiting(self) -> bool:
        """Print what has come within a moment; whether there was anything.

        Raises:
            CliError: The API server refuses it.
        """
        lines = sorted(self._waiting(), key=lambda line: line.time)
        _print(lines)
        if self._errors:
            raise self._errors[0]
        return bool(lines)

    def _begin(self, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        before = self._followed.get(uid)
        has_ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if before is not None and (before.is_alive() or has_ended):
            return
        thread = threading.Thread(target=self._follow_pod, args=(pod,), daemon=True)
        self._followed[uid] = thread
        thread.start()

    def _follow_pod(self, pod: Mapping[str, Any]) -> None:
        before = self._read_up_to.get(pod["metadata"]["uid"])
        since_s = time.time() - _unix(before) + 1 if before else self._selection.since_s
        try:
            for line in self._read(pod, follow=True, since_s=since_s):
                self._lines.put(line)
        except UnreachableError:
            pass  # the connection was closed; it is opened again
        except CliError as error:
            self._errors.append(error)

    def _waiting(self) -> Iterator[Printed]:
        until = time.monotonic() + _BATCH_S
        while (left := until - time.monotonic()) > 0:
            try:
                yield self._lines.get(timeout=left)
            except queue.Empty:
                return


def _unix(stamp: str) -> float:
    """Unix time of a kubelet's stamp, which has nanoseconds."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", stamp)).timestamp()
    except ValueError:
        return 0.0
