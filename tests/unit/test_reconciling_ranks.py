"""status.progress.ranks: what each rank measures, without a write for each measurement."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_progress
from support.reconciled import a_polled_run, reconcile, then
from trainingrun.reconciling import Observed

GIB = 2**30


@pytest.fixture
def training() -> Observed:
    return a_polled_run()


def shown(seen: Observed) -> list[dict[str, Any]]:
    progress = reconcile(seen).status.progress
    assert progress
    return [row.to_dict() for row in progress.ranks or []]


def test_each_rank_is_shown_with_rounded_measurements(training: Observed) -> None:
    rows = [
        {"rank": 1, "used_bytes": GIB},
        {
            "rank": 0,
            "node": "a",
            "pod": "digits-1-w-0",
            "step_seconds": 0.312345,
            "data_wait_share": 0.12345,
            "communication_wait_share": 0.6789,
            "used_bytes": 3 * GIB,
            "limit_bytes": 8 * GIB,
            "bytes_per_hour": 1000,
            "accelerator_share": 0.0749,
        },
    ]
    assert shown(replace(training, progress=a_progress(ranks=rows))) == [
        {
            "rank": 0,
            "node": "a",
            "pod": "digits-1-w-0",
            "stepSeconds": 0.312,
            "dataWaitShare": 0.12,
            "communicationWaitShare": 0.68,
            "usedBytes": 3 * GIB,
            "limitBytes": 8 * GIB,
            "bytesPerHour": 1000,
            "acceleratorShare": 0.07,
        },
        {"rank": 1, "usedBytes": GIB},
    ]


def test_memory_that_hardly_differs_changes_nothing(training: Observed) -> None:
    def with_memory(used: int, growth: int | None) -> Any:
        found = {"rank": 0, "used_bytes": used, "bytes_per_hour": growth}
        return a_progress(memory=found, ranks=[found])

    first = then(replace(training, progress=with_memory(1000, 100)))
    written = first.run.status.to_dict()
    for used, growth in ((1019, 119), (981, 81)):
        again = replace(first, progress=with_memory(used, growth))
        assert reconcile(again).status.to_dict() == written
    grown = replace(first, progress=with_memory(1021, 121))
    assert shown(grown) == [{"rank": 0, "usedBytes": 1021, "bytesPerHour": 121}]
    steady = replace(first, progress=with_memory(1000, None))
    assert shown(steady) == [{"rank": 0, "usedBytes": 1000}]


def test_the_use_of_accelerators_that_hardly_differs_changes_nothing(training: Observed) -> None:
    def with_use(share: float | None) -> Any:
        return a_progress(ranks=[{"rank": 0, "accelerator_share": share}])

    first = then(replace(training, progress=with_use(0.5)))
    written = first.run.status.to_dict()
    for use in (0.46, 0.54):
        assert reconcile(replace(first, progress=with_use(use))).status.to_dict() == written
    assert shown(replace(first, progress=with_use(0.56))) == [{"rank": 0, "acceleratorShare": 0.56}]
    assert shown(replace(first, progress=with_use(None))) == [{"rank": 0}]


def test_the_memory_of_another_rank_is_shown_at_once(training: Observed) -> None:
    def fullest(rank: int, used: int) -> Any:
        return a_progress(memory={"rank": rank, "used_bytes": used})

    first = then(replace(training, progress=fullest(0, 1000)))
    progress = reconcile(replace(first, progress=fullest(1, 1001))).status.progress
    assert progress
    assert progress.memory
    assert (progress.memory.rank, progress.memory.used_bytes) == (1, 1001)


def test_a_rank_that_a_driver_reports_twice_is_shown_once(training: Observed) -> None:
    rows = [{"rank": 0, "used_bytes": 1}, {"rank": 0, "used_bytes": 2}]
    assert shown(replace(training, progress=a_progress(ranks=rows))) == [
        {"rank": 0, "usedBytes": 2}
    ]


def test_no_rank_is_shown_while_none_trains(training: Observed) -> None:
    trained = then(replace(training, progress=a_progress(ranks=[{"rank": 0}])))
    assert shown(trained)
    assert shown(replace(trained, progress=a_progress(state="Recovering"))) == []
