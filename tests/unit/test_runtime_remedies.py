"""What to do about an error: recognized in what Ray, PyTorch and Python really raise.

This machine needs no GPU: texts of CUDA and NCCL are those in PyTorch's and NCCL's sources.
"""

import importlib
import inspect
import os
import pickle
import resource
import signal
import socket
import tempfile
import urllib.request
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
import ray.exceptions
import ray.train
import torch
from ray.train import WorkerGroupError
from ray.train.data_parallel_trainer import DataParallelTrainer
from ray.train.torch import TorchTrainer
from ray.tune.search.hyperopt import HyperOptSearch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader, Dataset

from trainingrun_runtime.known_errors import remedies
from trainingrun_runtime.known_errors.failure_causes import (
    FailureCause,
    PeerLost,
    classify,
    is_collective_error,
)
from trainingrun_runtime.known_errors.remedies import REMEDIES, Remedy
from trainingrun_runtime.ray_internals import replaced_functions
from trainingrun_runtime.ray_internals.training import WorkerHealthCheckFailedError
from trainingrun_runtime.store.storage_errors import recognize
from trainingrun_runtime.worker.training_function import FunctionError, load_training_function

PLACE = "/some/folder"
A_CHECKPOINT = "checkpoints/0001-000001/checkpoint_2026-11-26_10-00-00.000000"
WHAT_TO_DO = {"call", "correct", "have", "import", "make", "move", "open", "pass", "put", "raise"}
WHAT_TO_DO |= {"read", "release", "report", "run", "save", "set", "take", "transform", "use"}
WHAT_TO_DO |= {"write"}


def raised_by(action: Callable[[], Any]) -> BaseException:
    with pytest.raises((Exception, DeprecationWarning)) as caught:
        action()
    return caught.value


def importing(module: str, name: str = "") -> Callable[[], Any]:
    def load() -> Any:
        exec(f"from {module} import {name}" if name else f"import {module}", {})

    return load


def load_keys_of(wrapped: dict[str, torch.Tensor]) -> None:
    torch.nn.Linear(1, 1, bias=False).load_state_dict(wrapped)


def a_trainer(**arguments: Any) -> Any:
    return TorchTrainer(lambda: None, **arguments)


def a_checkpoint(*arguments: Any, **keywords: Any) -> Any:
    return ray.train.Checkpoint(*arguments, **keywords)


def context_of_a_worker() -> Any:
    from ray.train.v2.api.context import DistributedTrainContext

    return DistributedTrainContext()


