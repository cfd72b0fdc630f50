"""Runs that ranks leave without notice, once, with what their ranks leave behind."""

from pathlib import Path
from typing import Any

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.store.bucket import Bucket


class Disturbed(Run):
    """A run of a function of `dies_in_a_step` or `dies_with_more_state`."""

    def __init__(
        self,
        ray: LocalRay,
        folder: Path,
        config: dict[str, Any],
        function: str = "dies_in_a_step:train",
        workers: int = 2,
        bucket: Bucket | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir()
        config = {"folder": str(folder), **config}
        super().__init__(ray, folder, f"support.{function}", config, bucket, workers=workers)

    def steps(self) -> list[int]:
        """The steps that rank 0 has done, in their order."""
        return [int(line) for line in (self.folder / "steps").read_text().splitlines()]

    def resumed(self) -> list[str]:
        records = self.progress().records
        return [r.message for r in records if r.kind is RecordKind.RESTORED][1:]

    def wait_until_stopped(self, rank: int) -> int:
        """The process of a rank that has sent itself SIGSTOP, as soon as it is stopped."""
        mark = self.folder / f"rank-{rank}"
        self.wait_until(lambda progress: mark.exists() and mark.read_text())
        pid = int(mark.read_text())
        self.wait_until(lambda progress: _state(pid) == "T")
        return pid


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
