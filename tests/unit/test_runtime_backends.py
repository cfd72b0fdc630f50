"""How the workers of a run are connected: by its own devices, whatever a script's trainer says."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.train import BackendConfig, ScalingConfig
from ray.train.backend import Backend as RayBackend
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.jax import JaxConfig, JaxTrainer

from support.session_without_ray import Run
from trainingrun_protocol.contract import ContractStorage, RunContract
from trainingrun_runtime import Session
from trainingrun_runtime.driver import backends
from trainingrun_runtime.driver.backends import Backend
from trainingrun_runtime.driver.trainer import scaling_of
from trainingrun_runtime.known_errors.failure_causes import is_collective_error
from trainingrun_runtime.ray_internals import jax_config
from trainingrun_runtime.ray_internals.jax_config import OwnGpus
from trainingrun_runtime.worker import worker

ON = {
    "CPUs": {"CPU": 1.0},
    "GPUs": {"CPU": 1.0, "GPU": 2.0},
    "TPUs": {"CPU": 1.0, "TPU": 4.0},
}


def a_contract(devices: str, torch_backend: Any = "auto") -> RunContract:
    return RunContract(
        name="mine",
        namespace="default",
        uid="0",
        attempt=1,
        workers=1 if devices == "TPUs" else 2,
        resources_per_worker=ON[devices],
        torch_backend=torch_backend,
        storage=ContractStorage(uri="s3://runs/demo/mine-0"),
    )


def connected(trainer: Any, devices: str) -> Backend:
    contract = a_contract(devices)
    return backends.in_place_of_the_scripts(trainer, contract, scaling_of(contract))


def a_jax_trainer(config: JaxConfig | None = None, **scaling: Any) -> JaxTrainer:
    return JaxTrainer(print, jax_config=config, scaling_config=ScalingConfig(**scaling))


@pytest.mark.parametrize("devices", ["CPUs", "GPUs"])
@pytest.mark.parametrize("use_gpu", [False, True])
def test_a_backend_that_ray_has_filled_in_is_no_setting_of_the_script(
    devices: str, use_gpu: bool
) -> None:
    scaling = ScalingConfig(num_workers=2, use_gpu=use_gpu)
    assert connected(TorchTrainer(print, scaling_config=scaling), devices).overruled == []


def test_a_backend_of_the_script_that_is_not_used_is_named() -> None:
    trainer = TorchTrainer(
        print,
        torch_config=TorchConfig(backend="nccl"),
        scaling_config=ScalingConfig(num_workers=2),
    )
    (said,) = connected(trainer, "CPUs").overruled
    assert said.startswith("TorchConfig(backend='nccl') of the script is overruled")


@pytest.mark.parametrize(
    ("devices", "gpu", "tpu", "count"),
    [("CPUs", False, False, None), ("GPUs", True, False, 2), ("TPUs", False, True, 4)],
)
def test_ray_is_told_which_devices_the_workers_have_in_whole_numbers(
    devices: str, gpu: bool, tpu: bool, count: int | None
) -> None:
    config = scaling_of(a_contract(devices))
    assert (config.use_gpu, config.use_tpu) == (gpu, tpu)
    assert config.resources_per_worker is not None
    found = config.resources_per_worker.get(devices[:-1])
    assert found == (count or 1)
    assert isinstance(found, int), "JAX counts them with range()"


def test_a_part_of_a_device_stays_a_part() -> None:
    resources = {"CPU": 1.0, "GPU": 0.5}
    contract = a_contract("CPUs").model_copy(update={"resources_per_worker": resources})
    assert scaling_of(contract).resources_per_worker == resources


@pytest.mark.parametrize(
    ("devices", "wanted", "used"),
    [
        ("CPUs", "auto", None),
        ("GPUs", "auto", None),  # Ray chooses nccl
        ("GPUs", "gloo", "gloo"),
    ],
)
def test_the_process_group_fits_the_devices(devices: str, wanted: str, used: str | None) -> None:
    contract = a_contract(devices, wanted)
    config: Any = backends.torch(contract, scaling_of(contract))
    assert isinstance(config, TorchConfig)
    assert config.backend == used


def test_a_worker_with_tpus_needs_no_process_group_and_no_pytorch_for_tpus() -> None:
    contract = a_contract("TPUs")
    used: Any = backends.torch(contract, scaling_of(contract))
    assert used.backend_cls.on_start is RayBackend.on_start, "it does nothing"
    trainer = TorchTrainer(
        print, scaling_config=ScalingConfig(use_tpu=True, resources_per_worker={"TPU": 4})
    )
    assert connected(trainer, "TPUs") == Backend(trainer.backend_config), "PyTorch is their own"


GPU_EXAMPLE: dict[str, Any] = {
    "use_gpu": True,
    "num_workers": 4,
    "resources_per_worker": {"GPU": 1},
}
TPU_EXAMPLE: dict[str, Any] = {
    "use_tpu": True,
    "num_workers": 4,
    "topology": "4x4",
    "accelerator_type": "TPU-V6E",
    "resources_per_worker": {"TPU": 4},
}


@pytest.mark.parametrize(
    ("scaling", "devices", "used"),
    [
        pytest.param({}, "GPUs", OwnGpus(), id="a script without use_gpu"),
        pytest.param({}, "TPUs", JaxConfig(use_tpu=True), id="a script without use_tpu"),
        pytest.param(GPU_EXAMPLE, "GPUs", OwnGpus(), id="Ray's GPU example"),
        pytest.param(TPU_EXAMPLE, "GPUs", OwnGpus(), id="Ray's TPU example on GPUs"),
        pytest.param(TPU_EXAMPLE, "TPUs", JaxConfig(use_tpu=True), id="Ray's TPU example"),
        pytest.param({}, "CPUs", JaxConfig(), id="a script for CPUs"),
    ],
)
def test_jaxs_ranks_join_with_the_devices_of_the_run(
    scaling: dict[str, Any], devices: str, used: JaxConfig
) -> None:
    found = connected(a_jax_trainer(**scaling), devices)
    assert found == Backend(used), "the ScalingConfig that differs is named, and nothing twice"


@pytest.mark.parametrize("scaling", [GPU_EXAMPLE, TPU_EXAMPLE], ids=["GPUs", "TPUs"])
def test_on_cpus_jaxs_ranks_join_where_the_script_asks_for_it(
    scaling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(jax_config.JAX_PLATFORMS_ENV, raising=False)
    found = connected(a_jax_trainer(**scaling), "CPUs")
    # Ray's word for joining; it asks for CUDA only where JAX_PLATFORMS is not set.
    assert found == Backend(JaxConfig(use_gpu=True), {"JAX_PLATFORMS": "cpu"})
    monkeypatch.setenv(jax_config.JAX_PLATFORMS_ENV, "cpu,mine")
    assert connected(a_jax_trainer(**scaling), "CPUs").variables == {"JAX_PLATFORMS": "cpu,mine"}


@pytest.mark.parametrize(
    ("variables", "platform"),
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": "2,3"}, "cuda", id="NVIDIA"),
        pytest.param({"HIP_VISIBLE_DEVICES": "2,3"}, "rocm", id="AMD"),
        pytest.param({"HIP_VISIBLE_DEVICES": "2,3", "JAX_PLATFORMS": "mine"}, "mine", id="set"),
    ],
)
def test_a_rank_of_jax_keeps_the_gpus_that_ray_has_given_to_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], platform: str
) -> None:
    """With a fake of JAX, which is not installed here and would need GPUs."""
    calls: list[Any] = []
    distributed = SimpleNamespace(initialize=lambda *args, **named: calls.append((args, named)))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(distributed=distributed))
    monkeypatch.setattr(jax_config.ray, "get_gpu_ids", lambda: [2, 3])
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "JAX_PLATFORMS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    jax_config.join("head:1234", 4, 1)
    assert calls == [(("head:1234", 4, 1), {"local_device_ids": [0, 1]})]
    assert os.environ["JAX_PLATFORMS"] == platform
    seen = {name: os.environ[name] for name in variables if name != "JAX_PLATFORMS"}
    assert set(seen.values()) == {"2,3"}


def test_a_jax_config_of_the_scripts_own_is_named() -> None:
    trainer = a_jax_trainer(JaxConfig(use_tpu=True))
    (sentence,) = connected(trainer, "GPUs").overruled
    assert sentence.startswith("JaxConfig(use_tpu=True) of the script is overruled: False is used")
    assert "workers.accelerator of the TrainingRun" in sentence
    (sentence,) = connected(a_jax_trainer(JaxConfig(use_gpu=True)), "CPUs").overruled
    assert sentence.startswith("JaxConfig(use_gpu=True) of the script is overruled: False is used")


def test_a_function_that_joins_by_itself_may() -> None:
    trainer = a_jax_trainer(JaxConfig(), use_gpu=True)
    assert connected(trainer, "GPUs") == Backend(JaxConfig())


def test_a_backend_of_the_scripts_own_is_left_as_it_is() -> None:
    class Mine(JaxConfig):
        pass

    for config in (Mine(use_gpu=True), BackendConfig()):
        trainer = a_jax_trainer()
        trainer.backend_config = config
        assert connected(trainer, "CPUs").config is config


def test_a_torch_config_is_the_runs_own() -> None:
    trainer = TorchTrainer(
        print, torch_config=TorchConfig(timeout_s=60), scaling_config=ScalingConfig()
    )
    found = connected(trainer, "CPUs")
    assert isinstance(found.config, TorchConfig)
    (sentence,) = found.overruled
    assert sentence.startswith("TorchConfig(timeout_s=60) of the script is overruled")


def test_a_session_of_ranks_that_nothing_has_connected_says_what_connects_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a script with a trainer that is not PyTorch's."""
    run = Run(monkeypatch, tmp_path)
    run.begin()
    monkeypatch.setattr(worker.this_worker(), "world_size", 2)
    with pytest.raises(RuntimeError, match=r"a Session of 2 ranks .*connect\(\)") as refused:
        Session(model=torch.nn.Linear(1, 1))
    assert run.session is None
    assert not is_collective_error(refused.value), "no rank is lost, so it is not tried again"
