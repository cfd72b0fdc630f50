"""What the examples of fine-tuning have in common: a language model, its text, and what is left.

The model is made from a config and its tokenizer from the reference of Python, which is a part of
Python itself, so nothing is downloaded. `base` names another model.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from trainingrun_runtime import results
from trainingrun_runtime.examples.repeatable import Epochs

from ...store.bucket import Bucket

END = "<|end|>"
"""Follows each text."""


@dataclass(frozen=True, kw_only=True)
class Recipe(Epochs):
    """Keys of `training.config`."""

    epochs: int = 1
    lr: float = 0.001
    batch_size: int = 8
    """Blocks of text per worker and batch."""
    base: str = ""
    """Folder of the model to begin with, or its name on the Hub; none: a small one that knows
    nothing."""
    data: str = ""
    """File of JSON Lines with a `text` each; none: Python's reference."""
    block: int = 64
    """Tokens of a block of text."""
    evaluate_every: int = 20
    """Steps from one evaluation to the next."""
    bf16: bool = False
    """Whether to compute in bfloat16."""
    checkpoint_activations: bool = False
    """Whether to compute activations again in the backward pass, to save memory."""


def base_model(settings: Recipe) -> Any:
    """The model to begin with, on the CPU; of LoRA the frozen one."""
    dtype = torch.bfloat16 if settings.bf16 else torch.float32
    if settings.base:
        return AutoModelForCausalLM.from_pretrained(settings.base, dtype=dtype)
    torch.manual_seed(settings.seed)
    small = LlamaConfig(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=0,
    )
    return LlamaForCausalLM(small).to(dtype)


def tokenizer(settings: Recipe) -> Any:
    """That of the model to begin with."""
    if settings.base:
        return AutoTokenizer.from_pretrained(settings.base)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((text for _, text in sorted(topics.items())), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)


def blocks(settings: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of tokens, one after the other in the texts: to train on, and every tenth held out."""
    if settings.data:
        # `splitlines` would end a line at a separator within a text, too.
        with Path(settings.data).open(encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in lines if line.strip()]
    else:
        texts = [text for _, text in sorted(topics.items())]
    encode = tokenizer(settings)
    tokens = [token for text in texts for token in (*encode(text).input_ids, encode.eos_token_id)]
    whole = len(tokens) // settings.block
    found = torch.tensor(tokens[: whole * settings.block]).view(whole, settings.block)
    held_out = torch.arange(whole) % 10 == 0
    return found[~held_out], found[held_out]


def export(run: str, to: str, kind: type[Recipe], make: Callable[[Any], Any]) -> str:
    """Write the best model of a run, or the newest, as Transformers and servers of models read it.

    Args:
        run: The run's folder.
        to: Folder of this machine, or URI of one.
        kind: Of the run's config.
        make: Makes the model as the training did; one with adapters is merged.

    Returns:
        URI of the checkpoint.
    """
    found = results.open(run)
    if found.config is None:
        raise ValueError(f"{found.uri} does not say with which config it was trained")
    known = {name: text for name, text in found.config.items() if hasattr(kind, name)}
    is_text = {name: isinstance(getattr(kind, name), str) for name in known}
    config: dict[str, Any] = {n: v if is_text[n] else json.loads(v) for n, v in known.items()}
    settings = kind(**config)
    model = make(settings)
    checkpoint = results.load(found.best_checkpoint.uri if found.best_checkpoint else run, model)
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if "://" in to else to)
        model.to(torch.bfloat16 if settings.bf16 else torch.float32).save_pretrained(folder)
        tokenizer(settings).save_pretrained(folder)
        if "://" in to:
            bucket = Bucket.open(to)
            for file in sorted(folder.iterdir()):
                bucket.upload(file.name, file)
    return checkpoint.uri


def main(kind: type[Recipe], make: Callable[[Any], Any]) -> None:
    """The command that exports a model; its arguments are those of `export`."""
    parser = argparse.ArgumentParser(description="Write a run's model in Hugging Face's layout.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--to", required=True, help="folder of this machine, or its URI")
    parser.add_argument("--prompt", help="a text to go on with; --to is of this machine then")
    given = parser.parse_args()
    print(f"{given.to} has the model of {export(given.run, given.to, kind, make)}")
    if given.prompt:
        model = AutoModelForCausalLM.from_pretrained(given.to)
        encode = AutoTokenizer.from_pretrained(given.to)
        begin = encode(given.prompt, return_tensors="pt").input_ids
        print(encode.decode(model.generate(begin, max_new_tokens=40, do_sample=False)[0]))
