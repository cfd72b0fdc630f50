"""The exit code of a driver, by which the operator decides, whatever the training code has done."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainingrun_protocol.contract import CONTRACT_ENV, PROGRESS_FILE, ContractStorage, RunContract
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE
from trainingrun_protocol.progress import RunState
from trainingrun_runtime.driver import driver
from trainingrun_runtime.progress import document
from trainingrun_runtime.state_directory import STATE_DIRECTORY_ENV

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


def test_a_contract_of_another_version_fails_the_attempt_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of an operator that is newer than the image: one document says what is wrong."""
    storage = ContractStorage(uri="s3://runs/digits")
    contract = RunContract(name="a", namespace="b", uid="0", attempt=3, storage=storage).to_dict()
    monkeypatch.setenv(CONTRACT_ENV, json.dumps({**contract, "hang": {"action": "Migrate"}}))
    monkeypatch.setenv(STATE_DIRECTORY_ENV, str(tmp_path))
    assert driver.main(pytest.fail) == FAILED_EXIT_CODE
    found = document.read(tmp_path / PROGRESS_FILE)
    assert found is not None
    assert found.failure is not None
    assert (found.attempt, found.state) == (3, RunState.FAILED)
    assert (found.failure.kind, found.failure.retry) == ("Application", "UnlessRepeated")
    assert found.failure.message.startswith("this image cannot use hang.action as the operator")
