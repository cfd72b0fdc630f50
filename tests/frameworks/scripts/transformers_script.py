"""Ray's documented way to train with Transformers: its report callback and prepare_trainer."""

import json
import os
import tempfile
import time

import ray.train
import ray.train.huggingface.transformers
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Noting(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.1)
        if ray.train.get_context().get_world_rank() == 0:
            name = f"{os.environ['STEP_LOG_FOLDER']}/{os.getpid()}.log"
            with open(name, "a") as lines:
                lines.write(f"{time.time()} {state.global_step}\n")


def train_func(config):
    images, labels = load_digits(return_X_y=True)
    words, digits = torch.tensor(images).long(), torch.tensor(labels)
    rows = [{"input_ids": w, "labels": d} for w, d in zip(words, digits, strict=True)]
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=17,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
            num_labels=10,
        )
    )
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=config["epochs"],
        per_device_train_batch_size=64,
        save_strategy="epoch",
        logging_strategy="epoch",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=rows, callbacks=[Noting()])
    callback = ray.train.huggingface.transformers.RayTrainReportCallback()
    trainer.add_callback(callback)
    trainer = ray.train.huggingface.transformers.prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            checkpoint_path = os.path.join(checkpoint_dir, callback.CHECKPOINT_NAME)
            trainer.train(resume_from_checkpoint=checkpoint_path)
    else:
        trainer.train()


ray_trainer = TorchTrainer(
    train_func,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    scaling_config=ScalingConfig(num_workers=2),
)
result = ray_trainer.fit()
