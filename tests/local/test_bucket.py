"""The run's folder, in a real S3 server and on disk."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyarrow import fs

from support.checkpoints import as_pyarrow
from support.s3 import ACCESS_KEY, SECRET_KEY, S3Server, running_s3
from support.slow_line import slow_line
from trainingrun_runtime.store import bucket as bucket_module
from trainingrun_runtime.store.bucket import Bucket, Entry, StorageError
from trainingrun_runtime.store.bucket_check import check
from trainingrun_runtime.store.storage_errors import BucketMissingError, recognize


def test_a_bucket_that_training_codes_pyarrow_does_not_find_is_an_error_of_the_store(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message names no service; taken for an error of the training code it ended attempts."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    server = s3_server.url.removeprefix("http://")
    theirs = fs.S3FileSystem(endpoint_override=server, scheme="http", region="us-east-1")
    with pytest.raises(OSError, match="elsewhere") as raised:
        theirs.create_dir("elsewhere/x/data")
    found = recognize(raised.value)
    assert isinstance(found, BucketMissingError)
    assert "elsewhere" in str(found)


def test_what_is_written_is_read_back(bucket: Bucket) -> None:
    bucket.put("a/b.json", b"one")
    bucket.put("a/b.json", b"two")
    assert bucket.get("a/b.json") == b"two"


def test_absence_is_an_answer(bucket: Bucket) -> None:
    assert bucket.get("nothing") is None
    assert bucket.list("nowhere") == []
    bucket.delete(["nothing"])
    bucket.delete_folder("nowhere")


def test_a_create_whose_answer_was_lost_may_be_repeated(bucket: Bucket) -> None:
    assert bucket.create("lease/1", b"mine")
    assert bucket.create("lease/1", b"mine")


def test_list_returns_keys_and_sizes_at_any_depth(bucket: Bucket) -> None:
    bucket.put("checkpoints/a/b/c", b"123")
    bucket.put("checkpoints/a/d", b"")
    bucket.put("checkpoints-of-another", b"1")
    assert bucket.list("checkpoints") == [
        Entry("checkpoints/a/b/c", 3),
        Entry("checkpoints/a/d", 0),
    ]


def test_a_deleted_folder_is_gone_and_its_neighbors_are_not(bucket: Bucket) -> None:
    filesystem, root = as_pyarrow(bucket)
    filesystem.create_dir(f"{root}/checkpoints/1/deep")
    bucket.put("checkpoints/1/deep/x", b"x")
    bucket.put("checkpoints/10/x", b"x")
    bucket.delete_folder("checkpoints/1")
    assert [entry.key for entry in bucket.list()] == ["checkpoints/10/x"]
    assert filesystem.get_file_info(f"{root}/checkpoints/1/deep").type.name == "NotFound"


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param("", id="empty"),
        pytest.param(".", id="this folder"),
        pytest.param("..", id="parent"),
        pytest.param("a/../..", id="out of the folder"),
        pytest.param("/", id="root"),
        pytest.param("a/", id="trailing slash"),
    ],
)
def test_delete_folder_never_leaves_the_run(bucket: Bucket, prefix: str) -> None:
    bucket.put("kept", b"x")
    with pytest.raises(ValueError, match="not a folder below"):
        bucket.delete_folder(prefix)
    assert bucket.get("kept") == b"x"


def test_a_large_object_streams_in_order(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "_RANGE", 1000)
    content = os.urandom(12_345)  # more pieces than are read ahead, and a last one that is shorter
    bucket.put("large", content)
    assert b"".join(bucket.stream("large")) == content
    place = bytearray(len(content))

    def copy(piece: memoryview, start: int) -> memoryview:
        place[start : start + len(piece)] = piece
        return memoryview(place)[start : start + len(piece)]

    with closing(bucket.stream("large", copy)) as pieces:
        assert b"".join(pieces) == content
    assert place == content
    with pytest.raises(StorageError):
        list(bucket.stream("none"))


def test_a_slow_line_is_no_error(s3: S3Server) -> None:
    """Of 2 MB/s: each request under way takes longer than a request may that carries little."""
    name, content = "s3://runs/team/slow-line", os.urandom(24_000_000)
    Bucket.open(name, s3.url, "us-east-1").upload("there", content)
    with slow_line(urlsplit(s3.url).port or 0, 2e6) as port:
        slow = Bucket.open(name, f"http://127.0.0.1:{port}", "us-east-1")

        def write() -> None:
            with slow.writing("written", len(content)) as append:
                append(content)

        with ThreadPoolExecutor() as pool:
            written, read = pool.submit(write), pool.submit(lambda: b"".join(slow.stream("there")))
            written.result()
            assert read.result() == content
    assert b"".join(Bucket.open(name, s3.url, "us-east-1").stream("written")) == content


def test_ray_writes_where_we_read(bucket: Bucket) -> None:
    filesystem, root = pickle.loads(pickle.dumps(as_pyarrow(bucket)))
    filesystem.create_dir(f"{root}/checkpoints/one")
    with filesystem.open_output_stream(f"{root}/checkpoints/one/model") as file:
        file.write(b"weights")
    assert bucket.list("checkpoints") == [Entry("checkpoints/one/model", 7)]
    assert bucket.get("checkpoints/one/model") == b"weights"


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_bucket_travels_without_credentials(bucket: Bucket) -> None:
    bucket.put("x", b"1")
    packed = pickle.dumps(bucket)
    assert SECRET_KEY.encode() not in packed
    assert pickle.loads(packed).get("x") == b"1"


def _refusal(uri: str, endpoint: str | None = None) -> str:
    with pytest.raises(StorageError) as caught:
        check(Bucket.open(uri, endpoint, "us-east-1"))
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 250
    assert "Signature=" not in text
    return text


def test_check_says_that_the_bucket_is_missing(s3: S3Server) -> None:
    assert "does not exist; create it" in _refusal("s3://elsewhere/x", s3.url)


def test_check_says_that_the_credentials_are_wrong(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-hunter2")
    said = _refusal("s3://runs/x", s3.url)
    assert "credentials for s3://runs/x" in said
    assert "were refused" in said
    assert "hunter2" not in said


def test_check_says_that_the_user_is_unknown(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert "were refused" in _refusal("s3://runs/x", s3.url)


def test_check_says_that_nobody_answers(s3: S3Server) -> None:
    assert "cannot be reached; check storage.endpoint" in _refusal(
        "s3://runs/x", "http://127.0.0.1:1"
    )


def test_check_says_that_the_bucket_is_read_only(s3: S3Server) -> None:
    with running_s3(s3.folder.parent, readonly=True) as readonly:
        assert "can be read but not written" in _refusal("s3://runs/x", readonly.url)


def test_check_says_that_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert "cannot be used" in _refusal(f"file://{tmp_path}/file/runs")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        pytest.param("ftp://a/b", "use s3, gs, az, abfs, pvc or file", id="scheme"),
        pytest.param("s3:///x", "names no bucket", id="no bucket"),
    ],
)
def test_an_unknown_uri_is_refused(uri: str, said: str) -> None:
    with pytest.raises(StorageError, match=said):
        Bucket.open(uri)


def test_a_missing_bucket_never_reads_as_a_missing_object(s3: S3Server) -> None:
    bucket = Bucket.open("s3://elsewhere/x", s3.url, "us-east-1")
    with pytest.raises(StorageError, match="does not exist"):
        bucket.get("result.json")
    with pytest.raises(StorageError, match="does not exist"):
        bucket.list("manifests")
