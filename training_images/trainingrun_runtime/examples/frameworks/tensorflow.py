"""Handwritten digits with TensorFlow, in an image with `--build-arg EXTRAS=tensorflow`.

    training:
      function: trainingrun_runtime.examples.frameworks.tensorflow:train
      config: {epochs: 20, lr: 0.05, batch_size: 64}

Final metrics: accuracy on images that were held out, and the SHA-256 of the weights.
"""

import hashlib
from typing import Any

import numpy as np
import ray.train
import tensorflow as tf
import tf_keras

from trainingrun_runtime.examples.digits import data
from trainingrun_runtime.examples.repeatable import Epochs as Config
from trainingrun_runtime.examples.repeatable import Pace, configured, seed_everything
from trainingrun_runtime.frameworks.tensorflow import connect, fit


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    seed_everything(settings.seed)
    tf_keras.utils.set_random_seed(settings.seed)
    tf.config.experimental.enable_op_determinism()
    strategy = connect()
    images, test_images, labels, test_labels = (part.numpy() for part in data(settings.seed))
    context = ray.train.get_context()
    of_all_workers = settings.batch_size * context.get_world_size()

    def batches(epoch: int) -> Any:
        """In an order that follows from the epoch; each worker gets its part of each batch."""
        order = np.random.default_rng([settings.seed, epoch]).permutation(len(images))
        samples = tf.data.Dataset.from_tensor_slices((images[order], labels[order]))
        return samples.batch(of_all_workers, drop_remainder=True)

    with strategy.scope():
        model = _network(settings.lr)
    pace = Pace(settings.step_seconds, context.get_world_rank())
    session = fit(model, batches, settings.epochs, seed=settings.seed, callbacks=[_Paced(pace)])

    answers = model(test_images, training=False).numpy().argmax(1)
    session.finish(
        accuracy=float((answers == test_labels).mean()),
        weights_sha256=_sha256(model.get_weights()),
    )


def _network(lr: float) -> Any:
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.Permute((2, 3, 1), input_shape=(1, 8, 8)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf_keras.optimizers.SGD(lr, momentum=0.9),
        loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


class _Paced(tf_keras.callbacks.Callback):
    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._pace.wait()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._pace(int(self.model.optimizer.iterations.numpy()) - 1)


def _sha256(weights: list[Any]) -> str:
    digest = hashlib.sha256()
    for value in weights:
        digest.update(value.tobytes())
    return digest.hexdigest()
