"""The operator's Prometheus metrics. Numbers about training are served by the runs' heads.

Of one run there are `MOST_SERIES` series at most, while it has not ended: one that has ended is
only counted, by namespace. Alerts need these of the operator's: a run whose head is away has none.
"""

import time
from collections import Counter as Count
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..cluster.run_summaries import SHOWN_CONDITIONS, RunSummary

Runs = Callable[[], Mapping[RunSummary, int]]
"""Gives how many TrainingRuns there are of each summary."""

OF_ONE_RUN = {
    "start_time_seconds": ("started_at", "Unix time at which the run was accepted."),
    "step": ("step", "Steps done."),
    "checkpoint_time_seconds": (
        "saved_at",
        "Unix time at which the newest checkpoint was committed.",
    ),
    "checkpoint_interval_seconds": (
        "checkpoint_interval_s",
        "Seconds between periodic checkpoints that are in force.",
    ),
    "seconds": (
        "seconds",
        "Time from the run's start to its last step, suspended time left out.",
    ),
    "productive_seconds": (
        "productive_s",
        "Those of them in steps that counted; steps that are lost are taken off.",
    ),
    "losses": ("losses", "Losses and failures of all kinds that the run has had."),
    "hang_time_seconds": ("hung_at", "Unix time at which the latest hang was found."),
    "budget_ratio": ("budget_share", "What the run has cost, as a share of spec.budget.amount."),
}
"""The gauges `trainingrun_run_…` of each run that has not ended, where the number is known: the
field of `OneRun`, and what it is.
"""
MOST_SERIES = len(OF_ONE_RUN) + 1 + len(SHOWN_CONDITIONS)
"""Series of one run: these, its phase, and conditions that are true."""
FAILED_S = 3600.0
"""For so many seconds after its end was seen the phase of a failed run is shown: alerts name it."""


class Metrics:
    """The operator's metrics, in a registry of their own so that tests can have many."""

    def __init__(
        self,
        runs: Runs = dict,
        queued: Callable[[], int] = lambda: 0,
        stale_watches: Callable[[], Mapping[str, int]] = dict,
        leads: Callable[[], bool] = lambda: False,
        unix_time: Callable[[], float] = time.time,
    ):
        """Gauges call all of these when they are scraped, in the thread of the scrape."""
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "trainingrun_reconcile_seconds",
            "Seconds that one reconcile of a run took, failed ones included.",
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            "trainingrun_reconcile_errors",
            "Reconciles of a run that failed and are retried, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.api_calls = Counter(
            "trainingrun_api_requests",
            "Requests to the API server, by HTTP method (or WATCH) and status code.",
            ["method", "code"],
            registry=self.registry,
        )
        self.polls = Counter(
            "trainingrun_progress_polls",
            "Polls of progress documents, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self.unreadable = Counter(
            "trainingrun_operator_unreadable_objects",
            "Events, and pages of lists, with an object that is nested too deeply, or broken in "
            "another way, and is not read in full, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.registry.register(_Gauges(runs, queued, stale_watches, leads, unix_time))

    def count_call(self, method: str, code: str) -> None:
        """Counts one request to the API server."""
        self.api_calls.labels(method, code).inc()


@dataclass(frozen=True)
class _Gauges(Collector):
    """Read from the cache at each scrape, so that they cannot drift from it."""

    runs: Runs
    queued: Callable[[], int]
    stale_watches: Callable[[], Mapping[str, int]]
    leads: Callable[[], bool]
    unix_time: Callable[[], float]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        yield _gauge(
            "trainingrun_operator_leader",
            "1: this operator leads; 0: it stands by.",
            {(): int(self.leads())},
        )
        yield _gauge(
            "trainingrun_queue_depth", "Runs that wait to be reconciled.", {(): self.queued()}
        )
        yield _gauge(
            "trainingrun_operator_watch_stale",
            "Watches that get no events at present, by kind: refused, or without an answer. Runs "
            "then continue, but nothing is decided on what these watches do not show.",
            {(kind,): number for kind, number in self.stale_watches().items()},
            "kind",
        )
        phases: Count[tuple[str, ...]] = Count()
        losses: Count[tuple[str, ...]] = Count()
        used: dict[tuple[str, ...], float] = defaultdict(float)
        money: dict[tuple[str, ...], float] = defaultdict(float)
        runs = dict(self.runs())  # at once, for events change it meanwhile
        yield from _of_each_run(runs, self.unix_time())
        for summary, count in runs.items():
            phases[summary.namespace, summary.phase] += count
            for kind, number in summary.disruptions:
                losses[summary.namespace, kind] += number * count
            for cause, seconds in summary.seconds:
                used[summary.namespace, summary.unit, cause] += seconds * count
            for kind, amount in summary.money:
                money[summary.namespace, summary.currency, kind] += amount * count
        yield _gauge("trainingrun_runs", "TrainingRuns, by phase.", phases, "namespace", "phase")
        yield _gauge(
            "trainingrun_disruptions",
            "Losses that the existing TrainingRuns have survived, by kind, such as preemptions.",
            losses,
            "namespace",
            "kind",
        )
        yield _gauge(
            "trainingrun_accelerator_seconds",
            "Seconds for which the existing TrainingRuns have held accelerators (or, without any, "
            "workers), by cause: training, saving, lost, starting, waiting.",
            used,
            "namespace",
            "unit",
            "cause",
        )
        yield _gauge(
            "trainingrun_cost",
            "Money of the existing TrainingRuns by the operator's prices: spent, as far as nodes "
            "have a price; wasted and saved_by_spot of those runs where it is known.",
            money,
            "namespace",
            "currency",
            "kind",
        )


def _of_each_run(runs: Iterable[RunSummary], now: float) -> Iterable[Metric]:
    phases: dict[tuple[str, ...], float] = {}
    conditions: dict[tuple[str, ...], float] = {}
    values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in OF_ONE_RUN}
    for summary in runs:
        one = summary.one
        if one is None or (one.end_seen_at is not None and now - one.end_seen_at > FAILED_S):
            continue
        run = summary.namespace, one.name
        phases[*run, summary.phase] = 1
        for condition in one.conditions:
            conditions[*run, *condition] = 1
        for name, (field, _) in OF_ONE_RUN.items():
            if (value := getattr(one, field)) is not None:
                values[name][run] = value
    yield _gauge(
        "trainingrun_run_phase",
        "1: the run's phase. Runs that have ended have none; Failed is shown for an hour.",
        phases,
        *("namespace", "run", "phase"),
    )
    yield _gauge(
        "trainingrun_run_condition",
        "1: the condition Waiting or Stalled of a run that has not ended is true.",
        conditions,
        *("namespace", "run", "condition", "reason"),
    )
    for name, (_, text) in OF_ONE_RUN.items():
        yield _gauge(f"trainingrun_run_{name}", text, values[name], "namespace", "run")


def _gauge(
    name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
