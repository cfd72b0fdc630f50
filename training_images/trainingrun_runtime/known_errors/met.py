"""Of memory, accelerators, the network and PyTorch."""

from .remedy import Remedy

_LESS_MEMORY = "make the batch smaller and accumulate gradients over several"

MET: tuple[Remedy, ...] = (
    Remedy(
        "cuda-out-of-memory",
        r"(CUDA|HIP) out of memory|CUDA error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
        f"{_LESS_MEMORY}, compute in bfloat16, or shard the model (fully_shard): the GPU's memory "
        "is full",
    ),
    Remedy(
        "shared-memory",
        r"out of shared memory|unable to (allocate shared memory|write to file </|mmap \d+ bytes "
        r"from file </)|/dev/shm|killed by signal: Bus error",
        "raise workers.resources.sharedMemory, or lower num_workers of the data loader: the pod's "
        "shared memory is full",
    ),
    Remedy(
        "loader-killed",
        r"DataLoader worker \(pid.{0,60}(killed by signal: Killed|exited unexpectedly)",
        "raise workers.resources.sharedMemory where the log has `insufficient shared memory`, "
        "else workers.resources.memory, or lower num_workers: a process of the data loader died",
    ),
    Remedy(
        "disk-full",
        r"OutOfDiskError",
        "release what is not needed, free the disk, or give the pods more ephemeral-storage in "
        "podTemplate: the node's disk is full, onto which Ray's object store spills",
    ),
    Remedy(
        "object-store-full",
        r"ObjectStoreFullError|object store (memory )?is full",
        "pass large data by ray.data or files and not by ray.put, release what is not needed, or "
        "raise workers.resources.sharedMemory: Ray's object store is full",
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
        f"raise workers.resources.memory, or {_LESS_MEMORY}: the pod has not that much memory",
    ),
    Remedy(
        "no-nccl",
        r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in",
        "set workers.accelerator of the TrainingRun, or gloo as training.torch.backend: the "
        "workers have no GPU",
    ),
    Remedy(
        "fsdp-without-gpu",
        r"FSDP is only available with GPU-enabled training|FSDP needs a non-CPU accelerator|"
        r"strategy `fsdp` requires a GPU accelerator",
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
        "use an image with an older CUDA, or nodes with a newer driver: the image's CUDA is newer "
        "than the node's driver",
    ),
    Remedy(
        "no-gpu",
        r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available|"
        r"no CUDA-capable device|CUDA is not available|No HIP GPUs are available",
        "set workers.accelerator of the TrainingRun and use an image with CUDA, or move tensors "
        "to ray.train.torch.get_device() instead of 'cuda': the worker has no GPU",
    ),
    Remedy(
        "invalid-device",
        r"CUDA error: invalid device ordinal|Duplicate GPU detected",
        "use ray.train.torch.get_device(), not a number of a device: each worker sees its own "
        "GPUs alone",
    ),
    Remedy(
        "device-assert",
        r"device-side assert triggered",
        'run that batch on the CPU, or set CUDA_LAUNCH_BLOCKING: "1" in training.env, to see '
        "where: an index is out of its range, mostly a label or a token",
    ),
    Remedy(
        "other-gpu",
        r"no kernel image is available",
        "use another image, or choose the GPU by workers.accelerator.product: "
        "PyTorch of the image was not built for this GPU",
    ),
    Remedy(
        "nccl-timeout",
        r"collective operation timeout|ProcessGroupNCCL.{0,200}ran for \d+ milliseconds",
        "have every rank do the same steps, or raise training.torch.timeoutSeconds: a rank did "
        "not take part in a collective in time",
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
        "use the name of a Service instead of localhost, which is the pod itself, and see that "
        "it runs: nothing listens at that address",
    ),
    Remedy(
        "no-such-host",
        r"Temporary failure in name resolution|Name or service not known|NameResolutionError",
        "correct the host's name, or see that the pods reach DNS and the network; what has to be "
        "downloaded can be put into the image or the bucket",
    ),
    Remedy(
        "keys-of-a-wrapped-model",
        r"(Missing|Unexpected) key\(s\) in state_dict: \"module\.",
        'save model.module.state_dict() of a model from prepare_model, or take "module." off the '
        "keys: such a model wraps yours",
    ),
    Remedy(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        'pass parallel_strategy_kwargs={"find_unused_parameters": True} to prepare_model: '
        "parameters took no part in the loss",
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
        "put the training into a function and call TorchTrainer(function).fit(), or name it in "
        "training.function: a script runs once, beside the ranks, and not on each rank",
    ),
    Remedy(
        "no-process-group",
        r"Default process group has not been initialized",
        "use torch.distributed in the function of a TorchTrainer alone; elsewhere "
        "ray.train.get_context().get_world_rank() is the rank",
    ),
    Remedy(
        "exit",
        r"^SystemExit\b",
        "raise an error that says why, to fail; to end in order, return from the training "
        "function on every rank, or call session.stop() on one",
    ),
    Remedy(
        "no-such-package",
        r"^(ModuleNotFoundError|ImportError): (No module named '(?!ray\.)|[\w ]+ isn't installed)",
        "put the package into training.requirements, or use an image that has it; modules of your "
        "own come with training.code",
    ),
)
