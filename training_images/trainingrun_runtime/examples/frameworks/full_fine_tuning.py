"""All weights of a language model, sharded by FSDP2, in PyTorch's own loop.

    training:
      function: trainingrun_runtime.examples.frameworks.full_fine_tuning:train
      config: {epochs: 1, lr: 0.001, batch_size: 8}

Each worker holds a part of the weights, of their gradients and of the optimizer's state, and saves
it. Transformers has the model; the image is one with `--build-arg EXTRAS=peft`, or `transformers`.
Final metrics: the loss on text that was held out. After the run,

    python -m trainingrun_runtime.examples.frameworks.full_fine_tuning RUN --to model

puts the parts together and writes the model so that Transformers reads it.
"""

from dataclasses import dataclass
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import get_device
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import get_cosine_schedule_with_warmup

from trainingrun_runtime import Session
from trainingrun_runtime.examples.repeatable import (
    Pace,
    batch,
    configured,
    seed_everything,
    steps_per_epoch,
)

from .language_model import Recipe, base_model, blocks, main


@dataclass(frozen=True, kw_only=True)
class Config(Recipe):
    """Keys of `training.config`."""


def sharded(settings: Config) -> Any:
    """The model to begin with, of which this rank keeps its part, in float32."""
    device = get_device()
    mesh = init_device_mesh(device.type, (ray.train.get_context().get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = policy if settings.bf16 else MixedPrecisionPolicy()
    model = base_model(settings)
    if settings.checkpoint_activations:
        model.activation_checkpointing_enable()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model.float()


def held_out_loss(model: Any, held_out: torch.Tensor, settings: Config) -> float:
    """Mean loss over the blocks that were held out, of which each rank reads as many."""
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    mine = held_out[: len(held_out) // workers * workers][rank::workers]
    total = torch.zeros((), device=mine.device)
    model.eval()
    with torch.no_grad():
        for part in mine.split(settings.batch_size):
            total += model(input_ids=part, labels=part).loss * len(part)
    model.train()
    dist.all_reduce(total)
    return float(total / (len(mine) * workers))


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    seed_everything(settings.seed)
    trained, held_out = (part.to(get_device()) for part in blocks(settings))
    model = sharded(settings)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    steps = settings.epochs * steps_per_epoch(len(trained), settings.batch_size, workers)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 10, steps)
    session = Session(seed=settings.seed, model=model, optimizer=optimizer, scheduler=scheduler)
    pace = Pace(settings.step_seconds, rank)

    for step in session.steps(steps):
        pace.wait()
        mine = batch(step, len(trained), settings.batch_size, rank, workers, settings.seed)
        blocks_of_step = trained[mine]
        loss = model(input_ids=blocks_of_step, labels=blocks_of_step).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        metrics = {"loss": loss.item()}
        if (step + 1) % settings.evaluate_every == 0:
            metrics["eval_loss"] = held_out_loss(model, held_out, settings)
            session.save()  # a checkpoint of these very weights, so that the best one is kept
        session.report(**metrics)
        pace(step)

    session.finish(eval_loss=held_out_loss(model, held_out, settings))


if __name__ == "__main__":
    main(Config, base_model)
