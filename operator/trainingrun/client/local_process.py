"""A local run in a process of its own, `trainingrun run - --local`, which outlives this one."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..api.errors import RunError
from ..local import records
from ..local.folder import LATEST
from . import yaml_text

_POLL_S = 0.1


@dataclass
class LocalProcess:
    """A run of this machine that this process has begun."""

    documents: list[dict[str, Any]]
    """The TrainingRun and its ConfigMaps."""
    root: Path
    """The folder of the runs of its name."""
    beside: Path | None
    """Folder from which modules are imported too."""
    own: Path = field(init=False)
    """The run's own folder."""
    _process: "subprocess.Popen[bytes]" = field(init=False)
    _suspended: bool = False

    def start(self, *options: str) -> None:
        """Begin the run, and return once nothing of it is refused any more.

        Raises:
            RunError: It is refused.
        """
        before, name = _latest(self.root), self.documents[0]["metadata"]["name"]
        # -P: of the modules in the working directory the ranks alone are to know.
        command = [sys.executable, "-P", "-m", "trainingrun", "run", "-", "--local"]
        environment = dict(os.environ)
        if self.beside is not None:
            paths = [str(self.beside), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as errors:
            text.write(yaml_text.dump(*self.documents).encode())
            text.seek(0)
            self._process = subprocess.Popen(
                [*command, f"--folder={self.root}", *options],
                stdin=text,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                # Whoever interrupts this process does not end the run.
                start_new_session=True,
            )
            while _latest(self.root) == before:
                if self._process.poll() is not None and _latest(self.root) == before:
                    errors.seek(0)
                    said = errors.read().decode(errors="replace").strip()
                    raise RunError(said or f"{name} ended with code {self._process.returncode}")
                time.sleep(_POLL_S)
        self.own = records.folders(self.root, name)[-1]

    def suspend(self) -> None:
        """Have it save a checkpoint and end."""
        self._suspended = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def resume(self) -> None:
        """Begin again where it was stopped; a run that trains goes on.

        Raises:
            RunError: It is refused.
        """
        if self._process.poll() is None and not self._suspended:
            return  # its end may be days away
        self._process.wait()
        self._suspended = False
        self.start("--resume")


def _latest(root: Path) -> bytes | None:
    """What is written once a run begins; None: none has."""
    try:
        return (root / LATEST).read_bytes()
    except OSError:
        return None
