"""A training process that is killed has a successor that is waiting for it."""

from pathlib import Path

from support.local_runs import Run, two_workers
from trainingrun.api.contract import RecordKind


def test_a_prestarted_worker_with_everything_loaded_takes_over_from_a_killed_process(
    tmp_path: Path,
) -> None:
    loaded = tmp_path / "loaded"
    loaded.mkdir()
    with two_workers(tmp_path, KILLS_ITSELF_FOLDER=str(loaded)) as ray:
        run = Run(ray, tmp_path, "support.kills_itself:train", {})
        assert run.drive() == 0, run.log()
    assert [r.kind for r in run.progress().records].count(RecordKind.WORKER_LOST) == 1
    assert run.metrics()["taken_over"] is True
