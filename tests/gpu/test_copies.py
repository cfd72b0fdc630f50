"""Copies of what a GPU holds: pinned, whole, and beside a stream that is blocked."""

import json
import os
import subprocess
import sys

import pytest
import torch

from trainingrun_runtime.checkpoints.sharded_state import mapped
from trainingrun_runtime.checkpoints.staging import Staging


def copied(staging: Staging, tensor: torch.Tensor) -> torch.Tensor:
    staging.begin()
    found = mapped({"a": tensor}, "", lambda _, one: staging.placed(one))["a"]
    staging.copy()
    return found


@pytest.mark.parametrize(
    ("tensor", "pinned"),
    [
        pytest.param(lambda: torch.rand(2**20, device="cuda"), True, id="a power of two"),
        pytest.param(lambda: torch.rand(950_000, device="cuda"), True, id="almost one"),
        pytest.param(lambda: torch.rand(900_000, device="cuda"), False, id="an eighth too much"),
        pytest.param(lambda: torch.rand(2**10, 2**10, device="cuda").t(), False, id="transposed"),
        pytest.param(lambda: torch.rand(100, device="cuda"), False, id="small"),
        pytest.param(
            lambda: torch.rand(2**20, device="cuda").to(torch.bfloat16), True, id="bfloat16"
        ),
    ],
)
def test_a_copy_has_the_values_of_the_moment_in_the_memory_of_the_former_one(
    tensor: object, pinned: bool
) -> None:
    staging, source = Staging(), tensor()
    first = copied(staging, source)
    assert first.is_pinned() is pinned
    for _ in range(3):
        torch.cuda._sleep(2 * 10**8)  # the change below is still to come when the copy begins
        source += 1
        wanted = source.clone()
        copy = copied(staging, source)
        assert copy.is_cpu
        assert torch.equal(copy, wanted.cpu())
        if source.nbytes > 2**16:
            assert copy.data_ptr() == first.data_ptr()


def test_memory_made_beside_training_is_pinned_too() -> None:
    staging, source = Staging(), torch.rand(2**22, device="cuda")
    staging.begin()
    place = staging.placed(source)
    staging.make_memory()
    copy = copied(staging, source)
    assert copy.data_ptr() == place.data_ptr()
    assert copy.is_pinned()
    assert torch.equal(copy, source.cpu())


@pytest.mark.parametrize("kind", ["plain", "scaled", "not fused", "not in a row", "rank 1"])
def test_the_last_step_is_taken_while_the_gpu_is_blocked_by_the_next_one(kind: str) -> None:
    """As where NCCL waits for a rank that is lost, in a process that has no kernel for it yet."""
    found = subprocess.run(
        [sys.executable, "-m", "support.blocked_gpu", kind],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    assert json.loads(found) == {"beside": True, "same": True}, found
