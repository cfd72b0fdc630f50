"""A Lightning trainer with a session: what its checkpoints hold and rate, and where it ends.

Lightning is the real one; of the session Ray is a stand-in (`support.session_without_ray`).
"""

import re
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
from torch.optim.lr_scheduler import ReduceLROnPlateau
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
    before: tuple[pl.Callback, ...] = (),
    module: Model | None = None,
    data: Any = None,
    **options: Any,
) -> Model:
    """Train a model with a session, and with callbacks before and after it; the model."""
    module = module or Model()
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[*before, session or SessionCallback(seed=0), *callbacks],
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
    assert len(within.checkpoints) == 3 * 3, "the final one has the last step"
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


def test_a_checkpoint_of_other_workers_is_refused_within_an_epoch_alone(
    run: Callable[..., Run],
) -> None:
    """With others the batches that are left out by their number are of other samples."""
    process = run(every_steps=1)
    process.begin()
    fit(max_epochs=2)
    process.end()
    steps = [made.position.step for made in process.checkpoints]
    at = dict(zip(steps, process.checkpoints, strict=True))
    process.begin(at[STEPS + 2], another_runs=True, ranks=2)
    said = "^the checkpoint of step 7 is of 2 workers within an epoch, and Lightning's loop leaves "
    with pytest.raises(ValueError, match=said + ".* with 1 workers .*; begin with 2 workers, or"):
        fit(max_epochs=3)
    for step in (STEPS, 2 * STEPS):
        process.begin(at[step], another_runs=True, ranks=2)
        assert len(fit(max_epochs=3).trained) == 3 * STEPS - step


class Stops(pl.Callback):
    """Calls the session's `stop()` within a step."""

    def __init__(self, session: SessionCallback, step: int) -> None:
        self._session, self._step = session, step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self._step:
            assert self._session.session is not None
            self._session.session.stop()


@pytest.mark.parametrize("epochs", [-1, 10])
@pytest.mark.parametrize("last", [8, 2 * STEPS])
def test_the_sessions_stop_ends_the_trainer_too(
    run: Callable[..., Run], last: int, epochs: int
) -> None:
    process = run()
    process.begin()
    callback = SessionCallback(seed=0)
    module = fit(Stops(callback, last - 1), session=callback, max_epochs=epochs)
    assert len(module.trained) == last  # it ends after the next step
    ended = process.end()
    assert ended.position.step == last

    process.begin(ended, another_runs=True)
    assert fit(max_epochs=3).trained == [step % STEPS for step in range(last, 3 * STEPS)]
    assert process.end().position.step == 3 * STEPS


@pytest.mark.parametrize("another_runs", [True, False])
@pytest.mark.parametrize(
    ("first", "limits"),
    [
        ({"max_epochs": 2}, {"max_epochs": 4}),
        ({"max_epochs": 2}, {"max_steps": 4 * STEPS}),
        ({"max_steps": 2 * STEPS}, {"max_epochs": 4}),
    ],
)
def test_a_training_that_ended_with_an_epoch_goes_on_with_the_whole_next_one(
    run: Callable[..., Run],
    first: dict[str, int],
    limits: dict[str, int],
    another_runs: bool,
) -> None:
    process = run()
    process.begin()
    fit(**first)
    process.begin(process.end(), another_runs=another_runs)
    assert fit(**limits).trained == [*range(STEPS), *range(STEPS)]
    assert process.end().position.step == 4 * STEPS


class StopsAt(pl.Callback):
    """Ends the training in a step, as a callback of the user's may do, or a Timer."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self._step:
            trainer.should_stop = True


@pytest.mark.parametrize("stop", [2, STEPS, STEPS + 2])
def test_a_training_that_a_callback_has_ended_does_no_step_after_a_loss(
    run: Callable[..., Run], stop: int
) -> None:
    process = run()
    process.begin()
    fit(StopsAt(stop), max_epochs=4)
    ended = process.end()
    assert ended.position.step == stop
    last = ended
    for _ in range(3):
        process.begin(last)
        assert fit(StopsAt(stop), max_epochs=4).trained == []
        last = process.end()
        assert last.position == ended.position

    process.begin(last, another_runs=True)
    rest = fit(max_epochs=4).trained
    assert rest == [step % STEPS for step in range(stop, 4 * STEPS)]


def test_a_training_that_is_to_end_with_its_least_epochs_does_so_after_a_loss(
    run: Callable[..., Run],
) -> None:
    process = run(every_steps=STEPS + 1)
    process.begin()
    with pytest.raises(Lost):
        fit(StopsAt(2), Dies(STEPS + 1), min_epochs=2, max_epochs=4)
    process.begin(process.checkpoints[-1])
    fit(StopsAt(2), min_epochs=2, max_epochs=4)
    assert process.end().position.step == 2 * STEPS


class Plateau(Model):
    """Halves its rate at each value of a metric, as if it were never better."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self._config = config

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = ReduceLROnPlateau(
            optimizer, factor=0.5, patience=0, threshold=10.0, threshold_mode="abs"
        )
        config = {"scheduler": scheduler, "monitor": "val_loss", **self._config}
        return {"optimizer": optimizer, "lr_scheduler": config}


