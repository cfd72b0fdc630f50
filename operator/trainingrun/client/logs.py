"""What the ranks and the driver of a run print, from its pods or from its folder.

While pods of the run are there, their own logs are read, by the right that Kubernetes' `view` has.
Later, of former attempts, and of pods that were replaced, it is what the runtime has uploaded
(`store.kept_output`).
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..api.errors import RunError
from ..local.run_line import phase
from ..local.terminal_text import plain
from ..rendering import names
from . import following, kept_logs
from .errors import NotBegunError
from .log_lines import Batch, Printed, Selection, together, unix
from .places import Say, folder_of, in_cluster, on_this_machine
from .pod_logs import PodLogs
from .sources import ENDED, Source, ThisMachine

if TYPE_CHECKING:
    from .kube import Kube

_BUCKET_S = 15.0
"""For the folder, of which the lines of former pods are, beside those of the pods."""
_NOTHING_YET = "nothing is printed yet"


def of_run(
    source: Source, name: str, selection: Selection, follow: bool, endpoint: str | None, say: Say
) -> Iterator[Batch]:
    """The lines of a run that are wanted, and with `follow` those that follow until it ends.

    Args:
        source: Where the run is.
        name: Of the run.
        selection: Of the lines.
        follow: Whether to go on.
        endpoint: URL of the bucket's service as this machine reaches it.
        say: Takes sentences about lines that are not there.

    Raises:
        RunError: There is no such run or rank, or its lines cannot be read.
    """
    trial = selection.trial
    if isinstance(source, ThisMachine):
        place = on_this_machine(source, name, trial)
        _require_rank(place.run, selection.rank)
        yield from kept_logs.batches(place, selection, follow, say)
        return
    kube, followed = source.kube, source.followed(name)
    run, pods = _begun(kube, followed, name, selection, follow, endpoint, say)
    if not pods:
        place = in_cluster(run, [], endpoint, trial)
        yield from kept_logs.batches(place, selection, follow, say, followed)
        return
    found = PodLogs(kube, selection, say)
    lines = found.now(pods)
    rotated = (f"{plain(name)} (before its log was rotated)" for name in found.rotated)
    without = sorted({*_gone(run, pods), *map(plain, found.unread.values()), *rotated})
    if found.empty or without:
        former = ", ".join(without) or f"former pods of {name}"
        kept = _of_former_pods(run, former, selection, endpoint, say)
        lines = together(lines, kept, selection.tail)
    yield Batch(sorted(lines, key=lambda line: line.time))
    if follow:
        yield from found.follow(followed, lines)


def _require_rank(run: Mapping[str, Any] | None, rank: int | None) -> None:
    """Refuse the number of a rank that the run cannot have.

    Raises:
        RunError: with one sentence.
    """
    count = (((run or {}).get("spec") or {}).get("workers") or {}).get("count")
    if rank is not None and isinstance(count, int) and rank >= count:
        has = "one rank, 0" if count == 1 else f"{count} ranks, 0 to {count - 1}"
        raise RunError(f"the run has {has}, so there is no rank {rank}; name another with --rank")


def _begun(
    kube: "Kube",
    followed: following.Followed,
    name: str,
    selection: Selection,
    follow: bool,
    endpoint: str | None,
    say: Say,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run, once it has begun to train, and its pods; without pods its folder has the lines.

    Who follows waits for that. A run has its attempt while it is queued and until its pods are
    there, so it has begun once there are pods, or a folder, or it has ended.

    Raises:
        RunError: It has not begun, or it has ended before.
    """
    said, waits = "", _NOTHING_YET
    for run in following.states(followed) if follow else [followed.ask()]:
        _require_rank(run, selection.rank)
        status = run.get("status") or {}
        if attempt := status.get("attempt"):
            if status.get("phase") in ENDED or selection.attempt not in (None, attempt):
                return run, []
            is_last = not follow or phase(run) in followed.ends
            try:
                pods = kube.pods(run)
            except RunError as error:
                if is_last or not following.passes(error):
                    raise
                continue
            if pods or is_last:
                return run, pods
            # A folder that cannot be read here is not tried again: its pods may be there soon.
            if waits == _NOTHING_YET and not (waits := _without_folder(run, selection, endpoint)):
                return run, []
        if follow and said != waits:
            said = waits
            say(f"{name} is {phase(run)}: {waits}.")
    raise RunError(f"{name} has not begun to train, so it has printed nothing yet")


def _without_folder(run: Mapping[str, Any], selection: Selection, endpoint: str | None) -> str:
    """What is said of a run that has neither pods nor a folder; "": it has a folder."""
    try:
        with folder_of(in_cluster(run, [], endpoint, selection.trial)):
            return ""
    except NotBegunError:
        return _NOTHING_YET
    except RunError as error:  # such as a claim that is not mounted here
        return f"its pods are waited for, as its folder cannot be read here: {plain(str(error))}"


def _gone(run: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of pods that the running attempt has lost, as far as its status has them."""
    status = run.get("status") or {}
    began = next(
        (
            unix(str(one.get("startTime")))
            for one in status.get("attempts") or []
            if one.get("number") == status.get("attempt")
        ),
        0.0,
    )
    history = (status.get("disruptions") or {}).get("history") or []
    lost = (loss for loss in history if unix(str(loss.get("time"))) >= began)
    here = {pod["metadata"]["name"] for pod in pods}
    return sorted({plain(name) for loss in lost for name in loss.get("pods") or []} - here)


def _of_former_pods(
    run: Mapping[str, Any], former: str, selection: Selection, endpoint: str | None, say: Say
) -> list[Printed]:
    """What the folder has of the running attempt; nothing, and a sentence, where it cannot be read.

    Args:
        run: The TrainingRun.
        former: The pods of which something is missing.
        selection: Of what is wanted.
        endpoint: Of the bucket.
        say: Takes that sentence.
    """
    found: list[Printed] = []
    reason = f"the bucket has not answered within {_BUCKET_S:.0f} s"

    def read() -> None:
        nonlocal reason
        try:
            with folder_of(in_cluster(run, [], endpoint, selection.trial)) as folder:
                attempt = (run.get("status") or {}).get("attempt")
                found.extend(kept_logs.read(folder, replace(selection, attempt=attempt))[1])
            reason = ""
        except NotBegunError:
            reason = ""  # nothing is printed yet
        except RunError as error:
            reason = str(error)

    # Whoever has no credentials of the bucket waits for the pods' lines alone.
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(_BUCKET_S)
    if reason:
        say(
            f"What {former} printed is not shown; it is in {names.folder_of(run)}, which `logs` "
            f"takes as well: {plain(reason)}"
        )
        return []
    return found
