"""The operator's Prometheus metrics. Numbers about training are served by the runs' heads."""

from collections import Counter as Count
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..cluster.run_stores import RunSummary

Runs = Callable[[], Mapping[RunSummary, int]]
"""Gives how many TrainingRuns there are of each namespace, phase and number of losses."""


class Metrics:
    """The operator's metrics, in a registry of their own so that tests can have many."""

    def __init__(
        self,
        runs: Runs = dict,
        queued: Callable[[], int] = lambda: 0,
        stale_watches: Callable[[], Mapping[str, int]] = dict,
        leads: Callable[[], bool] = lambda: False,
    ):
        """Gauges call `runs`, `queued`, `stale_watches` and `leads` when they are scraped."""
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
        self.registry.register(_Gauges(runs, queued, stale_watches, leads))

    def count_call(self, method: str, code: str) -> None:
        """Counts one request to the API server."""
        self.api_calls.labels(method, code).inc()


class _Gauges(Collector):
    """Read from the cache at each scrape, so that they cannot drift from it."""

    def __init__(
        self,
        runs: Runs,
        queued: Callable[[], int],
        stale_watches: Callable[[], Mapping[str, int]],
        leads: Callable[[], bool],
    ):
        self._runs, self._queued, self._stale_watches = runs, queued, stale_watches
        self._leads = leads

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        leader = GaugeMetricFamily(
            "trainingrun_operator_leader", "1: this operator leads; 0: it stands by."
        )
        leader.add_metric([], int(self._leads()))
        yield leader
        depth = GaugeMetricFamily("trainingrun_queue_depth", "Runs that wait to be reconciled.")
        depth.add_metric([], self._queued())
        yield depth
        stale = GaugeMetricFamily(
            "trainingrun_operator_watch_stale",
            "Watches that get no events at present, by kind: refused, or without an answer. Runs "
            "then go on, but nothing is decided on what these watches do not show.",
            labels=["kind"],
        )
        for kind, number in sorted(self._stale_watches().items()):
            stale.add_metric([kind], number)
        yield stale
        phases: Count[tuple[str, str]] = Count()
        losses: Count[tuple[str, str]] = Count()
        for summary, count in self._runs().items():
            phases[summary.namespace, summary.phase] += count
            for kind, number in summary.disruptions:
                losses[summary.namespace, kind] += number * count
        family = GaugeMetricFamily(
            "trainingrun_runs", "TrainingRuns, by phase.", labels=["namespace", "phase"]
        )
        for labels, number in sorted(phases.items()):
            family.add_metric(labels, number)
        yield family
        family = GaugeMetricFamily(
            "trainingrun_disruptions",
            "Losses that the existing TrainingRuns have survived, by kind, such as preemptions.",
            labels=["namespace", "kind"],
        )
        for labels, number in sorted(losses.items()):
            family.add_metric(labels, number)
        yield family
