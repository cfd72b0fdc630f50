"""Which checkpoints go."""

from typing import Any

import pytest

from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.store.manifest import FileDigest, Manifest
from trainingrun_runtime.store.retention import Best, best_of, expired


def a_manifest(
    step: int, fencing_token: int = 1, index: int | None = None, **metrics: Any
) -> Manifest:
    return Manifest(
        path=f"checkpoints/0001-{fencing_token:06d}/step-{step}",
        step=step,
        world_size=2,
        attempt=1,
        fencing_token=fencing_token,
        index=step if index is None else index,
        metrics=metrics,
        files={"state.pt": FileDigest(1, "0" * 64)},
        time=0,
    )


def test_all_but_the_newest_go_oldest_first() -> None:
    shuffled = [a_manifest(step) for step in (3, 1, 4, 2)]
    assert [m.step for m in expired(shuffled, ContractCheckpoints(keep=2))] == [1, 2]


def test_fewer_than_kept_lose_nothing() -> None:
    assert expired([a_manifest(1)], ContractCheckpoints(keep=2)) == []
    assert expired([], ContractCheckpoints(keep=2, best_metric="loss", best_order="min")) == []


def test_a_later_fencing_token_is_newer_whatever_its_step() -> None:
    committed = [
        a_manifest(500, fencing_token=1),
        a_manifest(510, fencing_token=1),
        a_manifest(300, fencing_token=2),
    ]
    assert [m.step for m in expired(committed, ContractCheckpoints(keep=2))] == [500]


@pytest.mark.parametrize(
    ("best", "kept"),
    [
        pytest.param(("loss", "min"), 2, id="least"),
        pytest.param(("loss", "max"), 1, id="greatest"),
        pytest.param(("nothing", "max"), None, id="no such metric"),
    ],
)
def test_the_best_stays(best: Best, kept: int | None) -> None:
    committed = [a_manifest(1, loss=0.9), a_manifest(2, loss=0.1), *map(a_manifest, (3, 4))]
    assert {1, 2} - {
        m.step
        for m in expired(
            committed, ContractCheckpoints(keep=2, best_metric=best[0], best_order=best[1])
        )
    } == ({kept} if kept else set())


def test_as_many_of_the_best_stay_as_are_asked_for() -> None:
    """As with Ray's CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss")."""
    losses = (0.3, 0.1, 0.9, 0.2, 0.8, 0.7)
    committed = [a_manifest(step, loss=loss) for step, loss in enumerate(losses, 1)]
    dropped = expired(
        committed, ContractCheckpoints(keep=1, best_metric="loss", best_order="min", keep_best=2)
    )
    assert [m.step for m in dropped] == [1, 3, 5]
    used = [committed[2].path]
    dropped = expired(
        committed,
        ContractCheckpoints(keep=1, best_metric="loss", best_order="min", keep_best=2),
        used=used,
    )
    assert [m.step for m in dropped] == [1, 5]


@pytest.mark.parametrize(
    "worthless",
    [
        pytest.param(float("nan"), id="NaN"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param("0.99", id="string"),
        pytest.param(True, id="bool"),
        pytest.param(None, id="None"),
    ],
)
def test_only_finite_numbers_can_be_the_best(worthless: Any) -> None:
    committed = [a_manifest(1, accuracy=worthless), a_manifest(2, accuracy=0.1)]
    found = best_of(committed, ("accuracy", "max"))
    assert found is not None
    assert found.step == 2


def test_of_equals_the_newest_is_the_best() -> None:
    found = best_of([a_manifest(1, loss=0.5), a_manifest(2, loss=0.5)], ("loss", "min"))
    assert found is not None
    assert found.step == 2
