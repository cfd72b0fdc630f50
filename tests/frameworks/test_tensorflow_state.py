"""What a session keeps of a Keras model: trained on from it, the weights are the same."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from trainingrun_runtime.checkpoints.encoding import decode, encode
from trainingrun_runtime.frameworks.tensorflow import Variables


def a_model(units: int = 4, compiled: bool = True) -> Any:
    tf_keras.utils.set_random_seed(0)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layers = [
            tf_keras.layers.Dense(units, input_shape=(3,)),
            tf_keras.layers.LayerNormalization(),
        ]
        model = tf_keras.Sequential(layers)
        if compiled:
            model.compile(optimizer=tf_keras.optimizers.Adam(0.1), loss="mse")
    return model


def train(model: Any, steps: range) -> None:
    inputs = np.random.default_rng(0).normal(size=(len(steps), 8, 3)).astype(np.float32)
    for batch in inputs:
        model.train_on_batch(batch, np.ones((8, 4), np.float32))


def test_a_model_trains_on_from_what_was_saved() -> None:
    whole, first, second = a_model(), a_model(), a_model()
    for model in (whole, first):
        train(model, range(3))
    first.optimizer.learning_rate.assign(0.05)
    saved = encode(Variables(first).state_dict(), "state")
    train(first, range(3))  # what was saved is a copy

    Variables(second).load_state_dict(decode(saved))
    assert second.optimizer.learning_rate.numpy() == pytest.approx(0.05)
    whole.optimizer.learning_rate.assign(0.05)
    for model in (whole, second):
        train(model, range(3))
    found, wanted = Variables(second).state_dict(), Variables(whole).state_dict()
    for kind, values in wanted.items():
        for ours, theirs in zip(found[kind], values, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "set TF_USE_LEGACY_KERAS=1"),
        (lambda: a_model(compiled=False), "compile the model with one of tf_keras.optimizers"),
    ],
)
def test_what_a_session_cannot_keep_is_refused(model: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Variables(model())


def test_another_model_is_refused() -> None:
    saved = Variables(a_model(units=5)).state_dict()
    with pytest.raises(ValueError, match=r"the weights have the shapes \[\(3, 5\).* in the check"):
        Variables(a_model()).load_state_dict(saved)
