"""What a reconcile remembers is read also where another version of the operator has written it."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_pod
from support.reconciled import a_polled_run, reconcile, then
from trainingrun.reconciling import Observed
from trainingrun.reconciling.bookkeeping import Bookkeeping


@pytest.fixture
def counted() -> Observed:
    """A run whose one allowed preemption was counted, while the pod is still there."""
    leaving = (a_head(), a_pod("worker-1", terminating_at=50), a_pod("worker-2", node="spot-2"))
    run = replace(a_polled_run(failures={"maxPreemptions": 1}), pods=leaving)
    return then(run, 60)


def of_a_later_version(value: Any) -> Any:
    """The same with a field more in each object."""
    if not isinstance(value, dict):
        return value
    fields = {name: of_a_later_version(each) for name, each in value.items()}
    return fields if all(isinstance(each, dict) for each in fields.values()) else fields | {"n": 1}


def remembering(observed: Observed, seen: dict[str, Any]) -> Observed:
    status = observed.run.status.model_copy(update={"seen": seen})
    return replace(observed, run=observed.run.model_copy(update={"status": status}))


def test_fields_of_a_later_version_are_ignored_wherever_they_are(counted: Observed) -> None:
    seen = counted.run.status.seen
    later = of_a_later_version(seen) | {"checkpoints": seen["checkpoints"]}  # fields of the spec
    assert later["counted"].keys() == seen["counted"].keys()
    assert Bookkeeping.read(later) == Bookkeeping.read(seen)
    assert reconcile(remembering(counted, later), 62).status.phase == "Running"


def test_what_cannot_be_understood_takes_nothing_else_with_it(counted: Observed) -> None:
    """A reason that this version does not know, and a list where it has a number."""
    seen = counted.run.status.seen
    (key,) = seen["counted"]
    odd = {**seen, "workers": [3], "counted": {**seen["counted"], "u": {"reason": "New"}}}
    found, known = Bookkeeping.read(odd), Bookkeeping.read(seen)
    assert found.counted[key] == known.counted[key]
    assert (found.workers, found.meter, found.head) == (0, known.meter, known.head)
    assert reconcile(remembering(counted, odd), 62).status.disruptions.preemptions == 1


@pytest.mark.parametrize("seen", [{"counted": 5}, {"counted": {"u": None}, "head": {}}, {"a": 1}])
def test_what_no_operator_wrote_counts_as_nothing_seen(seen: dict[str, Any]) -> None:
    assert Bookkeeping.read(seen) == Bookkeeping()
