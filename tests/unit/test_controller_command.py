"""The operator as a command, where there is nothing for it to do: one sentence, or its settings."""

import os
import subprocess
import sys
from pathlib import Path

from trainingrun.controller.settings import variables

ROOT = Path(__file__).parents[2]


def operator(*arguments: str, home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "trainingrun.controller", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "operator"), "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_cluster_it_says_what_to_do(tmp_path: Path):
    done = operator(home=tmp_path)
    assert done.returncode == 2
    assert "no cluster is configured" in done.stderr
    assert "set KUBECONFIG" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_help_names_every_setting(tmp_path: Path):
    said = operator("--help", home=tmp_path).stdout
    assert "TRAININGRUN_OPERATOR_LEASE_STALE_S=15.0" in said
    assert [name for name in variables() if f"  {name}=" not in said] == []
