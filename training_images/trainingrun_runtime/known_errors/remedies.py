"""Errors that users often get, what to do about them, and the sentence that says both; pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..error_text import first_line, text_of


@dataclass(frozen=True)
class Remedy:
    """What to do about one kind of error."""

    pattern: str
    """Found in the type's name and the text of such an error: `KeyError: 'a'`."""
    advice: str
    """The rest of a sentence that begins with the error: what to do."""

    def matches(self, text: str) -> bool:
        """Whether an error's text is one of these."""
        return re.search(self.pattern, text) is not None  # compiled when it is first needed


def _keyword(owner: str, names: str) -> str:
    """Of the error for an argument that a library no longer has."""
    return rf"{owner}\.__init__\(\) got an unexpected keyword argument '({names})'"


_NAME = r"cannot import name '(?:{0})' from 'ray\.|'ray\.[\w.]+' has no attribute '(?:{0})'"
_FUNCTION = (
    r"cannot import name '(?:{0})' from 'ray\.train'|'ray\.train' has no attribute '(?:{0})'"
)
_MODULE = r"[Nn]o module (?:named )?'ray\.(?:{0})'"
_TRANSFORMERS = (
    "use TorchTrainer, with transformers.Trainer in its function, and prepare_trainer and "
    "RayTrainReportCallback of ray.train.huggingface.transformers"
)
_LIGHTNING = (
    "use TorchTrainer, with Lightning's Trainer in its function, and RayDDPStrategy, "
    "RayLightningEnvironment and prepare_trainer of ray.train.lightning"
)
_FOLDER = (
    "write files into a folder, pass Checkpoint.from_directory(folder) to ray.train.report, and "
    "read them below checkpoint.as_directory(): a checkpoint is a folder"
)
_RESTORE = (
    "take it out: the run's newest checkpoint is ray.train.get_checkpoint() in the training "
    "function, and storage.restoreFrom of the TrainingRun begins from another run's"
)
_PREDICT = "use map_batches of a ray.data.Dataset with a class that loads the model"

_LESS_MEMORY = "make the batch smaller and accumulate gradients over several"
MORE_MEMORY = f"raise workers.resources.memory, or {_LESS_MEMORY}"
"""What to do where the memory of a pod is full."""

