"""Checkpoints are read by PyTorch's own tools, and by safetensors', without this project."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.sharded_checkpoints import save_trained
from support.sharded_models import FSDP_SOME_TP, FSDP_TP, WHOLE, Layout, tensors, whole_model

WITH_PYTORCH = """
import sys, torch
import torch.distributed.checkpoint as dcp

model, average = torch.nn.Linear(6, 8), torch.zeros(8, 6)
state = {"model": model.state_dict(), "optimizer": {"state": {0: {"exp_avg": average}}}}
reader = dcp.HuggingFaceStorageReader(sys.argv[1])
dcp.load(state, storage_reader=reader, no_dist=True)
torch.save({**model.state_dict(), "0.exp_avg": average}, sys.argv[2])
assert not [name for name in sys.modules if name.startswith("trainingrun")]
"""
WITH_SAFETENSORS = """
import sys, torch
from safetensors.torch import load_file

found = load_file(sys.argv[1] + "/state-0.safetensors")
model = torch.nn.Linear(6, 8)
prefix = "model."
model.load_state_dict(
    {name[len(prefix):]: tensor for name, tensor in found.items() if name.startswith(prefix)}
)
torch.save({**model.state_dict(), "0.exp_avg": found["optimizer.state.0.exp_avg"]}, sys.argv[2])
assert not [name for name in sys.modules if name.startswith("trainingrun")]
"""


@pytest.mark.parametrize(
    ("program", "layout"),
    [
        pytest.param(WITH_PYTORCH, FSDP_TP, id="PyTorch, FSDP and tensor parallelism"),
        pytest.param(WITH_PYTORCH, FSDP_SOME_TP, id="PyTorch, FSDP and TP of the weights"),
        pytest.param(WITH_PYTORCH, WHOLE, id="PyTorch, replicated"),
        pytest.param(WITH_SAFETENSORS, WHOLE, id="safetensors, replicated"),
    ],
)
def test_a_program_without_this_project_reads_a_checkpoint(
    tmp_path: Path, program: str, layout: Layout
) -> None:
    folder, into = tmp_path / "checkpoint", tmp_path / "found.pt"
    folder.mkdir()
    save_trained(folder, layout)
    subprocess.run([sys.executable, "-c", program, str(folder), str(into)], check=True)
    found, whole = torch.load(into), tensors(*whole_model(trained=True))
    assert sorted(found) == ["0.exp_avg", "bias", "weight"]
    assert all(torch.equal(found[name], whole[name]) for name in found)
