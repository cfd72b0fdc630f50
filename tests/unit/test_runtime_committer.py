"""An uploaded checkpoint is committed, also by a store that gives wrong answers for a while.

What a driver deletes and adds besides, it deletes and adds only while it holds the run.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.checkpoints import uploaded
from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.coordinator.checkpoints import LateMetrics, UploadedCheckpoint
from trainingrun_runtime.driver import committer as module
from trainingrun_runtime.driver.committer import Committer
from trainingrun_runtime.store import manifest, verification
from trainingrun_runtime.store.bucket import Bucket, Entry
from trainingrun_runtime.store.lease import Lease, NotListedError
from trainingrun_runtime.store.manifest import digest_file
from trainingrun_runtime.store.storage_errors import UnreachableError


class Ended(threading.Event):
    """What ends the driver's threads; it notes the pauses, and nobody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return self.is_set()


class Driver:
    """A committer with what it calls, in a bucket of this machine."""

    def __init__(self, folder: Path, keep: int = 5, best: str | None = None) -> None:
        self.bucket = Bucket.open(f"file://{folder}/run")
        self.done: list[int] = []
        self.given_up: list[int] = []
        self.ended = Ended()
        self.group = 1
        self._waiting: list[UploadedCheckpoint | LateMetrics] = []
        contract: Any = SimpleNamespace(
            attempt=1,
            needed_metrics=(),
            checkpoints=ContractCheckpoints(keep=keep, best_metric=best),
        )
        reports: Any = SimpleNamespace(write=lambda: None)
        lease = Lease.take(self.bucket, 1, "pod-a", 0.0)
        self.committer = Committer(self, contract, lease, reports)

    def __getattr__(self, name: str) -> Any:
        """The coordinator's calls."""
        calls: dict[str, Callable[..., Any]] = {
            "next_upload": self._next,
            "committed": lambda upload, *_: self.done.append(upload.step),
            "abandoned": lambda upload: self.given_up.append(upload.step),
            "attached": lambda _: None,
            "in_use": lambda: (self.group, [one.path for one in self._uploads()]),
            "storage": lambda *_: None,
        }
        return SimpleNamespace(remote=calls[name])

    def _next(self, _: float) -> UploadedCheckpoint | LateMetrics | None:
        if self._waiting:
            return self._waiting.pop(0)
        self.ended.set()
        return None

    def _uploads(self) -> list[UploadedCheckpoint]:
        return [one for one in self._waiting if isinstance(one, UploadedCheckpoint)]

    def commits(self, *steps: int) -> None:
        """Rank 0 has uploaded checkpoints of these steps, which are committed or abandoned."""
        self.processes(*(uploaded(self.bucket, step) for step in steps))

    def processes(self, *waiting: UploadedCheckpoint | LateMetrics) -> None:
        """Nothing else waits."""
        self._waiting = list(waiting)
        self.ended.clear()
        self.committer.run(self.ended)


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.ray, "get", lambda answer: answer)


def wrong(
    monkeypatch: pytest.MonkeyPatch, method: str, of: str, answer: Callable[[Any], Any], times: int
) -> None:
    """The store gives another answer, so many times, about what ends so."""
    asked, left = getattr(Bucket, method), [answer] * times

    def answers(self: Bucket, key: str) -> Any:
        right = asked(self, key)
        return left.pop()(right) if left and key.endswith(of) else right

    monkeypatch.setattr(Bucket, method, answers)


WRONG = [
    pytest.param(
        ("list", "step-7", lambda found: [Entry(one.key, one.size - 1) for one in found]),
        id="a smaller file",
    ),
    pytest.param(("get", "rank-0.json", lambda _: None), id="no digests"),
    pytest.param(("get", "rank-0.json", lambda content: content[:-1]), id="half the digests"),
]
"""The method that gives an answer, about which keys, and what the answer is."""


@pytest.mark.parametrize("answer", WRONG)
def test_a_few_wrong_answers_about_what_was_uploaded_abandon_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: tuple[str, str, Callable[..., Any]]
) -> None:
    driver = Driver(tmp_path)
    wrong(monkeypatch, *answer, times=len(verification.PAUSES_S))
    driver.commits(7)
    assert (driver.done, driver.given_up) == ([7], [])
    assert driver.committer.failure is None
    assert [one.step for one in manifest.committed(driver.bucket)] == [7]
    assert driver.ended.pauses == list(verification.PAUSES_S)


