"""What the operator writes for one run is limited: actions that fail, events, a large status.

Each action that fails is tried again by itself: soon after a fault, seldom after a refusal.
"""

import pytest

from support.builders import T0
from trainingrun.api.reasons import EventReason
from trainingrun.cluster.api_client import ClusterError, Rejected, Unusable
from trainingrun.controller.write_limits import (
    BURST,
    REFILL_S,
    REFUSED_S,
    STATUS,
    UNUSABLE_S,
    ActionRetries,
    EventLimits,
    StatusPace,
)
from trainingrun.reconciling.model import ActionKey, Delete, Ref, RunEvent

POD: ActionKey = ("delete", "Pod", "a")
OTHER: ActionKey = ("delete", "Pod", "b")


class Clock:
    """Seconds that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def delete(key: ActionKey) -> Delete:
    return Delete(Ref("v1", key[1], "team-a", key[2]))


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        pytest.param(ClusterError("no answer"), [0.1, 0.2, 0.4], id="a fault"),
        pytest.param(Rejected("denied"), [REFUSED_S] * 3, id="a policy"),
        pytest.param(
            ClusterError("500 failed calling webhook"), [REFUSED_S] * 3, id="a webhook is down"
        ),
        pytest.param(Unusable("too large"), [REFUSED_S * 2**n for n in range(3)], id="too large"),
        pytest.param(KeyError("x"), [REFUSED_S * 2**n for n in range(3)], id="a bug"),
    ],
)
def test_what_cannot_heal_by_itself_is_tried_seldom(
    clock: Clock, error: Exception, waits: list[float]
) -> None:
    retries = ActionRetries(clock)
    for wait in waits:
        assert retries.due(POD)
        retries.failed(POD, error, T0)
        assert retries.due_in_s([POD]) == pytest.approx(wait)
        assert not retries.due(POD)
        clock.now += wait
    for _ in range(20):
        retries.failed(POD, error, T0)
    assert (retries.due_in_s([POD]) or 0) <= UNUSABLE_S


def test_an_action_that_fails_holds_up_no_other_one(clock: Clock) -> None:
    retries = ActionRetries(clock)
    assert retries.failed(POD, Rejected("no"), T0), "it is new"
    assert not retries.failed(POD, Rejected("no"), T0), "it only repeats"
    assert retries.due(OTHER)
    assert [(*one.key, one.message) for one in retries.failing()] == [("delete", "Pod", "a", "no")]
    retries.worked(POD)
    assert (retries.failing(), retries.due_in_s([POD, OTHER])) == ((), None)


def test_what_is_not_planned_any_more_is_forgotten(clock: Clock) -> None:
    retries = ActionRetries(clock)
    for key in (POD, OTHER, STATUS):
        retries.failed(key, Rejected("no"), T0)
    retries.keep([delete(OTHER)])
    assert [one.name for one in retries.failing()] == ["b"]
    assert not retries.due(STATUS)


def test_what_waits_for_another_action_is_no_reason_to_reconcile_at_once(clock: Clock) -> None:
    retries = ActionRetries(clock)
    retries.failed(OTHER, ClusterError("no answer"), T0)
    clock.now += 20
    retries.failed(POD, Rejected("no"), T0)
    assert retries.due_in_s([POD, OTHER]) == 0
    assert retries.due_in_s([POD]) == REFUSED_S, "the other one is made after this one"
    assert retries.due_in_s([None]) is None


def test_a_flood_of_events_of_one_reason_becomes_a_few_and_takes_no_room_from_others(
    clock: Clock,
) -> None:
    limits, key = EventLimits(clock), ("team-a", "digits")
    lost = RunEvent("Warning", EventReason.WORKER_LOST, "a worker died")
    assert len(limits.admit(key, [lost] * 500)) == BURST
    failed = RunEvent("Warning", EventReason.FAILED, "the end")
    assert limits.admit(key, [lost, failed]) == [failed]
    assert limits.admit(("team-b", "digits"), [lost]) == [lost], "each run has its own"
    clock.now += REFILL_S
    (again,) = limits.admit(key, [lost, lost])
    assert again.message == "a worker died (491 such events were left out)"
    clock.now += 100 * REFILL_S
    assert len(limits.admit(key, [lost] * 500)) == BURST


def test_a_large_status_is_not_written_at_each_poll_for_measurements_alone(clock: Clock) -> None:
    pace, key = StatusPace(clock), ("team-a", "digits")
    trials = [{"number": n, "step": 0, "config": {"lr": "x" * 100}} for n in range(200)]
    former = {"phase": "Running", "sweep": {"trials": trials}, "attempts": [{"lastStep": 1}]}
    measured = {**former, "sweep": {"trials": trials[1:]}, "attempts": [{"lastStep": 2}]}
    assert pace.wait_s(key, former, measured) == 0, "this process has not written it yet"
    pace.wrote(key)
    assert 2 < pace.wait_s(key, former, measured) <= 30
    for decided in (
        {**measured, "phase": "Recovering"},
        {**measured, "attempts": [{"lastStep": 2, "outcome": "Lost"}]},
        {**measured, "seen": {"counted": {"a": {}}}},
        {**measured, "conditions": [{"type": "Stalled"}]},
    ):
        assert pace.wait_s(key, former, decided) == 0, "what was decided or counted never waits"
    clock.now += 30
    assert pace.wait_s(key, former, measured) == 0
    pace.wrote(key)
    clock.now += 2
    small = {"phase": "Running", "progress": {"step": 1}}
    assert pace.wait_s(key, small, {**small, "progress": {"step": 2}}) == 0
