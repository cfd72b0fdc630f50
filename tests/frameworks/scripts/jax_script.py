"""Ray's documented way to train with JAX: JaxTrainer, here on CPUs, with checkpoints of its own."""

import json
import os
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.v2.jax import JaxTrainer
from sklearn.datasets import load_digits


def train_loop_per_worker(config: dict):
    images, labels = load_digits(return_X_y=True)
    images = images / 16

    @jax.jit
    def update(weights):
        def loss_of(weights):
            chances = jax.nn.log_softmax(images @ weights)
            return -jnp.take_along_axis(chances, labels[:, None], 1).mean()

        loss, gradient = jax.value_and_grad(loss_of)(weights)
        return weights - 0.5 * gradient, loss

    weights, start = jnp.zeros((64, 10)), 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = np.load(f"{folder}/weights.npz")
            weights, start = jnp.asarray(saved["weights"]), int(saved["step"])

    rank = ray.train.get_context().get_world_rank()
    for step in range(start, config["steps"]):
        weights, loss = update(weights)
        time.sleep(0.1)
        if rank == 0:
            with open(f"{os.environ['STEP_LOG_FOLDER']}/{os.getpid()}.log", "a") as lines:
                lines.write(f"{time.time()} {step + 1}\n")
        if (step + 1) % 10 == 0:
            with tempfile.TemporaryDirectory() as folder:
                mine = None
                if rank == 0:
                    np.savez(f"{folder}/weights.npz", weights=weights, step=step + 1)
                    mine = Checkpoint.from_directory(folder)
                ray.train.report({"loss": float(loss), "step": step + 1}, checkpoint=mine)


trainer = JaxTrainer(
    train_loop_per_worker,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
print("step", result.metrics["step"])
