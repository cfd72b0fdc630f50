"""Where the time of a start and of a recovery went, of a real run of which a rank is killed."""

import json
import time
from pathlib import Path

import pytest

from support.cli_server import call
from support.disturbed_runs import Disturbed
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_runtime.report_page import traces
from trainingrun_runtime.report_page.traces import Trace
from trainingrun_runtime.store import start_traces

RANKS = ["rank 0", "rank 1"]
TICK_S = 0.02
"""A process's begin is known to a hundredth of a second."""
OF_A_RANK = [
    "ray.train.function.call",
    "trainingrun.function.import",
    "trainingrun.checkpoint.fetch",
    "training.model.build",
    "trainingrun.restore",
    "training.loop.begin",
    "training.first_step",
]
OF_A_GROUP = ["ray.train.worker_group.start", "ray.train.process_group.start"]


def phases(trace: Trace, process: str) -> list[str]:
    return [span.name for span in trace.spans if span.process == process]


def moments(trace: Trace, process: str, phase: str) -> tuple[float, float]:
    (found,) = [one for one in trace.spans if (one.process, one.name) == (process, phase)]
    assert found.begin is not None
    assert found.end is not None
    return found.begin, found.end


def test_a_run_of_which_a_rank_is_killed_has_the_trace_of_its_start_and_of_its_recovery(
    ray: LocalRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Disturbed(ray, tmp_path / "run", {"seed": 1, "steps": 20, "signals": {"1": "SIGKILL"}})
    applied = time.time()
    assert run.drive() == 0, run.log()
    ended = time.time()

    started, recovered = traces.of(start_traces.read(run.bucket))
    assert [
        (one.recovery, one.start.attempt, one.start.group, one.start.world_size, one.start.step)
        for one in (started, recovered)
    ] == [(False, 1, 1, 2, 0), (True, 1, 2, 2, 12)]
    assert phases(started, "driver") == [
        "python.start",
        "trainingrun.lease.take",
        "ray.connect",
        "ray.train.import",
        "ray.train.controller.start",
    ]
    assert phases(started, "worker group") == OF_A_GROUP
    assert phases(recovered, "driver") == []
    assert phases(recovered, "worker group") == [
        "trainingrun.loss.detect",
        "trainingrun.last_step.save",
        "ray.train.worker_group.stop",
        *OF_A_GROUP,
    ]
    for trace in (started, recovered):
        for rank in RANKS:
            found = [name for name in phases(trace, rank) if name != "python.start"]
            assert found == OF_A_RANK, "one after the other"
        assert trace.end is not None
        for span in trace.spans:
            assert span.begin is not None
            assert span.end is not None
            assert (
                applied - TICK_S <= trace.origin <= span.begin <= span.end <= trace.end <= ended
            ), span
    assert started.end is not None
    assert started.end < recovered.origin, "the steps between them are of neither"
    waits = run.progress().seconds
    loaded = moments(started, "driver", "python.start")[1]
    first_step = moments(started, "rank 0", "training.first_step")[0]
    assert waits.startup == pytest.approx(first_step - loaded, abs=0.1)
    first_step = moments(recovered, "rank 0", "training.first_step")[0]
    assert waits.recovery == pytest.approx(first_step - recovered.origin, abs=0.1)

    monkeypatch.chdir(tmp_path)
    code, output, errors = call("trace", run.bucket.root, "--chrome", "trace.json")
    assert (code, errors) == (
        0,
        "trace.json written; ui.perfetto.dev and chrome://tracing open it\n",
    )
    assert f"{started.title}\n" in output
    assert f"{recovered.title}\n" in output
    assert output.count("training.first_step") >= 4
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    whole = [event for event in events if event["ph"] == "X"]
    assert len(whole) == len(started.spans) + len(recovered.spans)
    assert all(event["ts"] >= (applied - TICK_S) * 1e6 and event["dur"] >= 0 for event in whole)
    page = run.bucket.get("report.html")
    assert page is not None
    assert started.title in page.decode()
