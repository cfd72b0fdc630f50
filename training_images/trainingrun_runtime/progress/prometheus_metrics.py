"""The progress document as Prometheus metrics: `GET /metrics` of the head pod."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_OF_RANKS = (
    ("rank_step_seconds", "What a step takes a rank.", "stepSeconds"),
    (
        "rank_data_wait_ratio",
        "Share of the time in steps in which a rank waits for data.",
        "dataWaitShare",
    ),
    (
        "rank_communication_wait_ratio",
        "Share of the time in steps in which a rank waits for gradients of others.",
        "communicationWaitShare",
    ),
    ("rank_memory_bytes", "Use of a rank's container.", "usedBytes"),
    (
        "rank_accelerator_ratio",
        "Share of the last minutes in which a rank's accelerators computed.",
        "acceleratorShare",
    ),
)
_CAUSES = ("steps", "startup", "lostWork", "recovery", "checkpoint")


def exposition(document: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Render the metrics.

    Args:
        document: The progress document as JSON data; empty before the driver wrote one.
        labels: Put on every sample.

    Returns:
        Prometheus text format 0.0.4. Unknown values are left out, not 0.
    """
    registry = CollectorRegistry()
    registry.register(_Document(document, labels))
    return generate_latest(registry).decode()


class _Document(Collector):
    def __init__(self, document: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        self._document, self._labels = document, labels

    def collect(self) -> Iterator[Metric]:
        document = self._document
        checkpoint = document.get("checkpoint") or {}
        slow, memory = document.get("slowestRank") or {}, document.get("memory") or {}
        for name, text, value in (
            ("step", "Steps done.", document.get("step")),
            ("total_steps", "Steps of the whole training.", document.get("totalSteps")),
            ("fencing_token", "Fencing token of the driver's lease.", document.get("fencingToken")),
            ("world_size", "Workers that train now.", document.get("worldSize")),
            (
                "data_wait_ratio",
                "Share of the time in steps in which the rank that waits longest waits for data.",
                document.get("dataWaitShare"),
            ),
            ("step_seconds", "What a step takes.", document.get("stepSeconds")),
            (
                "communication_wait_ratio",
                "Share of the time in steps in which a rank waits longest for gradients of others.",
                document.get("communicationWaitShare"),
            ),
            (
                "slowest_rank_seconds",
                "What a step takes the slowest rank without waiting for others.",
                slow.get("ownSeconds"),
            ),
            (
                "other_ranks_seconds",
                "Median of the same of all other ranks.",
                slow.get("medianSeconds"),
            ),
            ("memory_bytes", "Use of the fullest container of a rank.", memory.get("usedBytes")),
            ("memory_limit_bytes", "That container's limit.", memory.get("limitBytes")),
            ("update_time_seconds", "Unix time of the progress document.", document.get("time")),
            ("checkpoint_step", "Step of the newest checkpoint.", checkpoint.get("step")),
            ("checkpoint_time_seconds", "Unix time of its commit.", checkpoint.get("time")),
            (
                "checkpoint_interval_seconds",
                "Seconds between periodic checkpoints that are in force.",
                document.get("checkpointIntervalSeconds"),
            ),
        ):
            gauge = GaugeMetricFamily(f"trainingrun_{name}", text, labels=list(self._labels))
            yield from self._with_samples(gauge, {(): value})
        rows = document.get("ranks") or []
        for name, text, key in _OF_RANKS:
            yield from self._with_samples(
                GaugeMetricFamily(f"trainingrun_{name}", text, labels=[*self._labels, "rank"]),
                {(str(row.get("rank")),): row.get(key) for row in rows},
            )
        spent = document.get("seconds") or {}
        seconds = {cause: value for cause, value in spent.items() if _is_number(value)}
        if seconds:
            # A loss moves time from one to the other. rate() takes what falls, be it by its last
            # digit, for a counter that began again at 0: hence the rounding.
            seconds["steps"] = seconds.get("productive", 0) + seconds.get("lostWork", 0)
        yield from self._with_samples(
            CounterMetricFamily(
                "trainingrun_seconds",
                "Time of this driver by cause; lostWork is a part of steps.",
                labels=[*self._labels, "cause"],
            ),
            {(cause,): round(seconds[cause], 3) for cause in _CAUSES if cause in seconds},
        )
        reported = document.get("metrics") or {}
        yield from self._with_samples(
            GaugeMetricFamily(
                "trainingrun_metric",
                "Latest metrics that the training reported, where they are numbers.",
                labels=[*self._labels, "name"],
            ),
            {(name,): value for name, value in sorted(reported.items())},
        )

    def _with_samples(
        self,
        family: GaugeMetricFamily | CounterMetricFamily,
        samples: Mapping[tuple[str, ...], Any],
    ) -> Iterator[Metric]:
        known = {own: value for own, value in samples.items() if _is_number(value)}
        for own, value in known.items():
            family.add_metric([*self._labels.values(), *own], value)
        if known:
            yield family


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
