"""What the ranks and the driver of a run print, from its pods or from its folder.

While pods of the run are there, their own logs are read, by the right that Kubernetes' `view` has.
Later, of former attempts, and of pods that were replaced, it is what the runtime has uploaded
(`store.kept_output`).
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..api.errors import RunError
from ..local.run_line import phase
from ..local.terminal_text import plain
from ..rendering import names
from . import following, kept_logs
from .log_lines import Batch, Printed, Selection, together, unix
from .places import Say, folder_of, in_cluster, on_this_machine
from .pod_logs import PodLogs
from .sources import ENDED, Source, ThisMachine

_BUCKET_S = 15.0
"""For the folder, of which the lines of former pods are, beside those of the pods."""


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
    trial, attempt = selection.trial, selection.attempt
    if isinstance(source, ThisMachine):
        place = on_this_machine(source, name, trial)
        _require_rank(place.run, selection.rank)
        yield from kept_logs.batches(place, selection, follow, say)
        return
    kube, followed = source.kube, source.followed(name)
    run = _begun(followed, name, follow, say)
    _require_rank(run, selection.rank)
    status = run.get("status") or {}
    newest = status.get("attempt")
    under_way = status.get("phase") not in ENDED and attempt in (None, newest)
    if under_way and (pods := kube.pods(run)):
        found = PodLogs(kube, selection, say)
        lines = found.now(pods)
        if found.empty or (gone := _gone(run, pods)):
            former = f"former pods of {name}" if found.empty else ", ".join(gone)
            kept = _of_former_pods(run, former, selection, endpoint, say)
            lines = together(lines, kept, selection.tail)
        yield Batch(sorted(lines, key=lambda line: line.time))
        if follow:
            yield from found.follow(followed)
        return
    yield from kept_logs.batches(
        in_cluster(run, [], endpoint, trial), selection, follow, say, followed
    )


def _require_rank(run: Mapping[str, Any] | None, rank: int | None) -> None:
    """Refuse the number of a rank that the run cannot have.

    Raises:
        RunError: with one sentence.
    """
    count = (((run or {}).get("spec") or {}).get("workers") or {}).get("count")
    if rank is not None and isinstance(count, int) and rank >= count:
        has = "one rank, 0" if count == 1 else f"{count} ranks, 0 to {count - 1}"
        raise RunError(f"the run has {has}, so there is no rank {rank}; name another with --rank")


def _begun(followed: following.Followed, name: str, follow: bool, say: Say) -> dict[str, Any]:
    """The run, once it has begun to train; who follows waits for that.

    Raises:
        RunError: It has not begun, or it has ended before.
    """
    said = False
    for run in following.states(followed) if follow else [followed.ask()]:
        if (run.get("status") or {}).get("attempt"):
            return run
        if follow and not said:
            said = True
            say(f"{name} is {phase(run)}: nothing is printed yet.")
    raise RunError(f"{name} has not begun to train, so it has printed nothing yet")


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
