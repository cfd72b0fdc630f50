"""What Ray Data loads is trained on once in each epoch too, whatever happens to the ranks."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.data_runs import DataRun
from support.loads_data import EPOCHS, KILLED_AT, SAMPLES
from support.local_runs import two_workers, wait_for_both_nodes
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import SUSPEND_FILE
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE

pytestmark = pytest.mark.slow

ONCE = [Counter(range(SAMPLES))] * EPOCHS
DATA_CPUS = 2
_CPUS = """
import ray
ray.init(logging_level="ERROR")
print(sorted(int(node["Resources"].get("CPU", 0)) for node in ray.nodes()))
"""


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """A Ray of two workers, each of which has a CPU, beside `DATA_CPUS` for Ray Data."""
    with two_workers(tmp_path_factory.mktemp("ray"), data_cpus=DATA_CPUS) as cluster:
        yield cluster


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Callable[..., DataRun]:
    """Makes runs: `a_run(killed=1)`."""

    def make(**config: object) -> DataRun:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        wanted = {"loader": "ray", "seed": 5, **config}
        return DataRun(ray, folder, "support.loads_data:train", wanted, EPOCHS)

    return make


def test_ray_data_has_its_own_cpus_beside_those_that_train(ray: LocalRay, tmp_path: Path) -> None:
    """On which the other tests' samples are loaded: training alone takes a CPU of each node."""
    wait_for_both_nodes(ray, tmp_path)
    found = tmp_path / "cpus.log"
    assert ray.start_on_head(["-c", _CPUS], {}, found).wait(60) == 0
    assert found.read_text().splitlines()[-1] == str([0, 1 + DATA_CPUS, 1 + DATA_CPUS])


def test_a_killed_rank_changes_no_sample_and_no_bit(a_run: Callable[..., DataRun]) -> None:
    """Rank 0 has the execution of Ray Data, which is lost with it."""
    whole = a_run()
    assert whole.drive() == 0, whole.log()
    assert whole.seen() == ONCE
    assert 0 < (whole.progress().data_wait_share or 0) <= 1

    broken = a_run(killed=0)
    assert broken.drive() == 0, broken.log()
    assert broken.resumed_from() == [KILLED_AT]
    assert broken.seen() == ONCE
    assert sorted(broken.steps()) == sorted(whole.steps())
    assert broken.metrics()["weights_sha256"] == whole.metrics()["weights_sha256"]


def test_another_world_size_goes_on_with_the_samples_that_are_left(
    a_run: Callable[..., DataRun],
) -> None:
    run = a_run(step_seconds=0.5)
    run.configure(until=str(run.state / SUSPEND_FILE))
    assert run.drive(suspend_at=3) == SUSPEND_EXIT_CODE, run.log()
    assert max(step for step, _, _ in run.steps()) < 10, "it was to end within the first epoch"
    run.configure(workers=1, until=str(run.folder))
    assert run.drive() == 0, run.log()
    assert run.seen() == ONCE
