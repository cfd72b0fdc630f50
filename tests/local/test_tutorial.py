"""The tutorial's part on a laptop does what it says, as it stands there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LAPTOP = (ROOT / "docs" / "tutorial.md").read_text().partition("\n## In a cluster")[0]
CODE = re.findall(r"^```\w+\n(.*?)^```", LAPTOP, re.MULTILINE | re.DOTALL)
COMMANDS = [
    shlex.split(found, comments=True)
    for found in re.findall(r"^ {4}(trainingrun .*)", LAPTOP, re.M)
]


def test_each_command_of_the_laptop_does_what_the_page_says(tmp_path: Path) -> None:
    for name, text in zip(("mytrain.py", "run.yaml"), CODE, strict=True):
        (tmp_path / name).write_text(text)
    said = []
    for command in COMMANDS:
        program = Path(sys.executable).with_name(command[0])
        ended = subprocess.run(
            [program, *command[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == 0, f"{command}: {ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
        said.append(ended.stdout + ended.stderr)
    run, get, metrics, checkpoints, _ = said
    assert "preempted at step" in run
    assert "; 0 steps lost" in run
    assert "Succeeded" in get
    assert re.search(r"\b1000\b", metrics)
    assert re.search(r"\b1000\b", checkpoints)
    assert list(tmp_path.glob("tutorial-*.html"))
