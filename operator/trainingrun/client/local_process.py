"""A local run in a process of its own, `trainingrun run - --local`, which outlives this one."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..api.errors import RunError
from ..local import records
from ..local.folder import TELL_ENV
from ..local.machine import importable
from . import yaml_text


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

    @property
    def _name(self) -> str:
        return str(self.documents[0]["metadata"]["name"])

    def start(self) -> None:
        """Begin the run, and return once nothing of it is refused any more.

        Raises:
            RunError: It is refused.
            KeyboardInterrupt: Nothing goes on.
        """
        self.own = self._begun(self.root)

    def resume(self) -> None:
        """Begin again where it was stopped; a run that trains goes on.

        Raises:
            RunError: It is refused.
        """
        if self._process.poll() is None and records.goes_on(self.own):
            return  # its end may be days away
        self._process.wait()
        # Its own folder: below `root` a later run of the name would be the one that goes on.
        self._begun(self.own, "--resume")

    def _begun(self, folder: Path, *options: str) -> Path:
        """The own folder of the run that is begun in this one."""
        # -P: of the modules in the working directory the ranks alone are to know.
        command = [sys.executable, "-P", "-m", "trainingrun", "run", "-", "--local"]
        environment = dict(os.environ)
        if self.beside is not None:
            paths = [importable(self.beside), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        try:
            with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as errors:
                text.write(yaml_text.dump(*self.documents).encode())
                text.seek(0)
                own = self._told(
                    [*command, f"--folder={folder}", *options], environment, text, errors
                )
                if own is not None:
                    return own
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip()
        except OSError as error:
            raise RunError(
                f"{self._name} cannot be begun, since this machine refuses what its process needs "
                f"({error.strerror or error}); free memory and space for temporary files"
            ) from None
        raise RunError(said or f"{self._name} ended with code {self._process.returncode}")

    def _told(
        self, command: list[str], environment: dict[str, str], text: IO[bytes], errors: IO[bytes]
    ) -> Path | None:
        """The run's own folder, as its process tells it; None: it has ended before it began."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as told:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=text,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={**environment, TELL_ENV: str(writing)},
                    pass_fds=[writing],
                    # Whoever interrupts this process does not end the run.
                    start_new_session=True,
                )
            finally:
                os.close(writing)
            try:
                own = told.read()
                if not own:
                    self._process.wait()
            except KeyboardInterrupt:  # else a run goes on of which nobody has the name
                self._process.terminate()
                self._process.wait()
                raise
        return Path(os.fsdecode(own)) if own else None
