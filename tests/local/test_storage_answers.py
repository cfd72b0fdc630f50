"""What a store, or what is taken for one, answers: one sentence, and patience where it helps."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.answering import Answer, answering
from support.binaries import skipping_unavailable
from support.checkpoints import as_pyarrow
from support.s3 import CREDENTIALS, running_s3
from support.slow_line import slow_line
from support.tls import Tls, certificates
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_check import check
from trainingrun_runtime.store.storage_errors import (
    CredentialsError,
    EndpointError,
    LackingError,
    RefusedError,
    StorageError,
    StoreFullError,
    UnreachableError,
    UnusableError,
    explain,
)
from trainingrun_runtime.store.storage_retry import StorageRetry

CONSOLE = "<!doctype html><html><title>Console</title></html>"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def private_s3(tmp_path_factory: pytest.TempPathFactory, tls: Tls) -> Iterator[str]:
    """URL of a real S3 server behind TLS of a private authority."""
    with skipping_unavailable(), running_s3(tmp_path_factory.mktemp("s3"), tls=tls) as server:
        yield server.url


def opened(endpoint: str) -> Bucket:
    return Bucket.open("s3://runs/x", endpoint, "us-east-1")


def refusal(endpoint: str) -> StorageError:
    """What `check` says."""
    with pytest.raises(StorageError) as caught:
        check(opened(endpoint))
    assert "\n" not in str(caught.value)
    assert "Signature=" not in str(caught.value)
    return caught.value


def of_files(endpoint: str) -> StorageError:
    """What is said of what training code reports without a session."""
    filesystem, root = as_pyarrow(opened(endpoint))
    with pytest.raises(StorageError, match="runs") as caught:
        filesystem.open_input_file(f"{root}/model")
    return caught.value


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_private_authority_is_trusted_where_a_variable_names_it(
    private_s3: str, tls: Tls, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tls.authority))
    bucket = opened(private_s3)
    check(bucket)
    bucket.put("model", b"weights")
    filesystem, root = as_pyarrow(bucket)
    assert filesystem.open_input_file(f"{root}/model").read() == b"weights"


def test_an_authority_that_is_not_trusted_is_named_with_the_variable(private_s3: str) -> None:
    for found in (refusal(private_s3), of_files(private_s3)):
        assert isinstance(found, EndpointError)
        assert "is not trusted" in str(found)
        assert "set AWS_CA_BUNDLE in training.env to the file" in str(found)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(None, "which cannot be read (No such file or directory)", id="absent"),
        pytest.param("none", "which has no certificate in it", id="no PEM"),
    ],
)
def test_certificates_that_cannot_be_used_are_a_sentence(
    content: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(file))
    assert f"AWS_CA_BUNDLE is {file}, {said}" in str(refusal("https://localhost:1"))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param({"expired": True}, "has expired; renew it", id="expired"),
        pytest.param({"host": "s3.example.com"}, "is for another host", id="other host"),
    ],
)
def test_a_certificate_that_does_not_fit_is_said_so(
    made: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificates(tmp_path, **made)  # type: ignore[arg-type]
    monkeypatch.setenv("AWS_CA_BUNDLE", str(files.authority))
    with answering(lambda _: (200, ""), files) as port:
        for found in (
            refusal(f"https://localhost:{port}"),
            of_files(f"https://localhost:{port}"),
        ):
            assert isinstance(found, EndpointError)
            assert said in str(found)


def test_https_to_a_port_without_tls_is_said_so() -> None:
    with answering(lambda _: (200, "")) as port:
        for found in (
            refusal(f"https://127.0.0.1:{port}"),
            of_files(f"https://127.0.0.1:{port}"),
        ):
            assert isinstance(found, EndpointError)
            assert "there is no TLS at" in str(found)
            assert "write http:// in storage.endpoint" in str(found)


def test_http_to_a_port_with_tls_is_said_so(private_s3: str, tls: Tls) -> None:
    with answering(lambda _: (200, ""), tls) as port:  # it closes the connection without a word
        for url in (f"http://localhost:{port}", private_s3.replace("https:", "http:")):
            found = refusal(url)
            assert isinstance(found, EndpointError)
            assert "write https:// in storage.endpoint" in str(found)


def code(text: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{text}</Code><Message>m</Message></Error>"


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        pytest.param(200, CONSOLE, EndpointError, "is no object store", id="a console"),
        pytest.param(405, "no", EndpointError, "is no object store", id="not allowed"),
        pytest.param(302, "", EndpointError, "redirects elsewhere", id="a login page"),
        pytest.param(507, code("XMinioStorageFull"), StoreFullError, "free space", id="full"),
        pytest.param(507, "", StoreFullError, "is full (HTTP 507)", id="full, no code"),
        pytest.param(403, code("QuotaExceeded"), StoreFullError, "raise its quota", id="quota"),
        pytest.param(409, code("QuotaExceeded"), StoreFullError, "raise its quota", id="quota 409"),
        pytest.param(
            501, code("NotImplemented"), UnusableError, "it answers a PUT of an object", id="501"
        ),
        pytest.param(403, code("RequestTimeTooSkewed"), RefusedError, "clock", id="clock"),
        pytest.param(400, code("KMS.DisabledException"), RefusedError, "KMS.Disabled", id="KMS"),
        pytest.param(400, code("InvalidArgument"), RefusedError, "InvalidArgument", id="argument"),
        pytest.param(400, code("ExpiredToken"), CredentialsError, "were refused", id="token"),
    ],
)
def test_what_only_a_person_can_mend_ends_after_the_limit(
    status: int, body: str, kind: type[StorageError], said: str
) -> None:
    with answering(lambda _: (status, body)) as port:
        found = refusal(f"http://127.0.0.1:{port}")
    assert type(found) is kind
    assert found.lasting
    assert said in str(found)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(503, CONSOLE, id="a proxy without a store"),
        pytest.param(502, "", id="bad gateway"),
        pytest.param(404, "default backend - 404", id="a proxy that does not know it yet"),
        pytest.param(500, code("InternalError"), id="internal error"),
        pytest.param(503, code("SlowDown"), id="slow down"),
        pytest.param(400, code("RequestTimeout"), id="request timeout"),
        pytest.param(429, "", id="too many requests"),
    ],
)
def test_what_passes_by_itself_is_waited_for_without_limit(status: int, body: str) -> None:
    with answering(lambda _: (status, body)) as port:
        found = refusal(f"http://127.0.0.1:{port}")
    assert type(found) is StorageError
    assert not found.lasting


def test_a_connection_that_leads_elsewhere_ends_with_the_first_answer(tmp_path: Path) -> None:
    """A Service without endpoints: a packet to it leaves the cluster, where a proxy says 404.

    The connection would lead there for as long as it is used, though the Service has its endpoints
    again: such a run waited until its bucket was given up.
    """
    with (
        skipping_unavailable(),
        running_s3(tmp_path) as server,
        answering(lambda _: (404, "")) as elsewhere,
    ):
        leads_to = urlsplit(server.url).port or 0
        with slow_line(lambda: leads_to, bytes_per_second=1e9) as port:
            bucket = opened(f"http://127.0.0.1:{port}")
            leads_to, the_store = elsewhere, leads_to
            for request in (bucket.get, lambda key: bucket.read(key, 0, 1), write_to(bucket)):
                with pytest.raises(StorageError, match="HTTP 404"):
                    request("model")
            leads_to = the_store
            write_to(bucket)("model")
            assert bucket.get("model") == b"weights"
            assert bytes(bucket.read("model", 0, 1)) == b"w"


def write_to(bucket: Bucket) -> Callable[[str], None]:
    """Writes an object as a checkpoint is written."""

    def write(key: str) -> None:
        with bucket.writing(key, size=7) as append:
            append(b"weights")

    return write


def without_conditions(status: int, text: str) -> Answer:
    """A store that has one object, `probe`, and answers this to a conditional write."""

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        if request.headers.get("If-None-Match"):
            return status, code(text) if text else ""
        if request.command == "POST":
            return 200, '<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'
        return 200, "probe"

    return answer


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        pytest.param(501, "NotImplemented", "refuses If-None-Match", id="not implemented"),
        pytest.param(400, "InvalidArgument", "refuses If-None-Match", id="invalid argument"),
        pytest.param(200, "", "ignores If-None-Match", id="ignored"),
    ],
)
def test_a_store_without_conditional_writes_is_said_so(status: int, text: str, said: str) -> None:
    with answering(without_conditions(status, text)) as port:
        found = refusal(f"http://127.0.0.1:{port}")
        with pytest.raises(LackingError):  # no wait changes it
            StorageRetry(lambda _: None, sleep=_no_wait)(
                lambda: check(opened(f"http://127.0.0.1:{port}"))
            )
    assert isinstance(found, LackingError)
    assert said in str(found)
    assert "use a store that supports conditional writes" in str(found)


def _no_wait(seconds: float) -> None:
    raise AssertionError(f"it waits for {seconds} s")


def test_a_list_without_what_a_run_reads_is_said_so() -> None:
    """Some gateways leave out the size of folders."""
    listed = "<ListBucketResult><Contents><Key>x/a/</Key></Contents></ListBucketResult>"
    with (
        answering(lambda _: (200, listed)) as port,
        pytest.raises(UnusableError, match="lists objects without their Size"),
    ):
        opened(f"http://127.0.0.1:{port}").list()


def test_a_container_of_an_azure_account_is_opened_as_it_is_copied_from_the_portal() -> None:
    bucket = Bucket.open("abfss://runs@account.dfs.core.windows.net/team/a")
    assert bucket.store.config["account_name"] == "account"
    assert bucket.store.config["container_name"] == "runs"
    assert bucket.store.prefix == "team/a"
    path = bucket.path
    assert path == "runs/team/a"


def test_an_azure_container_without_an_account_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(EndpointError, match="names no storage account; write abfss://container@"):
        Bucket.open("abfss://runs/a")


@pytest.mark.parametrize(
    ("uri", "endpoint", "region", "variables", "sentence"),
    [
        *(
            pytest.param(
                "s3://b/x",
                endpoint,
                None,
                {},
                f"the endpoint is {endpoint!r}, which is no address of a server; write it with "
                "http:// or https:// and without credentials, like https://minio.example.com:9000",
                id=f"endpoint {endpoint!r}",
            )
            for endpoint in (
                "localhost:9000",
                "127.0.0.1:9000",
                "minio.local",
                "http://",
                "http://:9000",
                "http://minio:99999",
                "http://minio:9x",
                "http://[::1",
                "http://a b",
                "http://minio:9000\n",
                "http://bücket:9000",
            )
        ),
        pytest.param(
            "s3://b/x",
            "admin:hunter2@minio:9000?sig=hunter2",
            None,
            {},
            "the endpoint is 'minio:9000', which is no address of a server; write it with http:// "
            "or https:// and without credentials, like https://minio.example.com:9000",
            id="endpoint with a password",
        ),
        pytest.param(
            "s3://b/x",
            None,
            None,
            {"AWS_ENDPOINT_URL": "localhost:9000"},
            "the endpoint is 'localhost:9000', which is no address of a server; write it with "
            "http:// or https:// and without credentials, like https://minio.example.com:9000",
            id="AWS_ENDPOINT_URL",
        ),
        pytest.param(
            "az://b/x",
            None,
            None,
            {"AZURE_STORAGE_ENDPOINT": "localhost:10000"},
            "AZURE_STORAGE_ENDPOINT is 'localhost:10000', which is no address of a server; write it"
            " with http:// or https:// and without credentials, like "
            "https://minio.example.com:9000",
            id="AZURE_STORAGE_ENDPOINT",
        ),
        *(
            pytest.param(
                "s3://b/x",
                None,
                region,
                variables,
                "the region is 'eu west', which is no name of one; write it like eu-west-1",
                id=f"region of {source}",
            )
            for source, region, variables in (
                ("the run", "eu west", {}),
                ("AWS_REGION", None, {"AWS_REGION": "eu west"}),
                ("AWS_DEFAULT_REGION", None, {"AWS_DEFAULT_REGION": "eu west"}),
            )
        ),
        pytest.param(
            "s3://a b/c",
            None,
            None,
            {},
            "the bucket is 'a b'; write its name without spaces",
            id="bucket",
        ),
        *(
            pytest.param(
                f"{name.partition('_')[0].lower().replace('aws', 's3').replace('azure', 'az')}://b",
                None,
                None,
                {name: "hunter2\n"},
                f"{name} has a line break or another control character in it; write it without one "
                "into the Secret that storage.credentialsSecret names, as `kubectl create secret "
                "generic --from-literal` does",
                id=name,
            )
            for name in (
                "AWS_ACCESS_KEY_ID",
                "AWS_SECRET_ACCESS_KEY",
                "AWS_SESSION_TOKEN",
                "AZURE_STORAGE_ACCOUNT_NAME",
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
            )
        ),
    ],
)
def test_settings_with_which_no_request_can_be_made_are_a_sentence(
    uri: str,
    endpoint: str | None,
    region: str | None,
    variables: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client takes each, and panics of it in a request, which is no `Exception`."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.setenv(name, "YWFh")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError) as refused:
        Bucket.open(uri, endpoint, region).list()
    assert str(refused.value) == sentence
    assert refused.value.lasting


@pytest.mark.parametrize("endpoint", ["http://[::1]:1", "http://127.0.0.1:1/path/"])
def test_an_address_with_brackets_or_a_path_is_one(endpoint: str) -> None:
    with pytest.raises(UnreachableError):
        opened(endpoint).get("a")


def test_what_else_the_client_panics_of_is_an_error_of_the_store_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_TOKEN", "hunter2\n")  # another name of AWS_SESSION_TOKEN
    with pytest.raises(UnusableError) as refused:
        opened("http://127.0.0.1:1").put("a", b"")
    assert str(refused.value) == (
        "no request can be made to s3://runs/x at http://127.0.0.1:1 with these settings; correct "
        "its address, region and credentials, which may hold a character that does not belong "
        "there"
    )


def test_what_a_sas_signs_is_deleted_in_a_request_each_and_no_error_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Azure's own client sends a batch, which Azure may refuse of a SAS."""
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        asked.append(f"{request.command} {request.path}")
        return (418, "") if "odd" in request.path else (404, "<Code>BlobNotFound</Code>")

    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2018-11-09&sig=a%2Fb%3D")
    with answering(answer) as port:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}")
        bucket = Bucket.open("abfss://runs@account.dfs.core.windows.net/team a")
        bucket.delete(["a+b/c", "gone"])
        with pytest.raises(StorageError) as caught:
            bucket.delete(["odd"])
    assert sorted(asked)[:2] == [
        f"DELETE /runs/team%20a/{key}?sv=2018-11-09&sig=a%2Fb%3D" for key in ("a+b/c", "gone")
    ]
    assert "sig" not in str(caught.value)
    with pytest.raises(StorageError, match="cannot be reached") as caught:
        bucket.delete(["odd"])
    assert "sig" not in str(caught.value)
    unknown = explain(
        ValueError("DELETE http://account/runs?sv=1&sig=abc failed"), "az://runs", None
    )
    assert "sig" not in str(unknown)
