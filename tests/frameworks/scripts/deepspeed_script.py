"""Ray's documented way to train with DeepSpeed: each worker saves its shard, and reports it."""

import json
import os
import time
from tempfile import TemporaryDirectory

import deepspeed
import ray.train
import torch
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train_func(config):
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)

    model = torch.nn.Linear(64, 10)
    deepspeed_config = {
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 30}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": config["zero_stage"]},
        "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": 64,
    }
    model, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=deepspeed_config
    )

    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            _, client_state = model.load_checkpoint(folder)
        first = client_state["epoch"] + 1

    for epoch in range(first, config["epochs"]):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images.bfloat16()), labels)
            model.backward(loss)
            model.step()
            time.sleep(0.1)
            if ray.train.get_context().get_world_rank() == 0:
                with open(f"{os.environ['STEP_LOG_FOLDER']}/{os.getpid()}.log", "a") as lines:
                    lines.write(f"{time.time()} {model.global_steps}\n")

        with TemporaryDirectory() as folder:
            model.save_checkpoint(folder, client_state={"epoch": epoch})
            torch.distributed.barrier()
            ray.train.report({"loss": loss.item()}, checkpoint=Checkpoint.from_directory(folder))


trainer = TorchTrainer(
    train_func,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
print(result.metrics)
