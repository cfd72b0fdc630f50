"""The step journals of one run: a folder in which rank 0 notes each step it does.

The folder is this machine's, mounted into the nodes: reading it takes no CPU time of the cluster
that is measured, and it outlives a node that is killed.
"""

import shutil
from pathlib import Path
from typing import Any

from .cluster import JOURNALS, TestCluster, journals_of
from .report import Step, read_journals

MOUNT = {"name": "journal", "mountPath": "/journal"}
ENV = {"name": "STEP_LOG_FOLDER", "value": "/journal"}


class Journals:
    """Those of the run `name`, one for each pod that had rank 0."""

    def __init__(self, cluster: TestCluster, name: str) -> None:
        self._folder, self._on_node = journals_of(cluster.name) / name, f"{JOURNALS}/{name}"

    def clear(self) -> None:
        """Make the folder, empty."""
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True)
        self._folder.chmod(0o777)  # training pods are nobody's root: it is for all

    def set_pace(self, seconds: float) -> None:
        """From its next step on the run takes so many seconds per step."""
        written = self._folder / ".pace"
        written.write_text(f"{seconds}\n")
        written.rename(self._folder / "pace")  # never seen half written

    def volume(self) -> dict[str, Any]:
        """The folder as a volume of the worker pods."""
        return {"name": "journal", "hostPath": {"path": self._on_node}}

    def steps(self) -> list[Step]:
        """Every step that was done, oldest first."""
        return read_journals(self._by_pod().values())

    def texts(self, pattern: str) -> list[str]:
        """What other files in the folder hold."""
        return [file.read_text() for file in sorted(self._folder.glob(pattern))]

    def trainer(self) -> str:
        """Name of the worker pod with rank 0, the last that wrote a journal."""
        return max(self._by_pod().items(), key=lambda item: read_journals([item[1]])[-1])[0]

    def _by_pod(self) -> dict[str, str]:
        files: list[Path] = sorted(self._folder.glob("*.log"))
        found = {file.stem: file.read_text() for file in files}
        return {pod: text for pod, text in found.items() if text.strip()}
