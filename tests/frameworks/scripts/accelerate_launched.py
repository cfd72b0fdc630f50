"""A script that people start with `accelerate launch`: one state per epoch, on from the newest."""

import argparse
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", type=Path, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--step-seconds", type=float, default=0)
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
set_seed(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
model = torch.nn.Linear(64, 10)
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
    DataLoader(data, batch_size=64),
)

first = 0
states = sorted(args.output_dir.glob("epoch_*"))
if states:
    accelerator.load_state(str(states[-1]))
    first = int(states[-1].name.removeprefix("epoch_")) + 1

for epoch in range(first, args.epochs):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        time.sleep(args.step_seconds)
    accelerator.save_state(str(args.output_dir / f"epoch_{epoch}"))

if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), args.output_dir / "final.pt")
