"""The step journals of one run: a folder on each node in which rank 0 notes each step it does."""

import re
from typing import Any

from .cluster import TestCluster
from .report import Step, read_journals

JOURNALS = "/var/trainingrun-e2e"
"""Folder on each node with one folder per run, in the node's own file system: it outlives the
node's being killed."""
MOUNT = {"name": "journal", "mountPath": "/journal"}
ENV = {"name": "STEP_LOG_FOLDER", "value": "/journal"}


class Journals:
    """Those of the run `name`, on the nodes of a cluster."""

    def __init__(self, cluster: TestCluster, name: str) -> None:
        self._cluster, self._folder = cluster, f"{JOURNALS}/{name}"

    def clear(self) -> None:
        """Make the folders, empty."""
        folder = self._folder
        for node in self._cluster.workers:  # training pods are nobody's root: it is for all
            self._cluster.on_node(node, f"rm -rf {folder} && mkdir -p -m 777 {folder}")

    def set_pace(self, seconds: float) -> None:
        """From its next step on the run takes so many seconds per step."""
        for node in self._cluster.workers:  # renamed into place: never seen half written
            script = f"cd {self._folder} && echo {seconds} > .pace && mv .pace pace"
            self._cluster.on_node(node, script)

    def volume(self) -> dict[str, Any]:
        """The folder as a volume of the worker pods."""
        return {"name": "journal", "hostPath": {"path": self._folder}}

    def steps(self) -> list[Step]:
        """Every step that was done, oldest first; a machine that is off keeps its own."""
        return read_journals(self._by_pod().values())

    def trainer(self) -> str:
        """Name of the worker pod with rank 0, the last that wrote a journal."""
        return max(self._by_pod().items(), key=lambda item: read_journals([item[1]])[-1])[0]

    def _by_pod(self) -> dict[str, str]:
        journals = {}
        script = f"""cd {self._folder} && for f in $(ls); do
          case "$f" in *.log) echo "==> $f"; cat "$f" ;; esac
        done; true"""
        for node in self._cluster.workers:
            if not self._cluster.is_up(node):
                continue
            parts = re.split(r"^==> (.*)\.log\n", self._cluster.on_node(node, script), flags=re.M)
            journals |= dict(zip(parts[1::2], parts[2::2], strict=True))
        return {pod: text for pod, text in journals.items() if text.strip()}
