"""A claim on a real NFS server, mounted by two nodes: Linux's own server and client."""

import sys
from pathlib import Path

import pytest

from support.binaries import skipping_unavailable
from support.processes import ROOT
from support.user_mode_linux import run_on_nfs

pytestmark = pytest.mark.slow

MOUNTED = "/mnt/claims/runs/tests"


@pytest.mark.parametrize("version", ["4.2", "3"])
@pytest.mark.parametrize(
    "tests",
    [
        ["tests/stores/two_nodes.py"],
        ["tests/stores/test_contract.py", "-k", "claim and not 2500"],  # which takes five minutes
        ["tests/local/test_claims.py"],
    ],
    ids=["two nodes", "contract", "claims"],
)
def test_a_claim_on_nfs_holds_what_one_on_a_disk_does(
    version: str, tests: list[str], tmp_path: Path
) -> None:
    pytest_here = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", f"{ROOT}"]
    command = [*pytest_here, f"--basetemp={MOUNTED}", "--config-file", f"{ROOT}/pyproject.toml"]
    paths = [f"{ROOT / each}" if each.startswith("tests/") else each for each in tests]
    with skipping_unavailable(wanted=True):
        code, printed = run_on_nfs(version, [*command, *paths], tmp_path)
    assert code == 0, printed
