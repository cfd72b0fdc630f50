"""Sweeps on a real Ray of two nodes: trials survive losses, and what is done is not repeated."""

import html
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.local_runs import PATIENCE_S, ROOT, Run, wait_for_both_nodes
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractParameter, ContractSweep
from trainingrun_protocol.progress import Progress, RecordKind, TrialState
from trainingrun_runtime.report_page import traces
from trainingrun_runtime.store import manifest, run_result, start_traces
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.sweep import record
from trainingrun_runtime.sweep.record import Trial

pytestmark = pytest.mark.slow

RATES = [0.1, 0.01, 0.05, 0.001]
STEPS = 60


@pytest.fixture
def sweep(ray: LocalRay, bucket: Bucket, tmp_path: Path) -> Iterator[Run]:
    """Four trials of the smallest example, two at once, each with one worker."""
    wait_for_both_nodes(ray, tmp_path)
    config = {"steps": STEPS, "step_seconds": 0.1}
    function = "trainingrun_runtime.examples.linear:train"
    run = Run(ray, tmp_path, function, config, bucket, every_seconds=1, workers=1)
    run.contract = run.contract.model_copy(update={"sweep": _grid(RATES)})
    yield run
    run.stop()


def _grid(rates: list[float], **settings: Any) -> ContractSweep:
    space = [ContractParameter(name="lr", values=rates)]
    return ContractSweep(metric="loss", mode="min", concurrency=2, space=space, **settings)


def _page(run: Run) -> str:
    assert run.progress().report_uri == run.bucket.uri("report.html")
    return html.unescape((run.bucket.get("report.html") or b"").decode())


def _trial(run: Run, number: int) -> Bucket:
    whole = run.bucket
    return Bucket.open(whole.uri(record.folder(number)), whole.endpoint, whole.region)


def _weights(run: Run, number: int) -> str:
    found = run_result.read(_trial(run, number))
    assert found is not None
    return str(found.metrics["weights_sha256"])


def _tokens(run: Run, number: int) -> set[int]:
    """Fencing tokens of the drivers that have trained a trial."""
    return {
        int(entry.key.rpartition("/")[2].removesuffix(".json"))
        for entry in _trial(run, number).list("lease")
    }


def _done(progress: Progress) -> list[int]:
    rows = progress.trials.trials if progress.trials else []
    return [row.number for row in rows if row.state is TrialState.SUCCEEDED]


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_lost_worker_restarts_its_own_trial_alone(sweep: Run):
    sweep.start()
    sweep.wait_until(
        lambda progress: (
            progress.sweep is not None
            and all(row.step > 15 and row.checkpoint_uri for row in progress.sweep.trials[:2])
        )
    )
    os.kill(sweep.training_process(), signal.SIGKILL)
    final = sweep.wait_until(lambda progress: progress.state.final)
    assert sweep.wait() == 0, sweep.log()
    assert final.trials is not None
    assert final.result is not None
    rows = final.trials.trials
    assert [row.state for row in rows] == [TrialState.SUCCEEDED] * 4, rows
    assert [row.config["lr"] for row in rows] == RATES
    assert [row.step for row in rows] == [STEPS] * 4
    assert final.trials.best == min(rows, key=lambda row: row.value or 0.0).number
    assert final.result.metrics["weights_sha256"] == _weights(sweep, final.trials.best)
    lost = [record for record in final.records if record.kind is RecordKind.WORKER_LOST]
    assert len(lost) == 1, final.records
    groups = []
    for row in rows:
        bucket = _trial(sweep, row.number)
        groups += [trace.recovery for trace in traces.of(start_traces.read(bucket))]
        newest = manifest.committed(bucket)[-1]
        assert row.checkpoint_uri == bucket.uri(newest.path)
        assert newest.step == STEPS
    assert sorted(groups) == [False] * 4 + [True], "a trace of each trial in its own folder"


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_the_next_driver_trains_only_what_is_left(sweep: Run):
    sweep.start()
    sweep.wait_until(
        lambda progress: (
            len(_done(progress)) >= 2
            and progress.sweep is not None
            and any(
                row.state is TrialState.RUNNING and row.checkpoint_uri and row.step > 15
                for row in progress.sweep.trials
            )
        )
    )
    sweep.stop()
    before = record.read(sweep.bucket, 2)
    assert before is not None
    done = [trial for trial in before.trials if trial.state is TrialState.SUCCEEDED]
    assert len(done) >= 2
    sweep.start()
    restored = sweep.wait_until(lambda progress: progress.fencing_token == 2)
    assert restored.resumed_from_step is not None
    assert restored.resumed_from_step > len(done) * STEPS, "of those under way, too"
    final = sweep.wait_until(lambda progress: progress.state.final)
    assert sweep.wait() == 0, sweep.log()
    assert _done(final) == [1, 2, 3, 4]
    assert all(_tokens(sweep, trial.number) == {1} for trial in done)
    again = [number for number in range(1, 5) if 2 in _tokens(sweep, number)]
    assert set(again) == {1, 2, 3, 4} - {trial.number for trial in done}
    # The same weights as where nothing was lost.
    sweep.contract = sweep.contract.model_copy(
        update={
            "storage": sweep.contract.storage.model_copy(
                update={"uri": f"{sweep.bucket.root}-undisturbed"}
            )
        }
    )
    undisturbed = Bucket.open(
        f"{sweep.bucket.root}-undisturbed", sweep.bucket.endpoint, "us-east-1"
    )
    assert sweep.drive() == 0, sweep.log()
    found = {number: _weights(sweep, number) for number in range(1, 5)}
    sweep.bucket = undisturbed
    assert found == {number: _weights(sweep, number) for number in range(1, 5)}