RAY = [
    ("checkpoint-of-a-dictionary", lambda: ray.train.Checkpoint.from_dict({"a": 1})),
    ("checkpoint-of-a-dictionary", lambda: ray.train.Checkpoint(PLACE).to_dict()),
    ("checkpoint-of-a-dictionary", lambda: ray.train.Checkpoint.from_bytes(b"")),
    ("checkpoint-of-a-dictionary", lambda: a_checkpoint(data_dict={"a": 1})),
    ("checkpoint-of-a-dictionary", lambda: a_checkpoint(local_path=PLACE)),
    ("path-of-a-checkpoint", lambda: Path(f"runs/{A_CHECKPOINT}/model.pt").read_bytes()),
    ("result-of-a-path", lambda: ray.train.Result.from_path(tempfile.gettempdir())),
    ("checkpoint-of-a-uri", lambda: ray.train.Checkpoint.from_uri("s3://a/b")),
    ("checkpoint-of-a-uri", lambda: a_checkpoint(uri="s3://a/b")),
    ("checkpoint-to-a-uri", lambda: a_checkpoint(PLACE).to_uri("s3://a/b")),
    ("checkpoint-to-a-uri", lambda: a_checkpoint(PLACE).uri),
    (
        "checkpoint-of-a-checkpoint",
        lambda: ray.train.Checkpoint.from_checkpoint(a_checkpoint(PLACE)),  # type: ignore[attr-defined]
    ),
    ("restore", lambda: TorchTrainer.restore(PLACE)),
    ("restore", lambda: TorchTrainer.can_restore(PLACE)),
    (
        "resume-from-checkpoint",
        lambda: a_trainer(resume_from_checkpoint=ray.train.Checkpoint(PLACE)),
    ),
    ("preprocessor", lambda: a_trainer(preprocessor=None)),
    ("run-config", lambda: ray.train.RunConfig(verbose=1)),
    ("run-config", lambda: ray.train.RunConfig(sync_config=1)),
    ("run-config", lambda: ray.train.RunConfig(progress_reporter=1)),
    ("run-config", lambda: ray.train.RunConfig(log_to_file=True)),
    ("run-config", lambda: ray.train.RunConfig(local_dir=PLACE)),
    ("run-config-stop", lambda: ray.train.RunConfig(stop={"loss": 0.1})),
    ("fail-fast", lambda: ray.train.FailureConfig(fail_fast=True)),
    ("checkpoint-frequency", lambda: ray.train.CheckpointConfig(checkpoint_frequency=1)),
    ("checkpoint-frequency", lambda: ray.train.CheckpointConfig(checkpoint_at_end=True)),
    ("trainer-resources", lambda: ray.train.ScalingConfig(trainer_resources={"CPU": 1})),
    ("scaling-config", lambda: ray.train.ScalingConfig(max_workers=3)),
    ("transformers-trainer", importing("ray.train.huggingface", "TransformersTrainer")),
    ("transformers-trainer", importing("ray.train.huggingface", "HuggingFaceTrainer")),
    ("transformers-trainer", importing("ray.train.hf_transformers", "TransformersTrainer")),
    ("accelerate-trainer", importing("ray.train.hf_accelerate")),
    ("accelerate-trainer", importing("ray.train.huggingface", "AccelerateTrainer")),
    ("accelerate-trainer", importing("ray.train.huggingface.accelerate")),
    ("lightning-is-missing", importing("ray.train.lightning", "LightningTrainer")),
    ("other-trainers", importing("ray.train.horovod", "HorovodTrainer")),
    ("other-trainers", importing("ray.train.mosaic")),
    ("other-trainers", importing("ray.train.sklearn")),
    ("other-trainers", importing("ray.train.rl")),
    ("predictor", importing("ray.train.batch_predictor")),
    ("predictor", importing("ray.train.torch", "TorchPredictor")),
    ("predictor", importing("ray.train", "BatchPredictor")),
    ("ray-sgd", importing("ray.util.sgd")),
    ("ray-sgd", importing("ray.train", "Trainer")),
    ("ray-sgd", importing("ray.train.callbacks")),
    ("ray-sgd", importing("ray.util.train", "Trainer")),
    ("trainer-of-the-former-ray-train", lambda: DataParallelTrainer(print)),
    ("tuner-of-a-trainer", lambda: a_trainer().as_trainable()),
    ("air-callbacks", importing("ray.air.callbacks.wandb", "WandbLoggerCallback")),
    ("air-checkpoint", lambda: ray.air.Checkpoint),
    ("air-checkpoint", importing("ray.air", "Checkpoint")),
    ("air-checkpoint", importing("ray.air.checkpoint")),
    ("dataset-config", importing("ray.air", "DatasetConfig")),
    ("session-functions", lambda: ray.train.session.report({})),
    ("session-functions", lambda: ray.train.load_checkpoint()),
    ("session-functions", lambda: ray.train.size()),
    ("session-functions", lambda: ray.train.world_rank()),
    ("session-functions", importing("ray.train", "world_size")),
    ("session-functions", importing("ray.train", "save_checkpoint")),
    ("session-functions", lambda: ray.air.report({"loss": 1})),
    ("prepare-model", lambda: ray.train.prepare_model(None)),
    ("prepare-model", importing("ray.train", "prepare_data_loader")),
    ("prepare-model", lambda: ray.train.get_device()),
    ("mixed-precision", lambda: ray.train.torch.accelerate(amp=True)),
    ("mixed-precision", lambda: ray.train.accelerate(amp=True)),
    ("mixed-precision", lambda: ray.train.torch.prepare_optimizer(None)),
    ("trial", lambda: context_of_a_worker().get_trial_dir()),
    ("report-of-keywords", lambda: inspect.unwrap(ray.train.report)(loss=1)),
    ("report-of-keywords", lambda: inspect.unwrap(ray.train.report)({}, loss=1)),
]