def interrupted(
    run: Callable[..., Run],
    lost_after: int,
    module: Callable[[], Model] = Model,
    callbacks: Callable[[], list[pl.Callback]] = list,
    before_session: bool = False,
    **options: Any,
) -> tuple[Model, Model]:
    """The models of an undisturbed run, and of one that is lost after so many batches.

    Both end after as many steps.
    """

    def trained(*last: pl.Callback) -> Model:
        made = callbacks()
        before, after = (made, []) if before_session else ([], made)
        return fit(*after, *last, before=tuple(before), module=module(), **options)

    undisturbed = run()
    undisturbed.begin()
    whole = trained()
    steps = undisturbed.end().position.step

    process = run(every_steps=1)
    process.begin()
    with pytest.raises(Lost):
        trained(Dies(lost_after))
    process.begin(process.checkpoints[-1])
    resumed = trained()
    assert process.end().position.step == steps
    assert whole.trained[lost_after:] == resumed.trained
    return whole, resumed


@pytest.mark.parametrize("limits", [{"max_epochs": 3}, {"max_steps": 3 * STEPS}])
@pytest.mark.parametrize("lost_after", [STEPS, STEPS + 2, 2 * STEPS - 1])
@pytest.mark.parametrize(
    ("config", "validates"),
    [
        pytest.param({}, {}, id="after each epoch"),
        pytest.param({}, {"val_check_interval": 2}, id="by the last validation within an epoch"),
        pytest.param(
            {"interval": "step", "frequency": 2}, {"val_check_interval": 2}, id="each second step"
        ),
        pytest.param(
            {"interval": "step", "frequency": 3}, {"val_check_interval": 2}, id="each third step"
        ),
    ],
)
def test_a_plateau_of_a_metric_lowers_the_rate_as_often_as_without_a_loss(
    run: Callable[..., Run],
    config: dict[str, Any],
    validates: dict[str, Any],
    lost_after: int,
    limits: dict[str, int],
) -> None:
    whole, resumed = interrupted(run, lost_after, lambda: Plateau(**config), **limits, **validates)
    assert rates(resumed) == rates(whole)
    assert rates(whole)[0] < 0.05
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


def rates(module: Model) -> list[float]:
    return [group["lr"] for group in module.optimizers().param_groups]


@pytest.mark.parametrize("lost_after", range(1, STEPS))
def test_the_step_of_the_logs_goes_on_where_it_was(
    run: Callable[..., Run], lost_after: int
) -> None:
    whole, resumed = interrupted(run, lost_after, max_epochs=2, val_check_interval=2)
    logged = [m.trainer.fit_loop.epoch_loop._batches_that_stepped for m in (resumed, whole)]
    assert logged == [2 * STEPS, 2 * STEPS]


class Draws(pl.Callback):
    """Counts the steps that begin, and draws a part of each."""

    def __init__(self) -> None:
        self.fits = self.begun = self.ended = 0

    def on_fit_start(self, *_: Any) -> None:
        self.fits += 1

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        self.begun += 1
        with torch.no_grad():
            pl_module.layer.bias.add_(torch.rand(1))

    def on_train_batch_end(self, *_: Any) -> None:
        self.ended += 1

    def state_dict(self) -> dict[str, int]:
        return {"begun": self.begun, "ended": self.ended}

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


@pytest.mark.parametrize("lost_after", [2, STEPS, STEPS + 2])
@pytest.mark.parametrize("first", [True, False])
def test_what_other_callbacks_do_as_a_step_begins_is_part_of_that_step_in_each_order(
    run: Callable[..., Run], first: bool, lost_after: int
) -> None:
    made: list[Draws] = []

    def callbacks() -> list[pl.Callback]:
        made.append(Draws())
        return [made[-1]]

    whole, resumed = interrupted(
        run, lost_after, callbacks=callbacks, before_session=first, max_epochs=2
    )
    assert torch.equal(resumed.layer.bias, whole.layer.bias)
    assert torch.equal(resumed.layer.weight, whole.layer.weight)
    counted = [callback.state_dict() for callback in (made[0], made[-1])]
    assert counted == [{"begun": 2 * STEPS, "ended": 2 * STEPS}] * 2
    assert [callback.fits for callback in made] == [1, 1, 1]


def test_early_stopping_knows_the_last_validation_before_a_loss(run: Callable[..., Run]) -> None:
    def callbacks() -> list[pl.Callback]:
        return [EarlyStopping("val_loss", patience=2, check_on_train_epoch_end=True)]

    # The step after the last validation of an epoch of 5 is that epoch's last one.
    interrupted(run, 4, callbacks=callbacks, max_epochs=2, val_check_interval=4)