@pytest.mark.parametrize("bucket", ["file"], indirect=True)
def test_a_suspended_sweep_goes_on_where_it_was(sweep: Run):
    sweep.start()
    sweep.wait_until(lambda progress: progress.step > 30)
    sweep.suspend()
    assert sweep.wait() == 75, sweep.log()
    suspended = sweep.progress()
    assert suspended.sweep is not None
    assert "Pending" in _page(sweep)
    assert {row.state for row in suspended.sweep.trials} <= {
        TrialState.PENDING,
        TrialState.SUCCEEDED,
    }
    assert sweep.drive() == 0, sweep.log()
    final = sweep.progress()
    assert final.resumed_from_step == suspended.step, "no step is lost"
    assert _done(final) == [1, 2, 3, 4]


@pytest.mark.parametrize("bucket", ["file"], indirect=True)
def test_asha_stops_a_bad_trial_after_a_checkpoint_and_an_error_ends_its_trial_alone(sweep: Run):
    grid = _grid([0.1, 0.05, 1e-6, "wrong"], asha=True, grace_steps=20, reduction_factor=2)
    sweep.contract = sweep.contract.model_copy(update={"sweep": grid})
    assert sweep.drive() == 0, sweep.log()
    final = sweep.progress()
    assert final.trials is not None
    assert final.result is not None
    states = {row.config["lr"]: row for row in final.trials.trials}
    assert states[1e-6].state is TrialState.STOPPED
    assert 20 <= states[1e-6].step < STEPS
    newest = manifest.committed(_trial(sweep, 3))[-1]
    assert newest.step == states[1e-6].step
    assert states["wrong"].state is TrialState.FAILED
    assert "rank 0 raised" in states["wrong"].message
    assert final.trials.best in (1, 2)
    page = _page(sweep)
    assert states["wrong"].message in page
    assert ", the best one" in page
    assert states[0.1].state is TrialState.SUCCEEDED or states[0.05].state is TrialState.SUCCEEDED


@pytest.mark.parametrize("bucket", ["file"], indirect=True)
def test_ranks_of_a_trial_that_wait_for_others_are_named_with_the_trial(sweep: Run):
    sweep.contract = sweep.contract.model_copy(
        update={
            "sweep": _grid([0.1]).model_copy(update={"concurrency": 1}),
            "function": "support.reports_on_one_rank:train",
            "workers": 2,
        }
    )
    sweep.start()
    said = sweep.wait_until(lambda progress: progress.standstill).standstill or ""
    assert said.startswith(
        "trial 1: rank 0 waits in ray.train.report for over 30 s for rank 1, which is at"
    )
    assert "reports_on_one_rank.py:" in said
    assert "not under `if rank == 0`" in said


def _population() -> ContractSweep:
    """Two trials that are compared every 20 steps; the worse one goes on from the better one."""
    space = [ContractParameter(name="lr", min=1e-6, max=0.1, scale="log")]
    return ContractSweep(
        metric="loss", mode="min", concurrency=2, samples=2, perturbation_interval=20, space=space
    )


