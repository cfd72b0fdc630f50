"""The zip file with the user's code: what is unpacked, and what is refused in a sentence."""

import hashlib
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.packages import wheel, zipped
from trainingrun_protocol.contract import (
    STATE_DIRECTORY_ENV,
    ContractCode,
    ContractStorage,
    RunContract,
)
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.storage_retry import StorageRetry
from trainingrun_runtime.worker import user_code
from trainingrun_runtime.worker.user_code import CodeError, UserCode, prepare, unpack


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Prepares the code of a run, whose folder stays the same."""
    monkeypatch.setenv(STATE_DIRECTORY_ENV, str(tmp_path / "state"))
    bucket = Bucket.open(f"file://{tmp_path}/run")

    def prepare_it(zip_file: Path, **changes: Any) -> UserCode:
        contract = RunContract(
            name="mine",
            namespace="default",
            uid="0",
            attempt=1,
            storage=ContractStorage(uri=bucket.root),
            code=ContractCode(uri=zip_file.as_uri()),
        ).model_copy(update=changes)
        found = prepare(contract, bucket, StorageRetry(lambda _: None))
        assert found is not None
        return found

    return prepare_it


def entry(name: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(name)
    found.external_attr = mode << 16
    return found


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(entry("../outside.py"), id="above"),
        pytest.param(entry("a/../../outside.py"), id="above, from below"),
        pytest.param(entry("/etc/outside.py"), id="absolute"),
        pytest.param(entry("..\\outside.py"), id="Windows"),
        pytest.param(entry("link", stat.S_IFLNK | 0o777), id="link"),
    ],
)
def test_a_file_outside_of_the_folder_is_refused_and_nothing_is_written(
    tmp_path: Path, bad: zipfile.ZipInfo
) -> None:
    archive, folder = tmp_path / "a.zip", tmp_path / "in" / "folder"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("good.py", "")
        made.writestr(bad, "/etc/passwd")
    with pytest.raises(CodeError, match=r"uri x holds .* is a link or is not below its folder"):
        unpack(archive, folder, "uri x")
    assert [path.name for path in (tmp_path / "in").rglob("*")] == ["folder"]


@pytest.mark.parametrize(
    ("limit", "value", "sentence"),
    [
        ("MAX_CODE_BYTES", 1024, "code.zip is larger than 0 MiB; put data into the bucket"),
        ("MAX_UNPACKED_BYTES", 1024**2, "is larger than 1 MiB when it is unpacked"),
        ("MAX_CODE_FILES", 1, "holds more than 1 files"),
    ],
)
def test_code_that_is_too_large_is_refused(
    prepared: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    sentence: str,
) -> None:
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.py", "")
        made.writestr("zeros", b"0" * 2 * 1024**2)
    monkeypatch.setattr(user_code, limit, value)
    with pytest.raises(CodeError, match=sentence):
        prepared(archive)


@pytest.mark.parametrize("content", [b"", b"no zip", None], ids=["empty", "text", "damaged"])
def test_what_is_no_zip_file_is_refused(
    prepared: Any, tmp_path: Path, content: bytes | None
) -> None:
    archive = zipped(tmp_path / "code.zip", {"a.py": "x = 1" * 100})
    if content is None:
        content = archive.read_bytes().replace(b"x = 1x", b"y = 2y")
    archive.write_bytes(content)
    with pytest.raises(CodeError, match=r"code.zip is not a zip file that can be read"):
        prepared(archive)


def test_a_command_of_the_code_stays_one(prepared: Any, tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(entry("bin/fetch", 0o100755), "#!/bin/sh\n")
        made.writestr(entry("a.py", 0o100000), "x = 1")  # Windows keeps no mode
    found = prepared(archive)
    with zipfile.ZipFile(found.package) as package:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in package.infolist()}
    assert modes["bin/fetch"] == 0o755
    assert modes["a.py"] & 0o444 == 0o444


def test_a_digest_in_the_name_is_checked(prepared: Any, tmp_path: Path) -> None:
    content = zipped(tmp_path / "code.zip", {"a.py": "x = 1"}).read_bytes()
    good = tmp_path / f"{hashlib.sha256(content).hexdigest()}.zip"
    good.write_bytes(content)
    assert (prepared(good).folder / "a.py").read_text() == "x = 1"
    wrong = tmp_path / f"{'0' * 64}.zip"
    wrong.write_bytes(content)
    with pytest.raises(CodeError, match="has other content than its name says"):
        prepared(wrong)


def test_every_attempt_uses_the_code_of_the_first(prepared: Any, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "code.zip", {"a.py": "x = 1"})
    prepared(archive)
    prepared(archive)
    zipped(archive, {"a.py": "x = 2"})
    with pytest.raises(CodeError, match="has other content than when the run began; restore it"):
        prepared(archive)


def test_a_script_that_is_not_in_the_code_is_named(prepared: Any, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "code.zip", {"src/train.py": ""})
    assert prepared(archive, script="src/train.py").search[0] == "src"
    with pytest.raises(CodeError, match=r"training.script.path train.py is not a file of"):
        prepared(archive, script="train.py")


def test_what_ray_gets_is_the_code_and_the_packages_beside_it(
    prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "wheels", "tinything", "1.2", "VALUE = 40\n", ["pytest"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    archive = zipped(tmp_path / "code.zip", {"a.py": "x = 1"})
    found = prepared(archive, requirements=["tinything>=1"])
    # What this Python has, as an image would, is not installed again.
    assert sorted(zipfile.ZipFile(found.package).namelist()) == [
        *(
            f"{user_code.PACKAGES}/tinything-1.2.dist-info/{name}"
            for name in ("INSTALLER", "METADATA", "RECORD", "REQUESTED", "WHEEL")
        ),
        f"{user_code.PACKAGES}/tinything/__init__.py",
        "a.py",
    ]
    environment = found.runtime_environment()
    assert environment["working_dir"] == str(found.package)
    assert environment["env_vars"]["PYTHONPATH"].split(":") == [user_code.PACKAGES, str(Path.cwd())]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        pytest.param("absent==3", "No matching distribution found for absent==3", id="absent"),
        pytest.param(
            "two words @ http://user:hidden@127.0.0.1:1/x.zip",
            "Invalid requirement: 'two words",
            id="no requirement",
        ),
        pytest.param(
            "oldray",
            r"oldray 1.0 depends on ray==1.0, but The user requested \(constraint\) ray==",
            id="another Ray",
        ),
    ],
)  # fmt: skip
def test_a_requirement_that_cannot_be_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, sentence: str
) -> None:
    wheel(tmp_path / "wheels", "oldray", "1.0", "", ["ray==1.0"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "a").mkdir()
    with pytest.raises(user_code.Uninstallable, match=sentence) as refused:
        user_code.install(["pytest", wanted], tmp_path / "a" / "packages")
    assert str(tmp_path) not in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_an_index_that_does_not_answer_is_no_error_of_the_requirement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Port 1 is privileged: nothing listens there.
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:hidden@127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    (tmp_path / "a").mkdir()
    with caplog.at_level("INFO"), pytest.raises(user_code.IndexSilent) as refused:
        user_code.install(["absent"], tmp_path / "a" / "packages")
    assert "hidden" not in caplog.text + str(refused.value)


def test_the_driver_works_in_the_folder_and_imports_from_it(
    prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/before")
    files = {"src/train.py": "", "src/beside_it.py": "VALUE = 1"}
    found = prepared(zipped(tmp_path / "code.zip", files), script="src/train.py")
    found.enter()
    import beside_it  # type: ignore[import-not-found]

    assert beside_it.VALUE == 1
    assert Path.cwd() == found.folder
