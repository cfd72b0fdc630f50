"""How far a Lightning trainer is: what a session notes of it at each step's end."""

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainingrun_runtime.frameworks.lightning import (
    SessionCallback,
    _continue_data,
    _loops,
    _Progress,
)

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


class Seen(pl.Callback):
    """Notes each batch; keeps how far the trainer was at a step, or goes on from there."""

    def __init__(self, keeps_at: int, state: Any = None) -> None:
        self.batches: list[str] = []
        self._keeps_at, self.state = keeps_at, state

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if self.state is not None:
            _Progress(trainer).load_state_dict(self.state)
            _continue_data(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.state is None and len(self.batches) == self._keeps_at:
            self.state = copy.deepcopy(_Progress(trainer).state_dict())
        self.batches.append(repr(batch))


class Takes(Model):
    """Trains on batches of any kind."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layer(torch.ones(2)).square().mean()


class Streamed(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(200, 208))


def numbers(first: int, count: int) -> DataLoader:
    return DataLoader(range(first, first + count), batch_size=1)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size", "min_size"])
@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda: numbers(100, 3), id="a short one"),
        pytest.param(lambda: numbers(100, 8), id="as long"),
        pytest.param(lambda: DataLoader(Streamed(), batch_size=1), id="a stream"),
    ],
)
def test_several_loaders_go_on_together(mode: Any, second: Callable[[], DataLoader]) -> None:
    def fitted(seen: Seen) -> Seen:
        loaders = CombinedLoader({"a": numbers(0, 8), "b": second()}, mode)
        trainer = a_trainer(seen)
        trainer.limit_train_batches = 8
        trainer.fit(Takes(), loaders)
        return seen

    keeps_at = 2 if mode == "min_size" else 5
    whole = fitted(Seen(keeps_at))
    assert fitted(Seen(keeps_at, whole.state)).batches == whole.batches[keeps_at:]
