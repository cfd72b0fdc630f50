"""What ends a worker group, and what the end says of its checkpoint."""

from types import SimpleNamespace
from typing import Any

import pytest

from trainingrun_runtime.coordinator.checkpoints import Command
from trainingrun_runtime.known_errors.failure_causes import Preempted, Resized, Suspended
from trainingrun_runtime.session import saving as module
from trainingrun_runtime.session.requests import Requests
from trainingrun_runtime.session.saving import Saving
from trainingrun_runtime.worker.step_consensus import StepValues


def a_rank(monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> Requests:
    """Of a group whose checkpoint of step 7 is uploaded, and committed or abandoned."""
    monkeypatch.setattr(module.ray, "get", lambda answer: answer)
    position = object()
    context: Any = SimpleNamespace(
        worker=SimpleNamespace(
            coordinator=SimpleNamespace(
                is_committed=SimpleNamespace(remote=lambda name: committed)
            ),
            notice=None,
        ),
        progress=SimpleNamespace(step=7, position=position, note_stop=lambda agreed: None),
        consensus=SimpleNamespace(agreed=lambda: None, reset=lambda: None, barrier=lambda: None),
        can_grow=lambda: True,
    )
    saving, upload = Saving.__new__(Saving), SimpleNamespace(name="7-1", wait=lambda: None)
    saving._context, saving.saved, saving._upload = context, position, upload  # type: ignore[assignment]
    requests = Requests.__new__(Requests)  # without Ray's worker group
    requests._context, requests._saving = context, saving
    return requests


def test_a_group_without_a_committed_checkpoint_does_not_end_for_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The larger one would begin at the checkpoint before."""
    agreed = StepValues(command=Command.RESIZE, step=7)
    a_rank(monkeypatch, committed=False).execute(agreed)
    with pytest.raises(Resized, match="saved after step 7"):
        a_rank(monkeypatch, committed=True).execute(agreed)


def test_a_growth_that_waits_for_an_epochs_end_hides_no_checkpoint_that_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = a_rank(monkeypatch, committed=True)
    context: Any = rank._context
    context.reporter = SimpleNamespace(command=Command.RESIZE)
    context.worker.rank = 0
    rank._of_ray = SimpleNamespace(read=lambda: None)  # type: ignore[assignment]
    monkeypatch.setattr(Saving, "is_due", lambda saving, due_s: due_s <= 0)
    assert [rank._command(due_s) for due_s in (1.0, 0.0)] == [Command.RESIZE] * 2
    context.can_grow = lambda: False
    assert [rank._command(due_s) for due_s in (1.0, 0.0)] == [Command.NONE, Command.CHECKPOINT]


@pytest.mark.parametrize(
    ("command", "committed", "kind", "text"),
    [
        (Command.SUSPEND, True, Suspended, "suspended after step 7"),
        (
            Command.SUSPEND,
            False,
            Suspended,
            "suspended after step 7; its checkpoint could not be committed",
        ),
        (Command.CHECKPOINT_AND_EXIT, True, Preempted, "a pod is preempted; saved after step 7"),
        (
            Command.CHECKPOINT_AND_EXIT,
            False,
            Preempted,
            "a pod is preempted; no checkpoint could be committed after step 7",
        ),
    ],
)
def test_a_group_that_ends_all_the_same_says_whether_its_last_step_is_saved(
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
    committed: bool,
    kind: type[Exception],
    text: str,
) -> None:
    with pytest.raises(kind) as ended:
        a_rank(monkeypatch, committed=committed).execute(StepValues(command=command, step=7))
    assert str(ended.value) == text