@pytest.mark.parametrize(("id_", "action"), RAY)
def test_what_ray_refuses_is_answered_with_its_replacement(
    id_: str, action: Callable[[], Any]
) -> None:
    found = remedies.find(raised_by(action))
    assert found is REMEDIES[id_]


class Items(Dataset[int]):
    """Its items cannot be had: the process that loads them gets a signal."""

    def __init__(self, number: int) -> None:
        self._signal = number

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), self._signal)
        return index


def load(number: int) -> None:
    list(DataLoader(Items(number), num_workers=1))


def connect_to_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)


def meet_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torch.distributed.TCPStore("127.0.0.1", port, 2, False, timedelta(seconds=1))


def begin_with_nccl() -> None:
    address = "tcp://127.0.0.1:29400"  # PyTorch refuses before it listens
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.init_process_group("nccl", init_method=address, rank=0, world_size=1)


def shard_on_a_cpu() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        FullyShardedDataParallel(torch.nn.Linear(1, 1))
    finally:
        torch.distributed.destroy_process_group()


def fail_to_report_a_tensor() -> None:
    from ray.train.v2._internal.execution.context import TrainContext

    TrainContext.report(None, {"loss": torch.tensor(1.0)})  # type: ignore[arg-type]


def load_an_object() -> None:
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"when": Path(file.name)}, file.name)
        torch.load(file.name)


