"""What is left of a day on spot nodes? The operator, beside a plain RayJob and an oracle.

    python tests/benchmarks/spot_replay.py TRACE [--workers 4] [--seed 1] [--speed 1]

TRACE is a CSV file with the columns `seconds` and `instances`: how many spot nodes there are from
then on; lines that begin with # say where it is from. `tests/benchmarks/traces` has some. Which
nodes go is drawn by the seed, and none of them gives notice. A run of so many workers, one on each
node, and a head that is never lost, is replayed, from when there are enough nodes for it:

- TrainingRun: the real operator with its usual settings, against a real API server with simulated
  nodes (`support/simulated_nodes.py`). Its own share of each recovery takes as long as it takes.
  The rest takes what this project has measured, in docs/benchmarks.md: see `measured_stages`. Time
  in which nothing happens is skipped.
- plain RayJob: one with a `backoffLimit` that is never reached, computed. A lost node fails its job
  once Ray has noticed, KubeRay makes a cluster anew as soon as there are enough nodes, and the
  script goes on from its last checkpoint; see `plain_rayjob`.
- the oracle trains whenever there are enough nodes, and loses nothing.

`--speed 4` runs the simulation and the operator's settings four times as fast; what the operator
computes takes four times as long then.
"""

import argparse
import asyncio
import csv
import dataclasses
import itertools
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "tests")]

from support import benchmark_page  # noqa: E402
from support.apiserver import ApiServer, running_apiserver  # noqa: E402
from support.operators import (  # noqa: E402
    PlaysHead,
    a_run,
    credentials_of,
    running,
    settings_for,
)
from support.simulated_nodes import GONE_S, HEAD_NODE, SimulatedCluster, Stages  # noqa: E402
from trainingrun.api.checkpoints_spec import DEFAULT_INTERVAL_S  # noqa: E402
from trainingrun.api.v1alpha1 import API_VERSION, KIND  # noqa: E402
from trainingrun.cluster.api_client import Connection  # noqa: E402
from trainingrun.controller.operator import Operator  # noqa: E402
from trainingrun.controller.settings import Settings  # noqa: E402
from trainingrun.reconciling.model import ReconcileSettings  # noqa: E402

SCALED = ("poll_s", "lease_stale_s", "head_silent_s", "terminating_late_s")
"""The operator's settings that decide how long a recovery takes."""


class Event(NamedTuple):
    """A node comes or goes."""

    time: float
    """Seconds since the replay began."""
    node: str
    comes: bool


@dataclasses.dataclass(frozen=True)
class Plain:
    """What a plain RayJob's recovery is made of, in seconds."""

    notice: float
    """From the death of a node until Ray reports it."""
    restart: float
    """From a RayJob's creation, and from that of the cluster of a retry, to its first step."""
    checkpoint: float = float(DEFAULT_INTERVAL_S)
    """Between its checkpoints: TrainingRun's default."""


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What has come out for TrainingRun."""

    trained_s: float
    hits: int
    """Nodes that were lost with a worker on them."""
    attempt: int
    restarts: int
    recoveries: int
    """How often it began to train again."""
    counted: int
    """Pods and nodes that the operator has counted as lost."""


def main() -> None:
    """Replays a trace and prints what is left of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1, help="which nodes go")
    parser.add_argument("--speed", type=float, default=1.0)
    arguments = parser.parse_args()
    trace = read_trace(arguments.trace)
    events, end = replayed_events(trace, arguments.workers, arguments.seed)
    oracle = oracle_s(events, end, arguments.workers)
    plain = plain_rayjob(events, end, arguments.workers, measured_plain())
    with running_apiserver() as server:
        server.install_crds()
        ours = asyncio.run(
            replay(server, events, end, arguments.workers, measured_stages(), arguments.speed)
        )
    lost = sum(not event.comes for event in events)
    nodes = f"{lost}, {ours.hits} with a worker"
    print(f"{arguments.trace.stem}: {end / 3600:.1f} h, nodes lost: {nodes}")
    print(f"oracle         {oracle / 3600:6.2f} h of training")
    print(f"TrainingRun    {ours.trained_s / 3600:6.2f} h  {ours.trained_s / oracle:7.2%}")
    print(f"plain RayJob   {plain / 3600:6.2f} h  {plain / oracle:7.2%}")
    print(f"attempts {ours.attempt}, restarts {ours.restarts}, losses counted {ours.counted}")
    row = (
        f"{arguments.trace.stem}, {arguments.workers} workers",
        nodes,
        f"{oracle / 3600:.2f} h of {end / 3600:.2f} h",
        f"{ours.trained_s / oracle:.2%}",
        f"{plain / oracle:.2%}",
        f"{ours.attempt}, {ours.restarts}",
    )
    benchmark_page.write("spot days", [row])


# Traces


def read_trace(file: Path) -> list[tuple[float, int]]:
    """(seconds, instances) of a trace, in the order of time.

    Raises:
        ValueError: it has other columns, or its times do not grow.
    """
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    if not rows or set(rows[0]) != {"seconds", "instances"}:
        raise ValueError(f"{file} has not the columns seconds and instances")
    trace = [(float(row["seconds"]), int(row["instances"])) for row in rows]
    if any(later[0] <= earlier[0] for earlier, later in itertools.pairwise(trace)):
        raise ValueError(f"{file}: the seconds of a row are not more than those before")
    return trace


