"""A small BERT classifies rows of digits, in an image with `--build-arg EXTRAS=transformers`.

    training:
      function: trainingrun_runtime.examples.frameworks.transformers:train
      config: {epochs: 6, lr: 0.001, batch_size: 16}

The model is made from a config, so nothing is downloaded: it reads scikit-learn's handwritten
digits as sentences of 64 words, one for each pixel's shade.

Final metrics: accuracy on digits that were held out, and the SHA-256 of the weights.
"""

from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from trainingrun_runtime.examples.digits import data
from trainingrun_runtime.examples.repeatable import (
    Epochs,
    Pace,
    configured,
    seed_everything,
    weights_sha256,
)
from trainingrun_runtime.frameworks.transformers import prepare_trainer


@dataclass(frozen=True, kw_only=True)
class Config(Epochs):
    """Keys of `training.config`."""

    epochs: int = 6
    lr: float = 0.001
    batch_size: int = 16
    """Samples per worker and batch."""
    accumulate: int = 2
    """Batches in a step."""


class Sentences(Dataset):
    """Images as words, with their digits."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._words, self._labels = (images.flatten(1) * 16).long(), labels

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._words[index], "labels": self._labels[index]}


class Paced(TrainerCallback):
    """Steps take a while, and are noted."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A step begins."""
        self._pace.wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is done."""
        self._pace(state.global_step - 1)


def model() -> BertForSequenceClassification:
    """Two layers, 64 numbers wide."""
    settings = BertConfig(
        vocab_size=17,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        num_labels=10,
    )
    return BertForSequenceClassification(settings)


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    seed_everything(settings.seed)
    images, test_images, labels, test_labels = data(settings.seed)
    arguments = TrainingArguments(
        output_dir="/tmp/transformers",  # noqa: S108 - the session's checkpoints are in the bucket
        num_train_epochs=settings.epochs,
        learning_rate=settings.lr,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
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
        model=model(),
        args=arguments,
        train_dataset=Sentences(images, labels),
        callbacks=[Paced(pace)],
    )
    trainer = prepare_trainer(trainer, seed=settings.seed)
    trainer.train()
    answers = trainer.predict(Sentences(test_images, test_labels)).predictions.argmax(1)
    trainer.session.finish(
        accuracy=float((torch.from_numpy(answers) == test_labels).float().mean()),
        weights_sha256=weights_sha256(trainer.model),
    )
