"""A Transformers trainer that begins where another one was lost, or had ended within an epoch.

Transformers is the real one; of the session Ray is a stand-in (`support.session_without_ray`).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from support.session_without_ray import Checkpoint, Run
from trainingrun_runtime import Session
from trainingrun_runtime.frameworks.driven_loop import Ended
from trainingrun_runtime.frameworks.transformers import prepare_trainer

STEPS = 5
"""Of an epoch."""


class Model(torch.nn.Module):
    """A layer; counts the batches that it is trained on, and its evaluations of one batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)
        self.trained = self.evaluated = 0

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.trained += self.training
        self.evaluated += not self.training
        return {"loss": (self.layer(rows) - labels).square().mean()}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return Run(monkeypatch, tmp_path)


def samples(count: int = 4 * STEPS) -> list[dict[str, torch.Tensor]]:
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return [{"rows": row, "labels": torch.ones(1)} for row in rows]


def trained(callbacks: Any = (), data: Any = None, batch_size: int = 4, **options: Any) -> Model:
    """The model of the process under way, which counts what it was trained on."""
    arguments = TrainingArguments(
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        per_device_train_batch_size=batch_size,
        **options,
    )
    model = Model()
    trainer = Trainer(
        model,
        arguments,
        train_dataset=samples() if data is None else data,
        eval_dataset=samples(4),  # type: ignore[arg-type]
        callbacks=list(callbacks),
    )
    prepare_trainer(trainer, seed=0).train()
    return model


@pytest.fixture
def each_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """A run with a checkpoint after each step."""
    monkeypatch.chdir(tmp_path)
    return Run(monkeypatch, tmp_path, every_steps=1)


def after(run: Run, step: int) -> Checkpoint:
    """The first checkpoint with so many steps done."""
    return next(made for made in run.checkpoints if made.position.step == step)


def same_weights(first: Model, second: Model) -> bool:
    return torch.equal(first.layer.weight, second.layer.weight)


def ended(run: Run, steps: int) -> Checkpoint:
    run.begin()
    trained(max_steps=steps)
    found = run.end()
    assert found.position.step == steps
    return found


@pytest.mark.parametrize("another_runs", [True, False])
@pytest.mark.parametrize("steps", [4, 13])
def test_a_training_that_ended_within_an_epoch_goes_on_with_more_steps(
    run: Run, steps: int, another_runs: bool
) -> None:
    run.begin(ended(run, 3), another_runs=another_runs)
    assert trained(max_steps=steps).trained == steps - 3
    assert run.end().position.step == steps
    assert run.session is not None
    assert run.session.epoch == (steps - 1) // STEPS


def test_a_checkpoint_of_other_workers_is_refused_within_an_epoch_alone(each_step: Run) -> None:
    """With others the batches that are left out by their number are of other samples."""
    each_step.begin()
    trained(num_train_epochs=2)
    each_step.end()
    each_step.begin(after(each_step, STEPS + 2), another_runs=True, ranks=2)
    said = "^the checkpoint of step 7 is of 2 workers within an epoch, and a Transformers trainer "
    with pytest.raises(ValueError, match=said):
        trained(num_train_epochs=3)
    for step in (STEPS, 2 * STEPS):
        each_step.begin(after(each_step, step), another_runs=True, ranks=2)
        assert trained(num_train_epochs=3).trained == 3 * STEPS - step


class Stops(TrainerCallback):
    """Calls the session's `stop()` within a step."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._run.session is not None
        self._run.session.stop()


def test_the_sessions_stop_is_an_error_that_names_the_trainers_own(run: Run) -> None:
    run.begin()
    with pytest.raises(Ended, match=r"session\.stop\(\) .*by control\.should_training_stop = True"):
        trained([Stops(run)], max_steps=10)


def test_an_order_that_a_resumed_run_would_draw_anew_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `train_sampling_strategy="group_by_length"`, from a generator with a seed."""
    drawing = torch.utils.data.WeightedRandomSampler(
        [1.0] * 4 * STEPS, 4 * STEPS, generator=torch.Generator().manual_seed(1)
    )
    monkeypatch.setattr(Trainer, "_get_train_sampler", lambda *_: drawing)
    run.begin()
    with pytest.raises(ValueError, match="takes its order from a WeightedRandomSampler, which a"):
        trained(max_steps=3)


def test_the_sequential_order_is_taken(run: Run) -> None:
    run.begin()
    assert trained(max_steps=3, train_sampling_strategy="sequential").trained == 3


class Stream(IterableDataset[Any]):
    """Samples without a length, in each epoch others."""

    def __init__(self, count: int) -> None:
        self._count, self._epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for sample in samples(self._count):
            yield {**sample, "rows": sample["rows"] + self._epoch}


