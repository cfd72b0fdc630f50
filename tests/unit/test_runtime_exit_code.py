"""The exit code of a driver, by which the operator decides, whatever the training code has done."""

import os
import subprocess
import sys

import pytest

UNUSABLE = """
import logging, runpy, sys
from trainingrun_runtime.progress import document
from trainingrun_runtime.ray_internals import expected

def refuse():
    raise expected.UnknownRay("of another version")

def report(_sentence):
    {done}
    return 7

expected.check_version, document.report_unusable_image = refuse, report
runpy.run_module("trainingrun_runtime", run_name="__main__")
"""


@pytest.mark.parametrize(
    "done",
    [
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = None",
        "sys.stderr = object()",
        "del sys.stdout",
        "handler = logging.StreamHandler(); logging.root.addHandler(handler); handler.close = None",
    ],
)
def test_what_training_code_does_to_its_output_does_not_change_the_exit_code(done: str) -> None:
    command = [sys.executable, "-c", UNUSABLE.format(done=done)]
    assert subprocess.run(command, capture_output=True).returncode == 7


def test_what_was_printed_before_the_end_is_not_lost() -> None:
    command = [sys.executable, "-c", UNUSABLE.format(done="print('last', end='')")]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # of whoever runs the tests
    assert subprocess.run(command, capture_output=True, env=environment).stdout == b"last"
