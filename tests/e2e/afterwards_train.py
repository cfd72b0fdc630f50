"""A training whose rank 1 ends badly, in the way that its config names."""

import json
import os
import threading
import time

import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from trainingrun_runtime import Session


def crash():
    raise ValueError("sample 7 has no label")


def hang():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # nobody releases it


def run_out_of_memory():
    # The kernel may end all of the pod at once: of that one, up to 5 s of output are missing.
    time.sleep(6)
    held = []
    while True:
        held.append(b"x" * 50_000_000)


def train(config):
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in Session(seed=0, model=model, optimizer=optimizer).steps(1000):
        if step == config["step"] and rank == 1:
            print("rank 1 reads shard-0007")
            {"crash": crash, "hang": hang, "run_out_of_memory": run_out_of_memory}[config["how"]]()
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()


TorchTrainer(
    train,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    scaling_config=ScalingConfig(num_workers=2),
).fit()
