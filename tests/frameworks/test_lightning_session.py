"""A Lightning trainer with a session: what its checkpoints hold and rate, and where it ends.

Lightning is the real one; of the session Ray is a stand-in (`support.session_without_ray`).
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelPruning,
    ModelSummary,
    StochasticWeightAveraging,
    Timer,
    TQDMProgressBar,
    WeightAveraging,
)
from lightning.pytorch.trainer.connectors.data_connector import _get_distributed_sampler
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from support.session_without_ray import Run
from trainingrun_runtime.frameworks.lightning import SessionCallback

STEPS = 5
"""Of an epoch."""

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Lightning's advice about loaders


class Lost(Exception):
    """The training process."""


class Dies(pl.Callback):
    """Loses the process once so many batches are done."""

    def __init__(self, after: int) -> None:
        self._after = after

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.total.completed == self._after:
            raise Lost


class Model(pl.LightningModule):
    """A layer; counts the batches that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)
        self.trained: list[int] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        assert len(self.trained) < 100, "the training has no end"
        self.trained.append(batch_idx)
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return (self.layer(batch[0]) - 1).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class WithLoss(Model):
    """Logs the training's loss, too."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log(self._name, loss)
        return loss


def loader() -> DataLoader:
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(4 * STEPS, 4)), batch_size=4)


def fit(
    *callbacks: pl.Callback,
    session: SessionCallback | None = None,
    module: Model | None = None,
    data: Any = None,
    **options: Any,
) -> Model:
    """Train a model with a session; the model."""
    module = module or Model()
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[session or SessionCallback(seed=0), *callbacks],
        enable_checkpointing=any(isinstance(each, ModelCheckpoint) for each in callbacks),
        enable_progress_bar=any(isinstance(each, TQDMProgressBar) for each in callbacks),
        enable_model_summary=False,
        logger=False,
        num_sanity_val_steps=options.pop("num_sanity_val_steps", 0),
        **options,
    )
    if data is None:
        trainer.fit(module, loader(), loader())
    else:
        trainer.fit(module, datamodule=data)
    return module


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Run]:
    return lambda **options: Run(monkeypatch, tmp_path, **options)


class Averages(WeightAveraging):
    """The mean of the weights after each epoch but the first one."""

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return bool(epoch_idx)


@pytest.mark.parametrize(
    "averaging",
    [
        pytest.param(lambda: [EMAWeightAveraging(decay=0.9)], id="exponential"),
        pytest.param(lambda: [Averages()], id="of epochs"),
        pytest.param(lambda: [Averages(), EMAWeightAveraging(decay=0.5)], id="two"),
    ],
)
@pytest.mark.parametrize("lost_after", [3, 2 * STEPS, 2 * STEPS + 3])
def test_averaged_weights_go_on_after_a_loss(
    run: Callable[..., Run], averaging: Callable[[], list[pl.Callback]], lost_after: int
) -> None:
    undisturbed = run()
    undisturbed.begin()
    whole = fit(*averaging(), max_epochs=3)
    undisturbed.end()

    process = run(every_steps=lost_after)
    process.begin()
    with pytest.raises(Lost):
        fit(*averaging(), Dies(lost_after), max_epochs=3)
    process.begin(process.checkpoints[-1])
    resumed = fit(*averaging(), max_epochs=3)
    assert torch.equal(resumed.layer.weight, whole.layer.weight)
    assert process.end().position.step == 3 * STEPS


def rated(run: Run, name: str = "val_loss") -> list[int]:
    """Steps whose checkpoint has that metric."""
    return [made.position.step for made in run.checkpoints if name in made.metrics]


@pytest.mark.parametrize(
    ("options", "validated"),
    [
        pytest.param({}, [5, 10, 15], id="after each epoch"),
        pytest.param({"check_val_every_n_epoch": 2}, [10], id="after each second epoch"),
        pytest.param({"val_check_interval": 2}, [2, 4, 7, 9, 12, 14], id="within an epoch"),
        pytest.param(
            {"val_check_interval": 4, "check_val_every_n_epoch": None}, [4, 8, 12], id="by steps"
        ),
        pytest.param({"num_sanity_val_steps": 2}, [5, 10, 15], id="with a sanity check"),
        pytest.param(
            {"accumulate_grad_batches": 2, "val_check_interval": 2},
            [1, 2, 4, 5, 7, 8],
            id="after accumulated gradients",
        ),
    ],
)
@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_what_a_validation_measures_is_of_its_step_alone(
    run: Callable[..., Run], options: dict[str, Any], validated: list[int], on_a_gpu: bool
) -> None:
    each_step = run(every_steps=1, rated_by=("val_loss",))
    each_step.begin()
    callback = AsOnGpu(seed=0) if on_a_gpu else SessionCallback(seed=0)
    fit(session=callback, max_epochs=3, **options)
    each_step.end()
    # The last checkpoint is made twice: at the end of its step, and at that of the function.
    assert sorted(set(rated(each_step))) == validated
    losses = [m.metrics["val_loss"] for m in each_step.checkpoints if "val_loss" in m.metrics]
    assert len(set(losses)) == len(validated)


class AsOnGpu(SessionCallback):
    """Reads metrics as rarely as on a GPU."""

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        module: Any = SimpleNamespace(device=torch.device("cuda"))
        super().on_train_batch_start(trainer, module, batch, batch_idx)


def test_a_step_that_a_validation_rates_is_saved(run: Callable[..., Run]) -> None:
    rating = run(rated_by=("val_loss",))
    rating.begin()
    fit(max_epochs=2, val_check_interval=2)
    assert [made.position.step for made in rating.checkpoints] == [2, 4, 7, 9]
    assert rated(rating) == [2, 4, 7, 9]

    other = run(rated_by=("accuracy",))
    other.begin()
    fit(max_epochs=2, val_check_interval=2)
    assert other.checkpoints == []


def test_a_validation_within_a_step_is_left_out_and_the_run_says_so_once(
    run: Callable[..., Run],
) -> None:
    within = run(every_steps=1, rated_by=("val_loss",))
    within.begin()
    # After batches 2, 4 and 5 of each epoch of 5 there is a step of the optimizer.
    fit(max_epochs=3, accumulate_grad_batches=2, val_check_interval=3)
    within.end()
    assert len(within.checkpoints) == 3 * 3 + 1
    assert rated(within) == []
    (advice,) = within.advice
    assert "not reported; set val_check_interval to a multiple of accumulate_grad_batches=2" in (
        advice
    )


@pytest.mark.parametrize("name", ["loss", "val_loss"])
def test_what_the_training_logs_itself_is_reported_for_each_step(
    run: Callable[..., Run], name: str
) -> None:
    each_step = run(every_steps=1, rated_by=(name,))
    each_step.begin()
    fit(module=WithLoss(name), max_epochs=2)
    each_step.end()
    assert sorted(set(rated(each_step, name))) == list(range(1, 2 * STEPS + 1))


def test_another_validation_after_the_training_reports_nothing(run: Callable[..., Run]) -> None:
    process = run(rated_by=("val_loss",))
    process.begin()
    callback = SessionCallback(seed=0)
    module = fit(session=callback, max_epochs=1, limit_val_batches=0)
    pl.Trainer(
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    ).validate(module, loader(), verbose=False)
    assert rated(process) == []
    assert "val_loss" not in process.end().metrics


@pytest.mark.parametrize("another_runs", [True, False])
@pytest.mark.parametrize(
    ("limits", "steps"),
    [({"max_steps": 4}, 4), ({"max_steps": 13, "max_epochs": 4}, 13), ({"max_epochs": 2}, 10)],
)
def test_a_training_that_ended_within_an_epoch_goes_on_with_more_steps(
    run: Callable[..., Run], limits: dict[str, int], steps: int, another_runs: bool
) -> None:
    process = run()
    process.begin()
    fit(max_steps=3)
    ended = process.end()
    assert ended.position.step == 3

    process.begin(ended, another_runs=another_runs)
    module = fit(**limits)
    assert process.end().position.step == steps
    assert module.trained == [step % STEPS for step in range(3, steps)]


class Stops(pl.Callback):
    """Calls the session's `stop()` within a step."""

    def __init__(self, session: SessionCallback) -> None:
        self._session = session

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 7:
            assert self._session.session is not None
            self._session.session.stop()


