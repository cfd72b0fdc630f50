"""A rank that dies without notice: the others save the last step, else the checkpoint is used."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.dies_connecting import DIED
from support.dies_in_a_step import DIES_AT
from support.disturbed_runs import Disturbed, drain
from support.local_runs import Run, has_ancestor
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.survivors.last_step import TOO_LONG
from trainingrun_runtime.survivors.watched_tensors import DOUBT

pytestmark = pytest.mark.slow

SEED = 5
MORE_STATE = "dies_with_more_state:train"


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Callable[..., Disturbed]:
    """Makes runs: `a_run(seed=1, signals={"1": "SIGKILL"})`."""
    return lambda **config: Disturbed(
        ray, tmp_path / f"run-{len(list(tmp_path.iterdir()))}", config
    )


@pytest.fixture(scope="module")
def weights(ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], str]:
    """The digest of an undisturbed run's weights, with or without BatchNorm."""
    known: dict[bool, str] = {}

    def of(norm: bool) -> str:
        if norm not in known:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            run = Disturbed(ray, folder, {"seed": SEED, "norm": norm, "undisturbed": True})
            assert run.drive() == 0, run.log()
            assert run.steps() == list(range(20))
            known[norm] = run.metrics()["weights_sha256"]
        return known[norm]

    return of