REMEDIES: dict[str, Remedy] = {
    # Functions and arguments that Ray no longer has, or that work otherwise.
    "checkpoint-of-a-dictionary": Remedy(
        r"`(from_dict|from_bytes)\(\)`|'Checkpoint'( object)? has no attribute "
        r"'(to_dict|to_bytes|from_bytes|from_model|get_model|get_preprocessor|"
        r"get_internal_representation)'|" + _keyword("Checkpoint", "data_dict|local_path"),
        _FOLDER,
    ),
    "path-of-a-checkpoint": Remedy(
        r"No such file or directory: '[^']*checkpoints/\d{4}-\d{6}/",
        'read files below checkpoint.as_directory(), as pathlib.Path(folder, "model.pt"): '
        "checkpoint.path is text, and a place in the bucket",
    ),
    "result-of-a-path": Remedy(
        r"Failed to restore the Result object: checkpoint_manager_snapshot",
        "open the run's folder with trainingrun_runtime.results.open(uri): Result.from_path reads "
        "the script's own run alone",
    ),
    "checkpoint-of-a-uri": Remedy(
        r"`from_uri\(\)`|" + _keyword("Checkpoint", "uri"),
        'use ray.train.Checkpoint(path="s3://…")',
    ),
    "checkpoint-to-a-uri": Remedy(
        r"'Checkpoint' object has no attribute '(to_uri|uri)'",
        "pass the checkpoint to ray.train.report, which uploads it; `trainingrun checkpoints list` "
        "shows where the run's checkpoints are",
    ),
    "checkpoint-of-a-checkpoint": Remedy(
        r"'\w*Checkpoint' has no attribute 'from_checkpoint'",
        "use the checkpoint itself, and read its files below checkpoint.as_directory()",
    ),
    "restore": Remedy(r"`restore` and `can_restore`", _RESTORE),
    "resume-from-checkpoint": Remedy(r"`resume_from_checkpoint`", _RESTORE),
    "preprocessor": Remedy(
        _keyword(r"\w+Trainer", "preprocessor"),
        "transform the ray.data.Dataset before it is passed in datasets",
    ),
    "run-config": Remedy(
        r"RunConfig\((verbose|sync_config|progress_reporter|log_to_file)\)|"
        + _keyword("RunConfig", "local_dir"),
        "take the argument out: the TrainingRun decides about storage, and `trainingrun watch` "
        "shows the progress",
    ),
    "run-config-stop": Remedy(
        r"RunConfig\(stop\)",
        "take it out, and end the loop in the training function, as session.stop() does",
    ),
    "tune-callbacks": Remedy(
        r"RunConfig\(callbacks: List",
        "pass subclasses of ray.train.UserCallback",
    ),
    "fail-fast": Remedy(
        r"FailureConfig\(fail_fast\)",
        "take it out: failures.maxRestarts: 0 of the TrainingRun ends it with the first error",
    ),
    "checkpoint-frequency": Remedy(
        r"`(checkpoint_frequency|checkpoint_at_end)` is deprecated",
        "take it out, and pass checkpoints to ray.train.report, or use a Session and "
        "checkpoints.everySteps of the TrainingRun",
    ),
    "trainer-resources": Remedy(
        r"ScalingConfig\(trainer_resources\)",
        "take it out: head.resources of the TrainingRun is what the trainer has",
    ),
    "scaling-config": Remedy(
        _keyword("ScalingConfig", r"_max_cpu_fraction_per_node|min_workers|max_workers"),
        "take it out: workers.count of the TrainingRun is the number of workers",
    ),
    "transformers-trainer": Remedy(
        _NAME.format(r"TransformersTrainer|HuggingFaceTrainer|TransformersCheckpoint")
        + "|"
        + _MODULE.format(r"train\.hf_transformers"),
        _TRANSFORMERS,
    ),
    "accelerate-trainer": Remedy(
        _NAME.format("AccelerateTrainer")
        + "|"
        + _MODULE.format(r"train\.(?:huggingface\.accelerate|hf_accelerate)"),
        "use TorchTrainer, with accelerate.Accelerator in its function",
    ),
    "lightning-trainer": Remedy(
        _NAME.format("LightningTrainer|LightningConfigBuilder|LightningCheckpoint"),
        _LIGHTNING,
    ),
    "lightning-is-missing": Remedy(
        r"PyTorch Lightning isn't installed",
        "put lightning into training.requirements, or use an image that has it; instead of "
        f"LightningTrainer {_LIGHTNING}",
    ),
    "other-trainers": Remedy(
        _MODULE.format(r"train\.(?:mosaic|rl|sklearn|gbdt_trainer)")
        + r"|`HorovodTrainer` is not supported|Horovod isn't installed",
        "use TorchTrainer with that library in its function, XGBoostTrainer or LightGBMTrainer, "
        "and RLlib for reinforcement learning: Ray Train has no such trainer any more",
    ),
    "predictor": Remedy(
        _NAME.format(r"\w*Predictor") + "|" + _MODULE.format(r"train\.(?:batch_)?predictor"),
        _PREDICT,
    ),
    "ray-sgd": Remedy(
        r"Ray SGD has been deprecated|"
        + _NAME.format("Trainer|TrainingCallback|CheckpointStrategy")
        + "|"
        + _MODULE.format(r"train\.callbacks|util\.train"),
        "use ray.train.torch.TorchTrainer, and callbacks of ray.train.RunConfig",
    ),
    "trainer-of-the-former-ray-train": Remedy(
        "Detected use of a deprecated Trainer import",
        "import the trainer from its package, as TorchTrainer from ray.train.torch; TorchTrainer "
        "takes the function of a DataParallelTrainer too",
    ),
    "air-callbacks": Remedy(
        _MODULE.format(r"air\.callbacks"),
        "take it out: set tracking of the TrainingRun and call wandb or mlflow in the training "
        "function; for Keras use ReportCheckpointCallback of ray.train.tensorflow.keras",
    ),
    "air-checkpoint": Remedy(
        r"cannot import name 'Checkpoint' from 'ray\.air'|'ray\.air' has no attribute 'Checkpoint'|"
        + _MODULE.format(r"air\.checkpoint"),
        "import it from ray.train",
    ),
    "dataset-config": Remedy(
        _NAME.format("DatasetConfig"),
        "use ray.train.DataConfig, as dataset_config of the trainer",
    ),
    "session-functions": Remedy(
        r"module 'ray\.train\.session' has no attribute|'ray\.air' has no attribute 'report'|"
        + _FUNCTION.format(
            "session|(?:world_|local_|node_)?rank|(?:world_|local_|local_world_)?size|"
            "load_checkpoint|save_checkpoint"
        ),
        "use ray.train.report(metrics, checkpoint=…), ray.train.get_checkpoint() and "
        "ray.train.get_context(), which has get_world_rank(), get_world_size() and "
        "get_local_rank()",
    ),
    "prepare-model": Remedy(
        _FUNCTION.format("prepare_model|prepare_data_loader|get_device|enable_reproducibility"),
        "use prepare_model, prepare_data_loader, get_device and enable_reproducibility of "
        "ray.train.torch",
    ),
    "mixed-precision": Remedy(
        r"`accelerate`, `backward`, and `prepare_optimizer`|"
        + _FUNCTION.format("accelerate|backward|prepare_optimizer"),
        "take it out, and use torch.autocast and torch.amp.GradScaler",
    ),
    "trial": Remedy(
        r"`get_trial_\w+` is deprecated",
        "use $TRAININGRUN_NAME and $TRAININGRUN_ATTEMPT of the environment, or a folder of your "
        "own",
    ),
    "tuner-of-a-trainer": Remedy(
        r"Improper 'run' - not string nor trainable|Trainer' object has no attribute "
        r"'as_trainable'",
        "call fit() of the trainer itself, or move its function into a module for "
        "training.function and set spec.sweep: a Tuner takes no trainer any more",
    ),
    "report-of-keywords": Remedy(
        r"\breport\(\) (got an unexpected keyword argument|missing 1 required positional argument: "
        r"'metrics')",
        'pass a dictionary, as ray.train.report({"loss": loss})',
    ),
    # The arguments that Ray's documentation passes to Transformers, and what DeepSpeed compiles.
    "eval-strategy": Remedy(
        _keyword("TrainingArguments", "evaluation_strategy"),
        "pass eval_strategy, which has its place in Transformers 5",
    ),
    "processing-class": Remedy(
        _keyword("Trainer", "tokenizer"),
        "pass processing_class, which has its place in Transformers 5",
    ),
    "use-cpu": Remedy(
        _keyword("TrainingArguments", "no_cuda"),
        "take it out, or pass use_cpu: workers.accelerator of the TrainingRun decides whether "
        "there is a GPU",
    ),
    "warmup-steps": Remedy(
        _keyword("TrainingArguments", "warmup_ratio"),
        "pass warmup_steps, which takes a share below 1 in Transformers 5",
    ),
    "group-by-length": Remedy(
        _keyword("TrainingArguments", "group_by_length"),
        'pass train_sampling_strategy="group_by_length" in Transformers 5',
    ),
    "logging-dir": Remedy(
        _keyword("TrainingArguments", "logging_dir"),
        "take it out: Transformers 5 writes to $TENSORBOARD_LOGGING_DIR, which tracking of the "
        "TrainingRun sets",
    ),
    "needless-arguments": Remedy(
        _keyword("TrainingArguments", "overwrite_output_dir|save_safetensors"),
        "take it out: Transformers 5 has it no longer",
    ),
    "adam-w": Remedy(
        r"cannot import name 'AdamW' from 'transformers|transformers'? has no attribute '?AdamW",
        "use torch.optim.AdamW",
    ),
    "no-compiler": Remedy(
        r"Error building extension '|Unable to JIT load the \w+ op|op, which failed to build/load|"
        r"Ninja is required to load C\+\+ extensions|CUDA_HOME (environment variable is not set|"
        r"does not exist)",
        "use an image with g++ and ninja, and for GPUs with CUDA's nvcc, or an optimizer of "
        "torch.optim instead of DeepSpeed's: the image has no compiler",
    ),
    # Of memory, accelerators, the network and PyTorch.
    "cuda-out-of-memory": Remedy(
        r"(CUDA|HIP) out of memory|CUDA error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
        f"{_LESS_MEMORY}, compute in bfloat16, or shard the model (fully_shard): the GPU's memory "
        "is full",
    ),
    "shared-memory": Remedy(
        r"out of shared memory|unable to (allocate shared memory|write to file </|mmap \d+ bytes "
        r"from file </)|/dev/shm|killed by signal: Bus error",
        "raise workers.resources.sharedMemory, or lower num_workers of the data loader: the pod's "
        "shared memory is full",
    ),
    "loader-killed": Remedy(
        r"DataLoader worker \(pid.{0,60}(killed by signal: Killed|exited unexpectedly)",
        "raise workers.resources.sharedMemory where the log has `insufficient shared memory`, "
        "else workers.resources.memory, or lower num_workers: a process of the data loader died",
    ),
    "open-files": Remedy(
        r"Too many open files|received \d+ items of ancdata",
        "raise the container's limit of open files (`ulimit -n`), or lower num_workers of the "
        "data loader, and close the files that each sample opens: the process may open no more",
    ),
    "file-size": Remedy(
        r"File too large|\[Errno 27\]",
        "raise the limit of a file's size (`ulimit -f`, or the volume's own), or write into "
        "several files: one file may not grow any further",
    ),
    "disk-full": Remedy(
        r"OutOfDiskError",
        "release what is not needed, free the disk, or give the pods more ephemeral-storage in "
        "podTemplate: the node's disk is full, onto which Ray's object store spills",
    ),
    "object-store-full": Remedy(
        r"ObjectStoreFullError|object store (memory )?is full",
        "pass large data by ray.data or files and not by ray.put, release what is not needed, or "
        "raise workers.resources.sharedMemory: Ray's object store is full",
    ),
    "ray-out-of-memory": Remedy(
        r"^OutOfMemoryError|running low on memory|NODE_OUT_OF_MEMORY|Memory on the node",
        MORE_MEMORY,
    ),
    "host-memory": Remedy(
        r"^_?(Array)?MemoryError|DefaultCPUAllocator: (can't allocate|not enough) memory|"
        r"Cannot allocate memory|std::bad_alloc",
        f"{MORE_MEMORY}: the pod has not that much memory",
    ),
    "no-nccl": Remedy(
        r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in",
        "set workers.accelerator of the TrainingRun, or gloo as training.torch.backend: the "
        "workers have no GPU",
    ),
    "fsdp-without-gpu": Remedy(
        r"FSDP is only available with GPU-enabled training|FSDP needs a non-CPU accelerator|"
        r"strategy `fsdp` requires a GPU accelerator",
        "set workers.accelerator of the TrainingRun, which decides about use_gpu, or shard the "
        "model by fully_shard of torch.distributed.fsdp, which needs no GPU",
    ),
    "old-driver": Remedy(
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "use an image with an older CUDA, or nodes with a newer driver: the image's CUDA is newer "
        "than the node's driver",
    ),
    "no-gpu": Remedy(
        r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available|"
        r"no CUDA-capable device|CUDA is not available|No HIP GPUs are available",
        "set workers.accelerator of the TrainingRun and use an image with CUDA, or move tensors "
        "to ray.train.torch.get_device() instead of 'cuda': the worker has no GPU",
    ),
    "invalid-device": Remedy(
        r"CUDA error: invalid device ordinal|Duplicate GPU detected",
        "use ray.train.torch.get_device(), not a number of a device: each worker sees its own "
        "GPUs alone",
    ),
    "device-assert": Remedy(
        r"device-side assert triggered",
        'run that batch on the CPU, or set CUDA_LAUNCH_BLOCKING: "1" in training.env, to see '
        "where: an index is out of its range, mostly a label or a token",
    ),
    "other-gpu": Remedy(
        r"no kernel image is available",
        "use another image, or choose the GPU by workers.accelerator.product: "
        "PyTorch of the image was not built for this GPU",
    ),
    "nccl-timeout": Remedy(
        r"collective operation timeout|ProcessGroupNCCL.{0,200}ran for \d+ milliseconds",
        "have every rank do the same steps, or raise training.torch.timeoutSeconds: a rank did "
        "not take part in a collective in time",
    ),
    "nccl-system": Remedy(
        r"ncclSystemError|unhandled system error|ncclUnhandledCudaError|unhandled cuda error|"
        r"ncclInternalError|ncclRemoteError",
        "set NCCL_DEBUG: INFO in training.env to see its cause in `trainingrun logs`; mostly it "
        "is NCCL_SOCKET_IFNAME, a NetworkPolicy between the workers, or /dev/shm",
    ),
    "second-process-group": Remedy(
        r"initialize the default process group twice",
        "take out init_process_group: Ray Train has made the process group",
    ),
    "rendezvous": Remedy(
        r"client socket has (failed|timed out)|server socket has failed to listen",
        "take out init_process_group and MASTER_ADDR: Ray Train makes the process group; if the "
        "script has neither, see that a NetworkPolicy lets the workers reach one another",
    ),
    "connection-refused": Remedy(
        # Not as gRPC says it, of Ray's request to a rank whose node is gone.
        r"(?<!remote host: )(?<!remote host: connect: )Connection refused|ECONNREFUSED",
        "use the name of a Service instead of localhost, which is the pod itself, and see that "
        "it runs: nothing listens at that address",
    ),
    "no-such-host": Remedy(
        r"Temporary failure in name resolution|Name or service not known|NameResolutionError",
        "correct the host's name, or see that the pods reach DNS and the network; what has to be "
        "downloaded can be put into the image or the bucket",
    ),
    "keys-of-a-wrapped-model": Remedy(
        r"(Missing|Unexpected) key\(s\) in state_dict: \"module\.",
        'save model.module.state_dict() of a model from prepare_model, or take "module." off the '
        "keys: such a model wraps yours",
    ),
    "unused-parameters": Remedy(
        r"Expected to have finished reduction in the prior iteration",
        'pass parallel_strategy_kwargs={"find_unused_parameters": True} to prepare_model: '
        "parameters took no part in the loss",
    ),
    "as-under-torchrun": Remedy(
        r"torch\.distributed using env:// rendezvous: environment variable|"
        r"^KeyError: '(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)'",
        "put the script into training.torchrun, which starts it on each rank as torchrun does; "
        "training.script runs once, beside the ranks, and calls TorchTrainer(function).fit()",
    ),
    "no-process-group": Remedy(
        r"Default process group has not been initialized",
        "use torch.distributed in the function of a TorchTrainer alone; elsewhere "
        "ray.train.get_context().get_world_rank() is the rank",
    ),
    "weights-only": Remedy(
        r"Weights only load failed",
        "save state_dict() alone, or pass weights_only=False to torch.load for a file that you "
        "trust: it holds objects that PyTorch does not load by default",
    ),
    "hyperopt": Remedy(
        r"HyperOpt must be installed|No module named 'hyperopt'",
        "set spec.sweep with search: Optuna, or put hyperopt into training.requirements",
    ),
    "no-such-file": Remedy(
        r"^FileNotFoundError: \[Errno 2\] No such file or directory: '/",
        "correct the path, or mount what is there by volumes in workers.podTemplate: a pod has its "
        "image's files, those of training.code, and no others",
    ),
    "unbound-variable": Remedy(
        r"cannot access local variable|local variable '\w+' referenced before assignment",
        "set it before the loop, or compute it after the loop: a resumed run may have no step left "
        "in which the loop's body sets it",
    ),
    "exit": Remedy(
        r"^SystemExit\b",
        "raise an error that says why, to fail; to end in order, return from the training "
        "function on every rank, or call session.stop() on one",
    ),
    "no-such-package": Remedy(
        r"^(ModuleNotFoundError|ImportError): (No module named '(?!ray\.)|[\w ]+ isn't installed)",
        "put the package into training.requirements, or use an image that has it; modules of your "
        "own come with training.code",
    ),
}
"""By the name of the kind of error; the first one that matches an error counts. What the first line
of an error says to do by itself is not said again."""


