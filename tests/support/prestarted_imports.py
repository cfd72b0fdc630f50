"""What a prestarted process reads, and what it has, once it has imported its modules."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainingrun_runtime.worker import prestarted_worker

OF_A_RANK = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ACCELERATE_TORCH_DEVICE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TF_CONFIG",
    "TRAININGRUN_NAME",
    "TRAININGRUN_NAMESPACE",
    "TRAININGRUN_UID",
    "TRAININGRUN_ATTEMPT",
)
"""Variables that a process gets when it becomes a rank. Those of devices are not here: Ray's own
worker has read them before."""

_HOOK = """
import os, signal, sys, threading

read, get = set(), os._Environ.__getitem__
def noted(environ, name):
    read.add(name)
    return get(environ, name)
os._Environ.__getitem__ = noted

from trainingrun_runtime.worker import prestarted_worker
import json, torch

handlers = [signal.getsignal(number) for number in signal.valid_signals()]
folder = os.getcwd()
prestarted_worker.import_modules()
packages = [n for n in sys.modules if n.partition(".")[0] in prestarted_worker.PACKAGES]
print(json.dumps({
    "imported": [name for name in prestarted_worker.MODULES if name in sys.modules],
    "users": [name for name in sys.modules if name.startswith(("mine", "support"))],
    "packages": packages,
    "read": sorted(read),
    "threads": threading.active_count(),
    "same": [signal.getsignal(n) for n in signal.valid_signals()] == handlers
    and os.getcwd() == folder,
    "cuda": torch.cuda.is_initialized(),
}))
"""


def imports(folder: Path, noted: Sequence[str]) -> dict[str, Any]:
    """Have a process be one that is prestarted, and take nothing of a rank's environment.

    Args:
        folder: its state directory, which may have modules of a user's.
        noted: what a former worker has noted as its packages.

    Returns:
        What the process found out: see `_HOOK`.
    """
    (folder / prestarted_worker.PACKAGES_FILE).write_text("\n".join(noted))
    given = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
    path = os.pathsep.join([str(folder), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", _HOOK],
        env={**given, "PYTHONPATH": path, "TRAININGRUN_STATE_DIRECTORY": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def require_nothing_of_a_rank(found: dict[str, Any]) -> None:
    """Nor a thread, a handler of signals, another folder or a CUDA context is left."""
    assert found["imported"] == list(prestarted_worker.MODULES)
    assert found["users"] == []
    assert not set(found["read"]) & set(OF_A_RANK)
    assert "TRAININGRUN_STATE_DIRECTORY" in found["read"], "what is read is seen"
    assert found["threads"] == 1
    assert found["same"]
    assert not found["cuda"]
