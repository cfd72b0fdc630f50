"""What every worker process imports when it starts, before anyone asks for it."""

import contextlib
import importlib
import os

MODULE_ENV = "TRAININGRUN_PRELOAD"
"""Name of the module with the training function, if there is one."""
SETUP_HOOK = "trainingrun_runtime.preload.import_everything"
"""The name of `import_everything`, by which a worker process is told to call it."""


def import_everything() -> None:
    """Import what the first step needs. Called by each worker process when it starts."""
    import ray.train.torch  # noqa: F401
    import torch._dynamo
    import torch.distributed  # noqa: F401

    import trainingrun_runtime.session  # noqa: F401

    if module := os.environ.get(MODULE_ENV):
        # A module that cannot be imported is told of when its function is looked up; here the
        # error would only kill the process, again and again.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
