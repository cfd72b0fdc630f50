"""What a script's own end is told as: the cause first, and only what can be done."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from support.processes import wait_for
from trainingrun_protocol.contract import CONFIG_ENV
from trainingrun_runtime.driver import script


@pytest.fixture(autouse=True)
def the_process_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_ENV, "{}")
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "_exit", os._exit)


def run(folder: Path, code: str, *arguments: str) -> None:
    (folder / "train.py").write_text(code)
    script.run(str(folder / "train.py"), arguments, {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: --data"),
        (["--data", "x", "--epochs", "ten"], "argument --epochs: invalid int value: 'ten'"),
        (["--data", "x", "--lr", "1"], "unrecognized arguments: --lr 1"),
    ],
)
def test_arguments_that_the_script_refuses_are_named_with_the_field_that_has_them(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    code = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--epochs", type=int)
parser.parse_args()
"""
    with pytest.raises(script.ArgumentsRefused) as raised:
        run(tmp_path, code, *arguments)
    assert str(raised.value) == (
        f"the script refuses its arguments: {said}; correct training.script.args"
    )


def test_an_exit_code_of_2_alone_is_not_taken_for_refused_arguments(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, "raise SystemExit(2)")


@pytest.mark.parametrize(
    ("has_checkpoint", "said"),
    [
        (True, "; correct the script, or read the weights of the last checkpoint"),
        (False, " and has saved no checkpoint; correct the script, and pass a checkpoint"),
        (None, "; correct the script"),
    ],
)
def test_weights_are_recommended_only_where_there_are_some(
    has_checkpoint: bool | None, said: str
) -> None:
    sentence = script.FailedAfterTraining(IndexError("x" * 1000)).sentence(has_checkpoint)
    assert sentence.startswith("IndexError: xxx")
    assert f"after the training, which is done{said}" in sentence
    assert ("read the weights" in sentence) is bool(has_checkpoint)
    assert len(sentence) <= 500


UPLOADS = """
import sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
def upload(name):
    time.sleep(0.3)
    Path(__file__).with_name(name).touch()
threads, processes = ThreadPoolExecutor(1), ProcessPoolExecutor(1)
for name in ("first", "second"):
    threads.submit(upload, name)
processes.submit(time.sleep, 0.01)
threading.Thread(target=upload, args=("third",)).start()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


@pytest.mark.parametrize("end", ["", "sys.exit()"])
def test_a_script_is_done_once_its_threads_are_as_with_python_itself(
    tmp_path: Path, end: str
) -> None:
    """Such as an upload of the weights after `fit()`; pools that wait for more end with Python."""
    with suppress(SystemExit):
        run(tmp_path, UPLOADS + end)
    assert {file.name for file in tmp_path.iterdir()} == {"train.py", "first", "second", "third"}


@pytest.mark.parametrize("end", ["import os; os._exit(0)", "sys.exit(3)", "1 / 0"])
def test_nothing_is_waited_for_where_a_script_ends_at_once_or_fails(
    tmp_path: Path, end: str
) -> None:
    with pytest.raises((SystemExit, ZeroDivisionError)):
        run(tmp_path, f"{UPLOADS}\n{end}")
    assert not (tmp_path / "second").exists()
    wait_for(lambda: (tmp_path / "second").exists() and (tmp_path / "third").exists())


def test_threads_that_the_driver_had_before_are_none_of_the_script(tmp_path: Path) -> None:
    ended = threading.Event()
    threading.Thread(target=ended.wait).start()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ended.wait)
        try:
            run(tmp_path, "pass")
        finally:
            ended.set()
