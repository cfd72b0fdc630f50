"""What the commands print of runs, ranks, trials, metrics and checkpoints. Pure.

Any field of a status may be missing, as in a new run. `width` is the terminal's; None: no limit.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trainingrun_protocol.plain_text import size
from trainingrun_protocol.progress import MOST_RANKS, TrialState

from ..api.status import Phase
from ..client.places import last_seen
from ..client.sources import ENDED
from ..local import terminal_text
from ..local.run_line import (
    Run,
    is_measured_now,
    last_report,
    measured_warnings,
    options,
    phase,
    progress_line,
    reported,
    step,
    time_left,
    warnings,
)
from ..local.terminal_text import duration, gib, plain, seconds

if TYPE_CHECKING:
    from trainingrun_runtime.store.manifest import Manifest

Rank = Mapping[str, Any]
Trial = Mapping[str, Any]
"""As the API server gives them."""


_SHOWN_LOSSES = 5
"""Losses that `get` prints, the newest."""
_UNSEEN_S = 30.0
"""An operator sees a new run within seconds, also one that begins just now."""
_TRIAL_STATES = ("succeeded", "running", "pending", "stopped", "failed")
"""Counts in status.sweep, as `get` prints them."""


def listing(runs: Sequence[Run], now: datetime, with_namespace: bool, width: int | None) -> str:
    """One line per run, as kubectl shows them, with its namespace where that is wanted.

    Where a run's number of workers may change, a last column has those that train, of how many;
    where a run has been silent for long, one says since when.
    """
    found = [cells(run, now) for run in runs]
    left_out = {head: not any(one[head] for one in found) for head in ("WORKERS", "REPORTED")}
    left_out["NAMESPACE"] = not with_namespace
    heads = [head for head in cells({"metadata": {}}, now) if not left_out.get(head)]
    rows = [[one[head] for head in heads] for one in found]
    return terminal_text.table(heads, rows, width, keys=2 if with_namespace else 1)


def cells(run: Run, now: datetime) -> dict[str, str]:
    """What a list says of a run, by the heads of its columns."""
    status, metadata = run.get("status") or {}, run["metadata"]
    return {
        "NAMESPACE": metadata.get("namespace", ""),
        "NAME": metadata.get("name", ""),
        "PHASE": phase(run),
        "PROGRESS": _percent(status.get("progress", {}).get("percent")),
        "STEP": step(status),
        "ATTEMPT": str(status.get("attempt", "") or ""),
        "PREEMPTIONS": str(status.get("disruptions", {}).get("preemptions", "")),
        "GOODPUT": _percent((status.get("goodput") or {}).get("percent")),
        "AGE": _age(metadata.get("creationTimestamp"), now),
        "WORKERS": _workers(status),
        "REPORTED": reported(run, now) if last_report(run, now) else "",
    }


def details(run: Run, width: int | None, now: datetime | None = None) -> str:
    """The whole status of one run, in two columns; `now`: when it was asked, None: now."""
    status = run.get("status") or {}
    rows: list[tuple[str, object]] = []

    def row(name: str, value: object, indent: str = "") -> None:
        if value not in (None, "", {}):
            rows.append((indent + plain(name), value))

    row("name", f"{run['metadata']['namespace']}/{run['metadata']['name']}")
    unseen = "" if status.get("phase") else " (no operator has seen it yet)"
    row("phase", f"{phase(run)}{unseen}")
    row("step", step(status))
    row("workers", _workers_and_sizes(status.get("workers") or {}))
    progress = status.get("progress") or {}
    row("time left", time_left(run, now))
    if last_report(run, now) or not (is_measured_now(run, now) or phase(run) in ENDED):
        row("last report", reported(run, now))
    for what, field in (("data", "dataWait"), ("ranks", "communicationWait")):
        if (share := progress.get(f"{field}Share")) is not None:
            rank = progress.get(f"{field}Rank")
            row(f"waiting for {what}", f"{share:.0%} of the time in steps (rank {rank})")
    slow = progress.get("slowestRank") or {}
    if slow:
        row(
            "slowest rank",
            f"{slow['rank']}{_on(slow)}: {seconds(slow['ownSeconds'])} of its own in a step, the "
            f"others' median is {seconds(slow['medianSeconds'])}",
        )
    row("memory", _memory(progress.get("memory") or {}))
    for warning in measured_warnings(run, now):
        row("warning", warning)
    for name, value in (progress.get("metrics") or {}).items():
        row(name, value, indent="  ")
    checkpoint = status.get("checkpoint") or {}
    if checkpoint:
        row("checkpoint", f"step {checkpoint['step']}, {checkpoint['uri']}")
    row("report", status.get("reportUri"))
    restored = status.get("restoredFrom") or {}
    if restored.get("step") is not None:
        row("restored from", f"step {restored['step']}, {restored['uri']}")
    row("restarts", status.get("restarts"))
    disruptions = dict(status.get("disruptions") or {})
    losses = disruptions.pop("history", None) or []
    for name, count in disruptions.items():
        row(name, count or None)
    for one in losses[-_SHOWN_LOSSES:]:
        row(f"loss {one['number']}", f"{one['time']} {loss(one)}")
    capacity = status.get("capacity") or {}
    if capacity:
        where = (
            f"{capacity['spot']} worker pods on spot nodes, "
            f"{capacity['onDemand']} on on-demand nodes"
        )
        row("capacity", "; ".join(filter(None, (where, capacity.get("message")))))
    goodput = status.get("goodput") or {}
    if goodput:
        lost = ", ".join(f"{k} {v:.0f} s" for k, v in goodput.get("lostSeconds", {}).items() if v)
        row("goodput", f"{goodput['percent']}%" + (f" (lost: {lost})" if lost else ""))
    for attempt in status.get("attempts") or []:
        words = [attempt.get("outcome", ""), attempt.get("reason", ""), attempt.get("message", "")]
        row(f"attempt {attempt['number']}", " ".join(word for word in words if word))
        for line in attempt.get("lastLines") or []:
            row(f"  rank {attempt.get('failedRank')}", line)
    for one in status.get("conditions") or []:
        row(one["type"], f"{one['status']} {one['reason']}: {one.get('message', '')}")
    sweep = status.get("sweep") or {}
    if sweep:
        row("trials", ", ".join(f"{sweep[s]} {s}" for s in _TRIAL_STATES if sweep.get(s)))
        row("best trial", sweep.get("best"))
    result = status.get("result") or {}
    row("result", result.get("checkpointUri"))
    return terminal_text.pairs(rows, width)


def _workers(status: Mapping[str, Any]) -> str:
    """Workers that train, of how many; empty: their number stays."""
    workers = status.get("workers")
    return f"{workers.get('training', 0)}/{workers.get('wanted', 0)}" if workers else ""


def _workers_and_sizes(workers: Mapping[str, Any]) -> str:
    """How many workers train and are ready, and wait as pods, and for how long so many trained."""
    if not workers:
        return ""
    training, wanted, ready = (workers.get(name, 0) for name in ("training", "wanted", "ready"))
    times = [
        f"{duration(one.get('seconds', 0))} with {one['workers']}"
        for one in workers.get("sizes") or ()
    ]
    now = f"{training} of {wanted} train, {ready} ready"
    if "standby" in workers:
        now += f", {workers['standby']} standby"
    return f"{now}; trained {', '.join(times)}" if times else now


def loss(found: Mapping[str, Any]) -> str:
    """One entry of status.disruptions.history, without its time."""
    kind = ", ".join(filter(None, (found.get("capacity"), found.get("zone"))))
    where = [", ".join(found.get("pods") or ()), _on(found).strip(), f"({kind})" if kind else ""]
    signs = f": {found['signs']}" if found.get("signs") else ""
    cost = []
    if (steps := found.get("lostSteps")) is not None:
        cost.append(terminal_text.counted(steps, "step"))
    if found.get("lostSeconds") is not None:
        cost.append(duration(found["lostSeconds"]))
    lost = f"lost {' and '.join(cost)}" if cost else "what it cost is not known"
    what = " ".join(filter(None, (found["reason"], *where)))
    return "; ".join(filter(None, (f"{what}{signs}", lost, found.get("action"))))


def _memory(memory: Mapping[str, Any]) -> str:
    if not memory:
        return ""
    limit, growth = memory.get("limitBytes"), memory.get("bytesPerHour")
    text = gib(memory["usedBytes"])
    if limit:
        text += f" of {gib(limit)}"
    text += f" (rank {memory['rank']}{_on(memory)})"
    return f"{text}, {gib(growth)} more each hour" if growth else text


def _on(place: Mapping[str, Any]) -> str:
    return f" on node {place['node']}" if place.get("node") else ""


def _percent(value: Any) -> str:
    return "" if value is None else f"{value}%"


def events(found: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """Events of a run, and how long ago each was last seen."""
    heads = ("AGE", "TYPE", "REASON", "COUNT", "MESSAGE")
    cells = [
        [
            _age(last_seen(one), now),
            one.get("type") or "",
            one.get("reason") or "",
            one.get("count") or 1,
            one.get("message") or "",
        ]
        for one in found
    ]
    return terminal_text.table(heads, cells, None)


def _age(created: str | None, now: datetime) -> str:
    if not created:
        return ""
    return duration(now.timestamp() - datetime.fromisoformat(created).timestamp())


_RANK_HEADS = ("RANK", "STEP", "OWN", "DATA%", "COMM%", "MEMORY", "LIMIT", "GROWTH/H")
"""Seconds of a step; those without the wait for other ranks; the shares of it that go into waiting
for data and for gradients of other ranks; memory."""
_RANK_PLACE = ("NODE", "POD")
"""Last, since their names are long: the numbers of a rank stay on one line."""
_RANK_GPU = "GPU%"
"""Share of the last minutes in which the GPUs of a rank computed, where one measures it."""


def ranks(found: Sequence[Rank], width: int | None, places: bool = True) -> str:
    """One line per rank, as in status.progress.ranks; what is not known is left empty.

    Args:
        found: The ranks.
        width: Columns of the terminal.
        places: Whether to show where each one runs; the rest fits 80 columns.
    """
    gpus = (_RANK_GPU,) if any("acceleratorShare" in rank for rank in found) else ()
    place = _RANK_PLACE if places else ()
    rows = [
        (
            rank["rank"],
            _seconds(rank.get("stepSeconds")),
            _seconds(_own_seconds(rank)),
            _share(rank.get("dataWaitShare")),
            _share(rank.get("communicationWaitShare")),
            _gib(rank.get("usedBytes")),
            _gib(rank.get("limitBytes")),
            _gib(rank.get("bytesPerHour")),
            *(_share(rank.get("acceleratorShare")) for _ in gpus),
            *(rank.get(head.lower()) or "" for head in place),
        )
        for rank in found
    ]
    return terminal_text.table((*_RANK_HEADS, *gpus, *place), rows, width)


def top(run: Run, asked: datetime, width: int | None) -> str:
    """A frame of `trainingrun top`: the run's progress, its ranks, and what is wrong."""
    found = ((run.get("status") or {}).get("progress") or {}).get("ranks") or []
    about_ranks = [ranks_without_steps(found, run)]
    if found:
        about_ranks += [ranks_before(run, asked), ranks_left_out(found, run)]
    return "\n".join(
        [
            f"{asked:%H:%M:%S} {plain(run['metadata']['name'])}: {progress_line(run, now=asked)}",
            # Above the ranks: a terminal that is too low shows the first lines.
            *map(plain, [*warnings(run, asked), *filter(None, about_ranks)]),
            "",
            ranks(found, width, places=False) if found else plain(why_no_ranks(run)),
        ]
    )


