"""Fixtures for tests on this machine: a real S3 server, and a run's folder in either store."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.binaries import skipping_unavailable
from support.local_runs import two_workers
from support.s3 import CREDENTIALS, S3Server, running_s3
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV
from trainingrun_runtime.store.bucket import Bucket

_names = itertools.count(1)


def _a_server(folder: Path) -> Iterator[S3Server]:
    """A real S3 server; skips where it cannot be had, but not in CI."""
    with skipping_unavailable(), running_s3(folder) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, one for the whole session."""
    yield from _a_server(tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server of the module's own, which its tests may stop."""
    yield from _a_server(tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="session")
def claim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The variable's value that says where claim `runs` is mounted."""
    folder = tmp_path_factory.mktemp("claim")
    (folder / "lost+found").mkdir()
    return f"runs={folder}"


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory, claim: str) -> Iterator[LocalRay]:
    """A Ray of two workers with the S3 server's credentials and the claim, one for all tests of a
    module."""
    variables = {**CREDENTIALS, CLAIM_FOLDERS_ENV: claim}
    with two_workers(tmp_path_factory.mktemp("ray"), **variables) as cluster:
        yield cluster


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 server, with its credentials in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(params=["s3", "file", "pvc"])
def bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    """An empty run folder: every promise about it holds for S3, claim and local folder alike."""
    if request.param == "pvc":
        monkeypatch.setenv(CLAIM_FOLDERS_ENV, request.getfixturevalue("claim"))
        return Bucket.open(f"pvc://runs/team/digits-{next(_names)}")
    if request.param == "file":
        return Bucket.open(f"file://{tmp_path}/runs/digits")
    server: S3Server = request.getfixturevalue("s3")
    return Bucket.open(f"s3://runs/team/digits-{next(_names)}", server.url, "us-east-1")
