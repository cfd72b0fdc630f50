"""What a local run shows is what its training code said, and nothing that a terminal obeys."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from support.builders import a_run
from trainingrun.local.display import Display, summary
from trainingrun.local.records import Record
from trainingrun.local.run_line import progress_line
from trainingrun.local.starting import Wait, wait_of
from trainingrun_protocol.progress import (
    Progress,
    ProgressResult,
    RunState,
    SweepTable,
    TrialRow,
    TrialState,
)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """That of a run which begins."""
    return Record(tmp_path, a_run(), 1)


def test_a_sweep_ends_with_its_losses_and_its_best_config() -> None:
    out = io.StringIO()
    rows = [TrialRow(number=1, config={"lr": 0.1}), TrialRow(number=2, config={"lr": 0.01})]
    table = SweepTable(metric="loss", best=2, trials=rows)
    Console(file=out, width=80).print(summary(ProgressResult(sweep=table), [], 3, 1.0, "folder"))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "interruptions 3" in lines
    assert 'best config {"lr": 0.01}' in lines


def test_the_summary_is_neither_padded_nor_folded() -> None:
    uri = f"file:///{'runs/' * 30}digits"
    said = summary(ProgressResult(metrics={"loss": 0.5}, checkpoint_uri=uri), [], 0, 1.0, "folder")
    lines = str(said).splitlines()
    assert lines[-1].split() == ["checkpoint", uri]
    assert [line for line in lines if line != line.rstrip()] == []


def test_the_line_of_a_start_changes_while_nothing_else_does(record: Record) -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=80), "digits")
    for seconds in (1, 70):
        display._began, display._line_at = time.monotonic() - seconds, 0.0
        display.show(record.run)
    assert out.getvalue() == (
        "digits: Starting · 1 s · attempt 1\ndigits: Starting · 70 s · attempt 1\n"
    )


def test_a_store_that_does_not_answer_is_said_once_while_training_goes_on(
    record: Record,
) -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200), "digits")
    for tries in ("1.5", "2.5"):
        error = f"a disk is full (after {tries} s)"
        record.show(Progress(attempt=1, state=RunState.TRAINING, storage_error=error))
        display.show(record.run)
    assert out.getvalue() == (
        "a disk is full (after 1.5 s); training continues, uploads and commits wait\n"
        "digits: Running · step 0 · attempt 1\n"
    )


@pytest.mark.parametrize(
    ("progress", "nodes", "ranks", "said"),
    [
        (None, 1, 0, "waits for Ray's nodes (1 of 2)"),
        (None, 2, 0, "waits for the driver, which imports Ray Train"),
        (
            Progress(attempt=1),
            2,
            3,
            "waits for ranks, which form the process group and import the code (3 of 4)",
        ),
        (Progress(attempt=1), 2, 4, "waits for the ranks' choice of a checkpoint"),
        (Progress(attempt=1, resumed_from_step=0), 2, 4, "waits for the first step"),
    ],
)
def test_while_a_run_starts_each_line_says_what_it_waits_for(
    progress: Progress | None, nodes: int, ranks: int, said: str, record: Record
) -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200), "digits")
    display._began = time.monotonic() - 5
    display.show(record.run, wait_of(progress, nodes, 2, ranks, 4))
    assert out.getvalue() == f"digits: Starting · 5 s · {said} · attempt 1\n"


def test_the_bar_of_a_start_is_not_that_of_a_training_whose_end_is_unknown(
    record: Record,
) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Display(console, "digits") as display:
        display.show(record.run, Wait("Ray's nodes", 1, 2))
        record.show(Progress(attempt=1, state=RunState.TRAINING, step=70))
        display.show(record.run)
        (task,) = display._bar.tasks
        assert (task.total, task.completed) == (None, 70)


def test_the_trials_of_a_sweep_start_one_by_one() -> None:
    assert wait_of(Progress(attempt=1, sweep=SweepTable(metric="loss")), 2, 2, 0, 4) is None


def test_a_terminal_that_draws_nothing_anew_is_told_in_lines(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=120), "digits") as display:
        display.show(record.run)
    assert out.getvalue().startswith("digits: Starting · ")


HOSTILE = "\x1b]0;title\x07\x1b[31mred [/x]\n[bold]b[/bold] \u202eevil"
HARMLESS = "red [/x] [bold]b[/bold] evil"


@pytest.mark.parametrize("terminal", [True, False])
def test_metrics_and_messages_are_neither_control_sequences_nor_markup(
    terminal: bool, record: Record
) -> None:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, color_system=None, width=300, legacy_windows=False
    )
    progress = Progress(
        attempt=1, state=RunState.TRAINING, time=1.0, step=1, metrics={"loss": HOSTILE}
    )
    with Display(console, "digits") as display:
        display.note(f"attempt 1 failed: {HOSTILE}", "red")
        record.show(progress)
        display.show(record.run)
    result = ProgressResult(metrics={HOSTILE: HOSTILE}, checkpoint_uri=f"file:///{HOSTILE}")
    console.print(summary(result, [], 0, 1.0, "folder"))
    said = out.getvalue()
    for character in "\x07\u202e":
        assert character not in said
    assert "\x1b[31m" not in said
    assert f"attempt 1 failed: {HARMLESS}" in said
    assert f"loss {HARMLESS}" in said
    assert f"file:///{HARMLESS}" in said


def test_run_and_watch_have_one_line_for_one_state(record: Record) -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200), "digits")
    record.begin(2, restarts=1)
    record.show(
        Progress(
            attempt=2, state=RunState.TRAINING, step=61, total_steps=220, step_seconds=0.1235,
            seconds_left=19.4, metrics={"loss": 0.46134},
        )
    )  # fmt: skip
    display.show(record.run)
    line = "Running · step 61/220 · loss 0.4613 · 8.1 steps/s · 19s left · attempt 2 · restarts 1"
    assert out.getvalue() == f"digits: {line}\n"
    assert progress_line(record.run) == line


def test_the_line_of_a_sweep_has_its_trials(record: Record) -> None:
    states = [TrialState.SUCCEEDED, TrialState.STOPPED, TrialState.RUNNING]
    rows = [TrialRow(number=number, state=state) for number, state in enumerate(states, 1)]
    table = SweepTable(metric="loss", trials=rows)
    record.show(Progress(attempt=1, state=RunState.TRAINING, sweep=table))
    assert progress_line(record.run) == "Running · 2/3 trials · attempt 1"
