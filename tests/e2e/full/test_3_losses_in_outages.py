"""A run loses something while what it needs to go on is away: it waits, and goes on after that.

One run goes through all of it.
"""

import time
from collections.abc import Callable

import pytest

from e2e import outages
from e2e.long_run import LongRun
from e2e.report import Row
from e2e.runs import kill_trainer

ABSENT_S = 60
"""How long something is away."""

pytestmark = pytest.mark.usefixtures("rows")


def test_a_training_process_is_killed_without_dns(long_run: LongRun):
    run = long_run.run
    long_run.train_on(2)
    system = run.kubectl.within("kube-system")
    with outages.deployment_away(system, "coredns") as outage:
        kill_trainer(run.kubectl, run.trainer(), run.train_on)
        outage.last(ABSENT_S)
    long_run.train_on(5)
    status = long_run.reports_again()
    long_run.measure("(o) training process kill -9, no DNS", outage.began, f"for {ABSENT_S} s")
    assert status["attempt"] == 1, status["attempts"]
    assert status["disruptions"]["workerFailures"] == 1


def test_a_worker_is_deleted_without_kuberay(long_run: LongRun):
    run = long_run.run
    long_run.train_on(2)
    kuberay = run.kubectl.within("default")
    with outages.deployment_away(kuberay, "kuberay-operator") as outage:
        run.kubectl.delete("pod", run.trainer())
        # A minute after the pod has gone: KubeRay takes seconds, and is given more.
        said = run.wait_for_condition("Waiting", timeout=2 * ABSENT_S)["message"]
        outage.last(ABSENT_S)
        lasted = time.time() - outage.began
    long_run.train_on(5)
    status = long_run.reports_again()
    long_run.no_longer_waits()
    long_run.measure("(p) worker pod deleted, no KubeRay", outage.began, f"for {lasted:.0f} s")
    assert "KubeRay" in said, said
    assert status["attempt"] == 1, status["attempts"]
    assert status["disruptions"]["preemptions"] == 1


def test_the_run_ends_as_if_nothing_was_lost(
    long_run: LongRun, reference: Callable[[], str], rows: list[Row]
):
    long_run.ends_like(reference, rows)
