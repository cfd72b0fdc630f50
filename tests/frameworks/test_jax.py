"""JAX on a real Ray: what a kill and a notice cost, with a session and without one."""

from collections.abc import Callable
from pathlib import Path

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run

SCRIPT = Path(__file__).parent / "scripts" / "jax_script.py"
EPOCHS, STEPS = 7, 11
"""Of the example; STEPS are those of an epoch."""


def test_no_step_is_lost_and_no_bit_is_different_with_a_session(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    whole = undisturbed(a_run("jax", epochs=EPOCHS), journal)
    assert journal.steps() == list(range(1, EPOCHS * STEPS + 1))
    assert float(str(whole("accuracy"))) > 0.5

    run = a_run("jax", epochs=EPOCHS, step_seconds=0.1)
    # Without rank 0, JAX ends the other ranks' processes: see below.
    lost = disturb(run, journal, "jax, session", kill_at=17, notice_at=50, rank_0=False)
    assert lost == (0, 0)
    assert sorted(journal.steps()) == list(range(1, EPOCHS * STEPS + 1))
    assert run.metrics()["weights_sha256"] == whole("weights_sha256")


def test_no_more_than_the_steps_since_the_last_checkpoint_is_lost_with_rank_0(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    """JAX ends the other ranks' processes then, mostly after one has saved the last step."""
    whole = undisturbed(a_run("jax", epochs=EPOCHS), journal)

    run = a_run("jax", epochs=EPOCHS, step_seconds=0.1)
    run.contract = run.contract.model_copy(
        update={"checkpoints": run.contract.checkpoints.model_copy(update={"every_steps": 10})}
    )
    noticed, killed = disturb(
        run, journal, "jax, session, rank 0", kill_at=17, notice_at=50, rank_0=True
    )
    assert noticed == 0
    assert killed <= 12
    assert set(journal.steps()) == set(range(1, EPOCHS * STEPS + 1))
    assert run.metrics()["weights_sha256"] == whole("weights_sha256")


def test_an_unmodified_script_resumes_from_what_it_has_reported(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    run = a_run(script=SCRIPT, steps=60)
    noticed, killed = disturb(run, journal, "jax, unmodified", kill_at=17, notice_at=35)
    assert killed <= 12
    assert noticed <= 12
    assert set(journal.steps()) == set(range(1, 61))


def test_the_ranks_of_a_script_for_gpus_join_on_cpus(
    a_run: Callable[..., Run], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(FOR_GPUS)
    run = a_run(script=script)
    assert run.drive() == 0, run.log()
    assert (run.metrics()["ranks"], run.metrics()["sum"]) == (2, 3.0)


FOR_GPUS = """
import ray.train
from ray.train import ScalingConfig
from ray.train.v2.jax import JaxTrainer

def train():
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    found = multihost_utils.process_allgather(jnp.array(jax.process_index() + 1.0))
    ray.train.report({"ranks": jax.process_count(), "sum": float(found.sum())})

scaling = ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"GPU": 1})
JaxTrainer(train, scaling_config=scaling).fit()
"""
