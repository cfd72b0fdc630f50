"""A whole training on each store that the check accepts, interrupted, and read by the commands."""

import csv
import io
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.cli_server import call
from support.local_runs import Run, two_workers
from support.processes import wait_for
from support.stored_trainings import SAVED_AT, STEPS
from support.stores import FAULTS, SERVERS, Store
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_runtime.store.bucket import Bucket

pytestmark = pytest.mark.slow

SUSPENDED_AT = 4
_on_each = pytest.mark.parametrize(
    "server", [name for name in SERVERS if name not in FAULTS], indirect=True
)
_names = itertools.count(1)


class Rays:
    """One Ray at a time; stores with the same credentials share one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment: dict[str, str] | None = None
        self._stack = ExitStack()

    def of(self, environment: dict[str, str]) -> LocalRay:
        if self._environment != environment:
            self.stop()
            logs = self._folder / f"{next(_names)}"
            logs.mkdir()
            self._ray = self._stack.enter_context(
                two_workers(logs, uploads_output=True, **environment)
            )
            self._environment = environment
        return self._ray

    def stop(self) -> None:
        self._stack.close()
        self._environment = None


@pytest.fixture(scope="module")
def rays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rays]:
    found = Rays(tmp_path_factory.mktemp("ray"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    """By function, the digest of the weights that a whole run in a folder has ended with."""
    return {}


@pytest.fixture
def a_run(rays: Rays, store: Store, tmp_path: Path) -> Iterator["Training"]:
    found = Training(rays.of(store.environment), store, tmp_path)
    yield found
    for run in found.runs:
        run.stop()


class Training:
    """Makes runs on the store."""

    def __init__(self, ray: LocalRay, store: Store, folder: Path) -> None:
        self.runs: list[Run] = []
        self._ray, self._store, self._folder = ray, store, folder

    def on_the_store(self, function: str, **config: object) -> Run:
        uri = f"{self._store.uri}/team a/{function}-{next(_names)}"
        return self._made(function, config, Bucket.open(uri, self._store.endpoint))

    def undisturbed(self, function: str) -> str:
        """The digest of the weights of a whole run in a folder of this machine."""
        folder = self._folder / "whole"
        run = self._made(function, {}, Bucket.open(f"file://{folder}"))
        assert run.drive() == 0, run.log()
        return str(run.metrics()["weights_sha256"])

    def _made(self, function: str, config: dict[str, object], bucket: Bucket) -> Run:
        folder = self._folder / f"run-{len(self.runs)}"
        folder.mkdir()
        run = Run(self._ray, folder, f"support.stored_trainings:{function}", config, bucket)
        self.runs.append(run)
        return run


@_on_each
def test_with_a_session_it_is_suspended_and_resumed(
    a_run: Training, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    run = a_run.on_the_store("with_session", step_seconds=1.0)  # it is suspended between steps
    assert run.drive(suspend_at=SUSPENDED_AT) == SUSPEND_EXIT_CODE, run.log()
    run.contract = run.contract.model_copy(update={"config": {}})
    assert run.drive() == 0, run.log()
    assert SUSPENDED_AT <= (run.progress().resumed_from_step or 0) < STEPS
    _ended_alike(run, a_run, undisturbed)
    _is_read_by_the_commands(run, tmp_path)


@_on_each
def test_without_a_session_it_loses_a_rank_and_goes_on(
    a_run: Training, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    run = a_run.on_the_store("without_session", dies_at=str(told))
    run.start()
    run.wait_until(lambda progress: progress.checkpoint and progress.checkpoint.step == SAVED_AT)
    told.touch()
    assert run.wait() == 0, run.log()
    _ended_alike(run, a_run, undisturbed)
    _is_read_by_the_commands(run, tmp_path, f"goes on at step {SAVED_AT}")


def _ended_alike(run: Run, training: Training, undisturbed: dict[str, str]) -> None:
    function = str(run.contract.function).rpartition(":")[2]
    if function not in undisturbed:
        undisturbed[function] = training.undisturbed(function)
    assert run.metrics()["weights_sha256"] == undisturbed[function]


def _is_read_by_the_commands(run: Run, folder: Path, *printed: str) -> None:
    place = [run.bucket.root]
    if run.bucket.endpoint:
        place += ["--endpoint", run.bucket.endpoint]
    code, output, errors = call("checkpoints", "list", *place)
    assert (code, errors) == (0, "")
    newest = [line.split() for line in output.splitlines() if "newest" in line]
    assert [row[0] for row in newest] == [f"{STEPS}"]
    code, output, errors = call("metrics", *place, "--csv")
    assert (code, errors) == (0, "")
    rows = csv.DictReader(io.StringIO(output))
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    for rank in ("0", "1"):
        said = [*printed, f"trained step {STEPS - 1}"]
        wait_for(lambda rank=rank, said=said: _has_printed(said, *place, "--rank", rank))
    page = folder / "page.html"
    code, _, errors = call("report", *place, "--html", "--to", str(page))
    assert (code, errors) == (0, "")
    assert "<h3>loss</h3>" in page.read_text()


def _has_printed(said: list[str], *place: str) -> bool:
    """Whether that is uploaded."""
    output = call("logs", *place)[1]
    return all(each in output for each in said)
