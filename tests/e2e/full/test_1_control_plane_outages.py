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


def test_the_operator_may_not_see_the_run_for_a_while(steady: LongRun):
    cluster = steady.run.cluster
    with steady.in_the_same_pods():
        others = ("trainingruns", "trainingruns/status", "secrets", "networkpolicies", "events")
        with outages.permissions_deleted(cluster, but=others) as outage:
            outages.replace_operator(cluster)
            said = steady.run.wait_for_condition("Stalled", timeout=60)["message"]
            outage.last(ABSENT_S / 2)
        steady.reports_again()
        steady.no_longer_stalled()
    assert "RayJobs" in said, said
    steady.measure(
        "(l) operator may not see pods and RayJobs", outage.began, f"for {ABSENT_S / 2:.0f} s"
    )


def test_the_operator_has_no_permissions_for_a_while(steady: LongRun):
    cluster = steady.run.cluster
    with steady.in_the_same_pods():
        with outages.permissions_deleted(cluster) as outage:
            outages.replace_operator(cluster)
            steady.train_on(12)
            outage.last(ABSENT_S)
        steady.reports_again()
        steady.no_longer_stalled()
    steady.measure("(m) operator without RBAC binding", outage.began, f"for {ABSENT_S} s")


def test_the_api_server_is_paused(steady: LongRun):
    with steady.in_the_same_pods():
        with outages.api_server_paused(steady.run.cluster) as outage:
            steady.train_on(12)
            outage.last(ABSENT_S)
        steady.reports_again()
        steady.no_longer_stalled()
    steady.measure("(n) API server paused", outage.began, f"for {ABSENT_S} s")


def test_the_run_ends_as_if_all_had_been_there(
    steady: LongRun, reference: Callable[[], str], rows: list[Row]
):
    steady.ends_like(reference, rows)
