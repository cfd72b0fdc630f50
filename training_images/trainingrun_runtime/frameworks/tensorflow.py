"""TensorFlow: all workers as one strategy, and `fit` instead of a Keras model's, with a session.

    strategy = connect()
    with strategy.scope():
        model = tf_keras.Sequential(...)
        model.compile(...)
    session = fit(model, dataset_of_epoch, epochs=20, seed=0)

It works in a `training.function`. The models are those of `tf_keras`, which `tf.keras` is where
TF_USE_LEGACY_KERAS=1 is set before TensorFlow is imported.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras
import torch.distributed as dist

from ..session.session import Session
from . import process_group
from .driven_loop import DrivenLoop, refuse_other_numbers, refuse_other_samples


def connect() -> Any:
    """A MultiWorkerMirroredStrategy of all workers; call it before anything else of TensorFlow."""
    rank, size = process_group.ensure()
    if size > 1 and "TF_CONFIG" not in os.environ:
        addresses: list[Any] = [None] * size
        dist.all_gather_object(addresses, process_group.free_address())
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    return tf.distribute.MultiWorkerMirroredStrategy()


def fit(
    model: Any,
    data: Any | Callable[[int], Any],
    epochs: int,
    *,
    seed: int | None = None,
    callbacks: Sequence[Any] = (),
    verbose: int = 0,
    **options: Any,
) -> Session:
    """Train a compiled model, from the checkpoint on if there is one; the session.

    The batches of the epoch under way that were trained on are left out. What callbacks count, and
    the random numbers of layers such as Dropout, begin anew after a loss.

    Args:
        model: built and compiled in the strategy's scope.
        data: a `tf.data.Dataset` of a known number of batches, in the same order in each epoch; or
            a function that returns the one of an epoch, counted from 0.
        epochs: of the whole training.
        seed: see `Session`.
        callbacks: of Keras.
        verbose: as in the model's own `fit`.
        options: everything else that it takes, but `initial_epoch` and `steps_per_epoch`.

    Raises:
        ValueError: the model is not one of `tf_keras`, or takes several batches in a step; or the
            number of batches is not known, or `steps_per_epoch` is another one; or the number of
            workers may change, or is another one than that of a checkpoint within an epoch.
    """
    process_group.ensure()
    refuse_other_numbers("fit() of a TensorFlow model")
    variables = Variables(model)
    _refuse_other_steps(model, options)
    session = Session(seed=seed, model=variables)
    first, done = session.epoch, session.steps_of_epoch
    if session._context.objects.of_loops_end:  # as of a run that has done all of its epochs
        first, done = first + 1, 0
    refuse_other_samples(session, done, "fit() of a TensorFlow model")
    steps = _Steps(session, epochs)
    every = _CallbacksOfAllEpochs(
        [steps, *callbacks],
        add_history=True,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        epochs=epochs,
    )
    every.begin()
    for epoch in range(first, epochs):
        batches = data(epoch) if callable(data) else data
        steps.length = _length(batches)
        left_out = done if epoch == first else 0
        if left_out < steps.length:
            rest = batches.skip(left_out) if left_out else batches
            model.fit(rest, initial_epoch=epoch, epochs=epoch + 1, callbacks=every, **options)
        if model.stop_training:
            break
    every.end()
    steps.end()
    return session


class Variables:
    """What a session keeps of a compiled model, as arrays: its weights and its optimizer's state.

    For `Session(model=Variables(model))` in a loop of one's own, too.

    Raises:
        ValueError: the model is not one of `tf_keras`, or not compiled.
    """

    def __init__(self, model: Any) -> None:
        if not isinstance(model, tf_keras.Model):
            raise ValueError(
                f"the model is a {type(model).__module__}.{type(model).__qualname__}, and a "
                "session takes those of tf_keras; import tf_keras, or set TF_USE_LEGACY_KERAS=1 "
                "before TensorFlow is imported"
            )
        optimizer = getattr(model, "optimizer", None)
        if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
            raise ValueError(
                f"the model's optimizer is {optimizer!r}; compile the model with one of "
                "tf_keras.optimizers"
            )
        self._model = model
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)  # else it has no variables before a step

    def state_dict(self) -> dict[str, Any]:
        """The values of the variables; every rank calls it: some are a mean over all of them."""
        return {kind: [v.numpy() for v in found] for kind, found in self._variables().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take each variable's value.

        Raises:
            ValueError: the model has other variables than the one that was saved.
        """
        variables = self._variables()
        for kind, found in variables.items():
            saved = [tuple(value.shape) for value in state[kind]]
            here = [tuple(variable.shape) for variable in found]
            if saved != here:
                raise ValueError(
                    f"the {kind} have the shapes {saved} in the checkpoint, and {here} here; make "
                    "the model that was saved, or start a new run"
                )
        for kind, found in variables.items():
            for variable, value in zip(found, state[kind], strict=True):
                variable.assign(value)

    def _variables(self) -> dict[str, list[Any]]:
        optimizer = self._model.optimizer
        rate = optimizer.learning_rate  # a variable, unless it follows from the step
        return {
            "weights": list(self._model.weights),
            "optimizer's variables": list(optimizer.variables),
            "learning rate": [rate] if isinstance(rate, tf.Variable) else [],
        }


class _Steps(tf_keras.callbacks.Callback):
    """Moves the session's loop on, and reports what Keras logs."""

    def __init__(self, session: Session, epochs: int) -> None:
        super().__init__()
        self._session = session
        self._epoch = 0
        self._loop = DrivenLoop(session, epochs, lambda: self.length)
        self.length = 0
        """Batches of the epoch under way."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """The next epoch, counted from 0."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The former step is over."""
        self._loop.begin_step(self._epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """New metrics."""
        self._report(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Those of the validation, too."""
        self._report(logs)

    def end(self) -> None:
        """All steps are done."""
        self._loop.end()

    def _report(self, logs: Any) -> None:
        if logs:
            self._session.report(**{name: float(value) for name, value in logs.items()})


class _CallbacksOfAllEpochs(tf_keras.callbacks.CallbackList):
    """Callbacks that are told once that the training begins, though `fit` is called per epoch."""

    def begin(self) -> None:
        """The training begins."""
        super().on_train_begin()

    def end(self) -> None:
        """The training has ended."""
        super().on_train_end()

    def on_train_begin(self, logs: Any = None) -> None:
        """An epoch begins, and not the training."""

    def on_train_end(self, logs: Any = None) -> None:
        """An epoch ends, and not the training."""


def _refuse_other_steps(model: Any, options: Mapping[str, Any]) -> None:
    """Refuse steps that are not one for each batch of the data: these are left out after a loss.

    Raises:
        ValueError: with one sentence.
    """
    at_once = model.steps_per_execution.numpy().item()
    if model.autotune_steps_per_execution or at_once != 1:
        said = repr("auto") if model.autotune_steps_per_execution else at_once
        raise ValueError(
            f"the model is compiled with steps_per_execution={said}, so its batches cannot be "
            "counted, and some would be trained on again after a loss; leave it out"
        )
    if (steps := options.get("steps_per_epoch")) is not None:
        raise ValueError(
            f"fit(steps_per_epoch={steps}) would train on so many further batches in an epoch "
            "that was begun before a loss; leave it out, and pass data whose epochs have that "
            f"length, such as data.take({steps})"
        )


def _length(batches: Any) -> int:
    found = int(batches.cardinality())
    if found < 0:
        raise ValueError(
            "the number of the data set's batches is not known; end it with "
            ".apply(tf.data.experimental.assert_cardinality(number))"
        )
    return found
