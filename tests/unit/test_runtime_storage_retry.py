"""Waiting for the store: how long, for what, and what is reported."""

import errno
import itertools
from collections.abc import Callable

import pytest

from trainingrun_protocol.contract import STORAGE_PATIENCE_ENV
from trainingrun_runtime.store.storage_errors import (
    AbsentError,
    BucketMissingError,
    CredentialsError,
    DamagedError,
    DeniedError,
    DiskFullError,
    StorageError,
    UnreachableError,
    recognize,
)
from trainingrun_runtime.store.storage_retry import LONGEST_WAIT_S, StorageRetry


class Store:
    """Fails with one error until a time, and counts how often it was asked."""

    def __init__(self, error: Exception, until: float) -> None:
        self.now, self.asked, self.told = 0.0, 0, [""]
        self._error, self._until = error, until

    def retry(self) -> StorageRetry:
        return StorageRetry(self.told.append, self._sleep, lambda: self.now)  # type: ignore[arg-type]

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def request(self) -> str:
        self.asked += 1
        if self.now < self._until:
            raise self._error
        return "answer"


def test_an_outage_is_waited_for_however_long_it_is():
    store = Store(UnreachableError("nobody answers"), until=36_000)
    assert store.retry()(store.request) == "answer"
    assert store.now <= 36_000 + LONGEST_WAIT_S
    assert store.told[1] == "nobody answers"
    assert store.told[-1] is None


def test_a_store_that_answers_is_not_reported():
    store = Store(UnreachableError(""), until=0)
    assert store.retry()(store.request) == "answer"
    assert store.told == [""]


@pytest.mark.parametrize(
    "error", [CredentialsError, BucketMissingError, DeniedError, DiskFullError]
)
def test_what_somebody_has_to_correct_ends_after_a_limit(
    error: Callable[[str], StorageError], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(STORAGE_PATIENCE_ENV, "120")
    store = Store(error("no"), until=3600)
    with pytest.raises(StorageError) as caught:
        store.retry()(store.request)
    assert caught.value.waited
    assert 120 <= store.now <= 120 + LONGEST_WAIT_S
    assert store.told[-2:] == ["no; this is retried for 120 s", None]


def test_an_error_that_is_certain_ends_the_wait_before_it():
    told = list[str | None]()
    errors: list[Exception] = [UnreachableError("away"), DamagedError("torn")]
    with pytest.raises(DamagedError):
        StorageRetry(told.append, sleep=lambda _: None)(lambda: raise_(errors.pop(0)))
    assert told == ["away", None], "a rank that hangs is not looked for while the store is away"


def raise_(error: Exception) -> None:
    raise error


def test_a_limit_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(STORAGE_PATIENCE_ENV, "5m")
    store = Store(CredentialsError("no"), until=1)
    with pytest.raises(StorageError, match="is '5m'; write a number of seconds"):
        store.retry()(store.request)


def test_such_a_limit_ends_no_outage(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(STORAGE_PATIENCE_ENV, "5m")
    store = Store(UnreachableError("nobody answers"), until=600)
    assert store.retry()(store.request) == "answer"


def test_what_is_corrected_in_time_heals(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(STORAGE_PATIENCE_ENV, "120")
    store = Store(CredentialsError("no"), until=100)
    assert store.retry()(store.request) == "answer"


def test_an_outage_between_refusals_restarts_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(STORAGE_PATIENCE_ENV, "120")
    errors = itertools.cycle([CredentialsError("no"), UnreachableError("away")])
    store = Store(StorageError(""), until=0)

    def request() -> str:
        if store.now < 3600:
            raise next(errors)
        return "answer"

    assert store.retry()(request) == "answer"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError("a bug"), id="bug"),
        pytest.param(AbsentError("no such object"), id="absent"),
        pytest.param(DamagedError("torn"), id="damaged"),
    ],
)
def test_what_is_no_outage_is_raised_at_once(error: Exception):
    store = Store(error, until=1)
    with pytest.raises(type(error)):
        store.retry()(store.request)
    assert store.asked == 1


PYARROW = "When initiating multiple part upload for key 'x/a' in bucket 'runs': AWS Error {}"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(
            OSError(
                PYARROW.format(
                    "NETWORK_CONNECTION during CreateMultipartUpload operation: curlCode: 7, "
                    "Could not connect to server; Details: Failed to connect to 127.0.0.1:36417"
                )
            ),
            UnreachableError,
            id="no connection",
        ),
        pytest.param(
            OSError(
                PYARROW.format(
                    "NETWORK_CONNECTION during CreateMultipartUpload operation: curlCode: 6, "
                    "Could not resolve hostname; Details: Could not resolve host: s3.storage"
                )
            ),
            UnreachableError,
            id="no such host",
        ),
        pytest.param(
            OSError(PYARROW.format("SLOW_DOWN during UploadPart operation: slow down")),
            StorageError,
            id="slow down",
        ),
        pytest.param(
            OSError(PYARROW.format("NO_SUCH_BUCKET during CreateMultipartUpload operation: The …")),
            BucketMissingError,
            id="no such bucket",
        ),
        pytest.param(
            OSError(PYARROW.format("SIGNATURE_DOES_NOT_MATCH during HeadObject operation: The …")),
            CredentialsError,
            id="wrong signature",
        ),
        pytest.param(
            OSError(
                PYARROW.format(
                    "UNKNOWN (HTTP status 404) during CreateMultipartUpload operation: Unable to "
                    "parse ExceptionName: XAdminUserNotFound Message: No user exists"
                )
            ),
            CredentialsError,
            id="unknown user",
        ),
        pytest.param(
            OSError(PYARROW.format("ACCESS_DENIED during HeadObject operation: No")),
            DeniedError,
            id="access denied",
        ),
        pytest.param(
            OSError(errno.ENOSPC, "No space left on device"), DiskFullError, id="no space left"
        ),
        pytest.param(
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
            DiskFullError,
            id="torn write",
        ),
    ],
)
def test_storage_errors_are_recognized_by_what_libraries_really_say(
    error: Exception, kind: type[StorageError]
):
    assert type(recognize(error)) is kind
    assert "\n" not in str(recognize(error))


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError("bad batch"), id="bad batch"),
        pytest.param(FileNotFoundError("data/train.csv"), id="no data file"),
        pytest.param(PermissionError(errno.EACCES, "Permission denied"), id="data file denied"),
        pytest.param(
            RuntimeError("PytorchStreamReader failed reading zip archive: not a ZIP archive"),
            id="damaged file",
        ),
        pytest.param(ConnectionResetError("Connection reset by peer"), id="connection reset"),
    ],
)
def test_other_errors_are_not_taken_for_storage(error: Exception):
    assert recognize(error) is None