def ranks_before(run: Run, now: datetime | None = None) -> str | None:
    """That what the status has of ranks was measured before, in a sentence; None: it is of now."""
    if is_measured_now(run, now):
        return None
    ago = reported(run, now)
    when = f"; it last reported {ago}" if ago else ""
    state = f"{run['metadata']['name']} is {phase(run)}"
    return f"{state}: these are the last measurements of its ranks{when}."


def unseen(run: Run, now: datetime) -> str | None:
    """That no operator has seen a run, in a sentence; None: one has, or the run is new."""
    metadata = run["metadata"]
    created = metadata.get("creationTimestamp")
    if (run.get("status") or {}).get("phase") or not created:
        return None
    if now.timestamp() - datetime.fromisoformat(created).timestamp() < _UNSEEN_S:
        return None
    command = f"trainingrun doctor --namespace {metadata.get('namespace')}"
    return f"no operator has seen it yet; `{command}` says what is wrong"


def ranks_left_out(found: Sequence[Rank], run: Run) -> str | None:
    """Which ranks of a run are not shown, in a sentence; None: all are."""
    training = ((run.get("status") or {}).get("workers") or {}).get("training")
    workers = training or run["spec"].get("workers", {}).get("count", 1)
    if len(found) >= workers:
        return None
    if len(found) < MOST_RANKS:
        return f"{len(found)} of {workers} ranks have reported."
    return (
        f"{len(found)} of {workers} ranks: those that are slowest, wait most for data, have the "
        "fullest memory or the idlest accelerators."
    )


