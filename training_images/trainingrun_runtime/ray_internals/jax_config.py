"""Ray's JaxConfig, which says whether the ranks join jax.distributed, and on which devices.

Read for ray 2.58-2.60: `ray/train/v2/jax/config.py`. Ray documents it under this private path.
"""

import sys

from ray.train import BackendConfig

JAX_PLATFORMS_ENV = "JAX_PLATFORMS"


def is_jax(backend: BackendConfig) -> bool:
    """Whether it is Ray's JaxConfig itself; a subclass connects the ranks in its own way."""
    module = sys.modules.get("ray.train.v2.jax")
    return module is not None and type(backend) is module.JaxConfig


def config(*, gpu: bool, tpu: bool) -> BackendConfig:
    """Ray's JaxConfig with these fields."""
    from ray.train.v2.jax import JaxConfig

    return JaxConfig(use_gpu=gpu, use_tpu=tpu)


def own_gpus() -> BackendConfig:
    """A JaxConfig for workers with GPUs; see `jax_backend`."""
    from .jax_backend import OwnGpus

    return OwnGpus()
