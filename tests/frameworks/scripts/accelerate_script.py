"""Ray's documented way to train with Accelerate: each worker reports what Accelerate has saved."""

import json
import os
import time
from tempfile import TemporaryDirectory

import ray.train
import torch
from accelerate import Accelerator
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def train_func(config):
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(64, 10)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        DataLoader(data, batch_size=64, shuffle=True),
    )

    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            accelerator.load_state(folder)
            with open(f"{folder}/epoch.json") as file:
                first = json.load(file) + 1

    step = first * len(loader)
    for epoch in range(first, config["epochs"]):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            time.sleep(0.1)
            if accelerator.is_main_process:
                with open(f"{os.environ['STEP_LOG_FOLDER']}/{os.getpid()}.log", "a") as lines:
                    lines.write(f"{time.time()} {step}\n")

        with TemporaryDirectory() as folder:
            accelerator.save_state(folder)
            if accelerator.is_main_process:
                with open(f"{folder}/epoch.json", "w") as file:
                    json.dump(epoch, file)
            ray.train.report({"loss": loss.item()}, checkpoint=Checkpoint.from_directory(folder))


trainer = TorchTrainer(
    train_func,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
print(result.metrics)