def test_a_few_404s_of_a_file_that_was_uploaded_abandon_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for by its name where the list lacks it."""
    driver = Driver(tmp_path)
    wrong(monkeypatch, "list", "step-7", lambda _: [], times=len(verification.PAUSES_S))
    wrong(monkeypatch, "size", "state.pt", lambda _: None, times=len(verification.PAUSES_S))
    driver.commits(7)
    assert (driver.done, driver.given_up) == ([7], [])


@pytest.mark.parametrize("answer", WRONG)
def test_what_stays_wrong_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: tuple[str, str, Callable[..., Any]]
) -> None:
    driver = Driver(tmp_path)
    wrong(monkeypatch, *answer, times=len(verification.PAUSES_S) + 1)
    driver.commits(7)
    assert (driver.done, driver.given_up) == ([], [7])
    assert str(driver.committer.failure).startswith("the checkpoint of step 7 could not be")
    assert manifest.committed(driver.bucket) == []


def without_files(driver: Driver, step: int) -> UploadedCheckpoint:
    """Code has reported `Checkpoint.from_directory` of a folder into which it has written none."""
    path = f"checkpoints/0001-000001/step-{step}"
    driver.bucket.put(f"{path}/{digest_file(0)}", b"{}")
    return UploadedCheckpoint(f"{driver.bucket.path}/{path}", step, 1, {})


def test_a_checkpoint_without_files_pushes_out_none_that_has_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(tmp_path, keep=2)
    driver.commits(1, 2)
    driver.processes(without_files(driver, 3), without_files(driver, 4))
    assert [one.step for one in driver.committer.listed()] == [1, 2]
    assert (driver.done, driver.given_up) == ([1, 2], [3, 4])
    assert driver.committer.failure is None, "it may be the last one of the run"
    said = [one.message for one in caplog.records if "without any file" in one.message]
    assert [message.partition(",")[0] for message in said] == [
        "the checkpoint of step 3 was reported without any file",
        "the checkpoint of step 4 was reported without any file",
    ]
    driver.commits(5)
    assert [one.step for one in driver.committer.listed()] == [2, 5]


def test_a_checkpoint_that_was_not_committed_is_not_forgotten_for_one_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path)
    wrong(monkeypatch, "get", "rank-0.json", lambda _: None, times=len(verification.PAUSES_S) + 1)
    driver.commits(7)
    driver.processes(without_files(driver, 8))
    assert str(driver.committer.failure).startswith("the checkpoint of step 7 could not be")


def test_a_page_in_place_of_a_list_makes_no_checkpoint_one_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy's, which is taken for an empty list, of the checkpoint and of the lease alike."""
    driver = Driver(tmp_path)
    for folder in ("step-7", "lease"):
        wrong(monkeypatch, "list", folder, lambda _: [], times=1)
    driver.processes(replace(uploaded(driver.bucket, 7), ranks=None))
    assert (driver.done, driver.given_up) == ([7], [])
    assert [list(one.files) for one in driver.committer.listed()] == [["state.pt"]]


def test_the_files_of_a_manifest_that_is_deleted_are_deleted_by_a_later_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may go away between the two, and nothing names the files then."""
    driver = Driver(tmp_path, keep=1)

    def is_away(self: Bucket, folder: str) -> None:
        raise UnreachableError("the store cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "delete_folder", is_away)
        driver.commits(1, 2)
    assert [one.step for one in manifest.committed(driver.bucket)] == [2]
    assert driver.bucket.list("checkpoints/0001-000001/step-1") != []
    driver.commits(3)
    folders = {entry.key.split("/")[2] for entry in driver.bucket.list("checkpoints")}
    assert folders == {"step-3"}


def test_a_superseded_driver_deletes_no_checkpoint_that_its_successor_restores(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path, keep=1)
    driver.commits(1)
    waiting = uploaded(driver.bucket, 2)
    (restored,) = manifest.committed(driver.bucket)
    Lease.take(driver.bucket, 1, "pod-b", 1.0)
    driver.processes(waiting)
    assert driver.done == [1, 2]
    assert restored in manifest.committed(driver.bucket)
    assert verification.verify(driver.bucket, restored) is None


def test_a_superseded_driver_adds_no_metrics(tmp_path: Path) -> None:
    """Its successor may have made this step's checkpoint again."""
    driver = Driver(tmp_path)
    driver.commits(1)
    driver.processes(LateMetrics(1, {"accuracy": 0.5}))
    Lease.take(driver.bucket, 1, "pod-b", 1.0)
    driver.processes(LateMetrics(1, {"loss": 0.1}))
    assert [made.metrics for made in manifest.committed(driver.bucket)] == [{"accuracy": 0.5}]


