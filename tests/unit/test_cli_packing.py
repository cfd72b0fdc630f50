"""What `submit` packs: the files that git does not ignore, always to the same bytes."""

import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainingrun.api.errors import RunError
from trainingrun.cli.main import app
from trainingrun.client import submitting
from trainingrun.client.submitting import pack, requirement_lines


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Code, and what is none."""
    for name in ("train.py", "lib/model.py", "data/large.bin", "lib/__pycache__/model.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("data/\n")
    return tmp_path


def names(packed: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(packed)).namelist()


AUTHOR = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
CODE = [".gitignore", "lib/model.py", "train.py"]


def test_without_a_repository_gitignore_is_kept_too(folder: Path) -> None:
    assert names(pack(folder)) == CODE


def test_the_file_with_the_run_is_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "run.yaml").write_text("failures: {maxRestarts: 1}")
    assert names(pack(folder, folder / "run.yaml")) == CODE
    monkeypatch.chdir(folder)
    assert names(pack(Path(), Path("run.yaml"))) == CODE
    assert names(pack(folder, folder.parent / "run.yaml")) == [*CODE[:2], "run.yaml", CODE[2]]


def test_tracked_untracked_and_nested_files_are_packed_and_deleted_ones_are_not(
    folder: Path,
) -> None:
    git(folder, "init")
    (folder / "gone.py").touch()
    (folder / "data/kept.txt").touch()
    git(folder, "add", "train.py", "gone.py")
    git(folder, "add", "--force", "data/kept.txt")
    (folder / "gone.py").unlink()
    (folder / "vendored").mkdir()
    (folder / "vendored/a.py").touch()
    git(folder / "vendored", "init")
    assert names(pack(folder)) == [
        ".gitignore",
        "data/kept.txt",
        "lib/model.py",
        "train.py",
        "vendored/a.py",
    ]
    assert names(pack(folder / "lib")) == ["model.py"]


def test_the_same_files_give_the_same_bytes_whenever_they_were_written(folder: Path) -> None:
    first = pack(folder)
    os.utime(folder / "train.py", (0, 0))
    (folder / "data/large.bin").write_text("more")
    assert pack(folder) == first
    (folder / "train.py").chmod(0o755)
    assert pack(folder) != first


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "MAX_UNPACKED_BYTES", 2 * 1024**2)
    (folder / "weights.pt").write_bytes(b"0" * 3 * 1024**2)
    with pytest.raises(RunError, match=r"the largest are weights.pt \(3.0 MiB\), lib/model.py"):
        pack(folder)


def test_a_folder_of_more_files_than_are_code_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "MAX_CODE_FILES", 2)
    with pytest.raises(RunError, match=r"holds 3 files .* name in .gitignore what is no code"):
        pack(folder)


def test_a_link_to_a_folder_is_named(folder: Path) -> None:
    (folder / "linked").symlink_to(folder / "lib")
    with pytest.raises(RunError, match=r"linked is a link to a folder"):
        pack(folder)


def test_a_link_to_a_file_elsewhere_is_named_and_one_to_a_file_of_the_code_is_packed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "lib/same.py").symlink_to("../train.py")
    assert zipfile.ZipFile(io.BytesIO(pack(folder))).read("lib/same.py") == b"train.py"
    outside = tmp_path_factory.mktemp("home") / "token"
    outside.touch()
    (folder / "lib/token").symlink_to(outside)
    with pytest.raises(RunError, match=rf"lib/token is a link to {outside}, which is not in the"):
        pack(folder)


def test_a_tracked_file_whose_folder_became_a_link_to_elsewhere_is_named(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    git(folder, "init")
    git(folder, "add", "lib/model.py")
    outside = tmp_path_factory.mktemp("home")
    (folder / "lib").rename(outside / "lib")
    (folder / "lib").symlink_to(outside / "lib")
    (folder / ".gitignore").write_text("data/\nlib\n")
    with pytest.raises(RunError, match=r"lib/model.py is a link to .*, which is not in the folder"):
        pack(folder)


@pytest.mark.parametrize("tracked", [True, False], ids=["tracked", "untracked"])
@pytest.mark.parametrize("left_out", [".env", "data/large.bin", ".git/config"])
def test_a_link_does_not_send_what_is_left_out_of_the_code(
    folder: Path, left_out: str, tracked: bool
) -> None:
    (folder / ".env").write_text("TOKEN=hunter2")
    (folder / ".gitignore").write_text("data/\n.env\n")
    git(folder, "init")
    (folder / "lib/settings").symlink_to(f"../{left_out}")
    if tracked:
        git(folder, "add", "lib/settings")
    with pytest.raises(RunError) as refused:
        pack(folder)
    assert str(refused.value) == (
        f"{folder}/lib/settings is a link to {folder}/{left_out}, which is left out of the code; "
        "remove the link, or replace it by the file if that may be uploaded to the bucket"
    )


def test_a_link_to_a_secret_is_packed_if_git_tracks_what_it_leads_to(folder: Path) -> None:
    (folder / "test.pem").write_text("of a test")
    (folder / "lib/certificate").symlink_to("../test.pem")
    git(folder, "init")
    git(folder, "add", "lib/certificate")
    with pytest.raises(RunError, match=r"/test\.pem looks like a secret"):
        pack(folder)
    git(folder, "add", "test.pem")
    assert zipfile.ZipFile(io.BytesIO(pack(folder))).read("lib/certificate") == b"of a test"


def test_a_link_between_a_repository_and_one_in_it_is_packed(folder: Path) -> None:
    (folder / "vendored").mkdir()
    (folder / "vendored/a.py").write_text("a")
    (folder / "vendored/same.py").symlink_to("../train.py")
    (folder / "lib/a.py").symlink_to("../vendored/a.py")
    for repository in (folder, folder / "vendored"):
        git(repository, "init")
    packed = zipfile.ZipFile(io.BytesIO(pack(folder)))
    assert (packed.read("vendored/same.py"), packed.read("lib/a.py")) == (b"train.py", b"a")


@pytest.mark.parametrize(
    "secret",
    [
        ".aws/credentials",
        ".aws/sso/cache/d033e22ae348.json",
        ".azure/msal_token_cache.json",
        ".cache/huggingface/token",
        ".config/gcloud/access_tokens.db",
        ".config/gcloud/application_default_credentials.json",
        ".docker/config.json",
        ".dockerconfigjson",
        ".env",
        ".env.local",
        ".envrc",
        ".git-credentials",
        ".huggingface/token",
        ".kube/config",
        ".netrc",
        ".npmrc",
        ".pypirc",
        ".ssh/cluster",
        "ca.PEM",
        "id_ecdsa",
        "id_ed25519.pub",
        "id_rsa",
        "key.p12",
        "kubeconfig",
        "prod.env",
        "tls.key",
        "wandb.netrc",
    ],
)
def test_a_file_that_looks_like_a_secret_is_named(folder: Path, secret: str) -> None:
    (folder / "lib" / secret).parent.mkdir(parents=True, exist_ok=True)
    (folder / "lib" / secret).touch()
    with pytest.raises(RunError, match=rf"lib/{secret} looks like a secret, .* name it in \.git"):
        pack(folder)


def test_json_with_a_private_key_is_named_and_other_json_is_packed(folder: Path) -> None:
    (folder / "settings.json").write_text('{"public_key": "a"}')
    (folder / ".docker").mkdir()
    (folder / ".docker/Dockerfile").touch()
    assert {"settings.json", ".docker/Dockerfile"} < set(names(pack(folder)))
    (folder / "robot.json").write_text('{"type": "service_account", "private_key": "-----BEGIN"}')
    with pytest.raises(RunError, match=r"/robot\.json looks like a secret"):
        pack(folder)


def test_a_folder_whose_own_place_is_below_that_of_a_secret_is_packed(tmp_path: Path) -> None:
    code = tmp_path / ".azure/code"
    code.mkdir(parents=True)
    (code / "train.py").touch()
    assert names(pack(code)) == ["train.py"]


def test_what_is_never_sent_is_not_refused(folder: Path) -> None:
    """The packed code of a local run may have an .env, and its output a linked folder."""
    run = folder / "trainingrun-local/x"
    run.mkdir(parents=True)
    (run / ".env").touch()
    (run / "latest").symlink_to(folder / "lib")
    (run / os.fsdecode(b"\xff.log")).touch()
    assert names(pack(folder)) == CODE


def test_a_secret_is_packed_only_if_git_tracks_it(folder: Path) -> None:
    (folder / "test.pem").touch()
    (folder / ".env").touch()
    git(folder, "init")
    git(folder, "add", "test.pem")
    with pytest.raises(RunError, match=r"/\.env looks like a secret"):
        pack(folder)
    (folder / ".gitignore").write_text("data/\n.env\n")
    assert names(pack(folder)) == [*CODE[:2], "test.pem", CODE[2]]


def test_a_submodule_that_is_not_checked_out_is_named(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = tmp_path_factory.mktemp("library")
    git(library, "init")
    (library / "a.py").touch()
    git(library, "add", "a.py")
    git(library, *AUTHOR, "commit", "-m", "first")
    git(folder, "init")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "add", str(library), "vendored")
    assert "vendored/a.py" in names(pack(folder))
    git(folder, "submodule", "deinit", "--force", "vendored")
    for packed in (folder, folder / "vendored"):
        with pytest.raises(RunError, match=r"submodule .*/vendored is not checked out; run git"):
            pack(packed)


def test_a_repository_that_git_does_not_read_is_not_taken_for_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(folder, "init")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # it may name every folder as safe
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(RunError, match=r"git cannot list the code: .* dubious ownership .*"):
        pack(folder)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("absent", "is not a folder"), ("data", "holds no file that git does not ignore")],
)
def test_a_folder_without_code_is_named(folder: Path, name: str, sentence: str) -> None:
    git(folder, "init")
    with pytest.raises(RunError, match=sentence):
        pack(folder / name)


def test_a_requirements_file_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(
        "# all of it\n\neinops==0.8.0  # small\n"
        "numpy>=1.26 ; python_version > '3.10'\n"
        "tiny==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"
        "mine @ git+ssh://git@example.com/mine.git#egg=mine\n"
    )
    assert requirement_lines(file) == [
        "einops==0.8.0",
        "numpy>=1.26 ; python_version > '3.10'",
        "tiny==1 --hash=sha256:00 --hash=sha256:11",
        "mine @ git+ssh://git@example.com/mine.git#egg=mine",
    ]


@pytest.mark.parametrize("line", ["-r base.txt", "--index-url https://a", "-e ."])
def test_an_option_in_a_requirements_file_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"einops\n{line}\n")
    with pytest.raises(RunError, match=rf": {line.split()[0]} is an option of pip; .*training.env"):
        requirement_lines(file)


@pytest.mark.parametrize(
    "line",
    [
        "--extra-index-url https://me:hunter2@pypi.example.com",
        "--index-url=https://me:hunter2@pypi.example.com",
        "-ihttps://me:hunter2@pypi.example.com",
    ],
    ids=["space", "equals sign", "short"],
)
def test_a_password_in_an_option_is_not_printed(tmp_path: Path, line: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(line)
    with pytest.raises(RunError, match=r": (--[a-z-]+|-i) is an option of pip; ") as refused:
        requirement_lines(file)
    assert "me:" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


RUN = """
apiVersion: trainingrun.dev/v1alpha1
kind: TrainingRun
metadata: {name: mine, namespace: team-b}
spec:
  training: {function: "train:main"}
  storage: {uri: "s3://runs/demo"}
