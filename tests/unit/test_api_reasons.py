"""docs/conditions.md lists each reason that the operator can set, and no other."""

import re
from pathlib import Path

import pytest

from trainingrun.api.generate import generated
from trainingrun.api.reasons import (
    CONDITIONS,
    EVENTS,
    ConditionReason,
    EventReason,
)
from trainingrun.api.status import LossReason
from trainingrun.reconciling.losses.counting import COUNTERS

RECONCILING = Path(__file__).parents[2] / "operator" / "trainingrun" / "reconciling"
CODE = "\n".join(path.read_text() for path in sorted(RECONCILING.rglob("*.py")))
PAGE = generated()[Path("docs/conditions.md")]
FROM_VALUES = {*COUNTERS}
"""Reasons of events that are made from a LossReason."""


@pytest.mark.parametrize("reason", ConditionReason)
def test_each_condition_reason_is_documented_and_set(reason: ConditionReason):
    assert reason in {row.reason for row in CONDITIONS}
    assert re.search(rf"\bConditionReason\.{reason.name}\b", CODE), "nothing sets it"
    assert f"`{reason.value}`" in PAGE


@pytest.mark.parametrize("reason", EventReason)
def test_each_event_reason_is_documented_and_emitted(reason: EventReason):
    assert reason in {row.reason for row in EVENTS}
    emitted = re.search(rf"\bEventReason\.{reason.name}\b", CODE) or reason.value in FROM_VALUES
    assert emitted, "nothing emits it"


@pytest.mark.parametrize("reason", COUNTERS)
def test_each_loss_that_is_counted_has_an_event(reason: LossReason):
    assert EventReason(reason.value)


def test_no_condition_is_listed_twice():
    rows = [(row.type, row.status, row.reason) for row in CONDITIONS]
    assert len(rows) == len(set(rows))


def test_what_stalls_or_fails_a_run_says_what_to_do():
    bad = {("Stalled", "True"), ("Failed", "True"), ("Accepted", "False")}
    assert [
        row.reason for row in CONDITIONS if (row.type, row.status) in bad and not row.remedy
    ] == []
