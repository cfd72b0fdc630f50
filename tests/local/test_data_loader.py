"""Within an epoch each sample is trained on once, whatever happens to the ranks."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support.data_runs import DataRun
from support.loads_data import ALL, EPOCHS, KILLED_AT, SAMPLES, SAVED_AT
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import SUSPEND_FILE
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE

pytestmark = pytest.mark.slow

SEED = 5
ONCE = [Counter(range(SAMPLES))] * EPOCHS


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Callable[..., DataRun]:
    """Makes runs: `a_run(seed=1, killed=1)`."""
    function = "support.loads_data:train"
    return lambda **config: DataRun(
        ray, tmp_path / f"run-{len(list(tmp_path.iterdir()))}", function, config, EPOCHS
    )


def test_a_killed_rank_changes_no_sample_and_no_bit(a_run: Callable[..., DataRun]) -> None:
    whole = a_run(seed=SEED)
    assert whole.drive() == 0, whole.log()
    assert whole.seen() == ONCE
    progress = whole.progress()
    assert progress.data_wait_share is not None
    assert 0 < progress.data_wait_share <= 1
    assert progress.data_wait_rank in (0, 1)

    broken = a_run(seed=SEED, killed=1)
    assert broken.drive() == 0, broken.log()
    assert broken.resumed_from() == [KILLED_AT]
    assert broken.seen() == ONCE, "what was loaded in advance is not lost"
    assert sorted(broken.steps()) == sorted(whole.steps())
    assert broken.metrics()["weights_sha256"] == whole.metrics()["weights_sha256"]


@pytest.mark.parametrize("killed", [1, ALL])
def test_from_the_last_checkpoint_on_the_same_samples_are_trained_on_again(
    a_run: Callable[..., DataRun], killed: int | str
) -> None:
    """Without a seed no rank notes its steps: those since the checkpoint are done again, and no bit
    is different."""
    whole = a_run()
    assert whole.drive() == 0, whole.log()
    broken = a_run(killed=killed)
    assert broken.drive() == 0, broken.log()
    assert broken.resumed_from() == [SAVED_AT]
    again = [each for each in whole.steps() if SAVED_AT <= each[0] < KILLED_AT]
    assert sorted(broken.steps()) == sorted(whole.steps() + again)
    assert broken.metrics()["weights_sha256"] == whole.metrics()["weights_sha256"]


def test_torchdatas_stateful_data_loader_goes_on_at_the_right_batch(
    a_run: Callable[..., DataRun],
) -> None:
    """Each rank has its own, which no other one can save for it: the last checkpoint counts."""
    whole = a_run(loader="stateful", seed=SEED)
    assert whole.drive() == 0, whole.log()
    assert whole.seen() == ONCE
    assert 0 < (whole.progress().data_wait_share or 0) <= 1

    broken = a_run(loader="stateful", seed=SEED, killed=1)
    assert broken.drive() == 0, broken.log()
    assert broken.resumed_from() == [SAVED_AT]
    again = [each for each in whole.steps() if SAVED_AT <= each[0] < KILLED_AT]
    assert sorted(broken.steps()) == sorted(whole.steps() + again)
    assert broken.metrics()["weights_sha256"] == whole.metrics()["weights_sha256"]


def test_another_world_size_goes_on_with_the_samples_that_are_left(
    a_run: Callable[..., DataRun],
) -> None:
    run = a_run(seed=SEED, step_seconds=0.5)
    run.configure(until=str(run.state / SUSPEND_FILE))
    assert run.drive(suspend_at=3) == SUSPEND_EXIT_CODE, run.log()
    assert max(step for step, _, _ in run.steps()) < 10, "it was to end within the first epoch"
    run.configure(workers=1, step_seconds=0.0, until=str(run.folder))
    assert run.drive() == 0, run.log()
    assert run.seen() == ONCE
