"""What every worker process imports when it starts, before anyone asks for it."""


def import_everything() -> None:
    """Import what the first step needs. Ray calls it as the workers' process setup hook."""
    import ray.train.torch  # noqa: F401
    import torch.distributed  # noqa: F401

    import trainingrun_runtime.session  # noqa: F401
