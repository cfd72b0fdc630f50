"""What a worker process imports when it starts, before anyone asks for it."""

import contextlib
import importlib
import sys

from .notice import state_folder

SETUP_HOOK = "trainingrun_runtime.preload.import_everything"
"""The name of `import_everything`, by which a worker process is told to call it."""
FILE = "modules"
"""Names of the modules that this pod's former worker had loaded, in the state directory."""


def remember() -> None:
    """Leave the names of the modules that are loaded now to the next process on this node."""
    names = [name for name in list(sys.modules) if name not in ("__main__", "__mp_main__")]
    (state_folder() / FILE).write_text("\n".join(names))


def import_everything() -> None:
    """Import what the first step needs. Called by each worker process when it starts."""
    import ray.train.torch  # noqa: F401
    import torch._dynamo
    import torch.distributed  # noqa: F401

    import trainingrun_runtime.session  # noqa: F401

    file = state_folder() / FILE
    for name in file.read_text().splitlines() if file.exists() else ():
        # What cannot be imported again is told of when it is asked for; here the error would only
        # kill the process, again and again.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
