"""The driver of one attempt: started on the head, followed through its progress document."""

import subprocess
from pathlib import Path

from trainingrun_protocol.contract import (
    CONTRACT_ENV,
    OUTPUT_ENV,
    PROGRESS_FILE,
    SUSPEND_FILE,
    RunContract,
)
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import Progress

from . import processes
from .ray_nodes import LocalRay


class Driver:
    """One `python -m trainingrun_runtime`."""

    def __init__(self, ray: LocalRay, contract: RunContract, log: Path) -> None:
        """Start it.

        Args:
            ray: A running cluster.
            contract: The contract of this attempt.
            log: File for its output, which is also that of the training code.
        """
        self._state = ray.head.state
        self.log = log
        self._output, self._shown = self._state / "script-output", 0
        for name in (PROGRESS_FILE, SUSPEND_FILE, self._output.name):  # of a former attempt
            (self._state / name).unlink(missing_ok=True)
        self._progress: Progress | None = None
        self._seen_ns = 0
        variables = {
            CONTRACT_ENV: contract.model_dump_json(by_alias=True),
            OUTPUT_ENV: str(self._output),
        }
        self._process = ray.start_on_head(["-m", "trainingrun_runtime"], variables, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def progress(self) -> Progress | None:
        """Its newest progress document; None before the first."""
        file = self._state / PROGRESS_FILE
        try:
            changed = file.stat().st_mtime_ns
            if changed != self._seen_ns:
                self._progress = Progress.model_validate_json(file.read_bytes())
                self._seen_ns = changed
        except FileNotFoundError:
            pass
        return self._progress

    def printed(self) -> str:
        """What its script has printed after the training since the last call: whole lines."""
        try:
            with self._output.open("rb") as file:
                file.seek(self._shown)
                found = file.read()
        except FileNotFoundError:
            return ""
        if self.exit_code is None:
            found = found[: found.rfind(b"\n") + 1]
        self._shown += len(found)
        return found.decode(errors="replace")

    def suspend(self, wait_s: float) -> bool:
        """Request a checkpoint and the end, and wait `wait_s` seconds; whether it has."""
        (self._state / SUSPEND_FILE).touch()
        try:
            return self._process.wait(timeout=wait_s) == SUSPEND_EXIT_CODE
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        """Kill it and every process that it started."""
        processes.kill(self._process)
