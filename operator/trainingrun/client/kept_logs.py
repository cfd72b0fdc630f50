"""What the runtime has uploaded of what a run printed: the only lines once its pods are gone."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..api.errors import RunError
from ..api.status import Phase
from ..local import records
from ..local.run_line import phase
from ..local.terminal_text import duration, plain
from . import following, log_lines
from .errors import NotBegunError, UnreachableError, bucket_access
from .log_lines import Batch, Printed, Selection, until_its_end
from .places import Place, Say, folder_of
from .sources import ENDED

if TYPE_CHECKING:
    from trainingrun_runtime.store.bucket import Bucket
    from trainingrun_runtime.store.kept_output import Failed, Line, Part

_LAST_LOOKS = 2
"""Looks in a row that bring nothing new, after which a run that has ended has printed all."""
_SILENT_S = 600.0
"""After which nobody is expected to write to a folder any more of whose run nothing else is known;
a driver writes its lease every 10 s, and the next one follows within minutes."""


def batches(
    place: Place,
    selection: Selection,
    follow: bool,
    say: Say,
    followed: following.Followed | None = None,
) -> Iterator[Batch]:
    """What is in a run's folder, and with `follow` what is added until the run ends.

    `followed`: that run; None: what is known of it is in the folder.
    """
    with contextlib.ExitStack() as opened:
        run = _begun(opened, place) if follow else opened.enter_context(folder_of(place))
        from trainingrun_runtime.results import open_trial
        from trainingrun_runtime.store import kept_output

        bucket = run
        if selection.trial is not None and (trial := open_trial(run, selection.trial)) is not None:
            bucket = trial.bucket
        parts, lines = read(bucket, selection)
        heading = ""
        everything = selection == Selection(trial=selection.trial, attempt=selection.attempt)
        if everything and not follow and parts:
            ended = parts[0].source.attempt
            heading = _heading(kept_output.failed(bucket, ended), _why_ended(place.run, ended))
        yield Batch(lines, heading)
        if follow:
            known = followed or _by_its_folder(run, say)
            yield from _followed(bucket, parts, selection, known, say)
        elif selection.rank is not None and _never_printed(parts, selection.rank):
            raise RunError(
                f"rank {selection.rank} has printed nothing in attempt {parts[0].source.attempt}; "
                "see which have by leaving out --rank"
            )
        elif not lines and selection.tail:
            of = f" of attempt {selection.attempt}" if selection.attempt is not None else ""
            say(f"There is nothing of this{of} in {bucket.root}.")


def _begun(opened: contextlib.ExitStack, place: Place) -> "Bucket":
    """The folder of the run; that of a local run that has not begun is waited for."""
    own = Path(place.uri)
    if "://" not in place.uri and records.read(own) is not None:
        for _ in following.states(following.of_folder(own)):
            with contextlib.suppress(NotBegunError):
                return opened.enter_context(folder_of(place))
    return opened.enter_context(folder_of(place))


def _never_printed(parts: "Sequence[Part]", rank: int) -> bool:
    """Whether others have printed in an attempt, and this rank has not."""
    return bool(parts) and all(part.source.rank != rank for part in parts)


def _by_its_folder(run: "Bucket", say: Say) -> following.Followed:
    """A run of which nothing but its folder is known."""
    if run.root.startswith("file://"):
        own = Path(unquote(urlsplit(run.root).path))
        if records.read(own) is not None:
            return following.of_folder(own)

    def ask() -> dict[str, Any]:
        with _patiently():
            return _state_in(run, say)

    return following.Followed(ask, frozenset(ENDED))


@contextlib.contextmanager
def _patiently() -> Iterator[None]:
    """An error of the bucket is one that may pass, as of an API server that is away."""
    try:
        with bucket_access():
            yield
    except RunError as error:
        raise UnreachableError(str(error)) from None


def _state_in(run: "Bucket", say: Say) -> dict[str, Any]:
    """What the folder says of the run; whoever has written nothing for long has ended.

    A run that fails in its bucket may be tried again by its operator, which nobody knows here.

    Raises:
        StorageError: The store did not answer, or something else did.
    """
    from trainingrun_runtime.store import kept_output, lease, run_result

    token = lease.newest_fencing_token(run)
    if not token:
        raise lease.not_listed(run, f"{lease.FOLDER}/")
    newest = lease.document(run, token)
    phase = Phase.RUNNING
    if run_result.read(run) is not None:
        phase = Phase.SUCCEEDED
    else:
        printed = max((part.time for part in kept_output.parts(run)), default=0.0)
        written = max(lease.time_of(newest, "renewed"), printed)
        if time.time() - written > _SILENT_S:
            phase = Phase.FAILED
            say(
                f"Nothing was written to {run.root} for {duration(time.time() - written)}, so "
                "nothing more is waited for; `logs NAME --follow` asks the cluster."
            )
    status = {"phase": phase.value, "attempt": lease.attempt_of(newest)}
    return {"metadata": {"name": run.root}, "status": status}


def read(bucket: "Bucket", selection: Selection) -> "tuple[list[Part], list[Printed]]":
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


def _heading(failed: "Failed | None", why: str) -> str:
    """What the rank has printed last that failed first.

    Where the driver has named none, as it was ended by the operator, that is what the status says.
    """
    if failed is None:
        if why:
            return f"==> the attempt ended: {plain(why)} <==\n"
        return ""
    text = f"==> rank {failed.rank} failed first: {plain(failed.message)} <==\n"
    text += "".join(f"[rank {failed.rank}] {line}\n" for line in failed.lines)
    return text + "==> all ranks and the driver <==\n"


def _printed(line: "Line") -> Printed:
    return Printed(line.time, line.source.rank, line.text)


def _followed(
    bucket: "Bucket",
    parts: "list[Part]",
    selection: Selection,
    followed: following.Followed,
    say: Say,
) -> Iterator[Batch]:
    from trainingrun_runtime.store import kept_output

    first = parts[0].source.attempt if parts else 0
    sizes = {part.key: part.size for part in parts}
    shown = {
        part.key: len(kept_output.read(bucket, [part]))
        for part in _newest_of_each(parts)
        if part.size
    }

    answered_at = time.monotonic()

    def add_new(lines: list[Printed]) -> None:
        for part in kept_output.parts(bucket, selection.attempt):
            if part.source.attempt < first:
                continue  # of a former attempt, which nobody has asked for
            if part.size and sizes.get(part.key) != part.size and selection.takes(part.source.rank):
                all_of_it = list(map(_printed, kept_output.read(bucket, [part])))
                lines += all_of_it[shown.get(part.key, 0) :]
                shown[part.key] = len(all_of_it)
            sizes[part.key] = part.size

    def new() -> list[Printed] | None:
        """The next lines; None: the bucket is away."""
        nonlocal answered_at
        lines: list[Printed] = []
        try:
            with _patiently():
                add_new(lines)
            answered_at = time.monotonic()
        except UnreachableError:
            if not lines:
                if time.monotonic() - answered_at > following.AWAY_S:
                    raise
                return None
        return sorted(lines, key=lambda line: line.time)

    def wanted(lines: list[Printed] | None) -> Batch:
        return Batch([line for line in lines or () if selection.wants(line.text)])

    for run in until_its_end(followed, selection, say):
        if run is None or phase(run) not in followed.ends:
            time.sleep(log_lines.POLL_S)
            yield wanted(new())
    nothing = 0  # what has ended uploads its last lines
    while nothing < _LAST_LOOKS:
        time.sleep(log_lines.POLL_S)
        lines = new()
        if lines is not None:
            nothing = 0 if lines else nothing + 1
        yield wanted(lines)


def _newest_of_each(parts: "list[Part]") -> "list[Part]":
    return list({part.source: part for part in parts if part.size}.values())
