"""Ranks of a sharded training die without notice: those that hold every part save the last step."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.dies_in_a_step import DIES_AT
from support.disturbed_runs import Disturbed
from support.local_runs import two_workers
from trainingrun.local.ray_nodes import LocalRay

pytestmark = pytest.mark.slow

FUNCTION = "dies_in_a_step:train_sharded"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """A Ray of four workers, two on each node."""
    with two_workers(tmp_path_factory.mktemp("ray"), workers_per_node=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def weights(four: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an undisturbed run's weights."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run = Disturbed(four, folder, {"seed": 5, "undisturbed": True}, FUNCTION, workers=4)
    assert run.drive() == 0, run.log()
    return str(run.metrics()["weights_sha256"])


@pytest.mark.parametrize(
    ("dead", "resumed"),
    [
        pytest.param(
            "3",
            f"resumed from step {DIES_AT}, which ranks 0 and 1 saved after the loss",
            id="one rank",
        ),
        pytest.param(
            "03",
            f"resumed from step {DIES_AT}, which ranks 1 and 2 saved after the loss",
            id="one of each part, rank 0 too",
        ),
        # No checkpoint was due before.
        pytest.param(
            "13",
            r"resumed from step 0; \d+ steps are done again, since the state is sharded, and none "
            "of ranks 0 and 2, which are left, holds 1 of its 2 parts",
            id="both that hold one part",
        ),
    ],
)
def test_what_replicas_hold_of_the_last_step_is_saved(
    four: LocalRay, tmp_path: Path, weights: str, dead: str, resumed: str
) -> None:
    config = {"seed": 5, "signals": dict.fromkeys(dead, "SIGKILL")}
    run = Disturbed(four, tmp_path / "run", config, FUNCTION, workers=4)
    assert run.drive() == 0, run.log()
    (message,) = run.resumed()
    assert re.fullmatch(resumed, message)
    assert run.steps()[-20 if "step 0" in resumed else 0 :] == list(range(20))
    assert run.metrics()["weights_sha256"] == weights


def test_where_one_fails_another_one_saves_its_part(
    four: LocalRay, tmp_path: Path, weights: str
) -> None:
    config = {"seed": 5, "signals": {"3": "SIGKILL"}, "spoils": 0}
    run = Disturbed(four, tmp_path / "run", config, FUNCTION, workers=4)
    assert run.drive() == 0, run.log()
    assert run.resumed() == [
        f"resumed from step {DIES_AT}, which ranks 1 and 2 saved after the loss"
    ]
    assert run.metrics()["weights_sha256"] == weights
