"""The progress document as Prometheus text: `GET /metrics` of the head pod."""

from collections.abc import Iterator, Mapping
from typing import Any

_CAUSES = ("productive", "startup", "lostWork", "recovery", "checkpoint")


def exposition(document: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Render the metrics.

    Args:
        document: The progress document as JSON data; empty before the driver wrote one.
        labels: Put on every sample.

    Returns:
        Prometheus text format 0.0.4. What is not known yet is left out, not 0.
    """
    checkpoint = document.get("checkpoint") or {}
    simple = (
        ("step", "Steps done.", document.get("step")),
        ("total_steps", "Steps wanted.", document.get("totalSteps")),
        ("fencing_token", "Fencing token of the driver's lease.", document.get("epoch")),
        ("world_size", "Workers that train now.", document.get("worldSize")),
        ("update_time_seconds", "Unix time of the progress document.", document.get("time")),
        ("checkpoint_step", "Step of the newest checkpoint.", checkpoint.get("step")),
        ("checkpoint_time_seconds", "Unix time of its commit.", checkpoint.get("time")),
    )
    lines: list[str] = []
    for name, text, value in simple:
        lines += _family(name, "gauge", text, {(): value}, labels)
    seconds = document.get("seconds") or {}
    lines += _family(
        "seconds_total",
        "counter",
        "Where this driver's time went.",
        {(("cause", cause),): seconds.get(cause) for cause in _CAUSES},
        labels,
    )
    reported = document.get("metrics") or {}
    lines += _family(
        "metric",
        "gauge",
        "Latest metrics that the training reported, where they are numbers.",
        {(("name", name),): value for name, value in sorted(reported.items())},
        labels,
    )
    return "".join(f"{line}\n" for line in lines)


def _family(
    name: str,
    kind: str,
    text: str,
    samples: Mapping[tuple[tuple[str, str], ...], Any],
    labels: Mapping[str, str],
) -> Iterator[str]:
    known = {own: value for own, value in samples.items() if _is_number(value)}
    if not known:
        return
    yield f"# HELP trainingrun_{name} {text}"
    yield f"# TYPE trainingrun_{name} {kind}"
    for own, value in known.items():
        pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in (*labels.items(), *own))
        yield f"trainingrun_{name}{{{pairs}}} {value!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