def opening_too_many_files() -> None:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, most))
        while True:
            opened.append(os.dup(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
        for file in opened:
            os.close(file)


def writing_beyond_the_limit() -> None:
    now, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tempfile.TemporaryFile(buffering=0) as file:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
            while True:
                file.write(bytes(600))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (now, most))


def use_what_a_loop_sets() -> None:
    for step in range(0):
        loss = step
    print(loss)


MET = [
    ("unbound-variable", use_what_a_loop_sets),
    ("open-files", opening_too_many_files),
    ("file-size", writing_beyond_the_limit),
    ("shared-memory", lambda: load(signal.SIGBUS)),
    ("loader-killed", lambda: load(signal.SIGKILL)),
    ("host-memory", lambda: torch.empty(2**55, dtype=torch.uint8)),
    ("host-memory", lambda: numpy.empty(2**55, dtype=numpy.uint8)),
    ("host-memory", lambda: bytearray(2**55)),
    ("keys-of-a-wrapped-model", lambda: load_keys_of({"module.weight": torch.zeros(1, 1)})),
    ("no-gpu", lambda: torch.zeros(1).cuda()),
    ("no-gpu", lambda: torch.nn.Linear(1, 1).to("cuda")),
    ("no-nccl", begin_with_nccl),
    ("fsdp-without-gpu", shard_on_a_cpu),
    ("rendezvous", meet_nobody),
    ("connection-refused", connect_to_nobody),
    ("no-such-host", lambda: socket.getaddrinfo("nowhere.invalid", 80)),
    ("as-under-torchrun", lambda: torch.distributed.init_process_group("gloo")),
    ("no-process-group", torch.distributed.get_rank),
    ("as-under-torchrun", lambda: os.environ["LOCAL_RANK"]),
    ("no-such-package", lambda: importlib.import_module("no_such_package_anywhere")),
    ("weights-only", load_an_object),
    ("hyperopt", lambda: HyperOptSearch({"lr": 0.1}, metric="loss", mode="min")),
    ("no-such-file", lambda: Path("/data/train/labels.csv").read_text()),
    ("no-such-file", lambda: torch.load("/data/model.pt")),
    ("no-such-file", lambda: numpy.load("/data/images.npy")),
]


@pytest.mark.parametrize(("id_", "action"), MET)
def test_what_python_and_pytorch_raise_is_recognized(id_: str, action: Callable[[], Any]) -> None:
    found = remedies.find(raised_by(action))
    assert found is REMEDIES[id_]


def unexpected(owner: str, argument: str) -> TypeError:
    text = f"{owner}.__init__() got an unexpected keyword argument '{argument}'"
    return TypeError(text)


A_GPU_OF_TWO_RANKS = torch.distributed.DistBackendError(
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, invalid usage (run with "
    "NCCL_DEBUG=WARN for details), NCCL version 2.21.5\nncclInvalidUsage: This usually reflects "
    "invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both "
    "on CUDA device 35000"
)
TEXTS: list[tuple[str, BaseException]] = [
    (
        "cuda-out-of-memory",
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 14.74 "
            "GiB of which 13.30 GiB is free."
        ),
    ),
    ("cuda-out-of-memory", RuntimeError("CUDA error: out of memory")),
    (
        "cuda-out-of-memory",
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ),
    ("no-gpu", RuntimeError("No CUDA GPUs are available")),
    (
        "no-gpu",
        RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA"),
    ),
    ("exit", SystemExit(0)),
    (
        "fsdp-without-gpu",
        RuntimeError(
            "FSDP is only available with GPU-enabled training. Set `use_gpu=True` in your Trainer "
            "to train with GPUs."
        ),
    ),
    (
        "fsdp-without-gpu",
        ValueError(
            "The strategy `fsdp` requires a GPU accelerator, but received `accelerator='cpu'`."
        ),
    ),
    (
        "no-nccl",
        ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    ),
    (
        "old-driver",
        RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."),
    ),
    ("invalid-device", RuntimeError("CUDA error: invalid device ordinal")),
    ("invalid-device", A_GPU_OF_TWO_RANKS),
    ("device-assert", RuntimeError("CUDA error: device-side assert triggered")),
    (
        "other-gpu",
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    ),
    (
        "nccl-timeout",
        RuntimeError(
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, "
            "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600093 milliseconds before timing out."
        ),
    ),
    (
        "nccl-system",
        RuntimeError(
            "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error (run with "
            "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: System call"
        ),
    ),
    (
        "shared-memory",
        RuntimeError(
            "ncclSystemError: Error while creating shared memory segment /dev/shm/nccl-1 (size "
            "9637888), error: No space left on device (28)"
        ),
    ),
    (
        "shared-memory",
        RuntimeError("unable to write to file </torch_7_3_0>: No space left on device (28)"),
    ),
    (
        "second-process-group",
        ValueError("trying to initialize the default process group twice!"),
    ),
    (
        "unused-parameters",
        RuntimeError("Expected to have finished reduction in the prior iteration before starting"),
    ),
    ("object-store-full", ray.exceptions.ObjectStoreFullError("Failed to put object 00ff")),
    ("disk-full", ray.exceptions.OutOfDiskError("Local disk is full")),
    (
        "ray-out-of-memory",
        ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory."),
    ),
    (
        "ray-out-of-memory",
        ray.exceptions.RayActorError(
            None, "The actor died unexpectedly.\nWorker exit type: NODE_OUT_OF_MEMORY"
        ),
    ),
    ("lightning-trainer", ImportError("cannot import name 'LightningTrainer' from 'ray.train'")),
    ("other-trainers", DeprecationWarning("`HorovodTrainer` is not supported and is scheduled")),
    (
        "tune-callbacks",
        DeprecationWarning("`ray.train.RunConfig(callbacks: List[ray.tune.Callback])` is"),
    ),
    # Raised by the libraries themselves in tests/frameworks/test_framework_remedies.py.
    ("eval-strategy", unexpected("TrainingArguments", "evaluation_strategy")),
    ("processing-class", unexpected("Trainer", "tokenizer")),
    ("processing-class", unexpected("Seq2SeqTrainer", "tokenizer")),
    ("use-cpu", unexpected("TrainingArguments", "no_cuda")),
    ("warmup-steps", unexpected("TrainingArguments", "warmup_ratio")),
    ("group-by-length", unexpected("TrainingArguments", "group_by_length")),
    ("logging-dir", unexpected("TrainingArguments", "logging_dir")),
    ("needless-arguments", unexpected("TrainingArguments", "overwrite_output_dir")),
    ("needless-arguments", unexpected("TrainingArguments", "save_safetensors")),
    ("adam-w", ImportError("cannot import name 'AdamW' from 'transformers' (/a/__init__.py)")),
    ("adam-w", AttributeError("module transformers has no attribute AdamW")),
    (
        "no-compiler",
        RuntimeError("Error building extension 'deepspeed_shm_comm': [1/3] c++ -MMD -MF a.o.d"),
    ),
    (
        "no-compiler",
        RuntimeError("DeepSpeedCPUAdam requires the cpu_adam op, which failed to build/load."),
    ),
    (
        "no-compiler",
        RuntimeError("Unable to JIT load the cpu_adam op due to ninja not being installed."),
    ),
    (
        "no-compiler",
        OSError(
            "CUDA_HOME environment variable is not set. Please set it to your CUDA install root."
        ),
    ),
    (
        "no-compiler",
        RuntimeError("CUDA_HOME does not exist, unable to compile CUDA op(s)"),
    ),
    ("tuner-of-a-trainer", TypeError("Improper 'run' - not string nor trainable.")),
]


@pytest.mark.parametrize(("id_", "error"), TEXTS)
def test_what_needs_a_gpu_or_another_package_is_recognized_by_its_text(
    id_: str, error: BaseException
) -> None:
    found = remedies.find(error)
    assert found is REMEDIES[id_]


@pytest.mark.parametrize("remedy", REMEDIES.values(), ids=REMEDIES)
def test_an_advice_begins_with_what_to_do_and_is_short(remedy: Remedy) -> None:
    words = remedy.advice.split()
    assert words[0] in WHAT_TO_DO
    assert len(words) <= 30
    assert not remedy.advice.endswith(".")


def test_each_row_is_met_in_a_test() -> None:
    met = {row[0] for row in (*RAY, *MET, *TEXTS)}
    assert set(REMEDIES) == met


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad batch"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x10 and 12x3)"),
        RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"),
        FileNotFoundError(2, "No such file or directory", "train.csv"),
        ImportError("cannot import name 'Trainer' from 'transformers' (/a/__init__.py)"),
        AttributeError("module 'shapely' has no attribute 'size'"),
        KeyError("checkpoint"),
        TypeError("unsupported operand type(s) for /: 'str' and 'str'"),
        TypeError("TrainingArguments.__init__() got an unexpected keyword argument 'epochs'"),
    ],
)
def test_of_other_errors_only_their_own_text_is_shown(error: Exception) -> None:
    assert remedies.find(error) is None


