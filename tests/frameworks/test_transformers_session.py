"""A Transformers trainer that begins where another one had ended within an epoch.

Transformers is the real one; of the session Ray is a stand-in (`support.session_without_ray`).
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from support.session_without_ray import Checkpoint, Run
from trainingrun_runtime.frameworks.driven_loop import Ended
from trainingrun_runtime.frameworks.transformers import prepare_trainer

STEPS = 5
"""Of an epoch."""


class Model(torch.nn.Module):
    """A layer; counts the batches that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)
        self.trained = 0

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        self.trained += self.training
        return {"loss": (self.layer(rows) - 1).square().mean()}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return Run(monkeypatch, tmp_path)


def trained(callbacks: Any = (), **options: Any) -> Model:
    """The model of the process under way, and how many batches it was trained on."""
    rows = torch.randn(4 * STEPS, 4, generator=torch.Generator().manual_seed(1))
    arguments = TrainingArguments(
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        per_device_train_batch_size=4,
        **options,
    )
    model = Model()
    data: Any = [{"rows": row} for row in rows]
    prepare_trainer(
        Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks)), seed=0
    ).train()
    return model


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
