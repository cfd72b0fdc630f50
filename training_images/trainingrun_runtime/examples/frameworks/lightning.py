"""Handwritten digits with Lightning, in an image with `--build-arg EXTRAS=lightning`.

    training:
      function: trainingrun_runtime.examples.frameworks.lightning:train
      config: {epochs: 20, lr: 0.05, batch_size: 64}

Final metrics: accuracy on images that were held out, and the SHA-256 of the weights.
"""

from typing import Any

import lightning.pytorch as pl
import ray.train
import torch
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from trainingrun_runtime.examples.digits import data, network
from trainingrun_runtime.examples.repeatable import (
    REPEATABLE,
    Pace,
    configured,
    seed_everything,
    weights_sha256,
)
from trainingrun_runtime.examples.repeatable import Epochs as Config
from trainingrun_runtime.frameworks.lightning import SessionCallback


class Digits(pl.LightningModule):
    """A small CNN, whose learning rate falls after each epoch."""

    def __init__(self, lr: float, pace: Pace) -> None:
        super().__init__()
        self.network, self.dropout = network(), torch.nn.Dropout(0.1)
        self._lr, self._pace = lr, pace

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of one batch."""
        self._pace.wait()
        images, labels = batch
        loss = cross_entropy(self.dropout(self.network(images)), labels)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note that the step is done."""
        self._pace(self.global_step - 1)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """The share of right answers."""
        images, labels = batch
        right = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> dict[str, Any]:
        """SGD, and a schedule."""
        optimizer = torch.optim.SGD(self.parameters(), lr=self._lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    seed_everything(settings.seed)
    images, test_images, labels, test_labels = data(settings.seed)
    pace = Pace(settings.step_seconds, ray.train.get_context().get_world_rank())
    module = Digits(settings.lr, pace)
    callback = SessionCallback(seed=settings.seed)
    trainer = pl.Trainer(
        max_epochs=settings.epochs,
        accelerator="auto",
        devices="auto",
        strategy=RayDDPStrategy(**REPEATABLE),
        plugins=[RayLightningEnvironment()],
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    loader = DataLoader(TensorDataset(images, labels), settings.batch_size, shuffle=True)
    held_out = DataLoader(TensorDataset(test_images, test_labels), settings.batch_size)
    prepare_trainer(trainer).fit(module, loader, held_out)
    if callback.session is not None:
        callback.session.finish(weights_sha256=weights_sha256(module))
