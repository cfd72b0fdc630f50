"""Of memory, accelerators, the network and PyTorch."""

from .remedy import Remedy

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
        "disk-full",
        r"OutOfDiskError",
        "the node's disk is full, onto which Ray's object store spills: free it, give the pods "
        "more ephemeral-storage in podTemplate, or release what is not needed",
    ),
    Remedy(
        "object-store-full",
        r"ObjectStoreFullError|object store (memory )?is full",
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
