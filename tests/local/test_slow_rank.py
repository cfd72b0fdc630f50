"""A rank that the others wait for is named, though all steps take equally long: with real Ray."""

from pathlib import Path

import pytest

from support.local_runs import Run, wait_for_both_nodes
from trainingrun.local.ray_nodes import LocalRay

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("in_data", "cause"),
    [
        pytest.param(
            False, "and the rest takes longer: see what else runs on that node", id="computing"
        ),
        pytest.param(True, "see whether its data are more or farther away", id="data"),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(
    ray: LocalRay, tmp_path: Path, in_data: bool, cause: str
) -> None:
    wait_for_both_nodes(ray, tmp_path)
    config = {"slow_rank": 1, "slow_s": 0.3, "step_s": 0.05, "in_data": in_data}
    run = Run(ray, tmp_path, "support.has_a_slow_rank:train", config)
    run.start()
    try:
        # Until its first report of memory, too.
        progress = run.wait_until(lambda found: found.warnings and found.memory)
    finally:
        run.stop()
    assert progress.warnings[0].startswith("rank 1")
    assert " is slow: a step takes it 0." in progress.warnings[0]
    assert cause in progress.warnings[0]
    assert progress.slowest_rank
    assert progress.slowest_rank.rank == 1
    # Beside other work PyTorch counts a part of the slow rank's own step as waiting.
    assert progress.slowest_rank.own_seconds > 0.2
    assert progress.slowest_rank.median_seconds < 0.2
    assert progress.step_seconds
    assert progress.step_seconds >= 0.3
    assert progress.communication_wait_rank == 0
    assert progress.communication_wait_share
    assert progress.communication_wait_share > 0.5
    assert progress.memory
    assert progress.memory.used_bytes > 50e6
    assert [row.rank for row in progress.ranks] == [0, 1]
    waiting, slow = progress.ranks
    assert waiting.communication_wait_share == progress.communication_wait_share
    assert slow.communication_wait_share is not None
    assert slow.communication_wait_share < 0.4
    assert slow.data_wait_share is not None
    assert (slow.data_wait_share > 0.5) is in_data
    assert slow.step_seconds
    assert slow.step_seconds >= 0.3
