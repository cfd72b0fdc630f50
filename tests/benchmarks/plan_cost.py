"""`python tests/benchmarks/plan_cost.py`: what a reconcile of a run with 1,000 workers costs.

Prints the time of `plan()` in milliseconds: without change, and in the reconcile that sees every
worker's node lost. A status goes through JSON in between, as it does in a real cluster. Nothing is
asserted: how much is called is held by a test (tests/unit/test_reconciling_cost.py).
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "training_images"), str(ROOT / "tests")]

from support.large_runs import a_large_run, all_nodes_lost, planned  # noqa: E402

WORKERS = 1000
ROUNDS = 15


def milliseconds(call: Callable[[], object]) -> float:
    """The median CPU time of some calls."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        call()
        times.append((time.process_time() - begin) * 1000)
    return median(times)


def main() -> None:
    """Measure and print."""
    steady = a_large_run(WORKERS)
    unchanged = milliseconds(lambda: planned(steady, 62))
    print(f"{WORKERS} workers, no change: {unchanged:.2f} ms")
    lost = all_nodes_lost(steady)
    loss = milliseconds(lambda: planned(lost, 64))
    plan = planned(lost, 64)
    print(f"{WORKERS} workers, every node lost: {loss:.1f} ms ({len(plan.actions)} actions)")
    after = replace(lost, run=lost.run.model_copy(update={"status": plan.status}))
    print(
        f"{WORKERS} workers, while they are lost: {milliseconds(lambda: planned(after, 66)):.1f} ms"
    )


if __name__ == "__main__":
    main()