@pytest.mark.parametrize("epochs", [-1, 10])
def test_the_sessions_stop_ends_the_trainer_too(run: Callable[..., Run], epochs: int) -> None:
    process = run()
    process.begin()
    callback = SessionCallback(seed=0)
    module = fit(Stops(callback), session=callback, max_epochs=epochs)
    assert len(module.trained) == 8  # it ends after the next step
    ended = process.end()
    assert ended.position.step == 8

    process.begin(ended, another_runs=True)
    assert fit(max_epochs=2).trained == [3, 4]
    assert process.end().position.step == 10


class Epochs(pl.LightningDataModule):
    """Loaders of another length in each epoch, whose batches are told apart."""

    def train_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        first = 10.0 * self.trainer.current_epoch
        batches = (5, 2, 3)[self.trainer.current_epoch]
        numbers = first + torch.arange(batches, dtype=torch.float32)
        return DataLoader(TensorDataset(numbers[:, None].repeat(1, 4) / 100), batch_size=1)


class Notes(Model):
    """Notes its batches."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.trained.append(round(batch[0][0, 0].item() * 100))
        return self.loss(batch)

    validation_step = None  # type: ignore[assignment]


@pytest.mark.parametrize("limits", [{"max_epochs": 3}, {"max_steps": 10}])
@pytest.mark.parametrize("lost_after", [5, 6, 7, 8])
def test_epochs_of_other_lengths_go_on_after_a_loss(
    run: Callable[..., Run], lost_after: int, limits: dict[str, int]
) -> None:
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1, "data": Epochs(), **limits}
    process = run(every_steps=lost_after)
    process.begin()
    lost = Notes()
    with pytest.raises(Lost):
        fit(Dies(lost_after), module=lost, **options)
    process.begin(process.checkpoints[-1])
    resumed = fit(module=Notes(), **options)
    assert lost.trained + resumed.trained == [0, 1, 2, 3, 4, 10, 11, 20, 21, 22]
    assert process.end().position.step == 10


class Keeps(pl.Callback):
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = 1


class KeepsMore(WeightAveraging):
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        checkpoint["mine"] = 1


class AveragesLater(WeightAveraging):
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pass


class KeepsItself(Model):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = 1


class KeepsData(pl.LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        return loader()

    def state_dict(self) -> dict[str, Any]:
        return {"mine": 1}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        pytest.param(
            lambda: {"callback": Keeps()},
            r"the callback Keeps saves by on_save_checkpoint\(\), .*; return it from the callback",
            id="callback",
        ),
        pytest.param(
            lambda: {"callback": KeepsMore()},
            r"the callback KeepsMore saves by on_save_checkpoint\(\)",
            id="averages, and more",
        ),
        pytest.param(
            lambda: {"callback": AveragesLater()},
            r"the callback AveragesLater has no averaged model as fit\(\) begins, .*; call super",
            id="averages later",
        ),
        pytest.param(
            lambda: {"callback": ModelPruning("l1_unstructured", amount=0.5)},
            r"the callback ModelPruning saves by on_save_checkpoint\(\)",
            id="pruning",
        ),
        pytest.param(
            lambda: {"callback": StochasticWeightAveraging(0.01)},
            r"the callback StochasticWeightAveraging makes .*; use .*\.WeightAveraging in its",
            id="SWA",
        ),
        pytest.param(
            lambda: {"module": KeepsItself()},
            r"the module KeepsItself saves by on_save_checkpoint\(\), .*; keep it in a buffer",
            id="module",
        ),
        pytest.param(
            lambda: {"data": KeepsData()},
            r"the datamodule KeepsData has a state_dict\(\), .*; keep it in the state_dict\(\) of",
            id="datamodule",
        ),
    ],
)
def test_what_lightnings_own_checkpoints_alone_would_hold_is_refused_in_one_sentence(
    run: Callable[..., Run], given: Callable[[], dict[str, Any]], sentence: str
) -> None:
    process = run()
    process.begin()
    what = given()
    callbacks = [what.pop("callback")] if "callback" in what else []
    with pytest.raises(ValueError, match=sentence):
        fit(*callbacks, max_epochs=1, **what)
    assert process.session is None


def test_lightnings_own_callbacks_and_a_datamodule_without_a_state_are_not_refused(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    class Data(pl.LightningDataModule):
        def train_dataloader(self) -> DataLoader:
            return loader()

        def val_dataloader(self) -> DataLoader:
            return loader()

    process = run()
    process.begin()
    fit(
        EarlyStopping("val_loss"),
        ModelCheckpoint(tmp_path / "own"),
        TQDMProgressBar(),
        ModelSummary(),
        Timer(),
        GradientAccumulationScheduler({0: 1}),
        max_epochs=1,
        data=Data(),
    )
    assert process.end().position.step == STEPS


class Sampled(pl.LightningDataModule):
    """A loader with the sampler that Lightning makes of its own for ranks of data parallelism."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options

    def train_dataloader(self) -> DataLoader:
        data = loader().dataset
        sampler = _get_distributed_sampler(
            DataLoader(data, **self._options),
            shuffle="shuffle" in self._options,
            overfit_batches=0,
            num_replicas=1,
            rank=0,
        )
        return DataLoader(data, batch_size=4, sampler=sampler)


def test_a_loader_that_shuffles_is_trained_on_by_lightnings_own_sampler(
    run: Callable[..., Run],
) -> None:
    run().begin()
    assert len(fit(data=Sampled(shuffle=True), max_epochs=2).trained) == 2 * STEPS


@pytest.mark.parametrize("seeded", [False, True])
def test_samples_that_are_drawn_anew_at_each_start_are_refused(
    run: Callable[..., Run], seeded: bool
) -> None:
    generator = torch.Generator().manual_seed(1) if seeded else None
    sampler = WeightedRandomSampler([1.0] * 20, 20, generator=generator)
    run().begin()
    with pytest.raises(ValueError, match="from a WeightedRandomSampler, which a resumed run"):
        fit(data=Sampled(sampler=sampler), max_epochs=1)
