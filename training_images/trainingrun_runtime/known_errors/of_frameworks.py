"""Of the libraries that train beside PyTorch."""

from .remedy import Remedy


def _argument(owner: str, names: str) -> str:
    """Of Transformers' error for an argument that version 5 has no longer."""
    return rf"{owner}\.__init__\(\) got an unexpected keyword argument '({names})'"


FRAMEWORKS: tuple[Remedy, ...] = (
    Remedy(
        "eval-strategy",
        _argument("TrainingArguments", "evaluation_strategy"),
        "pass eval_strategy, which has its place in Transformers 5",
    ),
    Remedy(
        "processing-class",
        _argument("Trainer", "tokenizer"),
        "pass processing_class, which has its place in Transformers 5",
    ),
    Remedy(
        "use-cpu",
        _argument("TrainingArguments", "no_cuda"),
        "take it out, or pass use_cpu: workers.accelerator of the TrainingRun decides whether "
        "there is a GPU",
    ),
    Remedy(
        "warmup-steps",
        _argument("TrainingArguments", "warmup_ratio"),
        "pass warmup_steps, which takes a share below 1 in Transformers 5",
    ),
    Remedy(
        "group-by-length",
        _argument("TrainingArguments", "group_by_length"),
        'pass train_sampling_strategy="group_by_length" in Transformers 5',
    ),
    Remedy(
        "logging-dir",
        _argument("TrainingArguments", "logging_dir"),
        "take it out: Transformers 5 writes to $TENSORBOARD_LOGGING_DIR, which tracking of the "
        "TrainingRun sets",
    ),
    Remedy(
        "needless-arguments",
        _argument("TrainingArguments", "overwrite_output_dir|save_safetensors"),
        "take it out: Transformers 5 has it no longer",
    ),
    Remedy(
        "adam-w",
        r"cannot import name 'AdamW' from 'transformers|transformers'? has no attribute '?AdamW",
        "use torch.optim.AdamW",
    ),
    Remedy(
        "no-compiler",
        r"Error building extension '|Unable to JIT load the \w+ op|op, which failed to build/load|"
        r"Ninja is required to load C\+\+ extensions|CUDA_HOME (environment variable is not set|"
        r"does not exist)",
        "use an image with g++ and ninja, and for GPUs with CUDA's nvcc, or an optimizer of "
        "torch.optim instead of DeepSpeed's: the image has no compiler",
    ),
)
"""The arguments that Ray's documentation passes to Transformers, and what DeepSpeed compiles."""