_RUNTIME = f"{__name__.partition('.')[0]}."
_SHOWN = 200
"""Characters of an error's own text before an advice: an attempt's message has 500."""
_LONGEST = 450
"""Characters of one without an advice."""
_SEARCHED = 20_000
"""Characters of an error's text that are searched: a remote error holds a whole traceback."""
_CAUSES = 5
"""How far back the causes of an error are searched."""


def find(error: BaseException) -> Remedy | None:
    """What to do about an error, or about what caused it; None: it is not in the table."""
    known = _notes(error)
    # The sentence of an error of the runtime itself says what to do.
    found = texts(error) if not type(error).__module__.startswith(_RUNTIME) else []
    for remedy in REMEDIES.values():
        if remedy.advice in known or any(map(remedy.matches, found)):
            return remedy
    return None


def note(error: BaseException) -> None:
    """Add to an error what to do about it: its causes are lost when Ray sends it on."""
    remedy = find(error)
    if remedy is not None and remedy.advice not in _notes(error):
        error.add_note(remedy.advice)


def _notes(error: BaseException) -> list[str]:
    return [str(each) for each in getattr(error, "__notes__", ())]


def explained(error: BaseException, where: str = "") -> str:
    """The first line of an error's text, where it was raised, and what to do where it is known."""
    remedy, line = find(error), first_line(error)
    most = (_LONGEST if remedy is None else _SHOWN) - len(where)
    shown = line if len(line) <= most else f"{line[: most - 1]}…"
    if remedy is None:
        return f"{shown}{where}"
    return f"{shown.rstrip('.')}{where}; {remedy.advice}"


def advised(sentence: str) -> bool:
    """Whether it ends with what to do, as that of `explained` does where that is known."""
    return any(sentence.endswith(remedy.advice) for remedy in REMEDIES.values())


def texts(error: BaseException) -> list[str]:
    """Type and text of an error, and of those that caused it."""
    return [f"{type(one).__name__}: {text_of(one)[:_SEARCHED]}" for one in _with_causes(error)]


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    for _ in range(_CAUSES):
        if following is None:
            return
        yield following
        following = following.__cause__ or (
            None if following.__suppress_context__ else following.__context__
        )
