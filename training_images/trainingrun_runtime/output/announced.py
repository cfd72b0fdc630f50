"""How a process says who it is to the one that uploads what it prints: a file of its node."""

import json
import os
from pathlib import Path

from pydantic import Field

from trainingrun_protocol.contract import ContractOutput, ContractStorage, RunContract
from trainingrun_protocol.wire import Wire

from ..state_directory import state_directory
from ..store.kept_output import Source

FOLDER = "output"
"""In the state directory: a file for each process, named by its process id."""


class Announced(Wire):
    """A process that prints."""

    pid: int
    """Its process id."""
    files: list[str] = Field(min_length=1)
    """Where its output goes."""
    storage: ContractStorage
    """The folder of the run, or of the trial of a sweep."""
    attempt: int
    """Number of the attempt."""
    group: int = 0
    """Number of the worker group; 0: the driver."""
    rank: int | None = None
    """None: the driver."""
    ended: bool = False
    """Whether its training function has ended."""
    keep: ContractOutput = Field(default_factory=ContractOutput)
    """How much of what is printed is kept."""
    trial: int | None = None
    """Which trial of a sweep it trains; None: the run is none."""

    @property
    def source(self) -> Source:
        """As parts are named by it."""
        return Source(self.attempt, self.group, self.rank)

    @property
    def label(self) -> str:
        """What stands before its lines in the container's output."""
        if self.rank is None:
            return "driver"
        return f"rank {self.rank}" if self.trial is None else f"trial {self.trial} rank {self.rank}"


def announce(
    contract: RunContract,
    files: list[str],
    group: int = 0,
    rank: int | None = None,
    *,
    ended: bool = False,
) -> None:
    """Say who this process is.

    Args:
        contract: Of its attempt.
        files: Where its output goes; without any there is nothing to say.
        group: Number of its worker group; 0: it is the driver.
        rank: Its own; None: it is the driver.
        ended: Whether its training function has ended: what it has printed is uploaded at once.

    Raises:
        OSError: The state directory cannot be written.
    """
    if not files:
        return
    found = Announced(
        pid=os.getpid(),
        files=files,
        storage=contract.storage,
        attempt=contract.attempt,
        group=group,
        rank=rank,
        ended=ended,
        keep=contract.output,
        trial=contract.trial.number if contract.trial else None,
    )
    folder = state_directory() / FOLDER
    folder.mkdir(exist_ok=True)
    # Renamed into place, so that half a file is never read.
    part = folder / f".{found.pid}"
    part.write_text(json.dumps(found.to_dict()))
    part.replace(folder / str(found.pid))


def own_files() -> list[str]:
    """The files that stdout and stderr are; empty where they are none, or it is not known."""
    found = []
    for descriptor in (1, 2):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # no Linux
            continue
        if path not in found and Path(path).is_file():
            found.append(path)
    return found
