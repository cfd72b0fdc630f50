"""Runs that ranks leave without notice, once, with what their ranks leave behind."""

from pathlib import Path
from typing import Any

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay, Node
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


_DRAIN = """
import sys, time
import ray
from ray.core.generated import autoscaler_pb2

ray.init(logging_level="ERROR")
node = next(node["NodeID"] for node in ray.nodes() if node["NodeName"] == sys.argv[1])
client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
client.drain_node(node, reason, "reclaimed", int(1000 * (time.time() + 2)))
"""
"""As `ray drain-node`, with 2 s until the node is gone."""


def drain(ray: LocalRay, node: Node, log: Path) -> None:
    """Tell Ray that a node will be gone in 2 s."""
    assert ray.start_on_head(["-c", _DRAIN, node.name], {}, log).wait(60) == 0, log.read_text()
