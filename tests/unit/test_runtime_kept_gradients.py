"""Gradients that are carried from one step into the next are in no checkpoint, which is said."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainingrun_runtime.checkpoints.encoding import NotSavable
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.kept_gradients import KeptGradients


class Training:
    """Steps of a session; the first one is done."""

    def __init__(self, step: Callable[["Training"], None]) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        self.critic = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.of_critic = torch.optim.Adam(self.critic.parameters())
        self.number = 0
        self._step = step
        optimizers = {"optimizer": self.optimizer, "of_critic": self.of_critic}
        self._gradients = AccumulatedGradients(optimizers.values())
        self.kept = KeptGradients(optimizers, self._gradients)
        self.step()
        self.kept.watch()

    def step(self) -> None:
        self._gradients.step_begins()
        self._step(self)
        self._gradients.step_done()
        self.number += 1

    def loss(self) -> torch.Tensor:
        return self.critic(self.model(torch.ones(1, 2))).sum()

    def backward(self) -> None:
        self.loss().backward()


def decayed(training: Training) -> None:
    training.backward()
    training.optimizer.step()
    for parameter in training.model.parameters():
        parameter.grad.mul_(0.5)


def never_cleared(training: Training) -> None:
    training.backward()
    training.optimizer.step()


def decayed_in_a_closure(training: Training) -> None:
    def closure() -> torch.Tensor:
        for parameter in training.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        loss = training.loss()
        loss.backward()
        return loss

    training.optimizer.step(closure)


def delayed(training: Training) -> None:
    """Computed at the end of a step, as where the exchange of the next batch goes on beside it."""
    training.optimizer.step()
    training.optimizer.zero_grad()
    training.backward()


def delayed_in_place(training: Training) -> None:
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=False)
    training.backward()


@pytest.mark.parametrize(
    "step", [decayed, never_cleared, decayed_in_a_closure, delayed, delayed_in_place]
)
def test_gradients_that_are_kept_over_steps_are_refused_in_the_next_step(
    step: Callable[[Training], None],
) -> None:
    training = Training(step)
    training.kept.require_none()
    training.step()
    with pytest.raises(NotSavable, match=r"^optimizer uses gradients that are left of its former"):
        training.kept.require_none()


def cleared_first(training: Training) -> None:
    training.optimizer.zero_grad()
    training.backward()
    training.optimizer.step()


def set_to_zero_first(training: Training) -> None:
    training.optimizer.zero_grad(set_to_none=False)
    training.backward()
    training.optimizer.step()


def accumulated(training: Training) -> None:
    """Cleared once in two steps; the others' gradients wait for their use."""
    if training.number % 2 == 1:
        training.optimizer.zero_grad()
    training.backward()
    if training.number % 2 == 0:
        training.optimizer.step()


def used_in_a_later_step(training: Training) -> None:
    """What the first step leaves is not used yet; the checkpoint waits for that, or has no part."""
    training.backward()
    if training.number % 3 == 2:
        training.optimizer.step()
        training.optimizer.zero_grad()


def cleared_in_a_closure(training: Training) -> None:
    def closure() -> torch.Tensor:
        training.optimizer.zero_grad()
        loss = training.loss()
        loss.backward()
        return loss

    training.optimizer.step(closure)


def two_losses(training: Training) -> None:
    """The other one's loss leaves gradients, which are cleared before they would be used."""
    training.optimizer.zero_grad()
    training.backward()
    training.optimizer.step()
    training.of_critic.zero_grad()
    (-training.loss()).backward()
    training.of_critic.step()
    training.loss().backward()


def the_other_one_first(training: Training) -> None:
    training.of_critic.zero_grad()
    training.backward()  # adds to what is left in the model, too
    training.of_critic.step()
    cleared_first(training)


def replaced(training: Training) -> None:
    """Nothing is added: `torch.autograd.grad` returns gradients, and they are set."""
    parameters = list(training.model.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(training.loss(), parameters), strict=True
    ):
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.copy_(gradient)
    training.optimizer.step()


def unused(training: Training) -> None:
    """A layer of which only the first step makes gradients; decay of weights goes on."""
    training.optimizer.zero_grad(set_to_none=False)
    if training.number == 0:
        training.backward()
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=False)


def replayed(training: Training) -> None:
    """A CUDA graph writes gradients anew, unseen by PyTorch; those of an L1 loss stay equal."""
    if training.number == 0:
        training.backward()
    for parameter in training.model.parameters():
        parameter.grad.data.fill_(1)
    training.optimizer.step()


def replayed_and_scaled(training: Training) -> None:
    """The optimizer itself scales its gradients in place, as a fused one does with a GradScaler."""

    def scale(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in training.model.parameters():
            parameter.grad.mul_(1.0)

    if training.number == 0:
        training.optimizer.register_step_pre_hook(scale)
    replayed(training)


def skipped(training: Training) -> None:
    """As a GradScaler does, where the gradients have overflowed."""
    training.optimizer.zero_grad()
    training.backward()
    if training.number % 2 == 0:
        training.optimizer.step()


def frozen(training: Training) -> None:
    """A layer that is trained in the first step alone, and whose gradient the next one clears."""
    cleared_first(training)
    training.model[0].requires_grad_(False)


def logged_after_its_use(training: Training) -> None:
    cleared_first(training)
    torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)


def in_two_optimizers(training: Training) -> None:
    """SGD for the critic in every step, beside its Adam."""
    if training.number == 0:
        training.optimizer.add_param_group({"params": [*training.critic.parameters()]})
    training.of_critic.zero_grad()
    cleared_first(training)
    training.of_critic.step()


@pytest.mark.parametrize(
    "step",
    [
        cleared_first, set_to_zero_first, accumulated, used_in_a_later_step, cleared_in_a_closure,
        two_losses, the_other_one_first, replaced, unused, replayed,
        replayed_and_scaled, skipped, frozen, logged_after_its_use, in_two_optimizers,
    ],
)  # fmt: skip
def test_gradients_that_are_cleared_before_their_use_are_not(
    step: Callable[[Training], None],
) -> None:
    training = Training(step)
    for _ in range(6):
        training.step()
        training.kept.require_none()
        training.kept.watch()


def test_what_a_cuda_graph_writes_over_those_of_another_loss_is_not_one_of_them() -> None:
    def step(training: Training) -> None:
        replayed(training)
        training.backward()  # of the other one

    training = Training(step)
    training.step()
    training.kept.require_none()


def test_a_parameter_that_is_watched_can_be_copied_and_saved_without_a_warning(
    tmp_path: Any,
) -> None:
    training = Training(cleared_first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.deepcopy(training.model)
        torch.save(training.model, tmp_path / "model.pt")
    training.step()
    hooks = [p._backward_hooks for p in training.model.parameters()]
    assert not any(hooks), "nothing is left of it after the step"