@pytest.mark.parametrize("lost_at", [2, 3, 4, 7])
def test_data_without_a_length_goes_on_in_the_epoch_that_was_under_way(
    each_step: Run, lost_at: int
) -> None:
    """Transformers takes `max_steps` for the length of its epoch, which has 3 steps here."""
    options = {"max_steps": 8, "gradient_accumulation_steps": 2, "eval_strategy": "epoch"}
    each_step.begin()
    whole = trained(data=Stream(4 * 6), **options)
    each_step.end()
    each_step.begin(after(each_step, lost_at))
    resumed = trained(data=Stream(4 * 6), **options)
    assert each_step.end().position.step == 8
    assert same_weights(resumed, whole)
    assert (whole.trained, resumed.trained) == (2 * 8, 2 * (8 - lost_at))
    assert (whole.evaluated, resumed.evaluated) == (3, 3 - lost_at // 3)


class LeavesEpochs(TrainerCallback):
    """Ends each epoch after three of its steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = state.global_step % 3 == 0


@pytest.mark.parametrize("lost_at", [2, 3, 4, 7, 9])
def test_a_training_whose_epochs_a_callback_ends_early_goes_on_in_the_one_under_way(
    each_step: Run, lost_at: int
) -> None:
    options = {"num_train_epochs": 3, "eval_strategy": "epoch"}
    each_step.begin()
    whole = trained([LeavesEpochs()], **options)
    assert each_step.end().position.step == 9
    each_step.begin(after(each_step, lost_at))
    resumed = trained([LeavesEpochs()], **options)
    assert each_step.end().position.step == 9
    assert same_weights(resumed, whole)
    assert (resumed.trained, resumed.evaluated) == (9 - lost_at, 3 - lost_at // 3)


def test_an_epoch_whose_last_step_was_saved_as_its_loss_was_logged_is_still_evaluated(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a rank that waits in the log's exchange for one that is lost: see `note_computed`."""

    def save(session: Session) -> None:
        session._progress.step += 1
        run.keep(session._context)
        session._progress.step -= 1

    monkeypatch.setattr(Session, "note_computed", save)
    options = {"num_train_epochs": 3, "eval_strategy": "epoch", "logging_steps": 3}
    options |= {"gradient_accumulation_steps": 2}  # of 5 batches, the last step has one
    run.begin()
    whole = trained(**options)
    run.begin(after(run, 3))
    resumed = trained(**options)
    assert same_weights(resumed, whole)
    assert (resumed.trained, resumed.evaluated) == (2 * STEPS, 3)


def test_the_best_model_of_the_trainers_own_checkpoints_is_refused() -> None:
    """They are on the pod that may be lost, and the run would end with its last weights."""
    arguments = TrainingArguments(
        load_best_model_at_end=True, save_strategy="epoch", eval_strategy="epoch", report_to=[]
    )
    trainer = Trainer(Model(), arguments, eval_dataset=samples())  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"load_best_model_at_end=True\) ends .* checkpoints\.best"
    ):
        prepare_trainer(trainer)


class EndsTraining(TrainerCallback):
    """Ends the training from its second step on."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= 2


@pytest.mark.parametrize(
    "train",
    [
        pytest.param(lambda: trained([EndsTraining()], num_train_epochs=2), id="by a callback"),
        pytest.param(lambda: trained(max_steps=2), id="by max_steps"),
        pytest.param(lambda: trained(max_steps=STEPS), id="at an epoch's end"),
        pytest.param(lambda: trained(num_train_epochs=2), id="after all epochs"),
    ],
)
def test_a_training_that_has_ended_does_no_further_step_after_a_loss(
    run: Run, train: Callable[[], Model]
) -> None:
    run.begin()
    whole = train()
    ended = run.end()
    run.begin(ended)
    resumed = train()
    assert resumed.trained == 0
    assert same_weights(resumed, whole)
    again = run.end()
    assert (again.position, again.metrics) == (ended.position, ended.metrics)


def test_another_run_trains_on_where_a_callback_had_ended_one(run: Run) -> None:
    run.begin()
    trained([EndsTraining()], num_train_epochs=2)
    run.begin(run.end(), another_runs=True)
    assert trained(num_train_epochs=2).trained == 2 * STEPS - 2


def test_another_runs_shorter_epochs_are_refused_where_max_steps_would_not_be_reached(
    run: Run,
) -> None:
    run.begin()
    trained(max_steps=2 * STEPS + 1)
    run.begin(run.end(), another_runs=True)
    with pytest.raises(ValueError, match=r"2 epochs of 10 steps end at step 10, before max_steps="):
        trained(batch_size=2, max_steps=15)


def test_an_evaluation_at_the_start_takes_no_patience_after_a_loss(each_step: Run) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True, "max_steps": 9}
    options |= {"metric_for_best_model": "loss", "learning_rate": 0.0}

    def train() -> Model:
        return trained([EarlyStoppingCallback(early_stopping_patience=3)], **options)

    each_step.begin()
    train()
    assert each_step.end().position.step == 4
    each_step.begin(after(each_step, 2))
    assert train().evaluated == 2
    assert each_step.end().position.step == 4
