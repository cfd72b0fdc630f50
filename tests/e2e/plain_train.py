"""A plain Ray Train script: it knows PyTorch, scikit-learn and `ray.train` alone."""

import hashlib
import os
import tempfile
import time

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits

STEPS = int(os.environ.get("STEPS", "200"))
EVERY = 20
BATCH = 32


def train(config):
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()

    layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    model = prepare_model(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]

    for step in range(done + 1, STEPS + 1):
        began = time.time()
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))
        mine = chosen[: BATCH * world][rank::world]
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(max(0, config["step_seconds"] - (time.time() - began)))
        if rank == 0 and "STEP_LOG_FOLDER" in os.environ:
            journal = os.path.join(os.environ["STEP_LOG_FOLDER"], os.environ["POD_NAME"] + ".log")
            with open(journal, "a") as file:
                file.write(f"{time.time()} {step}\n")
        if step % EVERY == 0 or step == STEPS:
            report(model, optimizer, step, loss.item(), rank)


def report(model, optimizer, step, loss, rank):
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    metrics = {"loss": loss, "step": step, "weights_sha256": hashlib.sha256(weights).hexdigest()}
    if rank != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, os.path.join(folder, "state.pt"))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    trainer = TorchTrainer(
        train,
        train_loop_config={"step_seconds": 0.15},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name="plain",
            storage_path=os.environ.get("STORAGE_PATH"),
            failure_config=ray.train.FailureConfig(max_failures=-1),
        ),
    )
    print(trainer.fit().metrics)
