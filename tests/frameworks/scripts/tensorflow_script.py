"""Ray's documented way to train with TensorFlow: TensorflowTrainer and its report callback."""

import json
import os
import time

import ray.train
import tensorflow as tf
from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer
from ray.train.tensorflow.keras import ReportCheckpointCallback
from sklearn.datasets import load_digits


def build_and_compile_model():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10, input_shape=(64,))])
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.5),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train_func(config):
    class Journal(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.1)
            if ray.train.get_context().get_world_rank() == 0:
                with open(f"{os.environ['STEP_LOG_FOLDER']}/{os.getpid()}.log", "a") as lines:
                    lines.write(f"{time.time()} {int(self.model.optimizer.iterations.numpy())}\n")

    tf.keras.utils.set_random_seed(0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf_config = json.loads(os.environ["TF_CONFIG"])
    global_batch_size = 64 * len(tf_config["cluster"]["worker"])
    images, labels = load_digits(return_X_y=True)
    dataset = tf.data.Dataset.from_tensor_slices((images / 16, labels)).batch(global_batch_size)

    initial_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    with strategy.scope():
        if checkpoint:
            with checkpoint.as_directory() as folder:
                model = tf.keras.models.load_model(os.path.join(folder, "model.keras"))
            initial_epoch = int(model.optimizer.iterations.numpy()) // len(dataset)
        else:
            model = build_and_compile_model()

    model.fit(
        dataset,
        epochs=config["epochs"],
        initial_epoch=initial_epoch,
        callbacks=[Journal(), ReportCheckpointCallback()],
        verbose=0,
    )


trainer = TensorflowTrainer(
    train_loop_per_worker=train_func,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
print(result.metrics)
