"""A session of one rank in the test's own process, with stand-ins for what it has of Ray.

The session, its loops, its rules of metrics, what its checkpoints hold and how they are restored
are the real ones. Stand-ins are the worker, the coordinator, and the upload: a checkpoint is a
folder.
"""

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from support import checkpoints
from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.checkpoints import snapshot
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.state_comparison import Comparison
from trainingrun_runtime.coordinator.checkpoints import Command
from trainingrun_runtime.session import requests, saving, session, session_context
from trainingrun_runtime.session.session import Session
from trainingrun_runtime.survivors.noted_steps import _agreed_position
from trainingrun_runtime.worker import worker
from trainingrun_runtime.worker.step_consensus import StepValues


@dataclass(frozen=True)
class Checkpoint:
    """One that a session has made."""

    position: Position
    metrics: dict[str, Any]
    folder: Path


class Run:
    """What is left of a training process when it is gone, and what the next one begins with.

    Args:
        patch: of the test.
        folder: in which it makes one for its checkpoints.
        every_steps: see `checkpoints.everySteps`.
        everywhere: whether a checkpoint is made wherever the run may begin again: after each step,
            also of what survivors would save of it, and after each loop and epoch.
        rated_by: metrics by which checkpoints are compared.
    """

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        folder: Path,
        *,
        every_steps: int | None = None,
        everywhere: bool = False,
        rated_by: tuple[str, ...] = (),
    ) -> None:
        self._patch, self._numbers = patch, itertools.count()
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._every_steps, self._rated_by = 1 if everywhere else every_steps, rated_by
        self.everywhere = everywhere
        self.checkpoints: list[Checkpoint] = []
        """Those that were made, in their order."""
        self.advice: list[str] = []
        """What the run's warnings say."""
        self.session: Session | None = None
        """Of the process under way."""

    def begin(
        self, restored: Checkpoint | None = None, *, another_runs: bool = False, ranks: int = 1
    ) -> None:
        """A process begins, whose session restores a checkpoint, if there is one.

        Args:
            restored: the checkpoint.
            another_runs: whether it is that of another run, as by `restoreFrom`.
            ranks: how many had made it.
        """
        offered = None if restored is None else SimpleNamespace(folder=restored.folder)
        manifest = SimpleNamespace(world_size=ranks)
        own = (
            None if restored is None or another_runs else SimpleNamespace(metrics=restored.metrics)
        )
        coordinator = MagicMock()
        this = SimpleNamespace(
            rank=0,
            world_size=1,
            group=1,
            most_workers=None,
            keeps_batch=False,
            timeout_s=10.0,
            times={},
            times_are_told=True,
            trial=None,
            restored=own,
            continues=own,
            offered=offered,
            fetched=None if restored is None else SimpleNamespace(manifest=manifest),
            notice=None,
            needed_metrics=self._rated_by,
            checkpoints=ContractCheckpoints(every_steps=self._every_steps),
            history=MagicMock(),
            coordinator=coordinator,
            bucket=MagicMock(),
            register=self._register,
            advise=self.advice.append,
            waiting=lambda *_: nullcontext(),
            cannot_save_alone=lambda _: None,
        )
        patch = self._patch
        patch.setattr(worker, "_worker", this)
        patch.setattr(session, "StepReporter", lambda *_: MagicMock(command=Command.NONE))
        patch.setattr(session, "Saving", lambda context: _Saving(context, self))
        patch.setattr(session, "ray", MagicMock())
        patch.setattr(requests, "training", MagicMock(PreemptionDeadline=_NoDeadline))
        patch.setattr("ray.train.get_checkpoint", lambda: offered)
        patch.setattr(session_context, "files_of", _local_files)

    def end(self) -> Checkpoint:
        """The training function has returned; the checkpoint of the state in which it did."""
        assert self.session is not None
        self.session.conclude()
        return self.checkpoints[-1]

    def _register(self, made: Session) -> None:
        self.session = made
        if self.everywhere:
            self._patch.setattr(made.noted_steps, "note", self._note)

    def _note(
        self,
        position: Position,
        metrics: Any,
        result: Callable[[], StepValues | None],
        *,
        compared: bool = True,
    ) -> None:
        """As `NotedSteps.note`: what survivors would save."""
        assert self.session is not None
        agreed = _agreed_position(position, result, driven=False, compared=compared)(False)
        self.keep(self.session._context, agreed)

    def keep(
        self, context: session_context.SessionContext, position: Position | None = None
    ) -> None:
        """Make a checkpoint of now.

        Args:
            context: of the session.
            position: how far the training is; None: as the session has it.
        """
        position = position or context.progress.position
        folder = self._folder / f"{next(self._numbers)}"
        folder.mkdir()
        files = snapshot.take(context.objects.states(), Comparison(set(), {}), position, 0, 1)
        checkpoints.write(files, folder)
        metrics = dict(context.metrics_after(position.step))
        self.checkpoints.append(Checkpoint(position, metrics, folder))


class _Saving(saving.Saving):
    """Its checkpoints are there at once."""

    def __init__(self, context: session_context.SessionContext, run: Run) -> None:
        super().__init__(context)
        self._run = run

    def save(self, *, wait: bool) -> None:
        self._run.keep(self._context)
        self.saved, self.late = self._context.progress.position, False

    def is_due(self, due_s: float) -> bool:
        at_any_time = self._run.everywhere and due_s < math.inf and self.unsaved
        return at_any_time or super().is_due(due_s)

    def wait_for_commit(self) -> bool:
        return True


class _NoDeadline:
    def read(self) -> None:
        return None


@contextmanager
def _local_files(checkpoint: Any, fetched: Any) -> Iterator[LocalFiles]:
    yield LocalFiles(checkpoint.folder)
