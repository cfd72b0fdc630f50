"""Runs of frameworks that lose a training process and a node, and what that costs them in steps."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from support.local_runs import Run, has_ancestor
from trainingrun.local.ray_nodes import Preemption
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.examples.repeatable import JOURNAL_ENV


class Journal:
    """The steps that rank 0 has done, in their order, those that were done twice included.

    Each line of the files below the folder is a time and the number of steps done.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def clear(self) -> None:
        """Forget the steps of a former run."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def steps(self) -> list[int]:
        lines = [
            (float(time), int(step))
            for file in self.folder.glob("*.log")
            for time, _, step in (line.partition(" ") for line in file.read_text().splitlines())
        ]
        return [step for _, step in sorted(lines)]

    def node_of_rank_0(self) -> str:
        """Name of the node on which an example's rank 0 has done the last step."""
        return max(self.folder.glob("*.log"), key=lambda file: file.stat().st_mtime).stem

    def repeated(self) -> int:
        """How many steps were done again."""
        steps = self.steps()
        return len(steps) - len(set(steps))


def variables(folder: Path) -> dict[str, str]:
    """What a Ray's processes need in their environment so that a journal is kept there."""
    return {JOURNAL_ENV: str(folder), "OMP_NUM_THREADS": "1"}


def disturb(
    run: Run,
    journal: Journal,
    name: str,
    kill_at: int,
    notice_at: int,
    rank_0: bool | None = None,
) -> tuple[int, int]:
    """Kill a training process, later preempt a node with notice; steps lost on notice and on kill.

    Args:
        run: to be trained to its end.
        journal: of its steps.
        name: what it is called where the result is printed.
        kill_at: steps after which the process is killed.
        notice_at: the same for the notice.
        rank_0: whether the process is that of rank 0, of an example. None: any one.
    """
    journal.clear()
    run.start()
    run.wait_until(lambda _: len(set(journal.steps())) >= kill_at)
    os.kill(_trainer(run, journal, rank_0), signal.SIGKILL)
    _wait_for_steps(run, journal, notice_at)
    killed = journal.repeated()
    preemption = Preemption(run.ray, 0)
    preemption.poll(0)
    run.wait_until(lambda _: _polled(preemption).done)
    assert run.wait() == 0, run.log()
    restored = [record for record in run.progress().records if record.kind is RecordKind.RESTORED]
    assert len(restored) >= 3, run.progress().records  # at its begin, and after each of the two
    noticed = journal.repeated() - killed
    print(f"MEASURED {name}: steps lost on notice {noticed}, on kill -9 {killed}")
    return noticed, killed


def _trainer(run: Run, journal: Journal, rank_0: bool | None) -> int:
    """Process id of a process that trains: of rank 0, of another rank, or of any."""
    trainers = run.training_processes()
    if rank_0 is None:
        return trainers[0]
    name = journal.node_of_rank_0()
    node = {node.process.pid for node in run.ray.workers if node.name == name}
    return next(pid for pid in trainers if has_ancestor(pid, node) is rank_0)


def _polled(preemption: Preemption) -> Preemption:
    preemption.poll(0)
    return preemption


def _wait_for_steps(run: Run, journal: Journal, step: int) -> None:
    run.wait_until(lambda _: max(journal.steps(), default=0) >= step)


def undisturbed(run: Run, journal: Journal) -> Callable[[str], object]:
    """Train a run to its end; its final metrics by name."""
    journal.clear()
    assert run.drive() == 0, run.log()
    return run.metrics().__getitem__
