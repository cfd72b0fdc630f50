"""`trainingrun submit` with a real S3 server: code is uploaded once, then the run is applied."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from support.cli_server import RUNS, Server, running_server
from support.s3 import S3Server
from trainingrun.cli.main import app
from trainingrun_runtime.store.bucket import Bucket


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        found.answers[f"{RUNS}/mine"] = [(404, {"message": "not found"}), (200, {})]
        yield found


@pytest.fixture
def project(s3: S3Server, tmp_path: Path) -> Path:
    """A folder with a run, its code and its requirements."""
    folder = tmp_path / "project"
    folder.mkdir()
    spec = {
        "training": {"function": "train:main"},
        "storage": {"uri": f"s3://runs/{tmp_path.name}", "endpoint": s3.url, "region": "us-east-1"},
    }
    run = {"apiVersion": "trainingrun.dev/v1alpha1", "kind": "TrainingRun", "spec": spec}
    (folder / "run.yaml").write_text(yaml.safe_dump({**run, "metadata": {"name": "mine"}}))
    (folder / "train.py").write_text("def main(): ...\n")
    (folder / "requirements.txt").write_text("# for tests\neinops==0.8.0  # small\n")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "out.log").write_text("long")
    return folder


def submit(project: Path, *options: str) -> tuple[int, str, str]:
    arguments = ["submit", str(project / "run.yaml"), "--code", str(project), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def test_code_is_uploaded_by_its_digest_and_the_run_applied_with_it_and_followed(
    server: Server, project: Path, s3: S3Server
) -> None:
    ended = {"metadata": {"name": "mine"}, "status": {"phase": "Succeeded"}}
    server.answers[f"{RUNS}/mine"].append((200, ended))
    code, output, errors = submit(project, "--requirements", str(project / "requirements.txt"))
    assert (code, errors) == (0, "")
    assert output.splitlines()[1] == "mine applied to namespace team-a"
    assert output.endswith("mine: Succeeded\n")
    ((content_type, applied),) = server.applied
    assert content_type == "application/apply-patch+yaml"
    written = yaml.safe_load((project / "run.yaml").read_text())
    uri = applied["spec"]["training"].pop("code")["uri"]
    assert applied["spec"]["training"].pop("requirements") == ["einops==0.8.0"]
    assert applied == written

    folder, _, name = uri.rpartition("/")
    assert folder == f"{written['spec']['storage']['uri']}/code"
    stored = Bucket.open(folder, s3.url, "us-east-1").get(name)
    assert stored is not None
    assert sorted(zipfile.ZipFile(io.BytesIO(stored)).namelist()) == [
        ".gitignore",
        "requirements.txt",
        "train.py",
    ]


def test_the_same_code_is_not_uploaded_again_and_other_code_is_beside_it(
    server: Server, project: Path
) -> None:
    assert "uploaded to s3://" in submit(project, "--no-watch")[1]
    (project / "out.log").write_text("which git ignores")
    with (project / "run.yaml").open("a") as run:
        run.write("# and the file with the run\n")
    assert "already" in submit(project, "--no-watch")[1]
    (project / "train.py").write_text("def main(): print(1)\n")
    assert "uploaded to s3://" in submit(project, "--no-watch")[1]
    uris = [applied["spec"]["training"]["code"]["uri"] for _, applied in server.applied]
    assert uris[0] == uris[1] != uris[2]


def test_nothing_is_applied_when_the_bucket_does_not_take_the_code(
    server: Server, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    code, _, errors = submit(project)
    assert code == 1
    assert errors.startswith("the code cannot be uploaded: the credentials for s3://runs/")
    assert errors.count("\n") == 1
    assert server.applied == []


def test_an_endpoint_that_only_pods_reach_is_replaced_for_the_upload_alone(
    server: Server, project: Path, s3: S3Server
) -> None:
    manifest = (project / "run.yaml").read_text().replace(s3.url, "http://s3.nowhere.svc:7070")
    (project / "run.yaml").write_text(manifest)
    assert submit(project, "--no-watch", "--endpoint", s3.url)[0] == 0
    assert server.applied[0][1]["spec"]["storage"]["endpoint"] == "http://s3.nowhere.svc:7070"
