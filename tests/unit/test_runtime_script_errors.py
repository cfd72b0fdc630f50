"""What a script's own end is told as: the cause first, and only what can be done."""

import os
import sys
from pathlib import Path

import pytest

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
