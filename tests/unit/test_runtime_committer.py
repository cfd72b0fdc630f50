"""An uploaded checkpoint is committed also by a store that gives wrong answers for a while."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blake3 import blake3

from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.coordinator.checkpoints import UploadedCheckpoint
from trainingrun_runtime.driver import committer as module
from trainingrun_runtime.driver.committer import Committer
from trainingrun_runtime.store import manifest, verification
from trainingrun_runtime.store.bucket import Bucket, Entry
from trainingrun_runtime.store.manifest import FileDigest, digest_file
from trainingrun_runtime.store.storage_errors import UnreachableError

CONTENT = b"weights"


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

    def __init__(self, folder: Path, keep: int = 5) -> None:
        self.bucket = Bucket.open(f"file://{folder}/run")
        self.done: list[int] = []
        self.given_up: list[int] = []
        self.ended = Ended()
        self._uploads: list[UploadedCheckpoint] = []
        lease: Any = SimpleNamespace(bucket=self.bucket, fencing_token=1, require=lambda: None)
        contract: Any = SimpleNamespace(
            attempt=1, needed_metrics=(), checkpoints=ContractCheckpoints(keep=keep)
        )
        reports: Any = SimpleNamespace(write=lambda: None)
        self.committer = Committer(self, contract, lease, reports)

    def __getattr__(self, name: str) -> Any:
        """The coordinator's calls."""
        calls: dict[str, Callable[..., Any]] = {
            "next_upload": self._next,
            "committed": lambda upload, *_: self.done.append(upload.step),
            "abandoned": lambda upload: self.given_up.append(upload.step),
            "validating": list,
            "storage": lambda *_: None,
        }
        return SimpleNamespace(remote=calls[name])

    def _next(self, _: float) -> UploadedCheckpoint | None:
        if self._uploads:
            return self._uploads.pop(0)
        self.ended.set()
        return None

    def commits(self, *steps: int) -> None:
        """Rank 0 has uploaded checkpoints of these steps, which are committed or abandoned."""
        self._uploads = []
        self.ended.clear()
        for step in steps:
            path = f"checkpoints/0001-000001/step-{step}"
            digest = asdict(FileDigest(len(CONTENT), blake3(CONTENT).hexdigest()))
            self.bucket.put(f"{path}/state.pt", CONTENT)
            self.bucket.put(f"{path}/{digest_file(0)}", json.dumps({"state.pt": digest}).encode())
            self._uploads.append(
                UploadedCheckpoint(f"{self.bucket.path}/{path}", step, 1, {}, ranks=(0,))
            )
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
