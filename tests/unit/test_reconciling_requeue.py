"""When a running attempt is reconciled again if nothing happens."""

from dataclasses import replace

import pytest

from support.builders import a_head, a_node, a_pod, a_progress, nodes, pods, unix
from support.reconciled import a_polled_run, reconcile, then
from trainingrun.reconciling.planning import LONGEST_S

OFTEN_S = 2.0
"""ReconcileSettings.poll_s."""


@pytest.fixture
def training():
    """An attempt that trains, as its head has just reported."""
    return then(a_polled_run(), 60)


def test_a_training_without_news_waits_for_the_next_event(training):
    """A lost event is the resync's concern: a thousand runs cost no more than it does."""
    assert reconcile(training, 62).requeue_after_s is None
    assert reconcile(training, 7200).requeue_after_s is None


CONCERNS = {
    "polls begin to fail": {"progress_failing_s": 1.0},
    "Ray lost a node": {"progress": a_progress(lost_nodes=["spot-1"])},
    "a node is not ready": {"nodes": nodes(a_node("spot-1", ready=False))},
    "a pod is leaving": {
        "pods": (*pods()[:2], a_pod("worker-2", node="spot-2", terminating_at=55))
    },
    "a pod is missing": {"pods": pods()[:2]},
    "the head is new": {"pods": (a_head(created_at=58), *pods()[1:]), "progress_age_s": 30.0},
    "the driver starts": {"progress": a_progress(state="Starting", time=unix(61))},
}


@pytest.mark.parametrize("change", CONCERNS.values(), ids=CONCERNS)
def test_what_may_soon_be_decided_on_is_reconciled_often(training, change):
    planned = reconcile(replace(training, **change), 62)
    assert planned.requeue_after_s is not None
    assert planned.requeue_after_s <= max(OFTEN_S, 62 * 0.1)


def test_what_lasts_for_long_is_reconciled_less_often(training):
    """A thousand runs that wait for a quota over night must not keep the operator busy."""
    silent = replace(training, progress_failing_s=100.0)
    assert reconcile(silent, 160).requeue_after_s == 10.0
    silent = replace(training, progress_failing_s=10_000.0)
    assert reconcile(silent, 10_060).requeue_after_s == LONGEST_S