def ranks_without_steps(found: Sequence[Rank], run: Run) -> str | None:
    """What step times need, in a sentence, where no rank has any and the run has no session.

    A session has none before its first step, which may take minutes. A local run says whether
    there is one; in a cluster it is seen by a report that brings no step time.
    """
    progress = (run.get("status") or {}).get("progress") or {}
    has_session = progress.get("hasSession", "updateTime" not in progress)
    if not found or has_session or any("stepSeconds" in rank for rank in found):
        return None
    return "Step times and waits need a session: see docs/training.md."


def why_no_ranks(run: Mapping[str, Any]) -> str:
    """Why the status has no ranks, in a sentence."""
    name, now = run["metadata"]["name"], phase(run)
    if run["spec"].get("sweep"):
        command = f"trainingrun sweep {name}{options(run)}"
        return f"The status has no ranks of trials; `{command}` shows the trials."
    if now != Phase.RUNNING:
        return f"{name} is {now}; ranks report while they train."
    return f"No rank of {name} has reported yet; each one does 10 s after its start."


def _own_seconds(rank: Rank) -> float | None:
    step, waits = rank.get("stepSeconds"), rank.get("communicationWaitShare")
    return None if step is None or waits is None else step * (1 - waits)


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _gib(size: int | None) -> str:
    return "" if size is None else gib(size)


