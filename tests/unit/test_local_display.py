"""What a local run shows is what its training code said, and nothing that a terminal obeys."""

import io

import pytest
from rich.console import Console

from trainingrun.local.display import Display, summary
from trainingrun.local.starting import Wait, wait_of
from trainingrun_protocol.progress import Progress, ProgressResult, RunState, SweepTable, TrialRow


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


def test_the_line_of_a_start_changes_while_nothing_else_does() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=80), "digits")
    display.starting(2)
    display.show(Progress(attempt=1), 1, 0)
    assert out.getvalue().splitlines() == [
        "digits: starting Ray for 2 workers",
        "digits: starting · 0 s · attempt 1",
    ]


def test_a_store_that_does_not_answer_is_said_once_while_training_goes_on() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200), "digits")
    for tries in ("1.5", "2.5"):
        error = f"a disk is full (after {tries} s)"
        display.warn(Progress(attempt=1, state=RunState.TRAINING, storage_error=error))
    assert out.getvalue() == (
        "a disk is full (after 1.5 s); training continues, uploads and commits wait\n"
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
    progress: Progress | None, nodes: int, ranks: int, said: str
) -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200), "digits")
    wait = wait_of(progress, nodes, 2, ranks, 4)
    assert wait is not None
    if progress is None:
        display.waits(wait, 1)
    else:
        display.show(progress, 1, 0, wait)
    assert out.getvalue() == f"digits: starting · 0 s · {said} · attempt 1\n"


def test_the_bar_of_a_start_is_not_that_of_a_training_whose_end_is_unknown() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Display(console, "digits") as display:
        display.waits(Wait("Ray's nodes", 1, 2), 1)
        display.show(Progress(attempt=1, state=RunState.TRAINING, step=70), 1, 0)
        (task,) = display._bar.tasks
        assert (task.total, task.completed) == (None, 70)


def test_the_trials_of_a_sweep_start_one_by_one() -> None:
    assert wait_of(Progress(attempt=1, sweep=SweepTable(metric="loss")), 2, 2, 0, 4) is None


HOSTILE = "\x1b]0;title\x07\x1b[31mred [/x]\n[bold]b[/bold] \u202eevil"
HARMLESS = "red [/x] [bold]b[/bold] evil"


@pytest.mark.parametrize("terminal", [True, False])
def test_metrics_and_messages_are_neither_control_sequences_nor_markup(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, color_system=None, width=300, legacy_windows=False
    )
    progress = Progress(
        attempt=1, state=RunState.TRAINING, time=1.0, step=1, metrics={"loss": HOSTILE}
    )
    with Display(console, "digits") as display:
        display.note(f"attempt 1 failed: {HOSTILE}", "red")
        display.show(progress, 1, 0)
    result = ProgressResult(metrics={HOSTILE: HOSTILE}, checkpoint_uri=f"file:///{HOSTILE}")
    console.print(summary(result, [], 0, 1.0, "folder"))
    said = out.getvalue()
    for character in "\x07\u202e":
        assert character not in said
    assert "\x1b[31m" not in said
    assert f"attempt 1 failed: {HARMLESS}" in said
    assert f"loss {HARMLESS}" in said
    assert f"file:///{HARMLESS}" in said
