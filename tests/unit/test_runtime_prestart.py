"""A prestarted process: its runtime environment, and what it imports before it is a rank."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainingrun_runtime.ray_internals.prestart import extended


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param(
            '{"env_vars":{"B":"1"},"pip":{"packages":["x"]}}',
            '{"env_vars":{"A":"ä","B":"2"},"pip":{"packages":["x"]}}',
            id="merged as Ray's C++ does",
        ),
        pytest.param(
            '{"working_dir":"z"}',
            '{"env_vars":{"A":"ä","B":"2"},"working_dir":"z"}',
            id="first variables",
        ),
    ],
)
def test_variables_are_added_to_the_creators_environment(environment: str, expected: str) -> None:
    assert extended(environment, {"B": "2", "A": "ä"}) == expected


@pytest.mark.parametrize("environment", ["", "{}"])
def test_without_a_creators_environment_it_is_what_python_writes(environment: str) -> None:
    from ray.runtime_env import RuntimeEnv

    found = extended(environment, {"A": "1"})
    assert found == RuntimeEnv(env_vars={"A": "1"}).serialize()
    assert json.loads(found) == {"env_vars": {"A": "1"}}


_OF_A_RANK = (
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
print(json.dumps({
    "imported": [name for name in prestarted_worker.MODULES if name in sys.modules],
    "users": [name for name in sys.modules if name.startswith(("mine", "support"))],
    "read": sorted(read),
    "threads": threading.active_count(),
    "same": [signal.getsignal(n) for n in signal.valid_signals()] == handlers
    and os.getcwd() == folder,
    "cuda": torch.cuda.is_initialized(),
}))
"""


def test_a_prestarted_process_reads_nothing_of_a_rank_and_imports_nothing_of_the_user(
    tmp_path: Path,
) -> None:
    """Nor does it leave a thread, a handler of signals, another folder or a CUDA context."""
    from trainingrun_runtime.worker import prestarted_worker

    # As a pod had it in which the modules of a former worker were noted.
    (tmp_path / "modules").write_text("mine\nsupport.kills_itself")
    (tmp_path / "mine.py").write_text("raise SystemExit")
    given = {name: value for name, value in os.environ.items() if name not in _OF_A_RANK}
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", _HOOK],
        env={**given, "PYTHONPATH": path, "TRAININGRUN_STATE_DIRECTORY": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["imported"] == list(prestarted_worker.MODULES)
    assert found["users"] == []
    assert not set(found["read"]) & set(_OF_A_RANK)
    assert "TRAININGRUN_STATE_DIRECTORY" in found["read"], "what is read is seen"
    assert found["threads"] == 1
    assert found["same"]
    assert not found["cuda"]
    assert (tmp_path / prestarted_worker.IMPORTED).exists()