@pytest.mark.parametrize(
    ("action", "advice"),
    [
        (lambda: a_trainer(metadata={"a": 1}), "train_loop_config"),
        (importing("ray.util.lightgbm"), "use the `lightgbm-ray` library"),
        (lambda: ray.train.report({"loss": 1}), "within a function launched by `trainer.fit()`"),
        (fail_to_report_a_tensor, "Python objects (ex: `.numpy()`, `.item()`"),
    ],
)
def test_what_ray_itself_says_to_do_is_shown(action: Callable[[], Any], advice: str) -> None:
    error = raised_by(action)
    assert remedies.find(error) is None
    assert advice in remedies.explained(error)


def test_the_sentence_has_the_error_and_the_advice_within_an_attempt_s_message() -> None:
    longest = max(REMEDIES.values(), key=lambda remedy: len(remedy.advice))
    text = f"rank 1000 raised DeprecationWarning: {'x' * 200}; {longest.advice}"
    assert len(text) <= 500
    error = raised_by(lambda: ray.train.Checkpoint.from_dict({}))
    assert isinstance(error, Exception)
    failure = classify(WorkerGroupError("it failed", {1: error}))
    assert failure.message == (
        "rank 1 raised AttributeError: The new `ray.train.Checkpoint` class does not support "
        "`from_dict()`. Instead, only directories are supported; write files into a folder, pass "
        "Checkpoint.from_directory(folder) to ray.train.report, and read them below "
        "checkpoint.as_directory(): a checkpoint is a folder"
    )