def test_a_metric_of_before_a_loss_is_not_reported_of_the_steps_since(
    run: Callable[..., Run],
) -> None:
    process = run(every_steps=1, rated_by=("val_loss",))
    process.begin()
    options: dict[str, Any] = {"max_epochs": 2, "val_check_interval": 4}
    with pytest.raises(Lost):
        fit(EarlyStopping("val_loss"), Dies(STEPS + 1), **options)
    process.begin(process.checkpoints[-1])
    fit(EarlyStopping("val_loss"), **options)
    process.end()
    assert rated(process) == [4, STEPS + 4]


class BeginsEpochs(Model):
    """Notes which epochs begin, and how many batches each step accumulates."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.factors: list[int] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append(self.current_epoch)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.factors.append(self.trainer.accumulate_grad_batches)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("limits", [{"max_epochs": 3}, {"max_steps": 11}])
@pytest.mark.parametrize("lost_after", [2, STEPS, STEPS + 2, 2 * STEPS + 4])
def test_what_an_epoch_begins_with_is_done_again_in_a_resumed_one(
    run: Callable[..., Run], lost_after: int, limits: dict[str, int]
) -> None:
    def callbacks() -> list[pl.Callback]:
        return [GradientAccumulationScheduler({1: 2})]

    whole, resumed = interrupted(run, lost_after, BeginsEpochs, callbacks, **limits)
    assert isinstance(whole, BeginsEpochs)
    assert isinstance(resumed, BeginsEpochs)
    assert whole.epochs == [0, 1, 2]
    assert resumed.epochs == whole.epochs[lost_after // STEPS :]
    assert resumed.factors == whole.factors[lost_after:]
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_max_steps_are_those_of_an_epoch_whose_steps_take_more_batches_than_the_trainer_knew(
    run: Callable[..., Run],
) -> None:
    process = run()
    process.begin()
    fit(GradientAccumulationScheduler({0: STEPS}), max_steps=3)
    assert process.end().position.step == 3


@pytest.mark.parametrize(
    ("callback", "module", "sentence"),
    [
        pytest.param(
            lambda: EarlyStopping("loss_epoch"),
            lambda: LogsMeans(on_step=True),
            r"EarlyStopping monitors 'loss_epoch', .*; let it monitor what a validation measures",
            id="of steps and of the epoch",
        ),
        pytest.param(
            lambda: EarlyStopping("loss"),
            lambda: LogsMeans(on_step=False),
            "EarlyStopping monitors 'loss', ",
            id="of the epoch",
        ),
        pytest.param(
            Timer,
            lambda: LogsMeans(on_step=False, monitor="loss"),
            "ReduceLROnPlateau monitors 'loss', ",
            id="plateau",
        ),
        pytest.param(
            lambda: EarlyStopping("val_loss"),
            lambda: LogsMeans(on_step=False),
            None,
            id="of a validation",
        ),
        pytest.param(
            lambda: EarlyStopping("loss"), lambda: WithLoss("loss"), None, id="of the last step"
        ),
    ],
)
def test_what_decides_by_a_mean_over_an_epochs_steps_is_advised_about_once(
    run: Callable[..., Run],
    callback: Callable[[], pl.Callback],
    module: Callable[[], Model],
    sentence: str | None,
) -> None:
    process = run()
    process.begin()
    fit(callback(), module=module(), max_epochs=3)
    assert len(process.advice) == (sentence is not None)
    for advice in process.advice:
        assert re.match(str(sentence), advice)


class LogsMeans(Plateau):
    """Logs the mean of an epoch's losses."""

    def __init__(self, on_step: bool, monitor: str = "val_loss") -> None:
        super().__init__(monitor=monitor)
        self._on_step = on_step

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=self._on_step, on_epoch=True)
        return loss


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


class KeepsWorkers(pl.LightningDataModule):
    """A loader whose worker processes stay from epoch to epoch."""

    def train_dataloader(self) -> DataLoader:
        numbers = torch.arange(STEPS, dtype=torch.float32)[:, None].repeat(1, 4)
        data = TensorDataset(numbers / 100)
        return DataLoader(data, batch_size=1, num_workers=1, persistent_workers=True)


def test_a_loader_that_keeps_its_workers_begins_in_the_middle_of_an_epoch(
    run: Callable[..., Run],
) -> None:
    process = run(every_steps=STEPS + 2)
    process.begin()
    with pytest.raises(Lost):
        fit(Dies(STEPS + 2), module=Notes(), max_epochs=3, data=KeepsWorkers())
    process.begin(process.checkpoints[-1])
    resumed = fit(module=Notes(), max_epochs=3, data=KeepsWorkers())
    assert resumed.trained == [*range(2, STEPS), *range(STEPS)]


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
