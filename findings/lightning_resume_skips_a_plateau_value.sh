#!/usr/bin/env bash
# Lightning 2.6.6: a fit that is resumed from a checkpoint of the middle of an epoch does not give
# ReduceLROnPlateau the value of that epoch.
#
# The scheduler is updated at the end of each epoch with the monitored metric. While the loop counts
# as restarting, it is left out, and it does so until the resumed epoch has ended, though the
# validation of that epoch runs and its metric is there. So a run that is interrupted within an epoch
# lowers its learning rate at another epoch than one that is not, without a word. A checkpoint of an
# epoch's end is not affected, but for `max_steps`, with which each resume counts as restarting.
#
# Output as seen, of 4 epochs with a validation loss of 1, 2, 3 and 4, and a patience of 0:
#   lightning 2.6.6, whole: values [1.0, 2.0, 3.0, 4.0], learning rate 0.0001, 40 steps
#   lightning 2.6.6, resumed at step 15 of 40: values [3.0, 4.0], learning rate 0.001, 40 steps
#
# Fails if that changes. Needs Python 3.10 or later, a package registry, and some GB of disk unless
# pip finds PyTorch's build for CPUs.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lightning==2.6.6 torch==2.13.0
cat > "$folder/try.py" <<'PYTHON'
import logging
import sys
import tempfile
import warnings

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
EPOCHS, BATCHES, SAVED = 4, 10, 15


class Plateau(ReduceLROnPlateau):
    values = []

    def step(self, metrics, epoch=None):
        Plateau.values.append(float(metrics))
        super().step(metrics)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, _):
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch, _):
        self.log("val_loss", 1.0 + self.current_epoch)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = {"scheduler": Plateau(optimizer, patience=0), "monitor": "val_loss"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def fit(folder, checkpoint=None):
    Plateau.values = []
    data = DataLoader(torch.ones(BATCHES, 1), batch_size=1)
    trainer = Trainer(
        max_epochs=EPOCHS,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=5, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(Model(), data, data, ckpt_path=checkpoint, weights_only=False)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    return Plateau.values, f"{rate:.4g}", trainer.global_step


with tempfile.TemporaryDirectory() as folder:
    whole = fit(folder)
    resumed = fit(f"{folder}/again", f"{folder}/step={SAVED}.ckpt")
for how, (values, rate, steps) in (("whole", whole), (f"resumed at step {SAVED} of 40", resumed)):
    print(f"lightning {lightning.__version__}, {how}: values {values}, learning rate {rate}, "
          f"{steps} steps")
expected = ([1.0, 2.0, 3.0, 4.0], "0.0001", 40), ([3.0, 4.0], "0.001", 40)
if (whole, resumed) != expected:
    sys.exit(f"this has changed: {(whole, resumed)} instead of {expected}")
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/try.py"