@pytest.fixture(scope="module")
def unseeded_weights(ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same without BatchNorm, of a session without a seed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run = Disturbed(ray, folder, {"norm": False, "undisturbed": True})
    assert run.drive() == 0, run.log()
    digest: str = run.metrics()["weights_sha256"]
    return digest


@pytest.fixture(scope="module")
def more_state(ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The metrics of an undisturbed run with all that a training may have."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run = Disturbed(ray, folder, {"seed": SEED, "undisturbed": True}, MORE_STATE)
    assert run.drive() == 0, run.log()
    return run.metrics()


@pytest.mark.parametrize(
    ("dead", "norm"),
    [
        pytest.param(1, True, id="rank 1, dropout and BatchNorm"),
        pytest.param(0, False, id="rank 0, dropout"),
    ],
)
def test_no_step_is_lost_and_no_bit_is_different_when_a_rank_is_killed(
    a_run: Callable[..., Disturbed], weights: Callable[[bool], str], dead: int, norm: bool
) -> None:
    run = a_run(seed=SEED, norm=norm, signals={str(dead): "SIGKILL"})
    assert run.drive() == 0, run.log()
    assert run.resumed() == [
        f"resumed from step {DIES_AT}, which rank {1 - dead} saved after the loss"
    ], run.log()
    assert run.steps() == list(range(20))
    assert run.progress().seconds.lost_work == 0
    assert run.metrics()["weights_sha256"] == weights(norm)


def test_no_step_is_lost_where_a_store_has_no_data_for_a_rank(
    a_run: Callable[..., Disturbed], weights: Callable[[bool], str]
) -> None:
    """Every rank lives, and the run's own bucket answers."""
    run = a_run(seed=SEED, norm=False, no_data=1)
    assert run.drive() == 0, run.log()
    assert run.resumed() == [f"resumed from step {DIES_AT}, which rank 0 saved after the loss"], (
        run.log()
    )
    assert run.steps() == list(range(20))
    assert run.metrics()["weights_sha256"] == weights(False)


def test_a_rank_that_dies_while_a_checkpoint_is_still_being_uploaded_costs_no_step(
    a_run: Callable[..., Disturbed],
) -> None:
    """That checkpoint is used, or the other rank saves the step once more."""
    large = {"seed": SEED, "norm": False, "width": 2**15, "saves": DIES_AT - 1}
    undisturbed = a_run(**large, undisturbed=True)
    assert undisturbed.drive() == 0, undisturbed.log()
    run = a_run(**large, signals={"1": "SIGKILL"})
    assert run.drive() == 0, run.log()
    resumed = f"resumed from step {DIES_AT}"
    assert run.resumed() in ([resumed], [f"{resumed}, which rank 0 saved after the loss"])
    assert run.steps() == list(range(20))
    assert run.progress().seconds.lost_work == 0
    assert run.metrics()["weights_sha256"] == undisturbed.metrics()["weights_sha256"]


@pytest.mark.parametrize("place", ["compare", "report"])
def test_a_rank_that_dies_in_a_save_costs_no_step_where_the_other_one_waits_for_it(
    a_run: Callable[..., Disturbed], weights: Callable[[bool], str], place: str
) -> None:
    """What the other one has of its state to copy it is no alias."""
    run = a_run(seed=SEED, norm=False, saves=DIES_AT - 1, dies_in_save=place)
    assert run.drive() == 0, run.log()
    assert run.resumed() == [f"resumed from step {DIES_AT}, which rank 0 saved after the loss"]
    assert run.progress().seconds.lost_work == 0
    assert run.metrics()["weights_sha256"] == weights(False)


@pytest.mark.parametrize(
    ("step", "noted", "loops"),
    [
        pytest.param(DIES_AT - 1, True, [], id="the one before"),
        pytest.param(DIES_AT, False, [], id="the last one"),
        pytest.param(DIES_AT, False, [DIES_AT - 1], id="the first one of a loop"),
    ],
)
def test_a_step_that_one_rank_has_no_time_to_note_is_noted_by_none(
    a_run: Callable[..., Disturbed],
    weights: Callable[[bool], str],
    step: int,
    noted: bool,
    loops: list[int],
) -> None:
    run = a_run(seed=SEED, norm=False, no_time=step, loops=loops, signals={"1": "SIGKILL"})
    assert run.drive() == 0, run.log()
    (resumed,) = run.resumed()
    if noted:
        assert resumed == f"resumed from step {DIES_AT}, which rank 0 saved after the loss"
    else:
        assert resumed.endswith(f"could not save the last step: {TOO_LONG}")
    assert run.metrics()["weights_sha256"] == weights(False)


def test_activations_that_are_computed_again_have_the_dropout_that_they_had(
    ray: LocalRay, tmp_path: Path, more_state: dict[str, Any]
) -> None:
    config = {"seed": SEED, "undisturbed": True, "recompute": False}
    kept = Disturbed(ray, tmp_path / "kept", config, MORE_STATE)
    assert kept.drive() == 0, kept.log()
    assert kept.metrics() == more_state


def test_without_a_seed_the_steps_since_the_last_checkpoint_are_done_again(
    a_run: Callable[..., Disturbed], unseeded_weights: str
) -> None:
    run = a_run(norm=False, signals={"1": "SIGKILL"})
    assert run.drive() == 0, run.log()
    (resumed,) = run.resumed()
    assert re.fullmatch(
        r"resumed from step 0; \d+ steps are done again, since no rank notes its steps: "
        "the session has no seed",
        resumed,
    )
    assert run.metrics()["weights_sha256"] == unseeded_weights


@pytest.mark.parametrize("dead", [0, 1])
def test_in_the_middle_of_an_accumulation_no_step_of_an_optimizer_is_lost(
    ray: LocalRay, tmp_path: Path, more_state: dict[str, Any], dead: int
) -> None:
    config = {"seed": SEED, "signals": {str(dead): "SIGKILL"}}
    run = Disturbed(ray, tmp_path / "disturbed", config, MORE_STATE)
    assert run.drive() == 0, run.log()
    assert run.resumed() == [
        f"resumed from step {DIES_AT}, which rank {1 - dead} saved after the loss"
    ], run.log()
    assert run.steps() == list(range(20))
    assert run.metrics()["scale"] > 8, "it grows, and is restored"
    assert run.metrics() == more_state


def test_a_rank_that_hangs_in_a_collective_saves_the_last_step_too(
    a_run: Callable[..., Disturbed], weights: Callable[[bool], str]
) -> None:
    run = a_run(seed=SEED, signals={"1": "SIGSTOP"})
    run.start()
    pid = run.wait_until_stopped(1)
    began = time.monotonic()
    run.wait_until(lambda progress: time.monotonic() > began + 1)  # rank 0 waits for it
    assert run.progress().step == DIES_AT
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == 0, run.log()
    assert run.steps() == list(range(20))
    assert run.metrics()["weights_sha256"] == weights(True)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(
            {"seed": SEED, "signals": {"0": "SIGKILL", "1": "SIGKILL"}},
            "",  # one of them may be seen to be lost when it is asked
            id="both ranks killed",
        ),
    ],
)
def test_without_the_state_of_the_last_step_the_last_checkpoint_is_used(
    a_run: Callable[..., Disturbed], config: dict[str, Any], reason: str
) -> None:
    run = a_run(**config)
    assert run.drive() == 0, run.log()
    (resumed,) = run.resumed()
    # No checkpoint was due, and rank 0's last report may be a quarter of a second old.
    assert re.match(rf"resumed from step 0; \d+ steps are done again, since {reason}", resumed)
    assert run.steps()[-20:] == list(range(20))


