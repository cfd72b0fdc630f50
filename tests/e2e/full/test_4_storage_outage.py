"""The bucket is unreachable for two minutes, for three runs at once: one trains to its end, one
loses a worker, one is applied. It costs them nothing but time.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from e2e import outages
from e2e.cluster import TestCluster
from e2e.kube import NotSeenError, wait_for
from e2e.long_run import SECONDS_PER_STEP, LongRun
from e2e.report import Row
from e2e.runs import STEP_SECONDS, TOTAL_STEPS, Run, specification

UNREACHABLE_S = 120
TO_ITS_END = 0.4
"""Seconds per step with which a run reaches its last step before the bucket is back."""
SAYS = "cannot be reached"
"""What Waiting says while the bucket is away, of the endpoint or of the bucket."""

pytestmark = pytest.mark.usefixtures("rows")


@dataclass
class Outage:
    """What happened, told after it."""

    began: float
    ended: float
    said: dict[str, str]
    """What each run's condition Waiting said meanwhile; "" if it was not True."""


@pytest.fixture(scope="module")
def runs(operated: TestCluster) -> Iterator[dict[str, LongRun]]:
    """The three runs."""
    paces = {"trains": SECONDS_PER_STEP, "loses-worker": 1.0, "begins": STEP_SECONDS}
    made = {
        name: LongRun(Run(operated, operated.kubectl, f"storage-{name}"), pace)
        for name, pace in paces.items()
    }
    yield made
    for one in made.values():
        one.run.remove()


@pytest.fixture(scope="module")
def outage(operated: TestCluster, runs: dict[str, LongRun]) -> Outage:
    """The two minutes."""
    trains, loses_worker, begins = runs["trains"], runs["loses-worker"], runs["begins"]
    for one in (trains, loses_worker):
        one.apply(specification())
    for one in (trains, loses_worker):
        one.wait_for_checkpoint()
    trains.run.journals.set_pace(TO_ITS_END)
    trains.train_on(3)
    with outages.storage_unreachable(operated) as outage:
        begins.apply(specification())
        loses_worker.run.kubectl.delete("pod", loses_worker.run.trainer())
        outage.last(UNREACHABLE_S - 30)
        said = {name: waiting(one.run) for name, one in runs.items()}
        outage.last(UNREACHABLE_S)
        ended = time.time()
    return Outage(outage.began, ended, said)


def waiting(run: Run) -> str:
    """What Waiting says, once it is about the bucket; else what it says instead."""

    def sentence() -> str:
        found = run.conditions().get("Waiting", {})
        return found.get("message", "") if found.get("status") == "True" else ""

    try:
        return wait_for(
            f"{run.name} says that the bucket is away",
            lambda: re.search(SAYS, sentence()) and sentence(),
            timeout=60,  # on a crowded machine a run that begins takes as long to its first word
        )
    except NotSeenError:
        return sentence()


def test_a_run_trains_to_its_end_without_the_bucket(
    runs: dict[str, LongRun], outage: Outage, reference: Callable[[], str], rows: list[Row]
):
    trains = runs["trains"]
    status = trains.run.succeed()
    trains.measure("(q) bucket unreachable while training", outage.began, f"for {UNREACHABLE_S} s")
    trains.ends_like(reference, rows)
    last = trains.run.steps()[-1]
    assert last.time < outage.ended, "it did not reach its last step in the outage"
    assert status["checkpoint"]["step"] == last.number == TOTAL_STEPS
    assert re.search(SAYS, outage.said["trains"])


def test_a_worker_is_lost_while_the_bucket_is_unreachable(
    runs: dict[str, LongRun], outage: Outage, reference: Callable[[], str], rows: list[Row]
):
    loses_worker = runs["loses-worker"]
    loses_worker.train_on(5, timeout=300)
    row = loses_worker.measure(
        "(r) bucket unreachable, worker deleted", outage.began, f"for {UNREACHABLE_S} s"
    )
    loses_worker.ends_like(reference, rows)
    assert row.lost == 0, "the worker that was left did not hold the last step"
    assert re.search(SAYS, outage.said["loses-worker"])


def test_a_run_begins_while_the_bucket_is_unreachable(
    runs: dict[str, LongRun], outage: Outage, reference: Callable[[], str], rows: list[Row]
):
    begins = runs["begins"]
    begins.run.wait_for_step(1)
    after = begins.run.steps()[0].time - outage.ended
    begins.rows.append(Row("(s) bucket unreachable at the start", after, note="to its first step"))
    begins.ends_like(reference, rows)
    assert re.search(SAYS, outage.said["begins"])
