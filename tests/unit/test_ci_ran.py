"""The summary of .ci/run: which tests ran, and that a run without them is no success."""

import subprocess
import sys
from pathlib import Path

import pytest

RAN = Path(__file__).parents[2] / ".ci" / "ran.py"


def ran(folder: Path, cases: str, path: str = "tests") -> subprocess.CompletedProcess[str]:
    """What ran.py says of a folder with the files test_a.py and test_b.py, or of one of them."""
    tests = folder / "tests"
    tests.mkdir()
    for name in ("test_a.py", "test_b.py", "support.py"):
        (tests / name).touch()
    (folder / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    command = [sys.executable, str(RAN), "report.xml", path]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def case(file: str, inside: str = "") -> str:
    return f'<testcase file="tests/{file}" name="t">{inside}</testcase>'


def test_each_file_is_counted(tmp_path: Path):
    said = ran(tmp_path, case("test_a.py") * 2 + case("test_b.py"))
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == [
        "    2 ran of tests/test_a.py",
        "    1 ran of tests/test_b.py",
    ]


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        pytest.param(
            case("test_a.py"), "no test ran of tests/test_b.py", id="one file did not run"
        ),
        pytest.param("", "no test ran of tests/test_a.py, tests/test_b.py", id="no file ran"),
        pytest.param(
            case("test_a.py") + case("test_b.py", "<skipped/>"),
            "skipped, where each must run: t",
            id="one file skipped",
        ),
    ],
)
def test_a_file_that_did_not_run_fails_it(tmp_path: Path, cases: str, says: str):
    said = ran(tmp_path, cases)
    assert said.returncode == 1
    assert says in said.stderr


def test_a_file_is_counted_alone(tmp_path: Path):
    said = ran(tmp_path, case("test_a.py"), "tests/test_a.py")
    assert (said.returncode, said.stdout) == (0, "    1 ran of tests/test_a.py\n"), said.stderr


def test_no_report_fails_it(tmp_path: Path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").touch()
    command = [sys.executable, str(RAN), "report.xml", "tests"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "no test ran of tests/test_a.py" in said.stderr
