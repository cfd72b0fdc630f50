"""Hugging Face Transformers: a `Trainer` that has a session.

    trainer = Trainer(model=model, args=TrainingArguments(save_strategy="no", ...), ...)
    prepare_trainer(trainer, seed=0).train()

Checkpoints are the session's: `train` needs no `resume_from_checkpoint`, and Ray's
RayTrainReportCallback is not needed beside it. Save the model for others with
`trainer.save_model()` after the training.
"""

import copy
from numbers import Number
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState, TrainerControl

from ..checkpoints.stateful_objects import SmallState
from ..session.session import Session
from ..worker.worker import this_worker
from .driven_loop import (
    DrivenLoop,
    refuse_other_numbers,
    refuse_other_samples,
    require_repeatable,
)

_RESTORED = "a checkpoint of the session"
"""What the trainer is told that it resumes from; it opens no such file."""


def prepare_trainer(trainer: Trainer, *, seed: int | None = None) -> Trainer:
    """Have a trainer restore, and make checkpoints when they are due and on a preemption notice.

    A checkpoint holds the model, the optimizer, the learning rate scheduler, how far the trainer
    is, and the states of its callbacks; not the history of its logs. Of a model of PEFT it holds
    what is trained, and not the frozen model. A step is one of the optimizer. The batches of the
    epoch under way that were trained on are left out. What an evaluation measures is of its step
    alone; a step of which it measures the metric of `checkpoints.best` is saved.

    Args:
        trainer: it is changed, and its `session` is there once it trains.
        seed: see `Session`.

    Raises:
        ValueError: `ignore_data_skip` or `load_best_model_at_end` is set.
    """
    if trainer.args.ignore_data_skip:
        raise ValueError(
            "TrainingArguments(ignore_data_skip=True) trains on data again after a loss; leave it "
            "out: batches are left out by their index, without loading them"
        )
    if trainer.args.load_best_model_at_end:
        raise ValueError(
            "TrainingArguments(load_best_model_at_end=True) ends with the last weights after a "
            "loss, since the trainer's own best checkpoint was on the lost pod; leave it out, and "
            "name the metric in checkpoints.best, which keeps the session's best checkpoint"
        )

    class SessionTrainer(_SessionTrainer, type(trainer)):  # type: ignore[misc]
        pass

    trainer.__class__ = SessionTrainer
    trainer.session, trainer._seed, trainer._loop, trainer._epoch = None, seed, None, 0
    trainer._epochs_over, trainer._stopped = 0, False
    # Before the others: what they do at a step's begin is part of that step.
    trainer.callback_handler.callbacks.insert(0, _Hooks(trainer))
    return trainer