"""
SHARED = """
  podTemplate:
    spec:
      volumes: [{name: d, persistentVolumeClaim: {claimName: d}}]
      containers:
      - {name: ray-head, volumeMounts: [{name: d, mountPath: /data}]}
      - {name: ray-worker, volumeMounts: [{name: d, mountPath: /data}]}
"""
CONFIG_MAP = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: other}\n---"


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        pytest.param(
            RUN, ["--namespace", "team-a"], "metadata.namespace is team-b, and", id="two namespaces"
        ),
        pytest.param(
            CONFIG_MAP.replace("ConfigMap", "Secret") + RUN,
            [],
            "holds Secret other as well, and submit applies TrainingRuns and ConfigMaps alone",
            id="another object",
        ),
        pytest.param(
            RUN.replace("s3://runs/demo", "file:///data"),
            [],
            "spec.storage.uri is \"file:///data\": is a folder of each pod by itself",
            id="a folder of each pod",
        ),
        pytest.param(
            RUN.replace("s3://runs/demo", "file:///data") + SHARED,
            ["--code", "."],
            "storage.uri is file:///data, a folder of the pods",
            id="no bucket",
        ),
        pytest.param(
            RUN.replace("function: ", "fun: "), [], "spec.training.fun is not a field", id="invalid"
        ),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_submitted_is_refused_before_the_cluster_is_asked(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(folder)
    (folder / "run.yaml").write_text(text)
    result = CliRunner().invoke(app, ["submit", "run.yaml", *options])
    assert result.exit_code == 1
    assert sentence in result.stderr


def test_a_name_that_is_not_utf_8_is_refused_in_a_sentence(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.py")).touch()
    with pytest.raises(RunError, match=r"caf\\xe9\.py is not UTF-8"):
        pack(folder)


def test_a_mark_at_the_beginning_of_the_requirements_is_none_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_bytes("einops==0.8.0\n".encode("utf-8-sig"))
    assert requirement_lines(file) == ["einops==0.8.0"]