def test_what_caused_an_error_is_searched_as_well() -> None:
    error = RuntimeError("the experiment cannot begin")
    error.__cause__ = raised_by(importing("ray.train.huggingface", "TransformersTrainer"))
    assert "prepare_trainer" in remedies.explained(error)


def test_what_to_do_is_known_where_the_cause_is_not_sent_on() -> None:
    error = RuntimeError("the loader failed")
    error.__cause__ = RuntimeError("unable to write to file </torch_7_3_0>")
    remedies.note(error)
    remedies.note(error)
    arrived = pickle.loads(pickle.dumps(error))
    assert arrived.__cause__ is None
    assert "sharedMemory" in remedies.explained(arrived)
    assert len(arrived.__notes__) == 1


def test_an_error_of_ours_says_itself_what_to_do() -> None:
    with pytest.raises(FunctionError) as caught:
        load_training_function("no_such_module:train")
    assert remedies.explained(caught.value) == str(caught.value)


def test_a_full_shared_memory_is_no_full_disk() -> None:
    """The pods' ephemeral storage would not help."""
    for id_, error in TEXTS:
        if id_ == "shared-memory":
            assert isinstance(error, Exception)
            assert recognize(error) is None
    assert recognize(OSError(28, "No space left on device", "/data/a")) is not None


def test_a_lost_peer_s_message_says_what_to_do() -> None:
    error = RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error")
    failure = classify(WorkerGroupError("failed", {0: PeerLost(remedies.explained(error))}))
    assert failure.cause is FailureCause.WORKER_LOST
    assert "set NCCL_DEBUG: INFO in training.env" in failure.message


def test_a_gpu_that_two_ranks_use_is_no_lost_peer() -> None:
    """Each start would meet it again."""
    assert not is_collective_error(A_GPU_OF_TWO_RANKS)


def test_functions_of_the_old_session_name_their_replacement() -> None:
    import ray.air.session
    import ray.tune

    before, of_tune = dict(vars(ray.air.session)), dict(vars(ray.tune))
    try:
        replaced_functions.refuse_removed()
        # Elsewhere than on a rank, as in the trials of a Tuner, those of Tune do what they did.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert pickle.loads(pickle.dumps(ray.tune.report))({"loss": 1}) is None
        error = raised_by(lambda: ray.air.session.report({"loss": 1}))
        assert "call ray.train.report() instead" in str(error)
        error = raised_by(ray.air.session.get_world_rank)
        assert "call ray.train.get_context().get_world_rank() instead" in str(error)
    finally:
        vars(ray.air.session).update(before)
        vars(ray.tune).update(of_tune)


def test_the_end_of_a_rank_has_no_advice_on_the_addresses_of_the_training_code() -> None:
    """Ray's own request to it is refused where its node is gone."""
    for called in ("", "connect: "):
        error = WorkerHealthCheckFailedError(
            "A worker health check failed.",
            failure=ray.exceptions.ActorUnavailableError(
                f"RPC Error message: failed to connect to all addresses; last error: UNKNOWN: "
                f"ipv4:10.0.0.1:4567: Failed to connect to remote host: {called}Connection "
                "refused (111)",
                None,
            ),
        )
        assert remedies.find(error) is None
