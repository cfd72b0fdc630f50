"""Ray's ScalingConfig: which workers a run has."""

from ray.train import ScalingConfig

from trainingrun.api.contract import RunContract


def config_of(contract: RunContract) -> ScalingConfig:
    """The ScalingConfig of this attempt's workers.

    Raises:
        ValueError: Ray refuses it, such as several workers with TPUs, whose slice it does not know.
    """
    resources = {
        # Ray's JAX counts devices with range(), which takes no 2.0.
        name: int(count) if count.is_integer() else count
        for name, count in contract.resources_per_worker.items()
    }
    return ScalingConfig(
        num_workers=contract.workers,
        use_gpu=resources.get("GPU", 0) > 0,
        use_tpu=resources.get("TPU", 0) > 0,
        resources_per_worker=resources,
        placement_strategy=contract.placement,
    )
