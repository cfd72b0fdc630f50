"""The gateway with which `make chaos` has the bucket answer badly, before a real bucket."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from chaos.bucket import STORAGE_PROXY
from support.ports import free_port
from support.s3 import ACCESS_KEY, SECRET_KEY, running_s3


@contextmanager
def behind(url: str, mode: str, timeout: str = "30s") -> Iterator[S3Store]:
    """The bucket as a client has it that goes by way of the gateway."""
    port = free_port()
    environment = {"TARGET": url.removeprefix("http://"), "MODE": mode, "PORT": str(port)}
    environment["DELAY_S"] = str(DELAY_S)
    command = [sys.executable, "-c", STORAGE_PROXY.read_text()]
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE
    ) as running:
        try:
            assert running.stdout.readline() == b"listening\n"
            yield S3Store(
                "runs",
                endpoint=f"http://127.0.0.1:{port}",
                access_key_id=ACCESS_KEY,
                secret_access_key=SECRET_KEY,
                region="us-east-1",
                client_options={"allow_http": True, "timeout": timeout},
                retry_config={"max_retries": 0},
            )
        finally:
            running.kill()


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server.url


DELAY_S = 0.3
CONTENT = os.urandom(3_000_000)


def test_a_slow_bucket_does_everything_slowly(url):
    began = time.monotonic()
    with behind(url, "slow") as store:
        obstore.put(store, "slow/it", CONTENT)
        assert obstore.head(store, "slow/it")["size"] == len(CONTENT)
        assert obstore.get(store, "slow/it").bytes().to_bytes() == CONTENT
        names = [found["path"] for part in obstore.list(store, "slow") for found in part]
        obstore.delete(store, "slow/it")
    assert names == ["slow/it"]
    assert time.monotonic() - began >= 5 * DELAY_S


def test_a_throttling_bucket_does_every_second_request(url):
    with behind(url, "throttled") as store:
        obstore.put(store, "throttled/it", b"1")
        with pytest.raises(BaseError, match="SlowDown"):
            obstore.get(store, "throttled/it")
        assert obstore.get(store, "throttled/it").bytes().to_bytes() == b"1"


def test_a_bucket_that_refuses_writes_is_still_read(url):
    with behind(url, "") as store:
        obstore.put(store, "read-only/it", b"1")
    with behind(url, "read-only") as store:
        assert obstore.get(store, "read-only/it").bytes().to_bytes() == b"1"
        with pytest.raises(BaseError, match="AccessDenied"):
            obstore.put(store, "read-only/it", b"2")


@pytest.mark.parametrize(
    ("mode", "says"), [("503", "SlowDown"), ("429", "TooManyRequests"), ("hanging", "timed? ?out")]
)
def test_a_bucket_that_does_nothing_says_so_or_not(url, mode, says):
    with behind(url, mode, timeout="2s") as store, pytest.raises(BaseError, match=says):
        obstore.get(store, "it")


def test_a_bucket_in_conflict_answers_so_every_second_time(url):
    with behind(url, "conflicts") as store:
        obstore.put(store, "conflicts/it", b"1")
        with pytest.raises(BaseError, match="OperationAborted"):
            obstore.put(store, "conflicts/it", b"1")


def test_a_forgetful_bucket_keeps_all_but_files_of_checkpoints(url):
    with behind(url, "forgetful") as store:
        obstore.put(store, "forgetful/lease/1", b"1")
        obstore.put(store, "forgetful/checkpoints/1", b"1")
        names = [found["path"] for part in obstore.list(store, "forgetful") for found in part]
    assert names == ["forgetful/lease/1"]
