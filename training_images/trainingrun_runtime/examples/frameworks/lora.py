"""LoRA with PEFT and Transformers' Trainer, in an image with `--build-arg EXTRAS=peft`.

    training:
      function: trainingrun_runtime.examples.frameworks.lora:train
      config: {epochs: 1, lr: 0.002, rank: 8}

The model itself stays as it is, on each worker; small matrices beside its own are trained, and a
checkpoint holds these alone. Final metrics: the loss on text that was held out. After the run,

    python -m trainingrun_runtime.examples.frameworks.lora s3://runs/demo/lora-1a2b3c4d --to merged

adds the matrices to the model's own and writes it so that Transformers reads it.
"""

from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Trainer, TrainingArguments

from trainingrun_runtime.examples.repeatable import Pace, configured, seed_everything
from trainingrun_runtime.frameworks.transformers import prepare_trainer

from .language_model import Recipe, base_model, blocks, main
from .transformers import Paced


@dataclass(frozen=True, kw_only=True)
class Config(Recipe):
    """Keys of `training.config`."""

    lr: float = 0.002
    rank: int = 8
    """Of the matrices that are trained."""
    alpha: int = 16
    """What they add is multiplied by alpha / rank."""
    accumulate: int = 1
    """Batches in a step."""


def model(settings: Config) -> PeftModel:
    """The model to begin with, and matrices of LoRA beside each of its own but the last."""
    torch.manual_seed(settings.seed)
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.05,
        target_modules="all-linear",
    )
    return get_peft_model(base_model(settings), lora)


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    seed_everything(settings.seed)
    trained, held_out = (
        [{"input_ids": block, "labels": block} for block in part] for part in blocks(settings)
    )
    arguments = TrainingArguments(
        output_dir="/tmp/lora",  # noqa: S108 - the session's checkpoints are in the bucket
        num_train_epochs=settings.epochs,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        activation_checkpointing=settings.checkpoint_activations,
        bf16=settings.bf16,
        eval_strategy="steps",
        eval_steps=settings.evaluate_every,
        prediction_loss_only=True,
        save_strategy="no",
        report_to="none",
        logging_steps=5,
        seed=settings.seed,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        ddp_find_unused_parameters=True,
    )
    pace = Pace(settings.step_seconds, ray.train.get_context().get_world_rank())
    trainer = Trainer(
        model=model(settings),
        args=arguments,
        train_dataset=trained,
        eval_dataset=held_out,
        callbacks=[Paced(pace)],
    )
    trainer = prepare_trainer(trainer, seed=settings.seed)
    trainer.train()
    trainer.session.finish(eval_loss=trainer.evaluate()["eval_loss"])


if __name__ == "__main__":
    main(Config, model)
