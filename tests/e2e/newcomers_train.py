"""A script that does, by the case in its config, what newcomers meet; each function is one case."""

import json
import os
import pathlib
import tempfile
import time

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from trainingrun_runtime import Session


class Large(torch.utils.data.Dataset):
    """Its items are larger than the pod's /dev/shm, by which a data loader's process sends them."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.ones(75_000_000)  # 300 MB


def shared_memory_too_small():
    list(torch.utils.data.DataLoader(Large(), num_workers=1))


def object_store_full():
    ray.put(torch.zeros(100_000_000).numpy())  # 400 MB


def killed_for_memory():
    held = []
    while True:
        held.append(b"x" * 50_000_000)


def slow_rank():
    model = prepare_model(torch.nn.Linear(1, 1))
    for _ in Session(model=model).steps(100_000):
        time.sleep(0.5 if ray.train.get_context().get_world_rank() == 1 else 0.05)
        model(torch.ones(1, 1)).sum().backward()


def report_epochs(config):
    for epoch in range(3):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "epoch").write_text(str(epoch))
            checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "loss": 1 / (1 + epoch)}, checkpoint)


def epoch_of(checkpoint):
    with checkpoint.as_directory() as folder:
        return pathlib.Path(folder, "epoch").read_text()


def reads_its_result():
    ray.init(address="auto")
    result = TorchTrainer(
        report_epochs,
        scaling_config=scaling,
        run_config=RunConfig(name="mine", storage_path="s3://runs/of-my-own"),
    ).fit()
    found = [(epoch_of(one), metrics["loss"]) for one, metrics in result.best_checkpoints]
    assert found == [("1", 1 / 2), ("2", 1 / 3)], found  # checkpoints.keep is 2 by default
    assert epoch_of(result.checkpoint) == "2"
    assert list(result.metrics_dataframe["epoch"])[-1] == 2


CASES = (shared_memory_too_small, object_store_full, killed_for_memory, slow_rank)
"""Done on each rank."""


def train(config):
    next(case for case in CASES if case.__name__ == config["case"])()


config = json.loads(os.environ["TRAININGRUN_CONFIG"])
scaling = ScalingConfig(num_workers=config["workers"])
if config["case"] == "reads_its_result":
    reads_its_result()
else:
    TorchTrainer(train, train_loop_config=config, scaling_config=scaling).fit()
