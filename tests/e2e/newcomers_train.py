"""A script that does, by the case in its config, what newcomers meet; each function is one case."""

import json
import os
import time
import urllib.request

import ray
import ray.train
import torch
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from trainingrun_runtime import Session


class Large(torch.utils.data.Dataset):
    """Its items are larger than the pod's /dev/shm, by which a data loader's process sends them."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.ones(75_000_000)  # 300 MB


def connection_refused():
    urllib.request.urlopen("http://127.0.0.1:9/labels.csv")


def shared_memory_too_small():
    list(torch.utils.data.DataLoader(Large(), num_workers=1))


def object_store_full():
    ray.put(torch.zeros(100_000_000).numpy())  # 400 MB


def killed_for_memory():
    held = []
    while True:
        held.append(b"x" * 50_000_000)


def no_gpu():
    torch.zeros(1).to("cuda")


def removed_api():
    ray.train.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({"weights": 1}))


def backward(model):
    model(torch.ones(1, 1)).sum().backward()


def report_by_rank_0_alone():
    model = prepare_model(torch.nn.Linear(1, 1))
    for step in range(3):
        backward(model)
        if ray.train.get_context().get_world_rank() == 0:
            ray.train.report({"step": step})


def uneven_steps():
    model = prepare_model(torch.nn.Linear(1, 1))
    for _ in range(3 + ray.train.get_context().get_world_rank()):
        backward(model)


def slow_rank():
    model = prepare_model(torch.nn.Linear(1, 1))
    for _ in Session(model=model).steps(100_000):
        time.sleep(0.5 if ray.train.get_context().get_world_rank() == 1 else 0.05)
        backward(model)


CASES = (
    connection_refused,
    shared_memory_too_small,
    object_store_full,
    killed_for_memory,
    no_gpu,
    removed_api,
    report_by_rank_0_alone,
    uneven_steps,
    slow_rank,
)


def train(config):
    next(case for case in CASES if case.__name__ == config["case"])()


config = json.loads(os.environ["TRAININGRUN_CONFIG"])
scaling = ScalingConfig(num_workers=config["workers"])
TorchTrainer(train, train_loop_config=config, scaling_config=scaling).fit()
