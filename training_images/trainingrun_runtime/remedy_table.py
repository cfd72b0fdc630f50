"""What people meet, and what to do about it: patterns of errors with advice."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Remedy:
    """What to do about one kind of error."""

    id: str
    """For tests."""
    pattern: str
    """Found in the type's name and the text of such an error: `KeyError: 'a'`."""
    advice: str
    """The rest of a sentence that begins with the error: what to do."""

    def matches(self, text: str) -> bool:
        """Whether an error's text is one of these."""
        return re.search(self.pattern, text) is not None  # compiled when it is first needed


def _keyword(owner: str, names: str) -> str:
    """Of the error for an argument that there is no longer."""
    return rf"{owner}\.__init__\(\) got an unexpected keyword argument '({names})'"


_NAME = r"cannot import name '(?:{0})'|has no attribute '(?:{0})'"
_MODULE = r"[Nn]o module (?:named )?'ray\.(?:{0})'"
_TRANSFORMERS = (
    "use TorchTrainer, with transformers.Trainer in its function, and prepare_trainer and "
    "RayTrainReportCallback of ray.train.huggingface.transformers"
)
_FOLDER = (
    "a checkpoint is a folder: write files into one, pass Checkpoint.from_directory(folder) to "
    "ray.train.report, and read them below checkpoint.as_directory()"
)
_RESTORE = (
    "take it out: the run's newest checkpoint is ray.train.get_checkpoint() in the training "
    "function, and storage.restoreFrom of the TrainingRun begins from another run's"
)
_PREDICT = "use map_batches of a ray.data.Dataset with a class that loads the model"

REMOVED: tuple[Remedy, ...] = (
    Remedy(
        "checkpoint-of-a-dictionary",
        r"`(from_dict|from_bytes)\(\)`|'Checkpoint'( object)? has no attribute "
        r"'(to_dict|to_bytes|from_bytes|from_model|get_model|get_preprocessor|"
        r"get_internal_representation|uri)'",
        _FOLDER,
    ),
    Remedy("checkpoint-of-a-uri", r"`from_uri\(\)`", 'use ray.train.Checkpoint(path="s3://…")'),
    Remedy("restore", r"`restore` and `can_restore`", _RESTORE),
    Remedy("resume-from-checkpoint", r"`resume_from_checkpoint`", _RESTORE),
    Remedy(
        "metadata",
        r"`get_metadata` was|<Framework>Trainer\(metadata",
        "pass it in train_loop_config",
    ),
    Remedy(
        "preprocessor",
        _keyword(r"\w+Trainer", "preprocessor"),
        "transform the ray.data.Dataset before it is passed in datasets",
    ),
    Remedy(
        "run-config",
        r"RunConfig\((verbose|sync_config|progress_reporter|log_to_file)\)|"
        + _keyword("RunConfig", "local_dir"),
        "take the argument out: the TrainingRun decides about storage, and `trainingrun watch` "
        "shows the progress",
    ),
    Remedy(
        "run-config-stop",
        r"RunConfig\(stop\)",
        "take it out, and end the loop in the training function, as session.stop() does",
    ),
    Remedy(
        "tune-callbacks",
        r"RunConfig\(callbacks: List",
        "pass subclasses of ray.train.UserCallback",
    ),
    Remedy(
        "fail-fast",
        r"FailureConfig\(fail_fast\)",
        "take it out: failures.maxRestarts: 0 of the TrainingRun ends it with the first error",
    ),
    Remedy(
        "checkpoint-frequency",
        r"`(checkpoint_frequency|checkpoint_at_end)` is deprecated",
        "take it out, and pass checkpoints to ray.train.report, or use a Session and "
        "checkpoints.everySteps of the TrainingRun",
    ),
    Remedy(
        "trainer-resources",
        r"ScalingConfig\(trainer_resources\)",
        "take it out: head.resources of the TrainingRun is what the trainer has",
    ),
    Remedy(
        "scaling-config",
        _keyword("ScalingConfig", r"_max_cpu_fraction_per_node|min_workers|max_workers"),
        "take it out: workers.count of the TrainingRun is the number of workers",
    ),
    Remedy(
        "transformers-trainer",
        _NAME.format(r"TransformersTrainer|HuggingFaceTrainer|TransformersCheckpoint"),
        _TRANSFORMERS,
    ),
    Remedy(
        "accelerate-trainer",
        _NAME.format("AccelerateTrainer") + "|" + _MODULE.format(r"train\.huggingface\.accelerate"),
        "use TorchTrainer, with accelerate.Accelerator in its function",
    ),
    Remedy(
        "lightning-trainer",
        _NAME.format("LightningTrainer|LightningConfigBuilder|LightningCheckpoint"),
        "use TorchTrainer, with Lightning's Trainer in its function, and RayDDPStrategy, "
        "RayLightningEnvironment and prepare_trainer of ray.train.lightning",
    ),
    Remedy(
        "other-trainers",
        _MODULE.format(r"train\.(?:mosaic|rl|sklearn|gbdt_trainer)")
        + r"|`HorovodTrainer` is not supported",
        "Ray Train has no such trainer any more: use TorchTrainer with that library in its "
        "function, XGBoostTrainer or LightGBMTrainer, and RLlib for reinforcement learning",
    ),
    Remedy(
        "boosting-without-a-function",
        r"legacy (XGBoost|LightGBM)Trainer API",
        "pass a training function that calls the library's train() with RayTrainReportCallback",
    ),
    Remedy(
        "predictor",
        _NAME.format(r"\w*Predictor") + "|" + _MODULE.format(r"train\.(?:batch_)?predictor"),
        _PREDICT,
    ),
    Remedy(
        "ray-sgd",
        r"Ray SGD has been deprecated|"
        + _NAME.format("Trainer|TrainingCallback|CheckpointStrategy")
        + "|"
        + _MODULE.format(r"train\.callbacks"),
        "use ray.train.torch.TorchTrainer, and callbacks of ray.train.RunConfig",
    ),
    Remedy(
        "air-checkpoint",
        r"cannot import name 'Checkpoint' from 'ray\.air'|" + _MODULE.format(r"air\.checkpoint"),
        "import it from ray.train",
    ),
    Remedy(
        "dataset-config",
        _NAME.format("DatasetConfig"),
        "use ray.train.DataConfig, as dataset_config of the trainer",
    ),
    Remedy(
        "session-functions",
        r"module 'ray\.train\.session' has no attribute|module 'ray\.train' has no attribute "
        r"'(session|world_rank|local_rank|world_size|load_checkpoint|save_checkpoint)'",
        "use ray.train.report(metrics, checkpoint=…), ray.train.get_checkpoint() and "
        "ray.train.get_context().get_world_rank()",
    ),
    Remedy(
        "prepare-model",
        r"module 'ray\.train' has no attribute 'prepare_(model|data_loader)'",
        "use prepare_model and prepare_data_loader of ray.train.torch",
    ),
    Remedy(
        "mixed-precision",
        r"`accelerate`, `backward`, and `prepare_optimizer`",
        "take it out, and use torch.autocast and torch.amp.GradScaler",
    ),
    Remedy(
        "trial",
        r"`get_trial_\w+` is deprecated",
        "use $TRAININGRUN_NAME and $TRAININGRUN_ATTEMPT of the environment, or a folder of your "
        "own",
    ),
    Remedy(
        "tuner-of-a-trainer",
        r"Improper 'run' - not string nor trainable",
        "a Tuner takes no trainer any more: call fit() of the trainer itself",
    ),
    Remedy(
        "outside-of-training",
        r"cannot be used outside of a Ray Train training function",
        "call it in the function that the trainer gets as train_loop_per_worker",
    ),
    Remedy(
        "report-of-keywords",
        r"\breport\(\) (got an unexpected keyword argument|missing 1 required positional argument: "
        r"'metrics')",
        'pass a dictionary, as ray.train.report({"loss": loss})',
    ),
)
"""Of Ray's functions and arguments that there are no longer, or that work otherwise."""

