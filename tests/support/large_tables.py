"""A table of metrics that is small in the bucket and large in memory."""

import resource
import sys
from typing import Any

import pyarrow as pa

from trainingrun_runtime.report_page import folder
from trainingrun_runtime.store import metrics_table
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.metrics_table import Part

PART_ROWS = 5000


def put(bucket: Bucket, parts: int, metrics: int) -> None:
    """Put parts of 5,000 steps each, with metrics that change little."""
    for number in range(1, parts + 1):
        steps = range((number - 1) * PART_ROWS + 1, number * PART_ROWS + 1)
        values = pa.array([round(1 / step**0.5, 3) for step in steps])
        columns: dict[str, Any] = {
            "step": pa.array(steps, pa.int64()),
            "time": pa.array(steps, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "attempt": pa.array([1] * PART_ROWS, pa.int64()),
            **{f"m{index:03d}": values for index in range(metrics)},
        }
        part = Part(1, 1, number, None, pa.table(columns))
        bucket.put(part.key, metrics_table.encoded(part))


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


if __name__ == "__main__":
    before = peak_mib()
    found = folder.read(Bucket.open(sys.argv[1]))
    print(len(found.curves), found.curves_left_out, round(peak_mib() - before))
