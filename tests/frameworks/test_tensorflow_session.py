"""`fit` of a Keras model that goes on within an epoch, and the steps that it refuses.

Keras is the real one; of the session Ray is a stand-in (`support.session_without_ray`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from support.session_without_ray import Checkpoint, Run
from trainingrun_runtime.frameworks import process_group
from trainingrun_runtime.frameworks.tensorflow import fit

BATCHES = 5
"""Of an epoch."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setattr(process_group, "ensure", lambda: (0, 1))
    return Run(monkeypatch, tmp_path, every_steps=1)


def trained(
    run: Run,
    restored: Checkpoint | None = None,
    epochs: int = 2,
    batch: int = 4,
    begins: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The model of a process, trained for two epochs.

    Args:
        run: whose process it is.
        restored: its checkpoint, if there is one.
        epochs: if not two.
        batch: samples of one.
        begins: options of `Run.begin`.
        options: of `fit`.
    """
    run.begin(restored, **(begins or {}))
    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))])
    compiled = {key: options.pop(key) for key in ("steps_per_execution",) if key in options}
    model.compile(optimizer=tf_keras.optimizers.Adam(0.1), loss="mse", **compiled)
    rows = np.random.default_rng(0).normal(size=(4 * BATCHES, 3)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(batch)
    fit(model, data, epochs, seed=0, **options)
    run.end()
    return model


@pytest.mark.parametrize("lost_at", [2, BATCHES, BATCHES + 1])
def test_the_batches_that_are_left_are_trained_on(run: Run, lost_at: int) -> None:
    whole = trained(run)
    middle = next(made for made in run.checkpoints if made.position.step == lost_at)
    resumed = trained(run, middle)
    assert run.checkpoints[-1].position.step == 2 * BATCHES
    for ours, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


OTHERS = {"another_runs": True, "ranks": 2}


def test_a_checkpoint_of_other_workers_within_an_epoch_is_refused(run: Run) -> None:
    """With others the batches that are left out by their number are of other samples."""
    trained(run)
    middle = next(made for made in run.checkpoints if made.position.step == BATCHES + 2)
    said = r"^the checkpoint of step 7 is of 2 workers within an epoch, and fit\(\) of a Te"
    with pytest.raises(ValueError, match=said):
        trained(run, middle, begins=OTHERS)


@pytest.mark.parametrize("batch", [4, 2, 10])
@pytest.mark.parametrize("more", [0, 1])
def test_a_run_of_other_workers_that_is_done_is_gone_on_with_in_the_next_epoch(
    run: Run, more: int, batch: int
) -> None:
    """Also where an epoch of now has more batches than one of then, or fewer."""
    trained(run)
    done = run.checkpoints[-1]
    trained(run, done, epochs=2 + more, batch=batch, begins=OTHERS)
    trained_on = more * 4 * BATCHES // batch
    assert run.checkpoints[-1].position.step == 2 * BATCHES + trained_on


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("steps_per_execution", 5, "steps_per_execution=5, so its batches cannot be counted"),
        ("steps_per_execution", "auto", "steps_per_execution='auto', so its batches cannot be"),
        ("steps_per_epoch", 3, r"fit\(steps_per_epoch=3\) would .* such as data\.take\(3\)"),
    ],
)
def test_steps_that_are_not_one_for_each_batch_are_refused(
    run: Run, option: str, value: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        trained(run, **{option: value})
    assert run.session is None