def replayed_events(
    trace: Sequence[tuple[float, int]], workers: int, seed: int
) -> tuple[list[Event], float]:
    """Nodes that come and go, from when there are enough for the run, and when the trace ends.

    Raises:
        ValueError: there are never enough nodes.
    """
    begin = next((at for at, instances in trace if instances >= workers), None)
    if begin is None:
        raise ValueError(f"the trace never has {workers} instances")
    draw, names = random.Random(seed), iter(f"spot-{number}" for number in range(1, 10_000))
    events: list[Event] = []
    alive: list[str] = []
    for at, instances in trace:
        if at < begin:
            continue
        for _ in range(instances - len(alive)):
            alive.append(next(names))
            events.append(Event(at - begin, alive[-1], True))
        for _ in range(len(alive) - instances):
            events.append(Event(at - begin, alive.pop(draw.randrange(len(alive))), False))
    return events, trace[-1][0] - begin


# What others make of it


def oracle_s(events: Iterable[Event], end: float, workers: int) -> float:
    """Seconds in which there are enough nodes."""
    alive, since, total = 0, 0.0, 0.0
    for event in [*events, Event(end, "", True)]:
        if alive >= workers:
            total += event.time - since
        since = event.time
        alive += 1 if event.comes else -1
    return total


def plain_rayjob(events: Iterable[Event], end: float, workers: int, plain: Plain) -> float:
    """Seconds of training that a plain RayJob is left with."""
    alive: list[str] = []
    used: set[str] = set()
    since = may_begin = kept = 0.0
    first_step: float | None = None
    """When the job that there is does it; None: there is no job."""
    for event in [*events, Event(end, "", False)]:
        begins = max(since, may_begin)
        if first_step is None and len(alive) >= workers and begins < event.time:
            used, first_step = set(alive[:workers]), begins + plain.restart
        ends = event.time >= end and not event.node
        if first_step is not None and (ends or event.node in used):
            done = max(0.0, event.time - first_step)
            # What came after the last checkpoint is done again; at the end nothing is.
            kept += done if ends else done // plain.checkpoint * plain.checkpoint
            first_step, may_begin = None, event.time + plain.notice
        since = event.time
        if event.comes:
            alive.append(event.node)
        elif not ends:
            alive.remove(event.node)
    return kept


# TrainingRun


def measured_stages() -> Stages:
    """From docs/benchmarks.md: a killed process costs what a group of workers takes to begin again,
    a deleted pod in addition a new pod, a node that died in addition the time until it is noticed.
    """
    seconds = {
        name: float(benchmark_page.cell("losses", row, "seconds without training"))
        for name, row in {
            "first": "(a) undisturbed",
            "group": "(c) training process kill -9",
            "pod": "(b) worker pod deleted",
            "node": "(e) spot node docker kill",
        }.items()
    }
    pod = seconds["pod"] - seconds["group"]
    return Stages(
        begin=seconds["first"] - pod,
        pod=pod,
        group=seconds["group"],
        notice=seconds["node"] - seconds["pod"],
    )


def measured_plain() -> Plain:
    """From docs/benchmarks.md: what KubeRay alone takes to the first step of a RayJob. A node's
    death is noticed as fast as by TrainingRun.
    """
    took = benchmark_page.cell("beside KubeRay", "apply to first step", "KubeRay alone")
    return Plain(measured_stages().notice, float(took.removesuffix(" s")))


def settings_at(speed: float, namespace: str) -> Settings:
    """The operator's usual settings; those that decide how long a recovery takes so much faster."""
    usual = ReconcileSettings()
    faster = {name: getattr(usual, name) / speed for name in SCALED}
    settings = settings_for(namespace)
    return dataclasses.replace(settings, reconcile=dataclasses.replace(usual, **faster))


async def replay(
    server: ApiServer,
    events: Iterable[Event],
    end: float,
    workers: int,
    stages: Stages,
    speed: float,
    gone_s: float = GONE_S,
) -> Replayed:
    """The operator and its run in such a cluster."""
    namespace = server.new_namespace()
    credentials = credentials_of(server)
    connection = Connection(credentials)
    hits = 0
    try:
        async with PlaysHead().listening() as head:
            operator = Operator(settings_at(speed, namespace), credentials, head.target)
            cluster = SimulatedCluster(connection, namespace, head, stages, speed)
            cluster.gone_s = gone_s
            await cluster.add_node(HEAD_NODE, spot=False)
            async with running(operator), cluster.living():
                capacity = {"type": "Spot"}
                server.create(a_run(namespace, workers={"count": workers, "capacity": capacity}))
                for event in events:
                    await cluster.until(event.time)
                    what = "comes" if event.comes else "is lost"
                    trained = f"{cluster.trained_s:.0f} s trained, {cluster.recoveries} recoveries"
                    print(f"{event.time:.0f} s: {event.node} {what}; {trained}", file=sys.stderr)
                    if event.comes:
                        await cluster.add_node(event.node)
                    else:
                        hits += cluster.kill_node(event.node)
                await cluster.until(end)
                status = server.get(API_VERSION, KIND, "digits", namespace)["status"]
    finally:
        await connection.close()
    losses = status.get("disruptions", {})
    return Replayed(
        trained_s=cluster.trained_s,
        hits=hits,
        attempt=status["attempt"],
        restarts=status.get("restarts", 0),
        recoveries=cluster.recoveries,
        counted=sum(losses.get(kind, 0) for kind in ("nodeLosses", "preemptions")),
    )


if __name__ == "__main__":
    main()
