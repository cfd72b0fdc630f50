"""What a session keeps of DeepSpeed's engines: trained on from it, the weights are the same."""

import os
from collections.abc import Iterator
from typing import Any

import deepspeed
import pytest
import torch

from trainingrun_runtime.checkpoints.encoding import decode, encode
from trainingrun_runtime.checkpoints.sharded_state import copied
from trainingrun_runtime.checkpoints.stateful_objects import restorable
from trainingrun_runtime.frameworks.deepspeed import kept_objects
from trainingrun_runtime.survivors.noted_steps import GradientExchange

HALF = 3
"""Steps before the state is taken, and after it."""


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    """Of this process alone."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(variables)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def an_engine(config: dict[str, Any]) -> Any:
    """An engine of a small model with buffers and a frozen weight, the same each time."""
    torch.manual_seed(0)
    # On CPUs PyTorch has no batch norm in bfloat16.
    norm = torch.nn.LayerNorm(16) if "bf16" in config else torch.nn.BatchNorm1d(16)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), norm, torch.nn.Linear(16, 4))
    model[0].bias.requires_grad = False
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(trained, lr=0.1),
        config={"train_micro_batch_size_per_gpu": 4, "scheduler": schedule, **config},
    )
    return engine


def train(engine: Any, steps: range) -> None:
    for step in steps:
        for _ in range(engine.gradient_accumulation_steps()):
            generator = torch.Generator().manual_seed(step)
            batch = torch.randn(4, 8, generator=generator).to(next(engine.parameters()).dtype)
            engine.backward(engine(batch).float().square().mean())
            engine.step()


def weights(engine: Any) -> dict[str, torch.Tensor]:
    with deepspeed.zero.GatheredParameters(list(engine.parameters())):
        return {name: value.clone() for name, value in engine.module.state_dict().items()}


def states(engine: Any) -> dict[str, Any]:
    """As a session saves them."""
    objects = restorable(kept_objects(engine))
    return {name: copied(encode(thing.state_dict(), name)) for name, thing in objects.items()}


def restore(engine: Any, saved: dict[str, Any]) -> None:
    for name, thing in restorable(kept_objects(engine)).items():
        thing.load_state_dict(decode(saved[name]))


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        *((stage, {}) for stage in (0, 1, 2, 3)),
        *((stage, {"bf16": {"enabled": True}}) for stage in (1, 2, 3)),
    ],
)
def test_an_engine_trains_on_from_what_was_saved(stage: int, kind: dict[str, Any]) -> None:
    config = {"zero_optimization": {"stage": stage}, **kind}
    whole = an_engine(config)
    train(whole, range(2 * HALF))

    first = an_engine(config)
    train(first, range(HALF))
    saved = states(first)
    train(first, range(HALF))  # what was saved is a copy

    second = an_engine(config)
    restore(second, saved)
    train(second, range(HALF, 2 * HALF))
    assert second.global_steps == whole.global_steps == 2 * HALF
    found, wanted = weights(second), weights(whole)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert second.get_lr() == whole.get_lr()


def test_a_frozen_weight_is_restored() -> None:
    config = {"zero_optimization": {"stage": 3}}
    first, second = an_engine(config), an_engine(config)
    with (
        deepspeed.zero.GatheredParameters([first.module[0].bias], modifier_rank=0),
        torch.no_grad(),
    ):
        first.module[0].bias.fill_(7)
    restore(second, states(first))
    assert torch.equal(weights(second)["0.bias"], torch.full((16,), 7.0))


def test_a_step_that_ends_before_the_optimizers_is_refused() -> None:
    engine = an_engine({"gradient_accumulation_steps": 2})
    batch = torch.randn(4, 8)
    engine.backward(engine(batch).mean())
    engine.step()
    with pytest.raises(ValueError, match=r"after 1 of the engine's 2 gradient_accumulation_steps"):
        states(engine)
    engine.backward(engine(batch).mean())
    engine.step()
    assert states(engine)["engine"]["global_steps"] == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"zero_optimization": {"stage": 2, "elastic_checkpoint": True}}, "elastic_checkpoint"),
        ({"bf16": {"enabled": True}}, "is a FP16_UnfusedOptimizer"),
    ],
)
def test_what_a_session_cannot_save_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kept_objects(an_engine(config))


def test_whether_the_ranks_have_exchanged_the_gradients_of_a_step_is_known() -> None:
    engine = an_engine({"gradient_accumulation_steps": 2})
    exchange = GradientExchange(kept_objects(engine))

    def backward() -> None:
        engine.backward(engine(torch.ones(4, 8)).square().mean())

    train(engine, range(2))
    assert exchange.doubt is None
    backward()
    engine.step()
    backward()  # the last one before the optimizer's step: exchanged
    with engine.no_sync():
        backward()
    engine.step()
    assert exchange.doubt is not None