_LESS_MEMORY = "make the batch smaller and accumulate gradients over several"

MET: tuple[Remedy, ...] = (
    Remedy(
        "cuda-out-of-memory",
        r"(CUDA|HIP) out of memory|CUDA error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
        f"the GPU's memory is full: {_LESS_MEMORY}, compute in bfloat16, or shard the model "
        "(fully_shard)",
    ),
    Remedy(
        "shared-memory",
        r"out of shared memory|unable to (allocate shared memory|write to file </|mmap \d+ bytes "
        r"from file </)|/dev/shm|killed by signal: Bus error",
        "the pod's shared memory is full: raise workers.resources.sharedMemory, or lower "
        "num_workers of the data loader",
    ),
    Remedy(
        "loader-killed",
        r"DataLoader worker \(pid.{0,60}(killed by signal: Killed|exited unexpectedly)",
        "a process of the data loader died: raise workers.resources.sharedMemory where the log has "
        "`insufficient shared memory`, else workers.resources.memory, or lower num_workers",
    ),
    Remedy(
        "object-store-full",
        r"ObjectStoreFullError|OutOfDiskError|object store (memory )?is full",
        "Ray's object store is full: pass large data by ray.data or files and not by ray.put, "
        "release what is not needed, or raise workers.resources.sharedMemory, which it uses",
    ),
    Remedy(
        "ray-out-of-memory",
        r"^OutOfMemoryError|running low on memory|NODE_OUT_OF_MEMORY|Memory on the node",
        f"raise workers.resources.memory, or {_LESS_MEMORY}",
    ),
    Remedy(
        "host-memory",
        r"^_?(Array)?MemoryError|DefaultCPUAllocator: (can't allocate|not enough) memory|"
        r"Cannot allocate memory|std::bad_alloc",
        f"the pod has not that much memory: raise workers.resources.memory, or {_LESS_MEMORY}",
    ),
    Remedy(
        "no-nccl",
        r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in",
        "the workers have no GPU: set workers.accelerator of the TrainingRun, or "
        "training.torch.backend: gloo",
    ),
    Remedy(
        "fsdp-without-gpu",
        r"FSDP is only available with GPU-enabled training",
        "set workers.accelerator of the TrainingRun, which decides about use_gpu, or shard the "
        "model by fully_shard of torch.distributed.fsdp, which needs no GPU",
    ),
    Remedy(
        "cuda-tensor-on-cpu",
        r"Attempting to deserialize object on a CUDA device",
        "pass map_location=ray.train.torch.get_device() to torch.load",
    ),
    Remedy(
        "old-driver",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "the image's CUDA is newer than the node's driver: use an image with an older CUDA, or "
        "nodes with a newer driver",
    ),
    Remedy(
        "no-gpu",
        r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available|"
        r"no CUDA-capable device|CUDA is not available|No HIP GPUs are available",
        "the worker has no GPU: set workers.accelerator of the TrainingRun and use an image with "
        "CUDA, or move tensors to ray.train.torch.get_device() instead of 'cuda'",
    ),
    Remedy(
        "invalid-device",
        r"CUDA error: invalid device ordinal|Duplicate GPU detected",
        "each worker sees its own GPUs alone: use ray.train.torch.get_device(), not a number of "
        "its own",
    ),
    Remedy(
        "device-assert",
        r"device-side assert triggered",
        "an index is out of its range, mostly a label or a token: run that batch on the CPU, or "
        'set CUDA_LAUNCH_BLOCKING: "1" in training.env, to see where',
    ),
    Remedy(
        "other-gpu",
        r"no kernel image is available",
        "PyTorch of the image was not built for this GPU: use another image, or choose the GPU by "
        "workers.accelerator.product",
    ),
    Remedy(
        "nccl-timeout",
        r"collective operation timeout|ProcessGroupNCCL.{0,200}ran for \d+ milliseconds",
        "a rank did not take part in a collective in time: every rank must do the same steps; "
        "training.torch.timeoutSeconds is the limit",
    ),
    Remedy(
        "nccl-system",
        r"ncclSystemError|unhandled system error|ncclUnhandledCudaError|unhandled cuda error|"
        r"ncclInternalError|ncclRemoteError",
        "set NCCL_DEBUG: INFO in training.env to see its cause in `trainingrun logs`; mostly it "
        "is NCCL_SOCKET_IFNAME, a NetworkPolicy between the workers, or /dev/shm",
    ),
    Remedy(
        "second-process-group",
        r"initialize the default process group twice",
        "take out init_process_group: Ray Train has made the process group",
    ),
    Remedy(
        "rendezvous",
        r"client socket has (failed|timed out)|server socket has failed to listen",
        "take out init_process_group and MASTER_ADDR: Ray Train makes the process group; if the "
        "script has neither, see that a NetworkPolicy lets the workers reach one another",
    ),
    Remedy(
        "connection-refused",
        r"Connection refused|ECONNREFUSED",
        "nothing listens at that address: localhost is the pod itself, so use the name of a "
        "Service, and see that it runs",
    ),
    Remedy(
        "no-such-host",
        r"Temporary failure in name resolution|Name or service not known|NameResolutionError",
        "correct the host's name, or see that the pods reach DNS and the network; what has to be "
        "downloaded can be put into the image or the bucket",
    ),
    Remedy(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "parameters took no part in the loss: pass parallel_strategy_kwargs="
        '{"find_unused_parameters": True} to prepare_model',
    ),
    Remedy(
        "tensors-as-metrics",
        r"Passing objects containing Torch tensors as metrics",
        "report numbers, as loss.item()",
    ),
    Remedy(
        "as-under-torchrun",
        r"torch\.distributed using env:// rendezvous: environment variable|"
        r"^KeyError: '(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)'",
        "a script runs once, beside the ranks, and not on each rank as under torchrun: put the "
        "training into a function and call TorchTrainer(function).fit(), or name the function in "
        "training.function",
    ),
    Remedy(
        "no-process-group",
        r"Default process group has not been initialized",
        "TorchTrainer makes a process group on the ranks that it starts, and there is none outside "
        "of its function or with other trainers, where "
        "ray.train.get_context().get_world_rank() is the rank",
    ),
    Remedy(
        "exit",
        r"^SystemExit\b",
        "to fail, raise an error that says why; to end in order, return from the training function "
        "on every rank, or call session.stop() on one",
    ),
    Remedy(
        "no-such-package",
        r"^(ModuleNotFoundError|ImportError): (No module named '(?!ray\.)|[\w ]+ isn't installed)",
        "put the package into training.requirements, or use an image that has it; modules of your "
        "own come with training.code",
    ),
)
"""Of memory, accelerators, the network and PyTorch."""

REMEDIES = REMOVED + MET
"""The first row that matches an error counts."""
