"""A script that people start with `deepspeed`: a checkpoint per epoch, and on from the latest."""

import argparse
import time
from pathlib import Path

import deepspeed
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", type=Path, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--step-seconds", type=float, default=0)
args = parser.parse_args()

deepspeed.init_distributed()
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=64, sampler=sampler)
model = torch.nn.Linear(64, 10)
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "train_micro_batch_size_per_gpu": 64,
    },
)

first = 0
path, client_state = engine.load_checkpoint(str(args.output_dir))
if path is not None:
    first = client_state["epoch"] + 1

for epoch in range(first, args.epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(engine(images.bfloat16()), labels)
        engine.backward(loss)
        engine.step()
        time.sleep(args.step_seconds)
    engine.save_checkpoint(str(args.output_dir), client_state={"epoch": epoch})

if torch.distributed.get_rank() == 0:
    torch.save(model.state_dict(), args.output_dir / "final.pt")