def _legs(run: Run) -> dict[int, Trial]:
    found = record.read(run.bucket)
    assert found is not None
    return {trial.number: trial for trial in found.trials}


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_population_goes_on_after_a_loss_with_the_values_of_an_undisturbed_one(sweep: Run):
    whole = sweep.bucket
    config = {"steps": 50, "step_seconds": 0.1}
    sweep.contract = sweep.contract.model_copy(update={"sweep": _population(), "config": config})
    sweep.start()
    # In the second leg, where one has begun from the checkpoint of the other one.
    sweep.wait_until(
        lambda progress: (
            progress.sweep is not None and any(22 < row.step < 40 for row in progress.sweep.trials)
        )
    )
    sweep.stop()
    lost = _legs(sweep)
    assert any(trial.leg == 2 for trial in lost.values())
    assert sweep.drive() == 0, sweep.log()
    disturbed = _legs(sweep)
    assert [trial.state for trial in disturbed.values()] == [TrialState.SUCCEEDED] * 2
    assert [trial.leg for trial in disturbed.values()] == [3] * 2
    origins = {trial.origin.number for trial in disturbed.values() if trial.origin}
    assert len(origins) == 1, "one goes on from the other one"
    assert disturbed[1].config != disturbed[2].config
    final = sweep.progress()
    assert final.step == 2 * 50
    assert [row.step for row in final.trials.trials] == [50] * 2 if final.trials else False
    # Checkpoints of the first legs, from which nothing begins any more, are removed.
    assert not manifest.committed(_trial(sweep, 1))
    sweep.contract = sweep.contract.model_copy(
        update={
            "storage": sweep.contract.storage.model_copy(
                update={"uri": f"{whole.root}-undisturbed"}
            )
        }
    )
    assert sweep.drive() == 0, sweep.log()
    sweep.bucket = Bucket.open(f"{whole.root}-undisturbed", whole.endpoint, "us-east-1")
    undisturbed = _legs(sweep)
    for number, trial in disturbed.items():
        other = undisturbed[number]
        assert (trial.config, trial.origin, trial.reports) == (
            other.config,
            other.origin,
            other.reports,
        )
        assert trial.metrics["weights_sha256"] == other.metrics["weights_sha256"]


@pytest.mark.parametrize("bucket", ["file"], indirect=True)
def test_a_metric_that_no_trial_reports_is_named_with_those_that_are(sweep: Run):
    grid = _grid([0.1]).model_copy(update={"metric": "accuracy"})
    config = {"steps": 5, "step_seconds": 0.0}
    sweep.contract = sweep.contract.model_copy(update={"sweep": grid, "config": config})
    assert sweep.drive() == 1
    failure = sweep.progress().failure
    assert failure is not None
    assert failure.kind == "Application"
    assert "trial 1 is done and has not reported 'accuracy'" in failure.message
    assert "it reported loss" in failure.message


@pytest.mark.parametrize("bucket", ["file"], indirect=True)
def test_an_image_without_optuna_is_named(sweep: Run):
    grid = _grid([0.1], samples=2, library="Optuna")
    sweep.contract = sweep.contract.model_copy(update={"sweep": grid})
    assert sweep.drive() == 1
    failure = sweep.progress().failure
    assert failure is not None
    assert failure.kind == "Application"
    assert "the training image has no package optuna; build it with EXTRAS=optuna" in (
        failure.message
    )
    assert failure.message in _page(sweep)


def test_the_sample_runs_on_this_machine_and_its_trials_are_shown(tmp_path: Path):
    manifest = yaml.safe_load((ROOT / "manifests" / "samples" / "sweep.yaml").read_text())
    spec = manifest["spec"]
    spec["training"]["config"] = {"epochs": 2}
    spec["sweep"] |= {"samples": 3, "graceSteps": 1000}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(manifest))
    run = _command(tmp_path, "run", "run.yaml", "--local")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "of 3; trainingrun sweep sweep --local shows all" in run.stdout
    shown = _command(tmp_path, "sweep", "sweep", "--local")
    assert shown.returncode == 0, shown.stderr
    heads, *rows = shown.stdout.splitlines()
    assert heads.split()[:4] == ["TRIAL", "STATE", "STEP", "accuracy"]
    assert [row.split()[:2] for row in rows[:3]] == [
        [str(number), "Succeeded"] for number in (1, 2, 3)
    ]
    assert sum("*" in row for row in rows[:3]) == 1
    assert rows[3].startswith('best config  {"lr": 0.')


def _command(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    code = "from trainingrun.cli.main import app; app()"
    paths = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images"))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