class _SessionTrainer:
    """What differs from a trainer without a session."""

    session: Session | None
    _seed: int | None
    _loop: DrivenLoop | None
    _epoch: int
    _restored: tuple[int, int]
    """The epoch that was under way in the checkpoint, and its steps that are done."""
    _epochs_over: int
    """Epochs whose end is reached, with what follows their last step, such as an evaluation."""
    _stopped: bool
    """Whether a callback had ended this training when the checkpoint was made."""

    def _prepare_for_training(
        self: Any, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any
    ) -> Any:
        if resume_from_checkpoint is not None:
            raise ValueError(
                f"train(resume_from_checkpoint={resume_from_checkpoint!r}) would resume from "
                "another checkpoint than the session's; call train() without it"
            )
        prepared = super()._prepare_for_training(  # type: ignore[misc]
            max_steps, train_dataloader, resume_from_checkpoint
        )
        refuse_other_numbers("a Transformers trainer")
        require_repeatable(train_dataloader)
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # without Accelerate's
        objects = {"model": prepared[0], "optimizer": optimizer, "scheduler": self.lr_scheduler}
        scaler = self.accelerator.scaler
        objects |= {} if scaler is None else {"scaler": scaler}
        self.session = Session(seed=self._seed, progress=_Progress(self), **objects)
        # Not from the number of steps: data without a length, or a callback, may end epochs early.
        began = (self.session.epoch, self.session.steps_of_epoch)
        self._restored = max(began, (self._epochs_over, 0))
        return prepared

    def _evaluate(self: Any, *given: Any, **named: Any) -> Any:
        # That of `eval_on_start`: after a loss it would count as one without an improvement.
        if named.get("skip_scheduler") and self.session.step:
            return {}
        return super()._evaluate(*given, **named)  # type: ignore[misc]

    def _run_epoch(self: Any, **given: Any) -> None:
        steps, epoch = given["num_update_steps_per_epoch"], given["epoch"]
        done, left_out = self._restored
        if self._loop is None and (self._stopped or self.state.global_step >= self.state.max_steps):
            self.control.should_training_stop = True
            return
        if epoch == 0:
            self._refuse_too_few_epochs(steps)
        if epoch < done:
            return
        if self._loop is None:
            self._loop = DrivenLoop(self.session, self.state.num_train_epochs, lambda: steps)
        if epoch == done and left_out:
            refuse_other_samples(self.session, left_out, "a Transformers trainer")
            batches = left_out * self.args.gradient_accumulation_steps
            given["resume_from_checkpoint"], given["epochs_trained"] = _RESTORED, epoch
            given["steps_trained_in_current_epoch"] = batches
        self._epoch = epoch
        super()._run_epoch(**given)  # type: ignore[misc]
        # An epoch that the training ends within is gone on with by a run that begins there.
        if not self.control.should_training_stop or self.state.epoch >= epoch + 1:
            self._epochs_over = epoch + 1

    def _refuse_too_few_epochs(self: Any, steps: int) -> None:
        """Refuse another run's checkpoint whose epochs had fewer steps, as by a larger batch.

        With `max_steps`, of which the number of epochs follows, these would be over before it.

        Args:
            steps: of an epoch.

        Raises:
            ValueError: with one sentence.
        """
        state, (done, left_out) = self.state, self._restored
        last = state.global_step + (state.num_train_epochs - done) * steps - left_out
        if last < self.args.max_steps and this_worker().continues is None:
            raise ValueError(
                f"the checkpoint is of step {state.global_step} and epoch {done}, so the trainer's "
                f"{state.num_train_epochs} epochs of {steps} steps end at step {last}, before "
                f"max_steps={self.args.max_steps}; give the trainer the batch size and data of the "
                "checkpoint's run, or num_train_epochs in the place of max_steps"
            )

    def _maybe_log_save_evaluate(self: Any, *given: Any, **named: Any) -> None:
        # The ranks exchange their losses for the log, and a lost one is waited for there. What an
        # evaluation changes, such as the best metric, is part of the step, and so is a stop.
        control = self.control
        more = control.should_evaluate or control.should_save or control.should_training_stop
        if control.should_log and not (more or control.should_epoch_stop):
            self.session.note_computed()
        super()._maybe_log_save_evaluate(*given, **named)  # type: ignore[misc]

    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        if checkpoint != _RESTORED:  # the session has restored it
            super()._load_rng_state(checkpoint)  # type: ignore[misc]


class _Hooks(TrainerCallback):
    """Moves the session's loop on, and reports what the trainer logs."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._metrics: dict[str, Any] = {}
        self._evaluated: set[str] = set()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The former step is over, with what followed it."""
        self._trainer._loop.begin_step(self._trainer._epoch)
        if self._evaluated:
            # Other weights, which are not known to be as good.
            for name in self._evaluated:
                self._metrics.pop(name, None)
            self._evaluated.clear()
            self._trainer.session.report(**self._metrics)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """New metrics."""
        trainer = self._trainer
        if trainer.is_in_train and trainer._loop is None and state.global_step:
            return  # a training that was over before: its mean loss would be that of no step
        self._metrics |= {name: v for name, v in (logs or {}).items() if isinstance(v, Number)}
        if trainer.session is not None:
            trainer.session.report(**self._metrics)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
    ) -> None:
        """The metrics of an evaluation, after `on_log`."""
        self._evaluated |= set(metrics or {}) - {"epoch"}
        # After the training the state in which it ends is saved in any case.
        if self._trainer.is_in_train and self._evaluated.intersection(this_worker().needed_metrics):
            self._trainer.session.save()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """All steps are done."""
        if self._trainer._loop is not None:
            self._trainer._loop.end()


class _Progress(SmallState):
    """How far a trainer is, and the states of its callbacks."""

    _NUMBERS = ("epoch", "global_step", "num_input_tokens_seen", "total_flos")
    _BEST = ("best_metric", "best_global_step")

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        numbers = {name: getattr(trainer.state, name) for name in self._NUMBERS + self._BEST}
        states = [copy.deepcopy(callback.state()["attributes"]) for callback in self._callbacks()]
        # The end at max_steps follows from the number of steps, which may be raised.
        early = trainer.state.global_step < trainer.state.max_steps
        return {
            "numbers": numbers,
            "callbacks": states,
            "epochs_over": trainer._epochs_over,
            "stopped": trainer.control.should_training_stop and early,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self._trainer.state).update(state["numbers"])
        self._trainer._epochs_over = state.get("epochs_over", 0)
        # Another run trains on where this one was stopped.
        self._trainer._stopped = this_worker().continues is not None and state.get("stopped")
        for callback, attributes in zip(self._callbacks(), state["callbacks"], strict=False):
            vars(callback).update(attributes)

    def _callbacks(self) -> list[Any]:
        every = self._trainer.callback_handler.callbacks
        return [
            c for c in every if isinstance(c, ExportableState) and not isinstance(c, TrainerControl)
        ]