def test_a_list_without_the_newest_checkpoint_is_no_list_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would succeed without a checkpoint."""
    driver = Driver(tmp_path)
    assert driver.committer.listed() == []
    driver.commits(7, 8)
    wrong(monkeypatch, "list", "manifests", lambda found: found[:-1], times=1)
    with pytest.raises(NotListedError, match=r"does not list manifests/000001-000002\.json, which"):
        driver.committer.listed()
    assert [one.step for one in driver.committer.listed()] == [7, 8]


def test_metrics_that_a_list_lacks_cost_no_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, keep=1, best="accuracy")
    driver.commits(1)
    driver.processes(LateMetrics(1, {"accuracy": 0.9}))
    wrong(monkeypatch, "list", "metrics", lambda _: [], times=1)
    driver.commits(2)
    assert [one.step for one in manifest.committed(driver.bucket)] == [1, 2]
    driver.commits(3)
    assert [one.step for one in driver.committer.listed()] == [1, 3]


def named(step: int, group: int) -> str:
    return f"step-{step:010d}-{group}"


def folders(driver: Driver) -> list[str]:
    return sorted({entry.key.split("/")[2] for entry in driver.bucket.list("checkpoints")})


def test_what_a_lost_worker_group_has_not_uploaded_whole_goes_with_a_commit_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path)
    driver.processes(uploaded(driver.bucket, 1, named(1, group=1)))
    uploaded(driver.bucket, 2, named(2, group=1))
    uploaded(driver.bucket, 4, named(4, group=2))  # is on its way
    driver.group = 2
    driver.processes(uploaded(driver.bucket, 3, named(3, group=2)))
    assert folders(driver) == [named(1, 1), named(3, 2), named(4, 2)]
    driver.group = 3
    # What this driver has committed stays, also where a list leaves it out.
    wrong(monkeypatch, "list", "manifests", lambda found: found[1:], times=1)
    driver.processes(uploaded(driver.bucket, 5, named(5, group=3)))
    assert folders(driver) == [named(1, 1), named(3, 2), named(5, 3)]


def test_what_a_lost_worker_group_has_left_goes_once_the_next_one_begins(tmp_path: Path) -> None:
    """In a store without room for more the next one has no commit while it is there."""
    driver = Driver(tmp_path, keep=2)
    driver.processes(*(uploaded(driver.bucket, step, named(step, group=1)) for step in (1, 2)))
    uploaded(driver.bucket, 3, named(3, group=1))
    driver.processes()
    assert named(3, 1) in folders(driver), "it is being uploaded"
    driver.group = 2
    uploaded(driver.bucket, 4, named(4, group=2))
    driver.processes()
    assert folders(driver) == [named(1, 1), named(2, 1), named(4, 2)]


def test_no_committed_checkpoint_goes_before_a_commit_of_the_next_worker_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the one that the group restores, where the newest is damaged."""
    driver = Driver(tmp_path, keep=1)
    driver.processes(uploaded(driver.bucket, 1, named(1, group=1)))
    wrong(monkeypatch, "list", "manifests", lambda found: found[:-1], times=1)
    driver.processes(uploaded(driver.bucket, 2, named(2, group=1)))
    assert folders(driver) == [named(1, 1), named(2, 1)], "the store's wrong answer kept it"
    driver.group = 2
    uploaded(driver.bucket, 3, named(3, group=1))
    driver.processes()
    assert folders(driver) == [named(1, 1), named(2, 1)]
    driver.processes(uploaded(driver.bucket, 4, named(4, group=2)))
    assert folders(driver) == [named(4, 2)]


def test_a_driver_without_a_commit_does_not_sweep_for_a_new_worker_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would delete nothing, and read all manifests while the ranks restore one."""
    driver, swept = Driver(tmp_path), list[Any]()
    monkeypatch.setattr(Committer, "sweep", lambda self, **how: swept.append(how))
    driver.group = 2
    driver.processes()
    assert swept == []


def test_a_sweep_for_a_new_worker_group_that_fails_is_made_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, now = Driver(tmp_path), [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    driver.processes(uploaded(driver.bucket, 1, named(1, group=1)))
    uploaded(driver.bucket, 2, named(2, group=1))
    driver.group = 2
    wrong(monkeypatch, "list", "manifests", lambda found: found[:-1], times=1)
    for seconds, left in ((0, [1, 2]), (29, [1, 2]), (2, [1])):
        now[0] += seconds
        driver.processes()
        assert folders(driver) == [named(step, 1) for step in left]


def test_an_upload_of_a_former_worker_group_that_waits_for_its_commit_stays(tmp_path: Path) -> None:
    """As the last step, which survivors have saved when the next group begins."""
    driver = Driver(tmp_path)
    waiting = [uploaded(driver.bucket, step, named(step, group=1)) for step in (1, 2)]
    driver.group = 2
    driver.processes(*waiting)
    assert (driver.done, driver.given_up) == ([1, 2], [])


def test_a_driver_that_is_done_leaves_no_checkpoint_that_is_not_committed(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.processes(uploaded(driver.bucket, 1, named(1, group=1)))
    uploaded(driver.bucket, 2, named(2, group=1))
    uploaded(driver.bucket, 3, "of-the-users-code")
    driver.committer.sweep(at_end=True)
    assert folders(driver) == ["of-the-users-code", named(1, 1)]
