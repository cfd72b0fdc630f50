"""Runs of scripts that torchrun starts elsewhere, on a real Ray, and the same scripts alone."""

import io
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from support.local_runs import Run
from support.ports import free_port
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractTorchrun
from trainingrun_runtime.store import kept_output, manifest, verification

FOLDER = "$(TRAININGRUN_CHECKPOINT_DIR)"


class Started(Run):
    """A run of a script that each rank starts."""

    def __init__(self, ray: LocalRay, folder: Path, code: str, *arguments: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        script = folder / "train.py"
        script.write_text(code)
        super().__init__(ray, folder, None, {})
        started = ContractTorchrun(script=str(script), args=list(arguments))
        self.contract = self.contract.model_copy(update={"torchrun": started})

    def scripts(self) -> dict[int, psutil.Process]:
        """The processes of the script, by rank."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.cmdline()[1:3] == ["-u", str(self.folder / "train.py")]:
                    found[int(process.environ()["RANK"])] = process
            except psutil.Error:
                continue
        return found

    def lines(self, rank: int = 0) -> list[str]:
        """What a rank has printed, as `trainingrun logs` reads it."""
        parts = [p for p in kept_output.parts(self.bucket) if p.source.rank == rank]
        return [line.text for line in kept_output.read(self.bucket, parts)]

    def begins(self) -> list[int]:
        """The first step of each start of rank 0."""
        found = (re.fullmatch(r"rank 0 of \d+ begins with step (\d+)", one) for one in self.lines())
        return [int(match[1]) for match in found if match]

    def kept(self, name: str = "snapshot.pt") -> Any:
        """A file of the newest checkpoint, as `torch.load` reads it."""
        newest = manifest.committed(self.bucket)[-1]
        assert verification.verify(self.bucket, newest) is None
        content = self.bucket.get(f"{newest.path}/{name}")
        assert content is not None
        return torch.load(io.BytesIO(content))


def run_alone(command: Sequence[str | Path]) -> None:
    """Run a script as two ranks, processes of their own, without Ray and without us."""
    codes = _codes(command)
    if codes[0]:  # the port was taken by another process before rank 0 could
        codes = _codes(command)
    assert codes == [0, 0]


def _codes(command: Sequence[str | Path]) -> list[int]:
    """The exit codes of two ranks; rank 1 is killed where rank 0 fails, for which it would wait."""
    variables = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",  # as on Ray with one CPU: more threads add up in another order
    }
    first, second = (
        subprocess.Popen(
            command,
            env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    )
    if first.wait(300):
        second.kill()
    return [first.returncode, second.wait(300)]
