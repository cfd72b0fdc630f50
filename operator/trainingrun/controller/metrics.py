"""What Prometheus can ask the operator. Numbers about training are served by the runs' heads."""

from collections import Counter as Count
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Runs = Callable[[], Iterable[Mapping[str, Any]]]
"""Gives every TrainingRun as the API server has it."""


class Metrics:
    """The operator's metrics, in a registry of their own so that tests can have many."""

    def __init__(self, runs: Runs = lambda: (), queued: Callable[[], int] = lambda: 0):
        """Gauges ask `runs` and `queued` when they are scraped."""
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "trainingrun_reconcile_seconds",
            "Seconds that one look at a run took, failed ones included.",
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            "trainingrun_reconcile_errors",
            "Looks at a run that failed and are tried again, by reason.",
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
            "Progress documents asked for, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self.registry.register(_Gauges(runs, queued))

    def count_call(self, method: str, code: str) -> None:
        """Counts one request to the API server."""
        self.api_calls.labels(method, code).inc()


class _Gauges(Collector):
    """Read from the cache at each scrape, so that they cannot drift from it."""

    def __init__(self, runs: Runs, queued: Callable[[], int]):
        self._runs, self._queued = runs, queued

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        depth = GaugeMetricFamily("trainingrun_queue_depth", "Runs that wait to be looked at.")
        depth.add_metric([], self._queued())
        yield depth
        phases: Count[tuple[str, str]] = Count()
        losses: Count[tuple[str, str]] = Count()
        for run in self._runs():
            namespace = run["metadata"]["namespace"]
            status = run.get("status") or {}
            phases[namespace, status.get("phase") or "Pending"] += 1
            for kind, number in (status.get("disruptions") or {}).items():
                losses[namespace, kind] += number
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