@pytest.mark.parametrize("how", ["frozen", "buffer", "number"])
def test_a_lost_rank_gets_no_other_ranks_own_state(ray: LocalRay, tmp_path: Path, how: str) -> None:
    """They were alike after the first step, and no checkpoint was made since."""
    config = {"seed": SEED, "how": how, "signals": {"1": "SIGKILL"}}
    run = Disturbed(ray, tmp_path / "run", config, "dies_with_state_of_its_own:train")
    assert run.drive() == 0, run.log()
    (resumed,) = run.resumed()
    assert re.fullmatch(
        r"resumed from step 0; \d+ steps are done again, since rank 0 could not save the last "
        rf"step: {DOUBT}",
        resumed,
    )
    assert run.metrics()["ranks_with_their_own"] == 2


def test_a_drain_that_ends_before_the_ranks_have_saved_costs_no_step(
    a_run: Callable[..., Disturbed], weights: Callable[[bool], str], ray: LocalRay
) -> None:
    run = a_run(seed=SEED, signals={"1": "SIGSTOP"})
    run.start()
    pid = run.wait_until_stopped(1)
    node = next(node for node in ray.workers if has_ancestor(pid, {node.process.pid}))
    drain(ray, node, run.folder / "drain.log")
    run.wait_until(lambda progress: RecordKind.PREEMPTED in {r.kind for r in progress.records})
    ray.remove(node)
    ray.add_worker()
    assert run.wait() == 0, run.log()
    assert run.resumed() == [f"resumed from step {DIES_AT}, which rank 0 saved after the loss"]
    assert run.steps() == list(range(20))
    assert run.metrics()["weights_sha256"] == weights(True)


CONNECTING = """
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from support.dies_connecting import DiesConnecting
from support.dies_in_a_step import train

config = {config}
TorchTrainer(
    train,
    train_loop_config=config,
    torch_config=DiesConnecting(folder=config["folder"]),
    scaling_config=ScalingConfig(num_workers=2),
).fit()
"""


def test_a_rank_that_dies_while_the_next_group_connects_keeps_no_place(
    ray: LocalRay, tmp_path: Path
) -> None:
    """Ray leaves that group as it is: the next one would wait a minute for its place, in vain."""
    config = {"folder": str(tmp_path), "seed": SEED, "norm": False, "signals": {"1": "SIGKILL"}}
    script = tmp_path / "script.py"
    script.write_text(CONNECTING.format(config=config))
    run = Run(ray, tmp_path, None, {}, script=script)
    assert run.drive() == 0, run.log()
    assert (tmp_path / DIED).exists()
    records = run.progress().records
    restored = [r.message for r in records if r.kind is RecordKind.RESTORED][1:]
    assert restored == [f"resumed from step {DIES_AT}, which rank 0 saved after the loss"]
    assert "WorkerGroupStartupTimeoutError" not in (tmp_path / "driver.log").read_text()
