"""What the ranks agree on over a real network: one step late, in time, and only where all are."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainingrun_runtime.worker.step_consensus import Place, StepConsensus, StepValues

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What rank 0 of two has found."""
    roots = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "two_ranks.py")],
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout))


def test_the_largest_command_counts_for_all(found: dict[str, Any]) -> None:
    assert found["one step late"] == 1
    assert [found[name] for name in ("alike", "not alike", "unknown")] == [True, False, False]
    assert found["stop"] is True
    assert found["gathered"] == [[0, 0], [1, 10]]


def test_ranks_at_different_places_are_reported(found: dict[str, Any]) -> None:
    assert (
        "rank 0 is in a loop with 3 steps done, and rank 1 is in session.save() with 4 steps done"
        in found["apart"]
    )
    assert "rank 1 is after a loop with 0 steps done" in found["apart where states are compared"]


def test_a_silent_rank_is_waited_for_as_long_as_torch_timeout_seconds_says(
    found: dict[str, Any],
) -> None:
    """Not for the half hour that PyTorch's own default would be."""
    assert 2.5 < found["waited"] < 30


def test_a_lost_rank_is_noticed_at_once(found: dict[str, Any]) -> None:
    """And its loss is no error of the code."""
    assert found["noticed after"] < 30
    assert found["a loss"] is True


def test_a_rank_that_trains_alone_agrees_with_itself() -> None:
    alone = StepConsensus(timeout_s=1.0)
    assert alone.exchange(Place.STEP, StepValues(command=1, step=1)) == StepValues()
    assert alone.under_way()() == alone.agreed() == StepValues(command=1, step=1)
    assert alone.gather([7]) == [[7]]


def test_what_the_ranks_have_acted_on_is_forgotten_and_not_that_one_has_no_time() -> None:
    alone = StepConsensus(timeout_s=1.0)
    alone.agree(Place.SAVE, StepValues(command=1, no_time=True, step=1))
    alone.reset()
    assert alone.agreed() == StepValues(no_time=True)


def test_a_result_is_known_to_another_thread_once_every_rank_has_contributed(
    found: dict[str, Any],
) -> None:
    assert found["known to another thread"] is True
    assert found["unknown while a rank is silent"] is True
    assert found["unknown after it failed"] is True
