"""How far a Lightning trainer is: what a session notes of it at each step's end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainingrun_runtime.frameworks.lightning import SessionCallback, _loops, _Progress

EPOCHS, STEPS = 3, 4


class Model(pl.LightningModule):
    """A layer, validated after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Compares(pl.Callback):
    """Compares what is noted with Lightning's own state where each step begins."""

    def __init__(self) -> None:
        self.steps = 0
        self.times: dict[str, float] = {}

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.steps += 1
        own = trainer.fit_loop.state_dict()
        assert _loops(trainer.fit_loop) == {**own, "state_dict": {}}
        noted = _Progress(trainer).state_dict()
        before = repr(noted)
        trainer.fit_loop.epoch_loop.batch_progress.current.completed += 1
        assert repr(noted) == before
        trainer.fit_loop.epoch_loop.batch_progress.current.completed -= 1
        self.times = {
            "noted": _fastest(lambda: _loops(trainer.fit_loop)),
            "own": _fastest(trainer.fit_loop.state_dict),
        }


def _fastest(call: Callable[[], Any]) -> float:
    """CPU seconds of the fastest of some calls."""
    found = []
    for _ in range(30):
        began = time.thread_time()
        call()
        found.append(time.thread_time() - began)
    return min(found)


def a_trainer(callback: pl.Callback) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )


@pytest.mark.filterwarnings("ignore::UserWarning")  # Lightning's advice about faster loaders
def test_what_is_noted_is_lightnings_own_state_in_less_time() -> None:
    data = TensorDataset(torch.ones(STEPS, 2))
    compares = Compares()
    trainer = a_trainer(compares)
    trainer.fit(Model(), DataLoader(data), DataLoader(data))
    assert compares.steps == EPOCHS * STEPS
    assert compares.times["noted"] < compares.times["own"] / 1.5


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_checkpoint_of_the_trainers_own_is_refused_beside_a_session(tmp_path: Path) -> None:
    loader, own = DataLoader(TensorDataset(torch.ones(STEPS, 2))), tmp_path / "own.ckpt"
    trainer = a_trainer(pl.Callback())
    trainer.fit(Model(), loader)
    trainer.save_checkpoint(own)
    with pytest.raises(ValueError, match=r"fit\(ckpt_path=.*own\.ckpt.*; call fit\(\) without it"):
        a_trainer(SessionCallback()).fit(Model(), loader, ckpt_path=own)
