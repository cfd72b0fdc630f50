"""Whoever follows a run's folder is ended by the run, and by no moment of its bucket."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.deadlines import ends_within
from trainingrun import RunError
from trainingrun.client import following, kept_logs, log_lines
from trainingrun.client.log_lines import Batch, Selection
from trainingrun.client.places import Place
from trainingrun_protocol.progress import ProgressResult
from trainingrun_runtime.store import kept_output, run_result
from trainingrun_runtime.store.bucket import Bucket, StorageError
from trainingrun_runtime.store.kept_output import Source
from trainingrun_runtime.store.lease import Lease

AWAY = StorageError("s3://runs at http://s3 answered with an error: HTTP 503")
PROXY: list[Any] = []
"""What the store's client makes of HTML with status 200: a list in which nothing is."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log_lines, "POLL_S", 0.02)
    with ends_within(30):
        yield


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a list, and what a read gives now; None: what is there."""
    now, listed, read = SimpleNamespace(list=None, read=None), Bucket.list, Bucket.read

    def or_fault(fault: Any, call: Any, *arguments: Any) -> Any:
        if isinstance(fault, Exception):
            raise fault
        return call(*arguments) if fault is None else fault

    monkeypatch.setattr(Bucket, "list", lambda *given: or_fault(now.list, listed, *given))
    monkeypatch.setattr(Bucket, "read", lambda *given: or_fault(now.read, read, *given))
    return now


@pytest.fixture
def lease(tmp_path: Path) -> Lease:
    """Of a run that goes on, and of which nothing is known but its folder."""
    found = Lease.take(Bucket.open((tmp_path / "digits-1a2b3c4d").as_uri()), 1, "pod", time.time())
    put(found.bucket, "epoch 1")
    return found


def put(bucket: Bucket, text: str, rank: int = 0) -> None:
    now = time.time()
    content = kept_output.written(now, text).encode()
    bucket.put(kept_output.key(Source(1, 1, rank), now), content)


def followed(bucket: Bucket, said: list[str]) -> Iterator[Batch]:
    return kept_logs.batches(Place(bucket.root), Selection(), True, said.append)


def texts(*batches: Batch) -> list[str]:
    return [line.text for batch in batches for line in batch.lines]


@pytest.mark.parametrize("fault", [AWAY, PROXY], ids=["error", "html"])
def test_a_store_that_is_away_for_a_moment_ends_nothing(
    lease: Lease, store: SimpleNamespace, fault: Any
) -> None:
    said: list[str] = []
    found = followed(lease.bucket, said)
    assert texts(next(found)) == ["epoch 1"]
    store.list = fault
    assert texts(*(next(found) for _ in range(5))) == []
    store.list = None
    put(lease.bucket, "epoch 2")
    run_result.write(lease, ProgressResult())
    assert (texts(*found), said) == (["epoch 2"], [])


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [(AWAY, "answered with an error: HTTP 503"), (PROXY, r"does not list lease/, which this run")],
    ids=["error", "html"],
)
def test_a_store_that_stays_away_is_a_sentence(
    lease: Lease,
    store: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    fault: Any,
    sentence: str,
) -> None:
    monkeypatch.setattr(following, "AWAY_S", 0.2)
    said: list[str] = []
    found = followed(lease.bucket, said)
    next(found)
    store.list, began = fault, time.monotonic()
    with pytest.raises(RunError, match=sentence):
        list(found)
    assert time.monotonic() - began > 0.2
    assert said == [], "and nobody has said that the run has ended"


def test_the_last_lines_are_waited_for_where_the_store_is_away_at_the_end(
    lease: Lease, store: SimpleNamespace
) -> None:
    found = followed(lease.bucket, [])
    assert texts(next(found), next(found)) == ["epoch 1"]
    put(lease.bucket, "epoch 2")
    put(lease.bucket, "epoch 2", rank=1)
    run_result.write(lease, ProgressResult())
    store.read = AWAY
    assert texts(*(next(found) for _ in range(6))) == []
    store.read = None
    assert texts(*found) == ["epoch 2", "epoch 2"]