def trials(found: Sequence[Trial], best: int | None, metric: str, width: int | None) -> str:
    """One line per trial, as in status.sweep.trials; `metric` heads the column of values."""
    names = list(dict.fromkeys(name for trial in found for name in trial.get("config") or {}))
    rows = [
        (
            trial["number"],
            trial.get("state", ""),
            trial.get("step", 0),
            _value(trial.get("value")),
            *(_value((trial.get("config") or {}).get(name)) for name in names),
            "*" if trial["number"] == best else "",
        )
        for trial in found
    ]
    return terminal_text.table(("TRIAL", "STATE", "STEP", metric, *names, "BEST"), rows, width)


def best_trial(found: Sequence[Trial], best: int | None) -> str:
    """The best trial's config, as JSON for `training.config`, and its checkpoint."""
    trial = next(trial for trial in found if trial["number"] == best)
    config, checkpoint = trial.get("config") or {}, trial.get("checkpointUri")
    return terminal_text.pairs(
        [("best config", json.dumps(config)), ("checkpoint", checkpoint or _no_checkpoint(trial))]
    )


def _no_checkpoint(trial: Trial) -> str:
    over = trial.get("state") in [state for state in TrialState if state.final]
    return "none" if over else "none yet"


def trial_failures(found: Sequence[Trial]) -> list[str]:
    """Why trials failed, a line for each."""
    return [f"trial {t['number']}: {t['message']}" for t in found if t.get("message")]


_NUMBER = 6
"""Digits of a number in a table."""


def metrics_table(rows: Sequence[dict[str, Any]], columns: Sequence[str], width: int | None) -> str:
    """Rows of the table of reports."""
    return terminal_text.table(
        columns, [[_value(row[name]) for name in columns] for row in rows], width
    )


def checkpoints_table(
    committed: Sequence["Manifest"],
    best: "Manifest | None",
    now: datetime,
    root: str,
    width: int | None,
) -> str:
    """One line per checkpoint, the newest last.

    In a terminal the folders are those below the run's, which the last line names, and each metric
    has a column of its own: so the table can be divided.
    """
    heads = ["STEP", "AGE", "SIZE", "WORKERS", "ATTEMPT", "NOTE"]
    metrics = list(dict.fromkeys(name for one in committed for name in one.metrics))
    rows: list[list[object]] = []
    for one in committed:
        notes = ["newest"] if one is committed[-1] else []
        notes += ["best"] if best is not None and one.key == best.key else []
        age = duration(now.timestamp() - one.time)
        row = [one.step, age, size_of(one), one.world_size, one.attempt, ", ".join(notes)]
        if width is None:
            shown = " ".join(f"{name}={_value(value)}" for name, value in one.metrics.items())
            rows.append([*row, shown, f"{root}/{one.path}"])
        else:
            rows.append([*row, *(_value(one.metrics.get(name)) for name in metrics), one.path])
    if width is None:
        return terminal_text.table([*heads, "METRICS", "URI"], rows, width)
    shown = terminal_text.table([*heads, *metrics, "FOLDER"], rows, width)
    return f"{shown}\n\nFolders are below {plain(root)}"


def size_of(*checkpoints: "Manifest") -> str:
    """The size of checkpoints' files."""
    return size(sum(file.size for one in checkpoints for file in one.files.values()))


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{_NUMBER}g}"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)
