"""Metrics of every odd kind through a whole run, and an error with such text: on a real Ray."""

from pathlib import Path
from typing import Any

import pytest

from support.local_runs import Run
from support.odd_metrics import STEPS
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE
from trainingrun_runtime.store import manifest, metrics_table, run_result

pytestmark = pytest.mark.slow

SHOWN = r"m\udce4dchen.wav"
"""The name of a file that is no UTF-8."""


def check(run: Run) -> list[dict[str, Any]]:
    """What the run has left can be read; its rows."""
    committed = manifest.committed(run.bucket)
    assert [one.step for one in committed][-1] == STEPS
    assert committed[-1].metrics["text"] == SHOWN
    rows: list[dict[str, Any]] = metrics_table.read(run.bucket).to_pylist()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert (row["text"], row[SHOWN]) == (SHOWN, "named so")
        assert (row["float32"], row["tensor"], row["level"]) == (0.5, 0.5, 3)
        assert (row["reported_time"], row["reported_reported_time"]) == (1.5, 2.5)
        assert row["silent"] == "<Silent>"
    assert run.metrics()["text"] == SHOWN
    assert run.progress().metrics["path"].endswith("chen.wav')")
    assert run.bucket.get("report.html"), run.log()
    return rows


def test_a_session_reports_them(ray: LocalRay, tmp_path: Path) -> None:
    done = tmp_path / "done"
    run = Run(ray, tmp_path, "support.odd_metrics:with_session", {"done": str(done)})
    assert run.drive() == 0, run.log()
    rows = check(run)
    assert rows[0]["reported_step"] == "not a number"
    assert run.metrics()["final"] == SHOWN
    said = [record.message for record in run.progress().records]
    assert said == ["resumed from step 0"], "no group was begun again"


def test_code_without_a_session_reports_them(ray: LocalRay, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    run = Run(ray, tmp_path, "support.odd_metrics:without_session", {"begun": str(begun)})
    assert run.drive() == 0, run.log()
    check(run)
    assert begun.read_text() == "0\n0\n", "both ranks began once"
    assert run.metrics()["(2, 3)"] == "two"


def test_an_error_with_such_text_is_told(ray: LocalRay, tmp_path: Path) -> None:
    run = Run(ray, tmp_path, "support.odd_metrics:fails", {})
    assert run.drive() == FAILED_EXIT_CODE, run.log()
    failure = run.progress().failure
    assert failure is not None
    assert f"raised ValueError: {SHOWN} is no recording (odd_metrics.py:" in failure.message


def test_a_rank_that_ends_without_a_word_has_not_trained(ray: LocalRay, tmp_path: Path) -> None:
    run = Run(ray, tmp_path, "support.odd_metrics:fails_untold", {})
    assert run.drive() == FAILED_EXIT_CODE, run.log()
    failure = run.progress().failure
    assert failure is not None
    assert "the training function of rank 1 has ended without returning" in failure.message
    assert run_result.read(run.bucket) is None
