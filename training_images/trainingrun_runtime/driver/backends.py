"""How Ray connects a run's workers: the BackendConfig, and the variables that it takes."""

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from ray.train import BackendConfig, ScalingConfig

from trainingrun_protocol.contract import RunContract

from . import overruled

LEGACY_KERAS_ENV = "TF_USE_LEGACY_KERAS"


@dataclass(frozen=True)
class Backend:
    """What the workers are connected with."""

    config: BackendConfig
    variables: dict[str, str] = field(default_factory=dict)
    """What the workers need in their environment when they start."""
    overruled: list[str] = field(default_factory=list)
    """Settings of the script that are not used, a sentence for each."""


def torch(contract: RunContract, scaling: ScalingConfig) -> BackendConfig:
    """The TorchConfig of a run whose workers are `scaling`."""
    from ..ray_internals.torch_config import KeptProcessGroup, NoProcessGroup

    if scaling.use_tpu or contract.torchrun is not None:
        return NoProcessGroup()
    wanted = contract.torch_backend
    return KeptProcessGroup(
        backend=None if wanted == "auto" else wanted,
        timeout_s=int(contract.torch_timeout_seconds),
    )


def in_place_of_the_scripts(trainer: Any, contract: RunContract, scaling: ScalingConfig) -> Backend:
    """What is used instead of a script's own BackendConfig: the same, but for what the run says.

    Args:
        trainer: the script's, as it was made.
        contract: the operator's settings of this attempt.
        scaling: the run's workers.
    """
    theirs = trainer.backend_config
    # A subclass, such as that of XLA, connects the workers in its own way; so does PyTorch on TPUs.
    if _is_torch(theirs) and not scaling.use_tpu:
        ours = torch(contract, scaling)
        return Backend(
            ours,
            overruled=overruled.by_torch(
                theirs, ours, _by_ray(trainer.scaling_config), gpus=scaling.use_gpu
            ),
        )
    if _is_jax(theirs):
        return _jax(theirs, trainer.scaling_config, scaling)
    return Backend(theirs, _variables_of_keras(theirs))


def _is_torch(backend: BackendConfig) -> bool:
    if "ray.train.torch" not in sys.modules:  # the image may have no PyTorch
        return False
    from ray.train.torch import TorchConfig

    return type(backend) is TorchConfig


def _is_jax(backend: BackendConfig) -> bool:
    """Whether it is Ray's JaxConfig itself; a subclass connects the ranks in its own way."""
    if "ray.train.v2.jax" not in sys.modules:
        return False
    from ..ray_internals.jax_config import JaxConfig

    return type(backend) is JaxConfig


def _by_ray(scaling: ScalingConfig) -> BackendConfig:
    """The TorchConfig that Ray makes of a script's ScalingConfig where it has none."""
    from ray.train.torch import TorchConfig

    backend = "tpu_dist" if scaling.use_tpu else "nccl" if scaling.use_gpu else "gloo"
    return TorchConfig(backend=backend)


def _jax(theirs: Any, their_scaling: ScalingConfig, scaling: ScalingConfig) -> Backend:
    """Ray's JaxConfig for what the workers have.

    To Ray, `use_gpu` and `use_tpu` also mean that the ranks join jax.distributed. Ranks on CPUs
    join it as well where the script asks for either, with the platform that JAX is told.
    """
    from ..ray_internals.jax_config import JAX_PLATFORMS_ENV, JaxConfig, OwnGpus

    joins = theirs.use_gpu or theirs.use_tpu
    if not joins and (their_scaling.use_gpu or their_scaling.use_tpu):
        return Backend(theirs)  # its function joins by itself
    ours = OwnGpus() if scaling.use_gpu else JaxConfig(use_gpu=False, use_tpu=scaling.use_tpu)
    # Where it is made by Ray from the ScalingConfig, that one is named.
    by_ray = JaxConfig(use_gpu=their_scaling.use_gpu, use_tpu=their_scaling.use_tpu)
    said = overruled.by_jax(theirs, ours, by_ray)
    if not joins or scaling.use_gpu or scaling.use_tpu:
        return Backend(ours, overruled=said)
    platforms = os.environ.get(JAX_PLATFORMS_ENV) or "cpu"
    on_cpus = JaxConfig(use_gpu=True, use_tpu=False)
    return Backend(on_cpus, {JAX_PLATFORMS_ENV: platforms}, overruled=said)


def _variables_of_keras(backend: BackendConfig) -> dict[str, str]:
    """Of TensorFlow's workers: which Keras `tf.keras` is.

    TensorFlow decides it at its import, and Keras 3 does not train with
    MultiWorkerMirroredStrategy. Ray sets this variable, but once its workers have imported
    TensorFlow. Where the script or the image has set it, its value counts.
    """
    if "ray.train.tensorflow" not in sys.modules or importlib.util.find_spec("tf_keras") is None:
        return {}
    from ray.train.tensorflow import TensorflowConfig

    if not isinstance(backend, TensorflowConfig):
        return {}
    return {LEGACY_KERAS_ENV: os.environ.get(LEGACY_KERAS_ENV, "1")}
