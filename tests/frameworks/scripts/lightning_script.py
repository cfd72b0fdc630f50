"""Ray's documented way to train with Lightning: its strategy, environment and report callback."""

import json
import os
import time

import lightning.pytorch as pl
import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(64, 10)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, on_step=True, on_epoch=True)
        time.sleep(0.1)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if ray.train.get_context().get_world_rank() == 0:
            name = f"{os.environ['STEP_LOG_FOLDER']}/{os.getpid()}.log"
            with open(name, "a") as lines:
                lines.write(f"{time.time()} {self.global_step}\n")

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.5)


def train_func(config):
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32)
    loader = DataLoader(TensorDataset(images, torch.tensor(labels)), batch_size=64, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        devices="auto",
        accelerator="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer = prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as ckpt_dir:
            ckpt_path = os.path.join(ckpt_dir, RayTrainReportCallback.CHECKPOINT_NAME)
            trainer.fit(Digits(), train_dataloaders=loader, ckpt_path=ckpt_path)
    else:
        trainer.fit(Digits(), train_dataloaders=loader)


trainer = TorchTrainer(
    train_func,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
print(result.metrics)
