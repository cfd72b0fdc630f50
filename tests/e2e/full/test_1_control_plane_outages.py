"""The operator may not read, or the API server is paused: the run trains on, in the same pods.

One run goes through all of it. Each test leaves it as it found it.
"""

from collections.abc import Callable

import pytest

from e2e import outages
from e2e.long_run import LongRun
from e2e.report import Row

ABSENT_S = 60
"""How long something is away."""

pytestmark = pytest.mark.usefixtures("rows")


def test_the_operator_may_not_see_the_run_for_a_while(long_run: LongRun):
    cluster = long_run.run.cluster
    with long_run.in_the_same_pods():
        others = ("trainingruns", "trainingruns/status", "secrets", "networkpolicies", "events")
        with outages.permissions_deleted(cluster, but=others) as outage:
            outages.replace_operator(cluster)
            said = long_run.run.wait_for_condition("Waiting", timeout=60)["message"]
            outage.last(ABSENT_S / 2)
        long_run.reports_again()
        long_run.no_longer_waits()
    assert "RayJobs" in said, said
    long_run.measure(
        "(l) operator may not see pods and RayJobs", outage.began, f"for {ABSENT_S / 2:.0f} s"
    )


def test_the_operator_has_no_permissions_for_a_while(long_run: LongRun):
    cluster = long_run.run.cluster
    with long_run.in_the_same_pods():
        with outages.permissions_deleted(cluster) as outage:
            outages.replace_operator(cluster)
            long_run.train_on(12)
            outage.last(ABSENT_S)
        long_run.reports_again()
        long_run.no_longer_waits()
    long_run.measure("(m) operator without RBAC binding", outage.began, f"for {ABSENT_S} s")


def test_the_api_server_is_paused(long_run: LongRun):
    with long_run.in_the_same_pods():
        with outages.api_server_paused(long_run.run.cluster) as outage:
            long_run.train_on(12)
            outage.last(ABSENT_S)
        long_run.reports_again()
        long_run.no_longer_waits()
    long_run.measure("(n) API server paused", outage.began, f"for {ABSENT_S} s")


def test_the_run_ends_as_if_all_had_been_there(
    long_run: LongRun, reference: Callable[[], str], rows: list[Row]
):
    long_run.ends_like(reference, rows)
