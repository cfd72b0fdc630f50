"""A local run knows before Ray starts whether this machine has what its file names."""

import sys
from pathlib import Path

import pytest
import yaml

from support.builders import a_run
from support.cli_server import call
from trainingrun.local import LocalError, machine, user_module
from trainingrun.local.folder import Folder


def a_file(folder: Path, function: str = "mytrain:train", **training: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "mine"},
        "spec": {
            "training": {"function": function, **training},
            "storage": {"uri": "s3://runs/demo"},
        },
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(manifest))
    return file


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which is not that of the run's file."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def located(folder: Path, function: str) -> str | None:
    return user_module.locate(a_run(training={"function": function}), [str(folder)])


def refusal(folder: Path, function: str) -> str:
    with pytest.raises(LocalError) as raised:
        located(folder, function)
    return str(raised.value)


def test_a_module_that_is_nowhere_is_said_before_anything_is_started(
    tmp_path: Path, elsewhere: Path
) -> None:
    file = a_file(tmp_path / "job")
    code, output, errors = call("run", str(file), "--local")
    assert (code, output) == (1, "")
    assert errors.startswith(
        "training.function is mytrain:train, and there is no module mytrain in "
        f"{elsewhere}, {tmp_path / 'job'} or among the packages of "
    )
    assert "the image" not in errors
    assert list(elsewhere.iterdir()) == []


def test_the_module_beside_the_file_is_found_and_it_is_said_where(tmp_path: Path) -> None:
    (tmp_path / "mytrain.py").write_text("raise SystemExit('it is not imported here')\ntrain = 1")
    places = machine.search_paths(None, {}, {}, tmp_path)["PYTHONPATH"].split(":")
    run = a_run(training={"function": "mytrain:train"})
    assert user_module.locate(run, places) == (
        f"training.function mytrain:train is that of {tmp_path / 'mytrain.py'}"
    )


def test_a_package_is_read_and_not_run(tmp_path: Path) -> None:
    package = tmp_path / "mine" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("raise SystemExit('it is not imported here')")
    (package / "loop.py").write_text("async def train(config): ...\n")
    assert str(package / "loop.py") in str(located(tmp_path, "mine.inner.loop:train"))
    assert "there is no module mine.other.loop" in refusal(tmp_path, "mine.other.loop:train")
    assert "mine" not in sys.modules


def test_a_name_that_nothing_in_the_module_binds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mytrain.py").write_text("def trian(config): ...\n")
    assert refusal(tmp_path, "mytrain:train").endswith("mytrain.py has no train; correct the name")


@pytest.mark.parametrize(
    "text",
    [
        "from other import train",
        "from other import *",
        "from other import loop as train",
        "if True:\n    train = print",
        "globals()['tr' + 'ain'] = print",
        "def __getattr__(name): return print",
        "import sys\nsetattr(sys.modules[__name__], 'tr' + 'ain', print)",
    ],
)
def test_a_name_that_the_module_may_get_otherwise_is_left_to_the_ranks(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "mytrain.py").write_text(text)
    assert located(tmp_path, "mytrain:train") is not None


def test_what_is_no_python_is_said_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mytrain.py").write_text("\ndef train(config:\n")
    said = refusal(tmp_path, "mytrain:train")
    assert f"{tmp_path / 'mytrain.py'} is no Python in line 2" in said
    with pytest.raises(LocalError, match="is no Python in line 2"):
        user_module.check_script(tmp_path / "mytrain.py")


@pytest.mark.parametrize("function", ["trainingrun_runtime.examples.linear:train", "json:dumps"])
def test_a_module_that_is_installed_is_found(tmp_path: Path, function: str) -> None:
    located(tmp_path, function)


def test_what_code_and_requirements_bring_is_not_looked_for_here(tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    archive.touch()
    for training in ({"code": {"uri": archive.as_uri()}}, {"requirements": ["mytrain"]}):
        run = a_run(training={"function": "mytrain:train", **training})
        assert user_module.locate(run, [str(tmp_path)]) is None


def test_code_of_this_machine_that_is_not_there_is_refused(tmp_path: Path) -> None:
    uri = (tmp_path / "code.zip").as_uri()
    run = a_run(training={"function": "mytrain:train", "code": {"uri": uri}})
    with pytest.raises(LocalError, match=r"training\.code\.uri is file:"):
        user_module.locate(run, [])


def test_a_run_of_this_machine_to_begin_from_has_to_be_there(tmp_path: Path) -> None:
    storage = {"uri": "s3://runs/demo", "restoreFrom": {"uri": (tmp_path / "gone").as_uri()}}
    run = a_run(storage=storage)
    folder = Folder.prepare(run, tmp_path / "f", False)
    with pytest.raises(LocalError, match=r"storage\.restoreFrom\.uri is file:"):
        folder.restore_from(run.spec.storage)


@pytest.mark.parametrize(
    ("sentence", "meant"),
    [
        ("use an image that has it", f"the image is this Python, {sys.prefix}"),
        ("raise workers.resources.memory", "this machine has "),
        ("give the pods more ephemeral storage", "free space below /tmp"),
        ("name a Secret in storage.credentialsSecret", "those of this shell's environment"),
        ("raise workers.resources.sharedMemory", "/dev/shm is that of this machine"),
        ("use a Service instead of localhost, which is the pod itself", "no pods: localhost"),
    ],
)
def test_what_a_sentence_for_pods_means_here_is_said(sentence: str, meant: str) -> None:
    assert any(meant in said for said in machine.in_local_words(sentence))


def test_of_a_sentence_about_the_code_nothing_is_said() -> None:
    assert machine.in_local_words("rank 0 raised ValueError: imagery (train.py:3)") == []
