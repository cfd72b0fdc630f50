"""What a rank reports while it trains: nothing that fails ends the reports."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from trainingrun_runtime.coordinator.checkpoints import Command
from trainingrun_runtime.progress.time_accounting import StepReport
from trainingrun_runtime.session import step_reporter
from trainingrun_runtime.session.step_reporter import StepReporter


def test_a_command_still_arrives_after_a_call_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else neither a suspension nor a notice would ever reach this rank."""
    monkeypatch.setattr(step_reporter, "INTERVAL_S", 0.01)
    monkeypatch.setattr(step_reporter.ray, "get", lambda answer, timeout=None: answer)
    failed, asked = threading.Event(), threading.Event()

    def send() -> None:
        if not failed.is_set():
            failed.set()
            raise ConnectionError("the head does not answer")

    def stepped(report: Any) -> Command:
        asked.set()
        return Command.SUSPEND

    coordinator = SimpleNamespace(stepped=SimpleNamespace(remote=stepped))
    recorder = SimpleNamespace(send=send, flush=lambda: None)
    reporter = StepReporter(coordinator, recorder)  # type: ignore[arg-type]
    assert failed.wait(30)
    reporter.report(
        StepReport(group=1, step=1, total=None, begun=0, done=1, productive=1, checkpoint=0)
    )
    assert asked.wait(30)
    reporter.close()
    assert reporter.command is Command.SUSPEND
