"""How often a run is lost, over all its drivers."""

from typing import Any

import pytest

from trainingrun_runtime.store.lease import LossHistory


@pytest.mark.parametrize(
    ("written", "losses", "trained"),
    [
        pytest.param({"losses": 2, "trained": 50.5, "unsaved": True}, 3, 50.5, id="lost"),
        pytest.param({"losses": 2, "trained": 50.5, "unsaved": False}, 2, 50.5, id="suspended"),
        pytest.param({"losses": -4, "trained": "12", "unsaved": False}, 0, 12.0, id="odd numbers"),
        pytest.param({"losses": "many"}, 0, 0.0, id="no number"),
        pytest.param({"trained": float("nan")}, 0, 0.0, id="NaN"),
        pytest.param([1, 2], 0, 0.0, id="a list"),
        pytest.param(None, 0, 0.0, id="of an earlier version"),
    ],
)
def test_the_next_driver_counts_the_loss_of_the_former_one(
    written: Any, losses: int, trained: float
) -> None:
    assert LossHistory.of_next_driver(written) == LossHistory(losses=losses, trained=trained)


@pytest.mark.parametrize(
    ("history", "trained", "seconds"),
    [
        pytest.param(LossHistory(), 0, 7200, id="assumed before the first one"),
        pytest.param(LossHistory(trained=5000), 5000, 10000, id="trained longer without one"),
        pytest.param(LossHistory(losses=1, trained=400), 200, 600, id="one"),
        pytest.param(LossHistory(losses=4, trained=400), 0, 100, id="several"),
    ],
)
def test_the_mean_time_between_losses(history: LossHistory, trained: float, seconds: float) -> None:
    assert history.seconds_between_losses(7200, trained) == seconds
