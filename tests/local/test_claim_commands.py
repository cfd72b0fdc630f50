"""Commands that read the folder of a run on a claim, on a machine that mounts it and one that does
not.
"""

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import saved
from support.cli_server import RUNS, Server, call, running_server
from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV
from trainingrun_runtime.store import kept_output
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease

UID = "1a2b3c4d-0000-0000-0000-000000000000"
NOT_MOUNTED = (
    "claim runs of pvc://runs/team-a/digits-1a2b3c4d is not mounted at /mnt/claims/runs; mount it, "
    "and where that is at another folder, set TRAININGRUN_CLAIM_FOLDERS to runs=/folder\n"
)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An API server that knows the run `digits`."""
    monkeypatch.chdir(tmp_path)
    storage: dict[str, Any] = {"uri": "pvc://runs/team-a"}
    metadata = {"name": "digits", "namespace": "team-a", "uid": UID}
    run = {"metadata": metadata, "spec": {"storage": storage}, "status": {"phase": "Succeeded"}}
    with running_server(tmp_path, monkeypatch) as found:
        found.answers[f"{RUNS}/digits"] = [(200, run)]
        found.answers[RUNS] = [(200, {"items": [run]})]
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where this machine has the claim, with nothing of a run on it."""
    found = tmp_path / "nfs"
    (found / "lost+found").mkdir(parents=True)
    return found


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["checkpoints", "list", "digits"], id="checkpoints"),
        pytest.param(["checkpoints", "verify", "digits"], id="verify"),
        pytest.param(["metrics", "digits"], id="metrics"),
        pytest.param(["stacks", "digits"], id="stacks"),
        pytest.param(["logs", "pvc://runs/team-a/digits-1a2b3c4d"], id="logs"),
    ],
)
@pytest.mark.usefixtures("server")
def test_a_claim_that_is_not_mounted_here_is_said_with_what_to_do(command: list[str]) -> None:
    assert call(*command) == (1, "", NOT_MOUNTED)


@pytest.mark.usefixtures("server")
def test_the_page_of_a_run_is_written_without_its_claim(tmp_path: Path) -> None:
    """From what the API server knows; and it says what is not in it."""
    assert call("report", "digits", "--html", "--to", "page.html")[0] == 0
    assert NOT_MOUNTED.strip() in html.unescape((tmp_path / "page.html").read_text())


@pytest.mark.usefixtures("server")
def test_a_claim_that_is_mounted_here_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, f"runs={folder}")
    code, _, errors = call("checkpoints", "list", "digits")
    assert code == 1
    assert errors.startswith("there is nothing in pvc://runs/team-a/digits-1a2b3c4d yet: digits")
    assert not (folder / "team-a").exists(), "who reads makes no folder"
    bucket = Bucket.open("pvc://runs/team-a/digits-1a2b3c4d")
    Lease.take(bucket, 1, "pod", 1000)
    saved(bucket, tmp_path / "files", 10, index=1)
    code, output, errors = call("checkpoints", "list", "digits")
    assert (code, errors) == (0, "")
    assert [line.split()[0] for line in output.splitlines()[1:]] == ["10"]
    assert call("checkpoints", "verify", "digits")[0] == 0
    assert call("checkpoints", "download", "digits")[0] == 0
    assert (tmp_path / "digits-1a2b3c4d-step-10").is_dir()
    assert call("report", "digits", "--html", "--to", "page.html")[0] == 0
    assert kept_output.parts(bucket) == []


def test_doctor_tries_a_claim_that_is_mounted_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = call("doctor", "--storage", "pvc://runs/team-a")[1]
    assert "claim runs of pvc://runs/team-a is not mounted at /mnt/claims/runs" in output
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, f"runs={folder}")
    output = call("doctor", "--storage", "pvc://runs/team-a")[1]
    assert "pvc://runs/team-a can be written here, and creates an object only once" in output


@pytest.mark.usefixtures("server")
def test_code_of_this_machine_is_uploaded_to_the_claim(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("def main(): pass")
    manifest = {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "other"},
        "spec": {"training": {"function": "train:main"}, "storage": {"uri": "pvc://runs/a"}},
    }
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(manifest))
    exit_code, _, errors = call("submit", str(file), "--code", str(code), "--no-watch")
    assert exit_code == 1
    assert errors.startswith("the code cannot be uploaded: claim runs of pvc://runs/a/code is not")
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, f"runs={folder}")
    call("submit", str(file), "--code", str(code), "--no-watch")
    (packed,) = (folder / "a" / "code").iterdir()
    assert packed.suffix == ".zip"
