"""A script that does, by the case in its config, what newcomers meet; each function is one case."""

import json
import os
import pathlib
import tempfile
import time
import urllib.request

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from trainingrun_runtime import Session


class Large(torch.utils.data.Dataset):
    """Its items are larger than the pod's /dev/shm, by which a data loader's process sends them."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.ones(75_000_000)  # 300 MB


def connection_refused():
    urllib.request.urlopen("http://127.0.0.1:9/labels.csv")


def shared_memory_too_small():
    list(torch.utils.data.DataLoader(Large(), num_workers=1))


def object_store_full():
    ray.put(torch.zeros(100_000_000).numpy())  # 400 MB


def killed_for_memory():
    held = []
    while True:
        held.append(b"x" * 50_000_000)


def no_gpu():
    torch.zeros(1).to("cuda")


def removed_api():
    ray.train.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({"weights": 1}))


def backward(model):
    model(torch.ones(1, 1)).sum().backward()


def report_by_rank_0_alone():
    model = prepare_model(torch.nn.Linear(1, 1))
    for step in range(3):
        backward(model)
        if ray.train.get_context().get_world_rank() == 0:
            ray.train.report({"step": step})


def uneven_steps():
    model = prepare_model(torch.nn.Linear(1, 1))
    for _ in range(3 + ray.train.get_context().get_world_rank()):
        backward(model)


def slow_rank():
    model = prepare_model(torch.nn.Linear(1, 1))
    for _ in Session(model=model).steps(100_000):
        time.sleep(0.5 if ray.train.get_context().get_world_rank() == 1 else 0.05)
        backward(model)


def cuda_out_of_memory():
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 14.74 GiB "
        "of which 13.30 GiB is free. Process 7 has 1.43 GiB memory in use. Of the allocated memory "
        "1.00 GiB is allocated by PyTorch, and 8.00 MiB is reserved by PyTorch but unallocated."
    )


def nccl_finds_a_gpu_twice():
    raise torch.distributed.DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, invalid usage (run with "
        "NCCL_DEBUG=WARN for details), NCCL version 2.21.5\nncclInvalidUsage: This usually "
        "reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and "
        "rank 0 both on CUDA device 35000"
    )


def nccl_system_error():
    raise torch.distributed.DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error "
        "(run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: System call "
        "(e.g. socket, malloc) or external library call failed or device error."
    )


def trainer_restore():
    TorchTrainer.restore("s3://runs/former").fit()


def resume_from_checkpoint():
    TorchTrainer(train, resume_from_checkpoint=Checkpoint("/former")).fit()


def transformers_trainer():
    from ray.train.huggingface import TransformersTrainer

    TransformersTrainer()


def report_epochs(config):
    for epoch in range(3):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "epoch").write_text(str(epoch))
            checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "loss": 1 / (1 + epoch)}, checkpoint)


def epoch_of(checkpoint):
    with checkpoint.as_directory() as folder:
        return pathlib.Path(folder, "epoch").read_text()


def reads_its_result():
    ray.init(address="auto")
    result = TorchTrainer(
        report_epochs,
        scaling_config=scaling,
        run_config=RunConfig(name="mine", storage_path="s3://runs/of-my-own"),
    ).fit()
    found = [(epoch_of(one), metrics["loss"]) for one, metrics in result.best_checkpoints]
    assert found == [("1", 1 / 2), ("2", 1 / 3)], found  # checkpoints.keep is 2 by default
    assert epoch_of(result.checkpoint) == "2"
    assert list(result.metrics_dataframe["epoch"])[-1] == 2


CASES = (
    connection_refused,
    shared_memory_too_small,
    object_store_full,
    killed_for_memory,
    no_gpu,
    removed_api,
    report_by_rank_0_alone,
    uneven_steps,
    slow_rank,
    cuda_out_of_memory,
    nccl_finds_a_gpu_twice,
    nccl_system_error,
)
"""Done on each rank."""
OF_THE_SCRIPT = (trainer_restore, resume_from_checkpoint, transformers_trainer, reads_its_result)
"""Done in the script itself."""


def train(config):
    next(case for case in CASES if case.__name__ == config["case"])()


config = json.loads(os.environ["TRAININGRUN_CONFIG"])
scaling = ScalingConfig(num_workers=config["workers"])
of_the_script = next((case for case in OF_THE_SCRIPT if case.__name__ == config["case"]), None)
if of_the_script is not None:
    of_the_script()
else:
    TorchTrainer(train, train_loop_config=config, scaling_config=scaling).fit()
